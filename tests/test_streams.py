"""`labkit.overlap`, and the two functions of lab 03 that it times: their events are enough in every order of two streams."""

import contextlib
import random
import types

import pytest
import torch

import labkit
from labkit import sources, streams


# ---- the lab's functions, on streams that are simulated: each is a queue, and either may run ahead as far as events allow ----

class Stream:
    def __init__(self):
        self.queue = []  # functions, and events to wait for

    def wait_stream(self, other):
        self.wait_event(other.record_event())

    def wait_event(self, event):
        self.queue.append(event)

    def record_event(self):
        event = types.SimpleNamespace(passed=False)
        self.queue.append(lambda: setattr(event, "passed", True))
        return event


def simulate(variant, chunks, chooses):
    """What each computation finds in its buffer, where `chooses(ready)` picks the stream that goes on."""
    made, current, found = [Stream()], [0], []

    @contextlib.contextmanager
    def stream(which):
        current.append(made.index(which))
        yield
        current.pop()

    def new_stream():
        made.append(Stream())
        return made[-1]

    class Buffer:
        holds = None

        def copy_(self, chunk, non_blocking):
            made[current[-1]].queue.append(lambda: setattr(self, "holds", chunk))

    def work(buffer):
        made[current[-1]].queue.append(lambda: found.append(buffer.holds))

    cuda = types.SimpleNamespace(current_stream=lambda: made[current[-1]], Stream=new_stream, stream=stream)
    scope = {"torch": types.SimpleNamespace(cuda=cuda)}
    exec(variant, scope)
    function = next(value for name, value in scope.items() if name in ("in_turn", "overlapped"))
    function(chunks, [Buffer(), Buffer()], work, lambda what, chunk: contextlib.nullcontext())
    while any(one.queue for one in made):
        ready = [one for one in made if one.queue and getattr(one.queue[0], "passed", True)]
        assert ready, "each stream waits for the other"
        step = chooses(ready).queue.pop(0)
        if callable(step):
            step()
    return found


ORDERS = [lambda ready: ready[0], lambda ready: ready[-1], *(random.Random(seed).choice for seed in range(20))]


def functions_of_the_lab():
    cell = next(cell for cell in sources.code_cells(sources.notebook("03_memory_hierarchy")) if "def in_turn" in cell)
    in_turn, overlapped = cell.split("\n\n\n")[:2]
    return {"in_turn": in_turn, "overlapped": overlapped}


@pytest.mark.parametrize("name", ["in_turn", "overlapped"])
@pytest.mark.parametrize("count", [0, 1, 2, 3, 8])
def test_each_computation_finds_its_chunk(name, count):
    for chooses in ORDERS:
        assert simulate(functions_of_the_lab()[name], list(range(count)), chooses) == list(range(count))


@pytest.mark.parametrize("wait", ["copying.wait_event(used[b])", "computing.wait_event(filled)"])
def test_neither_wait_can_be_left_out(wait):
    code = functions_of_the_lab()["overlapped"]
    assert code.count(wait) == 1
    results = [simulate(code.replace(wait, "pass"), list(range(8)), chooses) for chooses in ORDERS]
    assert any(found != list(range(8)) for found in results)


# ---- what surrounds them ----

def job():
    chunks = [torch.full((4,), float(i)) for i in range(5)]
    return streams.Job(chunks, [torch.empty(4), torch.empty(4)], lambda x: 2 * x)


def in_turn(chunks, buffers, work, span):
    for i, chunk in enumerate(chunks):
        with span("copy", i):
            buffers[0].copy_(chunk)
        with span("compute", i):
            work(buffers[0])


def test_a_job_sums_what_each_computation_gives():
    spans = []

    def span(what, chunk):
        spans.append((what, chunk))
        return contextlib.nullcontext()

    assert job().run(in_turn, 3, span).tolist() == [0, 8, 16, 24, 32]
    assert spans[:3] == [("copy", 0), ("compute", 0), ("copy", 1)]


def test_a_chunk_that_is_left_out_is_no_number():
    sums = job().run(lambda chunks, *rest: in_turn(chunks[1:], *rest), 1, streams._no_span)
    assert sums[:4].tolist() == [8, 16, 24, 32] and sums[4].isnan()


def test_one_computation_too_many_is_refused():
    with pytest.raises(ValueError, match="computes more often than there are chunks, 5"):
        job().run(lambda chunks, *rest: in_turn([*chunks, chunks[0]], *rest), 1, streams._no_span)


def test_lanes_hold_the_spans_of_one_kind():
    lanes = streams.lanes_of("in turn", [("copy", 0, 0.0, 1.0), ("compute", 0, 1.0, 1.5), ("copy", 1, 1.5, 2.5)])
    assert [(lane["group"], lane["name"], [span["label"] for span in lane["spans"]]) for lane in lanes] == [
        ("in turn", "copy", ["0", "1"]), ("in turn", "compute", ["0"])]
    assert lanes[1]["spans"] == [{"label": "0", "start": 1.0, "end": 1.5, "color": 1}]


def test_without_a_gpu_nothing_is_called(session, monkeypatch, capsys):
    monkeypatch.setattr(streams.machine, "backend", lambda: "host")
    assert labkit.overlap("overlap", {"never": None}, None, title="Copies") == [] and not session().tables
    assert "there is no GPU here, and nothing is recorded" in capsys.readouterr().out


@pytest.fixture
def small(monkeypatch):
    monkeypatch.setattr(streams, "ROUNDS", 3)
    monkeypatch.setattr(streams, "RATIOS", (0.5, 2.0))


@pytest.mark.gpu
def test_the_labs_functions_are_right_and_overlapping_is_faster(session, small):
    scope = {"torch": torch}
    for code in functions_of_the_lab().values():
        exec(code, scope)
    variants = {"in turn": scope["in_turn"], "overlapped": scope["overlapped"]}
    rows = {row["what"]: row for row in labkit.overlap("overlap", variants, torch.nn.functional.gelu, title="Copies")}
    assert rows["overlapped"]["ms"] < 0.85 * rows["in turn"]["ms"]
    assert rows["in turn, memory not page-locked"]["ms"] > rows["in turn"]["ms"]
    assert set(session().tables) == {"overlap", "overlap_timeline", "overlap_ratios"}


@pytest.mark.gpu
@pytest.mark.parametrize("wait", ["copying.wait_event(used[b])", "computing.wait_event(filled)"])
def test_a_missing_wait_is_found_on_the_gpu(wait, session, small):
    scope = {"torch": torch}
    exec(functions_of_the_lab()["overlapped"].replace(wait, "pass"), scope)
    with pytest.raises(AssertionError, match="computed with other contents of the buffer than chunk"):
        labkit.overlap("overlap", {"overlapped": scope["overlapped"]}, torch.nn.functional.gelu, title="Copies")
