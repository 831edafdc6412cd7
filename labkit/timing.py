"""Timing on the GPU, done so that the figures can be trusted.

What goes wrong when GPU code is timed, and what `bench` does about each:

- *Compilation in the first call.* Every variant is called before anything is timed.
- *Slow clocks at the start.* The warm-up keeps the GPU at work for half a second before the first round.
- *A clock, a neighbour or a temperature that drifts.* Variants take turns, in a new order every round, so
  that a drift meets them all alike; the median is reported with the 10th and 90th percentile.
- *Inputs that still lie in the L2 cache.* A buffer of twice the L2 is written before every timed call, and
  input sets take turns.
- *Waiting for Python.* Calls are queued without a synchronisation between them, behind a stretch of other
  work, so that the GPU never idles while Python prepares the next launch. Where that fails, it is seen: the
  event before the call has passed when the call returns. A variant that this befalls in more than half of its
  rounds is marked `host_bound`, since its figure is the host's, not the kernel's.
- *Allocation.* No output outlives its call, so that after the warm-up PyTorch's allocator hands out the same
  memory again without asking the driver.
- *A fast wrong answer.* The outputs of the last timed round are compared with a float64 reference. A wrong
  one raises, and no figure is shown.
- *A CPU's time taken for a GPU's.* Without a GPU no variant is called; the recorded figures are shown, with
  the name of their GPU.
"""

from __future__ import annotations

import dataclasses
import random
import statistics
import time
import traceback
from collections.abc import Callable, Sequence

from labkit import machine, poison, results
from labkit.arguments import count, named
from labkit.output_errors import max_error
from labkit.report import NO_GPU, here, note_recorded, say_absent, show_table

WARM_UP_CALLS = 3
WARM_UP_SECONDS = 0.5
LEAD_IN_FLUSHES = 32  # about a millisecond of work: the host's head start at the beginning of a round
INPUT_SETS = 4
STARVED = 0.5
PARTS = 1, 2, 4, 8, 16, 32  # of the rows, where memory is short


@dataclasses.dataclass(frozen=True)
class Row:
    """One variant's figures. Times in microseconds; `gbps` in 1e9 bytes a second; shares as parts of 1."""

    name: str
    median_us: float
    low_us: float  # 10th percentile
    high_us: float  # 90th percentile
    gbps: float | None
    of_limit: float | None  # the limit's median over this one's
    host_bound: bool
    max_error: float | None  # largest absolute difference from the reference; None where not compared


class Table:
    """What `bench` found: `.rows`, and each row by name, as in `table["copy"].median_us`.

    `measured` is False where the rows were recorded earlier, on another machine; `caption` says which it is.
    `rows` is empty where there is neither a GPU nor a record.
    """

    def __init__(self, record: dict | None, caption: str, measured: bool):
        self.record, self.caption, self.measured = record, caption, measured
        self.rows = [Row(**row) for row in record["rows"]] if record else []

    def __getitem__(self, name: str) -> Row:
        for row in self.rows:
            if row.name == name:
                return row
        raise KeyError(f"no variant {name!r}; there are {[row.name for row in self.rows]}")

    def __repr__(self) -> str:
        return f"<labkit.timing.Table: {len(self.rows)} variants. {self.caption}>"


