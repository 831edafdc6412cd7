"""`python -m labkit compare`: what it calls slower, faster and neither, and what it will not compare."""

import copy
import json
import subprocess

import pytest

from labkit import __main__ as command_line
from labkit import REPOSITORY, baselines, figures, results
from labkit.baselines import FASTER, GOT_SLOWER, HOST, NOW_HOST, REFUSED, SAME, SLOWER, WITHIN

RECORD = REPOSITORY / "results" / "nvidia-h200.json"


@pytest.fixture
def document():
    """The book's record with the latest run of each lab alone."""
    record = json.loads(RECORD.read_text(encoding="utf-8"))
    latest = {run["lab"]: run for run in sorted(record["runs"], key=lambda run: run["date"])}
    return {**record, "runs": list(latest.values())}


@pytest.fixture
def write(tmp_path):
    def write(document, name="new.json"):
        path = tmp_path / name
        path.write_text(json.dumps(document), encoding="utf-8")
        return str(path)

    return write


def bench(document, lab="04_fused_kernel", table="forward"):
    return next(run for run in document["runs"] if run["lab"] == lab)["tables"][table]


def scale(row, factor):
    row.update({key: factor * row[key] for key in ("median_us", "low_us", "high_us")})


def timing(low, median, high, host_bound=False):
    return {"name": "x", "low_us": low, "median_us": median, "high_us": high, "host_bound": host_bound}


@pytest.mark.parametrize("new, expected", [
    (timing(8, 10, 12), WITHIN), (timing(11.9, 13, 14), WITHIN), (timing(12.1, 13, 14), SLOWER),
    (timing(5, 6, 8.1), WITHIN), (timing(5, 6, 7.9), FASTER), (timing(12.1, 13, 14, host_bound=True), NOW_HOST)])
def test_only_what_shares_no_time_is_faster_or_slower(new, expected):
    assert baselines.verdict(timing(8, 10, 12), new) == expected
    mirrored = {SLOWER: FASTER, FASTER: SLOWER, NOW_HOST: HOST}.get(expected, expected)
    assert baselines.verdict(new, timing(8, 10, 12)) == mirrored


def test_a_record_beside_itself_has_not_changed(document, capsys):
    rows = sum(len(table["rows"]) for run in document["runs"] for table in run["tables"].values() if table["kind"] == "bench")
    assert baselines.compare(str(RECORD), str(RECORD)) == SAME
    said = capsys.readouterr().out.splitlines()
    assert said[0].endswith(f": {rows} rows of benchmarks in both.") and rows > 50
    assert said[1:] == [f"{rows} within the spread"]


def test_what_became_slower_by_more_than_the_threshold_fails(document, write, capsys):
    rows = {row["name"]: row for row in bench(document)["rows"]}
    scale(rows["F.gelu"], 2)
    scale(rows["composed"], 0.5)
    new = write(document)
    assert baselines.compare(str(RECORD), new) == GOT_SLOWER
    said = capsys.readouterr().out
    slower, faster = [line for line in said.splitlines() if line.startswith("04_fused_kernel, forward")]
    assert "F.gelu" in slower and "2×" in slower and slower.endswith("slower")
    assert "composed" in faster and "0.50×" in faster and faster.endswith("faster")
    assert "1 slower, 1 faster" in said and "1 slower by more than 5%." in said and "limit itself" not in said
    assert baselines.compare(str(RECORD), new, threshold=100) == SAME
    assert baselines.compare(new, str(RECORD), threshold=99) == GOT_SLOWER  # now composed is


def test_a_row_that_waits_for_the_host_now_fails_where_it_became_slower(document, write, capsys):
    row = next(row for row in bench(document)["rows"] if row["name"] == "F.gelu")
    row["host_bound"] = True
    assert baselines.compare(str(RECORD), write(document)) == SAME
    assert "1 waits for the host now" in capsys.readouterr().out
    scale(row, 2)
    new = write(document)
    assert baselines.compare(str(RECORD), new) == GOT_SLOWER
    assert "1 slower by more than 5%." in capsys.readouterr().out
    assert baselines.compare(new, str(RECORD)) == SAME
    assert "1 waits for the host" in capsys.readouterr().out


def test_a_rows_share_of_its_limit_is_shown_in_both_records(document, write, capsys):
    row = next(row for row in bench(document)["rows"] if row["name"] == "F.gelu")
    before = row["of_limit"]
    scale(row, 2)
    row["of_limit"] = before / 2
    baselines.compare(str(RECORD), write(document))
    line, = [line for line in capsys.readouterr().out.splitlines() if line.startswith("04_fused_kernel, forward")]
    assert f"{figures.percent(before)} → {figures.percent(before / 2)}" in line


