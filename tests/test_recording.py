"""`python -m labkit record`: what a GPU cannot have measured is refused with its reason, and no run is lost or doubled."""

import copy
import datetime
import json
import os
import re
import shutil

import pytest
from doctored_results import RECORDED, another_gpu, document, row, table, write

from labkit import __main__ as command_line
from labkit import machine, recording, results

DATE = "%Y-%m-%dT%H:%M:%SZ"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A results folder that is empty."""
    place = tmp_path / "results"
    place.mkdir()
    monkeypatch.setenv("LABKIT_RESULTS", str(place))
    return place


def record(*arguments):
    return command_line.main(["record", "--here", *map(str, arguments)])


# -- what is plausible --------------------------------------------------------------------------------------

@pytest.mark.parametrize("path", results.files(), ids=lambda path: path.stem)
def test_what_is_recorded_here_is_plausible(path, monkeypatch):
    monkeypatch.delenv("LABKIT_RESULTS", raising=False)
    assert recording.problems(json.loads(path.read_text(encoding="utf-8"))) == []


def test_it_is_plausible_by_the_memorys_own_limit_as_well(folder):
    """6016 bits at 3201 MHz, which makes 4814 GB/s; NVIDIA's data sheet says 4.8 TB/s."""
    found = document()
    found["gpu"]["bus_bits"] = 6016
    run = found["runs"][0]
    assert recording._peak(found["gpu"], run)[0] == pytest.approx(4814.3, abs=0.1)
    assert recording.problems(found) == []


def faster(found, factor=1.4):
    """GeLU's forward in less time than the memory needs, told rightly from that time; the memory's width is unknown."""
    found["gpu"].pop("bus_bits", None)
    timed = row(found, "04", "forward", "v7")
    timed |= {key: timed[key] / factor for key in ("median_us", "low_us", "high_us")}
    timed |= {"gbps": timed["gbps"] * factor, "of_limit": timed["of_limit"] * factor}


def faster_than_its_bus(found):
    faster(found, 1.25)
    found["gpu"]["bus_bits"] = 6016


def wide(found):
    row(found, "04", "forward", "v7").update(low_us=200.0, high_us=320.0)


def wide_step(found):
    row(found, "01", "share_24", "ours")["90%, ms"] *= 1.5


def step_outside(found):
    row(found, "10", "step", "fused")["ms a step"] -= 50


def no_time(found):
    row(found, "04", "forward", "v7").update(median_us=0)


def no_step(found):
    row(found, "01", "share_24", "ours")["ms a step"] = 0.0


def other_sources(found):
    found["runs"][3]["sources"] = "0" * 12


def no_such_lab(found):
    found["runs"][3]["lab"] = "04_another"


def tomorrow(found):
    found["runs"][3]["date"] = "2999-01-01T00:00:00Z"


def few_bytes(found):
    table(found, "04", "forward")["bytes"] = 2 << 20


def other_size(found):
    table(found, "04", "forward")["size"] = [1 << 20, 1 << 20]


def other_rate(found):
    row(found, "04", "forward", "v7")["gbps"] = 2000.0


def no_rate(found):
    row(found, "04", "forward", "v7")["gbps"] = None


def other_share(found):
    row(found, "04", "forward", "v7")["of_limit"] = 0.5


def outside(found):
    row(found, "04", "forward", "v7").update(low_us=260.0, high_us=261.0)


def no_limit(found):
    table(found, "04", "forward")["limit"] = "memcpy"


def twice(found):
    timed = table(found, "04", "forward")["rows"]
    timed.append(dict(timed[-1]))


def other_slug(found):
    found["gpu"]["slug"] = "nvidia-h100"