@poison.told
def bench(name: str, variants: dict[str, Callable], inputs: Callable[[], Sequence], bytes: int | None,
          limit: str | None = None, reference: Callable | None = None,
          tolerance: tuple[float, float] | None = None, rounds: int = 30, title: str | None = None,
          rowwise: bool = True) -> Table:
    """Time `variants` against one another on this machine's GPU; show, keep and return the figures.

    name       what the table is called in results/ and in the book, such as "forward"
    variants   {label: function}; each is called with the tensors of one input set, and returns a tensor or a
               tuple of tensors
    inputs     called without arguments for each input set: a tuple of tensors on the GPU, fresh every time
    bytes      what one call must move at the least, in bytes; every variant's GB/s are computed from it. None
               where the variants move nothing, or not the same
    limit      the label of the variant that the others are held against, such as a copy of as many bytes; it
               computes something else, so its output is not compared with the reference
    reference  called with the inputs, returns the right output in float64 (a tensor, or a tuple where the
               variants return one). It is given slices along dimension 0 of the inputs that have as many
               dimensions as the first one and its length, and the others whole; where an output is not of
               that kind, as a sum over rows, or `rowwise` is False, it is given everything at once.
    tolerance  (relative, absolute): |output - reference| <= absolute + relative * |reference|, everywhere
    rounds     timed calls a variant
    rowwise    whether a row of an output depends on the same row of the inputs alone; a transpose's does not, nor a
               stencil's

    Where the GPU's free memory is too little for that, all is done with the first half of the rows of the inputs, or
    a quarter, and so on; the title says so. The rows are those of the tensors that a reference is given slices of.

    Raises WrongResult when an output is not within the tolerance (a NaN never is), and ValueError for
    arguments that do not fit together; nothing is then shown or kept. Without a GPU no variant is called, and where
    no part of the rows fits none is timed: the recorded figures are shown, labelled with the GPU that they come from.
    """
    named("bench", "variants", variants)
    if not callable(inputs):
        raise TypeError(f"bench: inputs is a {type(inputs).__name__}; it has to be a function that makes them anew")
    if limit is not None and limit not in variants:
        raise ValueError(f"bench: limit {limit!r} is none of the variants {list(variants)}")
    if (reference is None) != (tolerance is None):
        raise ValueError("bench: reference and tolerance go together; pass both, as in "
                         "reference=f, tolerance=(1e-2, 1e-3), or neither")
    count("bench", "rounds", rounds, least=2)
    if bytes is not None:
        count("bench", "bytes", bytes, least=1)
    record, why = None, NO_GPU
    if machine.backend() == "cuda":
        why = "the GPU's free memory does not suffice"
        record = _timed_as_memory_allows(variants, inputs, bytes, limit, reference, tolerance, rounds, title or name, rowwise)
    if record is None:
        table = _recorded_table(name, why)
    else:
        results.add(name, record)
        results.note("measured", name, f"{len(variants)} variants, {rounds} rounds")
        table = Table(record, f"Measured on {here()}", measured=True)
    if table.rows:
        show_table(table.record, table.caption, figure=True)
        if not table.measured:
            say_absent(table.record, variants)
    else:
        print(table.caption + ".")
    return table


# -- on a GPU -----------------------------------------------------------------------------------------------

class Gpu:
    """The few things that timing asks of CUDA; the tests put a simulated GPU in its place."""

    def __init__(self):
        import torch

        self.cuda = torch.cuda
        l2_bytes = torch.cuda.get_device_properties(machine.device()).L2_cache_size
        self.scratch = torch.empty(2 * l2_bytes, dtype=torch.uint8, device=machine.device())

    def flush_l2(self):
        self.scratch.zero_()

    def mark(self):
        event = self.cuda.Event(enable_timing=True)
        event.record()
        return event

    def passed(self, event) -> bool:
        return event.query()

    def microseconds(self, start, stop) -> float:
        return start.elapsed_time(stop) * 1e3

    def synchronize(self):
        self.cuda.synchronize()

    def free_bytes(self) -> int:
        return self.cuda.mem_get_info()[0]

    def now(self) -> float:
        return time.perf_counter()


@dataclasses.dataclass
class _Samples:
    """What the rounds gave for one variant."""

    microseconds: list[float] = dataclasses.field(default_factory=list)
    starved: int = 0
    max_error: float | None = None


def _timed_as_memory_allows(variants, inputs, bytes, limit, reference, tolerance, rounds, title, rowwise) -> dict | None:
    """The record of `timed`, with all rows or a part of them; None where no part fits into the memory that is free."""
    from labkit import room  # it imports torch, which showing what is recorded does without

    try:
        for part in PARTS:
            record = room.unless_memory_is_short(lambda: timed(
                variants, lambda: room.first_rows(inputs(), part), bytes and bytes // part, limit, reference, tolerance, rounds,
                title if part == 1 else f"{title}, 1/{part} of the rows", rowwise))
            if record or part == PARTS[-1]:
                return record
            print(f"{title}: the GPU's memory is short ({room.left()}); on to 1/{2 * part} of the rows.")
    except BaseException as error:
        # A notebook keeps the last traceback, Ctrl-C's too: what its frames hold would be missing the next time.
        traceback.clear_frames(error.__traceback__)
        raise


def timed(variants: dict[str, Callable], inputs: Callable[[], Sequence], bytes: int | None, limit: str | None,
          reference: Callable | None, tolerance: tuple[float, float] | None, rounds: int, title: str,
          rowwise: bool = True) -> dict:
    """Times the variants on this machine's GPU as `bench` does, with its arguments; nothing is shown or kept.

    Returns the record of kind "bench". Raises WrongResult when an output is not within the tolerance.
    """
    gpu = Gpu()
    sets = _input_sets(inputs, 2 * machine.gpu()["l2_mib"] * 2**20, gpu.free_bytes)
    check = None
    if reference is not None:
        def check(variant, tensors, output):
            return None if variant == limit else max_error(variant, reference, tensors, output, *tolerance, rowwise)
    samples = measure(variants, sets, gpu, rounds, check)
    first = sets[0][0]
    return {"kind": "bench", "title": title, "size": list(first.shape), "dtype": str(first.dtype).removeprefix("torch."),
            "bytes": bytes, "rounds": rounds, "limit": limit, "rows": summarise(samples, bytes, limit)}