def test_a_limit_that_moved_is_told(document, write, capsys):
    limit = bench(document)["limit"]
    scale(next(row for row in bench(document)["rows"] if row["name"] == limit), 1.04)
    assert baselines.compare(str(RECORD), write(document)) == SAME
    said = capsys.readouterr().out
    assert f"{limit}, the limit" in said and "The limit itself moved in forward" in said


def test_rows_and_benchmarks_of_one_record_alone_are_named(document, write, capsys):
    tables = next(run for run in document["runs"] if run["lab"] == "04_fused_kernel")["tables"]
    del tables["backward"]
    tables["forward"]["rows"][-1]["name"] = "renamed"
    tables["forward_backward"]["size"] = [7, 7]
    assert baselines.compare(str(RECORD), write(document)) == SAME
    said = capsys.readouterr().out
    assert "04_fused_kernel, backward: only in the old record" in said
    assert "04_fused_kernel, forward, renamed: only in the new record" in said
    assert "04_fused_kernel, forward_backward: measured something else, size [16384, 16384] → [7, 7]" in said


def test_another_gpu_is_refused_and_what_differs_is_said(document, write, capsys):
    other = copy.deepcopy(document)
    other["gpu"] |= {"name": "NVIDIA T4", "slug": "nvidia-t4"}
    run = other["runs"][0]
    run["versions"]["driver"], run["sources"] = "1.2.3", "0" * 12
    new = write(other)
    assert baselines.compare(str(RECORD), new) == REFUSED
    said = capsys.readouterr().out
    assert "GPU: NVIDIA H200 → NVIDIA T4" in said and "--other-gpu" in said and "rows of benchmarks" not in said
    assert f"{run['lab']}: driver {document['runs'][0]['versions']['driver']} → 1.2.3, its sources" in said
    assert baselines.compare(str(RECORD), new, other_gpu=True) == SAME


def test_of_each_lab_the_latest_run_counts_and_one_record_is_compared_with_its_runs_before(document, write, capsys):
    alone = copy.deepcopy(document)
    again = copy.deepcopy(next(run for run in document["runs"] if run["lab"] == "04_fused_kernel"))
    again["date"] = "2126-01-01T00:00:00Z"
    scale(again["tables"]["forward"]["rows"][0], 3)
    document["runs"].insert(0, again)
    both = write(document)
    assert baselines.compare(both) == GOT_SLOWER
    assert "3×" in capsys.readouterr().out
    assert baselines.compare(str(RECORD), both) == GOT_SLOWER
    assert baselines.compare(both, str(RECORD)) == SAME
    assert baselines.compare(write(alone, "alone.json")) == REFUSED
    assert "one run of each lab" in capsys.readouterr().out


def test_a_revision_is_read_as_git_has_it(capsys):
    if subprocess.run(["git", "rev-parse"], cwd=REPOSITORY, capture_output=True).returncode:
        pytest.skip("not a git checkout")
    assert baselines.compare("HEAD:results/nvidia-h200.json", str(RECORD)) in (SAME, GOT_SLOWER)
    assert "rows of benchmarks in both" in capsys.readouterr().out
    for missing in ("HEAD:results/none.json", "none.json"):
        assert baselines.compare(missing, str(RECORD)) == REFUSED
        assert missing in capsys.readouterr().out


def test_a_file_that_is_no_record_is_refused(write, capsys):
    assert baselines.compare(write({"schema": 1}), str(RECORD)) == REFUSED
    assert "schema.json" in capsys.readouterr().out


def test_the_command_line_passes_all_on(monkeypatch):
    given = []
    monkeypatch.setattr(baselines, "compare", lambda *arguments: given.append(arguments) or 1)
    assert command_line.main(["compare", "--here", "a", "b", "--threshold", "7", "--other-gpu", "--all"]) == 1
    assert command_line.main(["compare", "--here", "a"]) == 1
    assert given == [("a", "b", 7, True, True), ("a", None, baselines.THRESHOLD, False, False)]


def test_every_row_is_listed_where_asked(capsys):
    assert baselines.compare(str(RECORD), str(RECORD), everything=True) == SAME
    shown = capsys.readouterr().out
    table = results.recorded("04_fused_kernel", "forward", "nvidia-h200").table
    assert all(any(line.startswith("04_fused_kernel, forward ") and row["name"] in line for line in shown.splitlines())
               for row in table["rows"])