FAULTS = [
    (faster, r"^04_fused_kernel, forward, v7: 5,\d{3} GB/s to and from memory is more than 5,\d{3}, 1.25 times the fastest"),
    (faster_than_its_bus, r"v7: 4,9\d\d GB/s to and from memory is more than 4,814, what 3201 MHz, twice a clock, and 6016"),
    (wide, r"forward: v7: the spread is too wide, 200 to 320 µs \(10 to 90%\) about 2\d\d\.\d µs: more than 25% of the median"),
    (wide_step, r"01_why_custom_operators, share_24: ours: the spread is too wide"),
    (step_outside, r"10_case_study, step: fused: the median, 5\d.\d+ ms, lies outside of its own 10th to 90th percentile"),
    (no_step, r"share_24: ours: a step takes 0.0 ms"),
    (other_sources, r"^04_fused_kernel: it ran other sources \(000000000000\)"),
    (no_such_lab, r"^04_another: there is no such lab here"),
    (tomorrow, r"^04_fused_kernel: it is dated 2999-01-01T00:00:00Z"),
    (few_bytes, r"forward: it moves 2,097,152 bytes, and one tensor of its size has 536,870,912"),
    (other_size, r"forward: it moves 1,073,741,824 bytes, and one tensor of its size has 2,199,023,255,552"),
    (other_rate, r"forward: v7: its rate is given as 2,000 GB/s, and its time makes it 4,\d{3}"),
    (no_rate, r"forward: v7: its rate is given as none"),
    (other_share, r"forward: v7: its share of the limit is given as 0.5, and its time makes it 1\.0\d+"),
    (outside, r"forward: v7: the median, 2\d\d\.\d µs, lies outside of its own 10th to 90th percentile, 260 to 261 µs"),
    (no_limit, r"forward: its limit 'memcpy' is none of its rows"),
    (twice, r"forward: two of its rows have one name"),
    (other_slug, r"the GPU 'NVIDIA H200' must have the slug 'nvidia-h200'"),
]


@pytest.mark.parametrize("spoil, reason", FAULTS, ids=[spoil.__name__ for spoil, _ in FAULTS])
def test_what_cannot_be_is_refused_with_its_reason_and_nothing_is_written(folder, tmp_path, capsys, spoil, reason):
    found = document()
    spoil(found)
    path, = write(tmp_path, found)
    assert record(path) == recording.REFUSED
    reasons = [line.strip() for line in capsys.readouterr().err.splitlines()[1:-1]]
    assert any(re.search(reason, line) for line in reasons), reasons
    assert not list(folder.iterdir())


def test_a_time_of_zero_is_refused_by_the_schema(folder, tmp_path, capsys):
    found = document()
    no_time(found)
    path, = write(tmp_path, found)
    assert record(path) == recording.UNREADABLE
    assert "median_us must be bigger than 0" in capsys.readouterr().err and not list(folder.iterdir())


def test_all_reasons_are_given_at_once(folder):
    found = document()
    for spoil in (wide, other_sources, no_step):
        spoil(found)
    assert len(recording.problems(found)) == 3


def test_what_the_cache_may_hold_is_not_held_against_the_memory(folder):
    """With a cache of half the bytes, nothing says that they came from memory."""
    found = document()
    faster(found, 10)
    assert recording.problems(found)
    found["gpu"]["l2_mib"] = 512.0
    assert recording.problems(found) == []


def test_a_gpu_that_waits_for_the_host_may_take_whatever_time_the_host_takes(folder):
    found = document()
    wide(found)
    row(found, "04", "forward", "v7")["host_bound"] = True
    assert recording.problems(found) == []


def test_the_copy_that_others_are_held_against_is_the_recorded_one(folder):
    """Were it the file's own, a file that is twice too fast throughout would pass."""
    twice_as_fast = another_gpu("NVIDIA H200", times=0.5)
    del twice_as_fast["gpu"]["bus_bits"]
    assert recording.problems(twice_as_fast) == []
    write(folder, document())
    assert len(recording.problems(twice_as_fast)) > 20


def test_a_recorded_run_with_other_figures_is_refused(folder):
    write(folder, document())
    found = document()
    row(found, "10", "step", "fused")["ms a step"] += 0.5
    problem, = recording.problems(found)
    date, = (run["date"] for run in found["runs"] if run["lab"] == "10_case_study")
    assert problem == f"10_case_study: a run of {date} is recorded already, with other figures"
    assert recording.problems(document()) == []


@pytest.mark.parametrize("fact, value", [("sms", 66), ("l2_mib", 30.0), ("capability", "10.0")])
def test_a_part_of_a_recorded_gpu_is_refused(folder, fact, value):
    write(folder, document())
    found = document()
    found["gpu"][fact] = value
    problem, = recording.problems(found)
    assert f"{fact} is {value}" in problem and "MIG" in problem


def test_of_each_lab_only_the_latest_run_must_be_plausible(folder, tmp_path, capsys):
    found = document()
    earlier = copy.deepcopy(found["runs"][3])
    earlier |= {"date": "2020-01-01T00:00:00Z", "sources": "0" * 12}
    found["runs"].append(earlier)
    path, = write(tmp_path, found)
    assert record(path) == recording.DONE
    assert "Of earlier runs of the same labs the file holds 1" in capsys.readouterr().out
    assert earlier not in json.loads((folder / path.name).read_text())["runs"]


# -- what is written ----------------------------------------------------------------------------------------

