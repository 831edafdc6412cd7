"""Faults of synchronisation: lab 08's, under every tool; the processes that launch them; what compute-sanitizer prints."""

import dataclasses
import re
import subprocess
import time

import pytest
import torch

import labkit
from labkit import REPOSITORY, Fault, faulty_launches, machine, report, results, sanitizer, sources, staleness, suspects
from labkit.faulty_launches import NOT_RUN, Outcome, Run, launched, wrong_orders
from labkit.operator import source_path
from labkit.sanitizer import Report
from labkit.trace_findings import Finding

BARRIER = "    __syncthreads();\n"
MISSING = Fault("fold", 1, BARRIER, "", (2, 256), (64, 256), race=True)
TICKET = "is_last = atomicAdd(tickets, 1u) == gridDim.x - 1;"
SPIN = "atomicAdd(tickets, 1u);\n        while (atomicAdd(tickets, 0u) < gridDim.x) continue;\n        is_last = true;"


def lab_faults():
    """{(name of its table, fault): Fault} of lab 08."""
    found = {}

    class Lab:
        def __getattr__(self, name):
            return lambda *args, **kwargs: None

        def investigate(self, name, faults, title):
            found.update({(name, what): fault for what, fault in faults.items()})

    names = {"labkit": Lab(), "torch": torch, "Fault": Fault}
    for cell in sources.code_cells(sources.notebook("08_sync_pitfalls"))[1:]:
        if "trace(" not in cell:
            exec(cell, names)
    return found


FAULTS = lab_faults()
UNSEEN = {("blocks", "no fence")}  # no tool models it
RIGHT_ON_THE_CPU = {("barriers", "a barrier moved into the branch"), *UNSEEN}


# ---- lab 08's faults and their twins, on the CPU ----

def test_the_lab_has_its_three_families():
    assert [sum(family == name for family, _ in FAULTS) for name in ("barriers", "warps", "blocks")] == [6, 5, 3]
    assert all(fault.many for fault in FAULTS.values())


@pytest.mark.parametrize("key", FAULTS, ids=lambda key: key[1])
def test_a_fault_of_the_lab_is_seen_and_its_twin_is_clean(key):
    fault = FAULTS[key]
    faulty, twin = (suspects._on_the_cpu(suspects._built(fault, is_faulty, on_gpu=False)["host"], fault)
                    for is_faulty in (True, False))
    assert twin.findings == [] and twin.orders == "0 of 8" and twin.row()["trace"] == "nothing"
    assert bool(faulty.findings) == (key not in UNSEEN)
    if key in RIGHT_ON_THE_CPU:
        assert faulty.orders == "0 of 8"
    else:
        assert faulty.orders == "not run" or int(faulty.orders.split()[0]) > 0
    assert not fault.race or faulty.shared_race  # what racecheck has to see too


def test_wrong_orders_sees_what_is_wrong_in_the_same_way_under_each():
    always = labkit.mutant("fold", 1, "if (t < half)", "if (t < half - 1)")
    assert wrong_orders(always, 1, (2, 256)) == "8 of 8"
    assert wrong_orders("fold", 1, (2, 256)) == "0 of 8"
    assert labkit.schedules(always, 1, size=(2, 256), dtype=torch.float32) == []