def _input_sets(inputs, enough_bytes: float, free_bytes: Callable[[], int]) -> list[tuple]:
    """Two input sets, or up to INPUT_SETS until they exceed `enough_bytes`; fewer where memory is short."""
    sets = [tuple(inputs())]
    one = sum(tensor.nbytes for tensor in sets[0] if hasattr(tensor, "nbytes"))
    wanted = min(INPUT_SETS, max(2, 1 + int(enough_bytes // max(one, 1))))
    # Half of what is free stays free for the outputs.
    while len(sets) < wanted and one < free_bytes() / 2:
        sets.append(tuple(inputs()))
    return sets


def measure(variants: dict[str, Callable], sets: list[tuple], gpu, rounds: int,
            check: Callable | None = None, seed: int = 0) -> dict[str, _Samples]:
    """Warm up, then time every variant once a round in a shuffled order; the last outputs are checked.

    `check(variant, inputs, output)` returns the largest error, or raises. `gpu` is a `Gpu` or acts like one.
    """
    _warm_up(variants, sets, gpu)
    shuffle = random.Random(seed).shuffle
    samples = {name: _Samples() for name in variants}
    order = list(variants)
    for turn in range(rounds):
        shuffle(order)
        last = turn == rounds - 1
        pending = []
        for place, name in enumerate(order):
            if place == 0 or last:
                lead_in(gpu)
            tensors = sets[(turn + place) % len(sets)]
            gpu.flush_l2()
            start = gpu.mark()
            output = variants[name](*tensors)
            # Passed already: the GPU had nothing to do while Python was still in the call.
            samples[name].starved += gpu.passed(start)
            pending.append((name, start, gpu.mark()))
            if last and check:
                # Checked one by one: the outputs of all variants may not fit into memory together. The
                # lead-in above hides the pause from the next call.
                samples[name].max_error = check(name, tensors, output)
            del output
        gpu.synchronize()
        for name, start, stop in pending:
            samples[name].microseconds.append(gpu.microseconds(start, stop))
    return samples


def _warm_up(variants, sets, gpu) -> None:
    """Call each variant WARM_UP_CALLS times and on every input set, and on until WARM_UP_SECONDS are over."""
    begin, calls = gpu.now(), 0
    while calls < max(WARM_UP_CALLS, len(sets)) or gpu.now() - begin < WARM_UP_SECONDS:
        for call in variants.values():
            gpu.flush_l2()
            call(*sets[calls % len(sets)])
        gpu.synchronize()
        calls += 1


def lead_in(gpu) -> None:
    for _ in range(LEAD_IN_FLUSHES):
        gpu.flush_l2()


def summarise(samples: dict[str, _Samples], bytes: int | None, limit: str | None) -> list[dict]:
    """The rows of the table, as results/schema.json describes them, in the order of the variants."""
    medians = {name: statistics.median(one.microseconds) for name, one in samples.items()}
    rows = []
    for name, one in samples.items():
        tenths = statistics.quantiles(one.microseconds, n=10, method="inclusive")
        rows.append({
            "name": name, "median_us": medians[name], "low_us": tenths[0], "high_us": tenths[-1],
            "gbps": bytes / medians[name] / 1e3 if bytes else None,
            "of_limit": medians[limit] / medians[name] if limit else None,
            "host_bound": one.starved > STARVED * len(one.microseconds),
            "max_error": one.max_error})
    return rows


# -- without a GPU, and on the screen -----------------------------------------------------------------------

def _recorded_table(name: str, why: str) -> Table:
    lab = results.session().lab
    if lab is None:
        raise ValueError(f"bench: {why}, and no lab was started whose recorded figures could be shown; call "
                         "labkit.start(\"NN_topic\") first")
    found = results.recorded(lab, name)
    if found is None:
        return Table(None, f"Not measured: {why}, and no figures of {name!r} are recorded", measured=False)
    note_recorded(name, found)
    return Table(found.table, f"{found.caption()}; not measured on this machine{'' if why == NO_GPU else f': {why}'}",
                 measured=False)