def test_another_gpu_gets_its_own_file_and_is_told_what_to_commit(folder, tmp_path, capsys):
    recorded, = write(folder, document())
    before = recorded.read_bytes()
    path, = write(tmp_path, another_gpu("NVIDIA Test", times=2.0, leave_out=["05"]))
    assert record(path) == recording.DONE
    assert json.loads((folder / "nvidia-test.json").read_text()) == json.loads(path.read_text())
    assert recorded.read_bytes() == before
    said = capsys.readouterr().out
    assert f"git add {folder / 'nvidia-test.json'}\n" in said and "labkit.readme" not in said
    assert f"{len(document()['runs']) - 1} added" in said and "Not recorded yet: 05_jit_builds" in said


def test_runs_are_added_none_is_lost_and_none_is_doubled(folder, tmp_path, capsys):
    shutil.copy(RECORDED, folder)
    kept = json.loads(RECORDED.read_text(encoding="utf-8"))["runs"]
    found = document()
    later = datetime.datetime.strptime(found["runs"][3]["date"], DATE) + datetime.timedelta(seconds=1)
    again = copy.deepcopy(found["runs"][3]) | {"date": later.strftime(DATE)}
    found["runs"].append(again)
    path, = write(tmp_path, found)
    for _ in range(2):
        assert record(path) == recording.DONE
        assert json.loads((folder / RECORDED.name).read_text())["runs"] == [*kept, again]
    assert "labkit.readme" in capsys.readouterr().out, "the pages print this GPU"


def test_a_fact_that_the_file_lacks_is_added_and_none_is_changed(folder, tmp_path):
    known = document()
    del known["gpu"]["bus_bits"]
    write(folder, known)
    found = document()
    found["gpu"]["memory_gib"] = 139.7
    path, = write(tmp_path, found)
    assert record(path) == recording.DONE
    assert json.loads((folder / path.name).read_text())["gpu"] == document()["gpu"]


def test_a_file_that_is_there_and_is_spoilt_stays_as_it_is(folder, tmp_path, capsys):
    path, = write(tmp_path, document())
    (folder / path.name).write_text("{}")
    assert record(path) == recording.UNREADABLE
    assert (folder / path.name).read_text() == "{}" and "results/schema.json" in capsys.readouterr().err


def test_an_interrupted_write_leaves_the_old_file(folder, tmp_path, monkeypatch):
    found = document()
    path, = write(folder, {**found, "runs": found["runs"][1:]})
    before = path.read_bytes()
    given, = write(tmp_path, found)

    def fails(*_):
        raise OSError("no space left")

    monkeypatch.setattr(os, "replace", fails)
    assert record(given) == recording.UNREADABLE
    assert path.read_bytes() == before and [each.name for each in folder.iterdir()] == [path.name]


@pytest.mark.parametrize("text, said", [("", "not valid JSON"), ("{", "not valid JSON"), ("[]", "results/schema.json"),
                                        ("{\"schema\": 2}", "results/schema.json")])
def test_what_is_no_results_file_is_told(folder, tmp_path, capsys, text, said):
    path = tmp_path / "file.json"
    path.write_text(text)
    assert record(path) == recording.UNREADABLE
    assert said in capsys.readouterr().err and not list(folder.iterdir())


def test_a_missing_file_and_a_folder_are_told(folder, tmp_path, capsys):
    assert record(tmp_path / "none.json") == record(tmp_path) == recording.UNREADABLE
    assert "none.json" in capsys.readouterr().err


# -- the file of this machine -------------------------------------------------------------------------------

@pytest.fixture
def on_gpu(monkeypatch):
    monkeypatch.setattr(machine, "backend", lambda: "cuda")
    monkeypatch.setattr(machine, "gpu", lambda: {"name": "NVIDIA Test", "slug": "nvidia-test"})


def test_without_a_file_it_is_that_of_this_machines_gpu(folder, on_gpu, capsys):
    path, = write(folder, another_gpu("NVIDIA Test"))
    before = path.read_bytes()
    assert record() == recording.DONE
    assert path.read_bytes() == before and "0 added" in capsys.readouterr().out
    found = another_gpu("NVIDIA Test")
    wide(found)
    write(folder, found)
    assert record() == recording.REFUSED and "labkit labs NN" in capsys.readouterr().err


def test_a_machine_that_has_recorded_nothing_is_told_what_to_run(folder, on_gpu, capsys):
    assert record() == recording.UNREADABLE
    assert "NVIDIA Test has recorded nothing yet" in (said := capsys.readouterr().err) and "make labs" in said


def test_without_a_gpu_a_file_must_be_named(folder, monkeypatch, capsys):
    monkeypatch.setattr(machine, "backend", lambda: "host")
    assert record() == recording.UNREADABLE
    assert "python3 -m labkit record FILE" in capsys.readouterr().err