def test_the_fixes_that_the_chapter_shows_are_what_the_kernels_have():
    page = (REPOSITORY / "book" / "08_sync_pitfalls.md").read_text(encoding="utf-8")
    text = "\n".join(source_path(name).read_text(encoding="utf-8") for name in ("fold", "transpose", "row_sum", "total"))
    lab = "\n".join(sources.code_cells(sources.notebook("08_sync_pitfalls")))
    planted = "\n".join(fault.new for fault in FAULTS.values())
    shown = re.findall(r"^```diff\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    assert len(shown) >= len({fault.operator for fault in FAULTS.values()})
    for diff in shown:
        mended = "".join(line[1:] + "\n" for line in diff.splitlines() if line[0] != "-").rstrip("\n")
        if "__syncwarp()" not in mended:  # which mends in another way than the kernel
            assert mended.strip() in text or all(line.strip() in lab for line in mended.splitlines()), mended
        for line in diff.splitlines():
            assert line[0] != "-" or line[1:].strip() in planted, line


def test_the_fix_of_the_last_warp_is_clean():
    fault = FAULTS["warps", "no barrier inside a warp"]
    mended = labkit.mutant(fault.operator, fault.version, fault.old, fault.new + "        else __syncwarp();\n")
    assert labkit.trace(mended, fault.version, size=fault.size, dtype=torch.float32, show=False).findings == []
    assert wrong_orders(mended, fault.version, fault.size) == "0 of 8"


@pytest.mark.skipif(machine.find_nvcc() is None or machine.find_cuda_tool("nvdisasm") is None, reason="needs nvcc and nvdisasm")
def test_shared_accesses_are_those_after_the_last_barrier(session):
    trees = {what: FAULTS["warps", what] for what in ("no barrier inside a warp", "the same, volatile")}
    rows = labkit.shared_accesses("last_warp", trees, "float>", "After the last barrier")
    plain, volatile = ([row[what] for row in rows] for what in trees)
    levels = ["LDS", "LDS", "STS"] * 6 + ["LDS"]  # from 32 to 1, and the sum
    assert [text.split()[0] for text in volatile] == levels
    assert sorted(text.split()[0] for text in plain) == sorted(levels)
    assert [text.partition("+")[2] for text in volatile[1:15:3]] == ["0x80]", "0x40]", "0x20]", "0x10]", "0x8]"]
    assert session().tables["last_warp"]["title"].startswith("After the last barrier, by nvcc ")


# ---- launches in a process of their own ----

def test_wrong_results_are_counted_and_right_ones_are_not():
    broken = labkit.mutant("fold", 1, "part[t + half]) : 0", "part[t + half]) : 1")  # of odd rows the middle
    (even, odd), = launched([(broken, [Run((3, 8), 4), Run((3, 9), 4, same_input=True)])])
    assert even == Outcome(4, 0, 0.0) and odd == Outcome(4, 4, 3 / 15)
    assert (str(even), str(odd)) == ("0 of 4", "4 of 4")


def test_the_same_input_is_the_same_and_a_new_one_is_new(monkeypatch):
    drawn = []
    monkeypatch.setattr(faulty_launches, "_whole_numbers",
                        lambda *given, real=faulty_launches._whole_numbers: drawn.append(real(*given)) or drawn[-1])
    fold = labkit.load("fold", version=1, backend="host")
    for same, draws in ((True, 1), (False, 3)):
        drawn.clear()
        assert faulty_launches._launches(fold, Run((4, 64), 3, same), sanitized=False).wrong == 0
        assert len(drawn) == draws and len({tuple(x.flatten().tolist()) for x in drawn}) == draws


def test_a_launch_that_hangs_is_ended_with_its_process_and_the_rest_is_not_run():
    spinning = labkit.mutant("total", 2, TICKET, SPIN)
    begin = time.monotonic()
    (first, second), = launched([(spinning, [Run((8, 64), 3), Run((8, 64), 3)])], limit=8)
    assert time.monotonic() - begin < 30
    assert str(first) == "hangs" and second == NOT_RUN and str(second) == "not run"


def test_of_several_in_one_process_the_one_that_hangs_is_found(monkeypatch):
    asked = [(name, [Run((1,), 3)]) for name in ("right", "hanging", "late")]
    made = []

    def in_a_new_process(module, part, timeout):
        made.append(part)
        if "hanging" in part:
            raise subprocess.TimeoutExpired(module, timeout)
        return [[dataclasses.asdict(Outcome(3, 0, 0.0))] for _ in part]

    monkeypatch.setattr(faulty_launches, "specification", lambda part: [name for name, _ in part])
    monkeypatch.setattr(faulty_launches, "in_a_new_process", in_a_new_process)
    assert [str(one) for one, in launched(asked)] == ["0 of 3", "hangs", "0 of 3"]
    assert made == [["right", "hanging", "late"], ["right"], ["hanging"], ["late"]]


def test_a_launch_that_fails_is_told_in_its_words():
    fault = FAULTS["warps", "a mask that leaves lanes out"]
    broken = labkit.mutant(fault.operator, fault.version, fault.old, fault.new)
    (outcome,), (other,) = launched([(broken, [Run((4, 1024), 3)]),
                                     (labkit.load("fold", 1, backend="host"), [Run((4, 64), 3)])])
    assert outcome.launches == 0 and outcome.ended.startswith("fails: ") and "leaves out its own lane" in outcome.ended
    assert str(other) == "0 of 3"  # in a process of its own


def test_an_event_that_does_not_come_is_a_hang(monkeypatch):
    class Event:
        def record(self):
            pass

        def query(self):
            return False

    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    assert not faulty_launches._ends(lambda: None, torch.device("cuda"), 0.05)
    monkeypatch.setattr(Event, "query", lambda self: True)
    assert faulty_launches._ends(lambda: None, torch.device("cuda"), 0.05)


# ---- the tables ----

def as_on_a_gpu(monkeypatch, verdicts, tool="/somewhere/compute-sanitizer"):
    """investigate as if there were a GPU: kernels run on the CPU all the same, the verdicts are given."""
    monkeypatch.setattr(suspects.machine, "backend", lambda: "cuda")
    real = suspects._built
    monkeypatch.setattr(suspects, "_built", lambda fault, faulty, on_gpu: (
        built := real(fault, faulty, on_gpu=False)) | {"cuda": built["host"]})
    monkeypatch.setattr(sanitizer, "installed", lambda: tool)
    monkeypatch.setattr(sanitizer, "verdict", lambda tool, operator, size: verdicts(tool, operator))
    monkeypatch.setattr(suspects, "LAUNCHES", 2)
    monkeypatch.setattr(report, "here", lambda: "the GPU of a test")


def test_a_gpu_fills_its_columns_and_the_agreement(session, monkeypatch):
    race = Report(1, "Error: Race reported", ("fold.cu:25", "fold.cu:27"))
    as_on_a_gpu(monkeypatch, lambda tool, operator: race if tool == "racecheck" and "mutants" in operator.source.parts
                else Report(0))
    row, = labkit.investigate("s", {"no barrier": MISSING}, "Suspects")
    assert row == {"fault": "no barrier", "trace": "at 27: race", "wrong orders": "7 of 8", "racecheck": "at 25, 27",
                   "synccheck": "nothing", "few blocks": "2 of 2", "many blocks": "2 of 2"}
    tables = session().tables
    twin, = tables["s_twins"]["rows"]
    assert twin == {"kernel": "fold v1, 2 × 256", "trace": "nothing", "wrong orders": "0 of 8",
                    "racecheck": "nothing", "synccheck": "nothing", "few blocks": "0 of 2", "many blocks": "0 of 2"}
    assert [list(row.values())[1:] for row in tables["s_agreement"]["rows"]] == [
        [1, 1, 1, 1], [0, 0, 0, 0], [1, 1, 0, 0]]
    assert tables["s_words"]["rows"][0]["racecheck"] == "Error: Race reported"


def test_a_hang_is_explained(session, monkeypatch, capsys):
    as_on_a_gpu(monkeypatch, lambda tool, operator: Report(0))
    monkeypatch.setattr(suspects, "launched",
                        lambda asked: [[Outcome(3, 0, 0.0), Outcome(0, 0, 0.0, "hangs")]] * len(asked))
    row, = labkit.investigate("s", {"no barrier": MISSING}, "Suspects")
    assert (row["few blocks"], row["many blocks"]) == ("0 of 3", "hangs")
    assert "no barrier: a launch did not end within 5 seconds" in capsys.readouterr().out


def test_without_compute_sanitizer_its_columns_are_empty(session, monkeypatch, capsys):
    as_on_a_gpu(monkeypatch, None, tool=None)
    row, = labkit.investigate("s", {"no barrier": MISSING}, "Suspects")
    assert row["racecheck"] is row["synccheck"] is None and row["few blocks"] == "2 of 2"
    assert "compute-sanitizer is not installed" in capsys.readouterr().out


def test_without_a_gpu_its_columns_are_the_recorded_ones(session, monkeypatch, capsys):
    monkeypatch.setenv("LABKIT_BACKEND", "host")
    recorded = {"fault": "no barrier", "trace": "?", "wrong orders": "?", "racecheck": "at 1, 2",
                "synccheck": "nothing", "few blocks": "3 of 200", "many blocks": "200 of 200"}
    found = results.Recorded({"name": "GPU of a test"}, {"versions": {}, "date": "2025-01-01"},
                             results.table_of("Suspects", [recorded]))
    words = dataclasses.replace(found, table=results.table_of("Words", [
        {"kernel": "no barrier", "trace": "?", "racecheck": "Error: Race", "synccheck": "nothing"}]))
    monkeypatch.setattr(results, "recorded", lambda lab, name: {"s": found, "s_words": words}.get(name))
    known, other = labkit.investigate("s", {"no barrier": MISSING, "another": MISSING}, "Suspects")
    assert (known["trace"], known["racecheck"], known["few blocks"]) == ("at 27: race", "at 1, 2", "3 of 200")
    assert other["trace"] == "at 27: race" and other["racecheck"] is None
    told = session().tables["s_words"]["rows"][0]
    assert told["trace"].startswith("fold.cu:27: race") and told["racecheck"] == "Error: Race"
    assert "few blocks, many blocks: Recorded on GPU of a test, 2025-01-01" in capsys.readouterr().out


def test_without_a_gpu_wrong_results_has_the_orders(session, monkeypatch, capsys):
    monkeypatch.setenv("LABKIT_BACKEND", "host")
    row, = labkit.wrong_results("w", MISSING, {"256 threads": ((1, 256), (9, 256))}, "Wrong")
    assert row == {"size": "256 threads", "wrong orders": "7 of 8", **dict.fromkeys(faulty_launches.COLUMNS)}
    assert "nothing of one is recorded" in capsys.readouterr().out


@pytest.mark.parametrize("call, says", [
    (lambda: labkit.investigate("s", {}, "S"), "investigate: faults is empty"),
    (lambda: labkit.investigate("s", {"a": Fault("fold", 1, BARRIER, "", (2, 2))}, "S"), "'a' has no shape `many`"),
    (lambda: labkit.wrong_results("w", MISSING, {}, "W"), "sizes is empty")])
def test_what_is_refused(call, says):
    with pytest.raises(ValueError, match=says):
        call()


# ---- what compute-sanitizer prints ----

KERNEL = "void v1::kernel<float>(const T1 *, T1 *, long, int)"
RACE = f"""[[{{"launches": 1, "wrong": 1, "elements": 0.5, "ended": null}}]]
========= COMPUTE-SANITIZER
========= Error: Race reported between Write access at {KERNEL}+0x110 in /a folder/fold.cu:25
=========     and Read access at {KERNEL}+0x1a0 in /a folder/fold.cu:27 [1024 hazards]
=========
========= Warning: Race reported between Read access at {KERNEL}+0x110 in /a folder/fold.cu:28
=========     and Write access at {KERNEL}+0x110 in /a folder/fold.cu:25 [4 hazards]
=========
========= RACECHECK SUMMARY: 2 hazards displayed (1 error, 1 warning)
"""
BARRIERS = f"""========= COMPUTE-SANITIZER
========= Barrier error detected. Divergent thread(s) in block
=========     at {KERNEL}+0x1b0 in fold.cu:27
=========     by thread (128,0,0) in block (0,0,0)
=========
========= Barrier error detected. Divergent thread(s) in block
=========     at {KERNEL}+0x1b0 in fold.cu:27
=========     by thread (129,0,0) in block (0,0,0)
=========
========= ERROR SUMMARY: 256 errors
========= ERROR SUMMARY: 254 errors were not printed. Use --print-limit option to adjust the number of printed errors
"""
CLEAN = "========= COMPUTE-SANITIZER\n========= ERROR SUMMARY: 0 errors\n"


def test_a_consequence_is_told_only_where_nothing_else_is_found():
    left, outside = (Finding(kind, f"fold.cu:{line}", f"in words, {kind}", 1)
                     for kind, line in (("output left unwritten", 0), ("access out of bounds", 25)))
    found = {"a": [left, outside], "b": [left]}
    seen = {("fault", what): suspects.Seen(findings, "fails", {}, []) for what, findings in found.items()}
    assert [one.row()["trace"] for one in seen.values()] == ["at 25: access out of bounds", "at 0: output left unwritten"]
    words = [row["trace"] for row in suspects._words(seen)]
    assert "access out of bounds" in words[0] and "output left unwritten" in words[1]


def test_what_a_tool_prints_is_read():
    race = sanitizer.read(RACE)
    assert race == Report(2, "Error: Race reported between Write access at fold.cu:25 and Read access at fold.cu:27 "
                              "[1024 hazards]", ("fold.cu:25", "fold.cu:27", "fold.cu:28"))
    assert str(race) == "at 25, 27, 28"
    loads = [f"=========     and Read access at {KERNEL}+{place} in /a folder/fold.cu:27 [1024 hazards]\n"
             for place in ("0x1a0", "0x1b0", "0x1c0")]
    assert sanitizer.read(RACE.replace(loads[0], "".join(loads))) == race  # said once of a line
    barriers = sanitizer.read(BARRIERS)
    assert barriers == Report(256, "Barrier error detected. Divergent thread(s) in block at fold.cu:27 by thread (128,0,0) in "
                                    "block (0,0,0)", ("fold.cu:27",))
    assert str(barriers) == "at 27"
    assert sanitizer.read(CLEAN) == Report(0) and str(Report(0)) == "nothing"


def test_a_hang_and_a_failed_tool_are_told():
    hang = '[[{"launches": 0, "wrong": 0, "elements": 0.0, "ended": "hangs"}]]\n'
    assert str(sanitizer.read(hang + CLEAN)) == str(sanitizer.read(hang)) == "hangs"
    assert str(sanitizer.read("========= Error: unable to launch\nno such device")) == "fails: no such device"
    assert str(sanitizer.read("")) == "fails: it printed nothing"
    assert str(Report(3)) == "3 findings"


# ---- on a GPU ----

@pytest.mark.gpu
def test_racecheck_and_the_trace_agree_on_every_planted_race_and_every_twin(session):
    if sanitizer.installed() is None:
        pytest.skip("compute-sanitizer is not installed")
    shared = {what: fault for (name, what), fault in FAULTS.items() if name != "blocks"}
    labkit.investigate("s", shared, "Suspects")
    races, _, clean = session().tables["s_agreement"]["rows"]
    assert races["trace sees a race"] == races["racecheck sees one"] == races["racecheck ended in"] > 2
    assert clean["trace sees a race"] == clean["racecheck sees one"] == 0 < clean["racecheck ended in"]
    assert {row["many blocks"].split()[0] for row in session().tables["s_twins"]["rows"]} == {"0"}


@pytest.mark.gpu
def test_a_wait_for_blocks_that_do_not_fit_hangs_and_costs_this_process_nothing():
    fault = FAULTS["blocks", "a wait for all blocks"]
    spinning = labkit.mutant(fault.operator, fault.version, fault.old, fault.new, "cuda")
    (few, many), = launched([(spinning, [Run((8, 256), 5), Run(fault.many, 1)])])
    assert str(few) == "0 of 5" and str(many) == "hangs"
    assert torch.ones(3, device="cuda").sum().item() == 3


@pytest.mark.gpu
def test_stale_reads_are_counted(session):
    def stale(turn, gpu, pinned, side):
        labkit.busy()
        gpu.fill_(turn)
        with torch.cuda.stream(side):
            return gpu.clone()

    rows = labkit.stale_reads("r", {"stale": stale, "right": lambda turn, gpu, pinned, side: gpu.fill_(turn).clone()}, "Reads")
    assert [list(row.values())[1] for row in rows] == [staleness.TRIES, 0]
