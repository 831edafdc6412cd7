"""Recorded results: what a file may hold, how runs are appended, which one is read; what the hash counts."""

import json
import multiprocessing
import os
import re

import numpy
import pytest

from labkit import machine, results, sources
from labkit import readme as labkit_readme
from labkit.results import ResultsError

GPU = {"name": "NVIDIA Test", "capability": "9.0", "sms": 132, "memory_gib": 140.0, "l2_mib": 50.0,
       "slug": "nvidia-test"}
VERSIONS = {"python": "3.12.3", "torch": "2.11.0", "cuda": "13.0", "driver": "580.159", "triton": None}
TIMING = {"name": "copy", "median_us": 2.5, "low_us": 2.0, "high_us": 3.0, "gbps": 10.0, "of_limit": 1.0,
          "host_bound": False, "max_error": None}
BENCH = {"kind": "bench", "title": "t", "size": [4], "dtype": "float32", "bytes": 8, "rounds": 3,
         "limit": "copy", "rows": [TIMING]}
ROWS = {"kind": "table", "title": "t", "columns": ["variant", "bytes"],
        "rows": [{"variant": "a", "bytes": 4}]}
CURVE = {"kind": "curve", "title": "t", "x": {"label": "x", "values": [0, 1]}, "series": {"a": [0.5, None]}}

HEAT = {"kind": "heat", "title": "t", "unit": "GB/s", "x": {"label": "elements", "values": [1, 2]},
        "y": {"label": "threads", "values": [32]}, "cells": [[1.5, None]], "marks": [{"label": "m", "x": 2, "y": 32}],
        "lines": [{"label": "copy", "value": 2.0}]}
SPAN = {"label": "0", "start": 1.0, "end": 1.0, "color": 5}
LANE = {"name": "copy", "group": "in turn", "spans": [SPAN]}
TIMELINE = {"kind": "timeline", "title": "t", "unit": "µs", "lanes": [LANE, {"name": "copy", "spans": []}]}
MARKED = {**CURVE, "x": {"label": "x", "scale": "log", "values": [1, 2], "ticks": [1, 2], "tick_labels": ["1 KiB", "2 KiB"]},
          "points": [{"label": "a", "x": 1, "y": -1}], "vertical": [{"label": "L2", "x": 2}]}


@pytest.fixture
def lab(monkeypatch, tmp_path):
    """A repository with one lab and one operator, on a machine with a GPU, and its own results folder."""
    (tmp_path / "labs").mkdir()
    (tmp_path / "kernels/gelu").mkdir(parents=True)
    (tmp_path / "kernels/include").mkdir()
    (tmp_path / "kernels/gelu/gelu.cu").write_text("// a comment\nint a = 1;\n")
    (tmp_path / "kernels/gelu/op.py").write_text("a = 1  # one\n")
    (tmp_path / "kernels/include/vector.cuh").write_text("int v;\n")
    write_notebook(tmp_path, 'op = labkit.load("gelu")  # the operator')
    monkeypatch.setattr(sources, "REPOSITORY", tmp_path)
    monkeypatch.setenv("LABKIT_RESULTS", str(tmp_path / "results"))
    monkeypatch.setattr(machine, "backend", lambda: "cuda")
    monkeypatch.setattr(machine, "gpu", lambda: GPU)
    monkeypatch.setattr(machine, "versions", lambda: VERSIONS)
    monkeypatch.setattr(machine, "clocks", lambda: {"sm_mhz": 1980.0, "temperature_c": None})
    monkeypatch.setattr("labkit.room.neighbours", lambda: None)
    monkeypatch.setattr(results, "_session", results.Session())
    return tmp_path


def write_notebook(folder, code, outputs=()):
    cells = [{"cell_type": "markdown", "source": "text"},
             {"cell_type": "code", "source": code.splitlines(keepends=True), "outputs": list(outputs)}]
    (folder / "labs/04_fused_kernel.ipynb").write_text(json.dumps({"cells": cells}))


def run_once(**tables):
    results.start("04_fused_kernel")
    for name, table in tables.items():
        results.add(name, table)
    return results.record()


# -- the session and its file -------------------------------------------------------------------------------

def test_what_is_recorded_is_read_back(lab):
    path = run_once(forward=BENCH, bytes=ROWS, ulp=CURVE)
    assert path.name == "nvidia-test.json"
    found = results.recorded("04_fused_kernel", "forward")
    assert found.table == BENCH and found.gpu == GPU and found.run["versions"] == VERSIONS
    assert found.caption() == ("Recorded on NVIDIA Test, driver 580.159, CUDA 13.0, torch 2.11.0, "
                               + found.run["date"][:10])
    assert results.recorded("04_fused_kernel", "backward") is None
    assert results.recorded("05_jit_builds", "forward") is None


def test_earlier_runs_stay_and_the_latest_is_read(lab, monkeypatch):
    path = run_once(forward=BENCH)
    first = json.loads(path.read_text())["runs"][0]
    run_once(forward={**BENCH, "title": "second"})
    document = json.loads(path.read_text())
    assert len(document["runs"]) == 2 and document["runs"][0] == first
    assert results.recorded("04_fused_kernel", "forward").table["title"] == "second"
    run_once(backward=BENCH)
    assert results.recorded("04_fused_kernel", "forward") is None, "tables of different runs are mixed"


def test_pages_read_the_books_gpu_and_others_only_by_name(lab, monkeypatch):
    run_once(forward=BENCH)
    monkeypatch.setattr(machine, "gpu", lambda: {**GPU, "name": "NVIDIA H200", "slug": "nvidia-h200"})
    run_once(forward=BENCH)
    monkeypatch.setattr(machine, "gpu", lambda: GPU)
    run_once(forward=BENCH)
    assert results.recorded("04_fused_kernel", "forward").gpu["name"] == "NVIDIA H200"
    assert results.recorded("04_fused_kernel", "forward", gpu="nvidia-test").gpu["name"] == "NVIDIA Test"
    assert results.recorded("04_fused_kernel", "forward", gpu="nvidia-a100") is None


def test_start_drops_an_earlier_session_and_states_the_hash(lab, capsys):
    run_once(forward=BENCH)
    results.start("04_fused_kernel")
    assert results.session().tables == {}
    assert f"sources   {sources.sources_hash('04_fused_kernel')}\n" in capsys.readouterr().out


def test_a_failed_write_leaves_the_old_file_and_nothing_beside_it(lab, monkeypatch):
    path = run_once(forward=BENCH)
    before = path.read_text()
    monkeypatch.setattr(os, "replace", lambda *paths: (_ for _ in ()).throw(OSError("disk full")))
    with pytest.raises(OSError, match="disk full"):
        run_once(forward={**BENCH, "title": "second"})
    assert path.read_text() == before and list(path.parent.iterdir()) == [path]


def _record_in_a_process(number):
    tables = {"forward": {**BENCH, "title": str(number)}}
    results._session = results.Session(lab="04_fused_kernel", tables=tables)
    results.record()


def test_labs_that_record_at_once_lose_no_run(lab):
    context = multiprocessing.get_context("fork")  # carries the fixture's replacements along
    workers = [context.Process(target=_record_in_a_process, args=(number,)) for number in range(8)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(60)
    runs = json.loads((lab / "results/nvidia-test.json").read_text())["runs"]
    assert sorted(run["tables"]["forward"]["title"] for run in runs) == list("01234567")


def test_the_host_backend_records_nothing(lab, monkeypatch, capsys):
    monkeypatch.setattr(machine, "backend", lambda: "host")
    monkeypatch.setattr(machine, "gpu", lambda: None)
    assert run_once(forward=BENCH) is None
    assert not (lab / "results").exists() and "Not recorded" in capsys.readouterr().out


def test_record_without_a_lab_or_without_tables_is_refused(lab):
    with pytest.raises(ResultsError, match="labkit.start"):
        results.record()
    results.start("04_fused_kernel")
    with pytest.raises(ResultsError, match="measured nothing"):
        results.record()


def test_notes_are_logged_as_lines(lab, monkeypatch):
    monkeypatch.setenv("LABKIT_LOG", str(lab / "log"))
    results.start("04_fused_kernel")
    results.note("check", "gelu", "412 cases passed")
    results.note("measured", "forward", "9 variants")
    first, _ = (lab / "log").read_text().splitlines()
    assert json.loads(first) == {"lab": "04_fused_kernel", "kind": "check", "name": "gelu",
                                 "outcome": "412 cases passed", "backend": "cuda"}
    with pytest.raises(ValueError, match="kind"):
        results.note("guessed", "gelu", "fine")


# -- the schema ---------------------------------------------------------------------------------------------

def without(table, key):
    return {name: value for name, value in table.items() if name != key}


@pytest.mark.parametrize("table", [BENCH, ROWS, CURVE, HEAT, TIMELINE, MARKED])
def test_a_table_of_every_kind_is_taken(lab, table):
    results.start("04_fused_kernel")
    results.add("forward", table)
    assert results.session().tables["forward"] == table


@pytest.mark.parametrize("table, message", [
    ({**CURVE, "series": {"a": [1.0, 2.0, 3.0]}}, "'a' has 3 values for 2 of x"),
    ({**MARKED, "x": {**MARKED["x"], "tick_labels": ["1 KiB"]}}, "2 ticks and 1 tick_labels"),
    ({**MARKED, "x": without(MARKED["x"], "ticks")}, "table 'forward'.x missing dependency ticks for tick_labels"),
    ({**MARKED, "points": [{"label": "a", "x": 0, "y": 1}]}, "0 has no place on the logarithmic x axis"),
    ({**MARKED, "vertical": [{"label": "a", "x": -1}]}, "-1 has no place on the logarithmic x axis"),
    ({**MARKED, "y": {"label": "y", "scale": "log"}}, "-1 has no place on the logarithmic y axis"),
    ({**MARKED, "points": 2 * MARKED["points"]}, "two of its points are named 'a'"),
    ({**HEAT, "cells": [[1.5]]}, "row 0 of cells has 1 cells for 2 values of x"),
    ({**HEAT, "cells": [[1.5, 2.0], [1.5, 2.0]]}, "2 rows of cells for 1 values of y"),
    ({**HEAT, "cells": [[None, None]]}, "no cell holds a number"),
    ({**HEAT, "cells": [[1.5, "2"]]}, "table 'forward'.cells[0][1] must be number or null; it is '2'"),
    ({**HEAT, "marks": [{"label": "m", "x": 3, "y": 32}]}, "the mark 'm' is at x 3, y 32"),
    ({**HEAT, "marks": [{"label": "m", "x": 2, "y": 31}]}, "the mark 'm' is at x 2, y 31"),
    ({**HEAT, "marks": [{"label": "copy", "x": 2, "y": 32}]}, "marks and lines are named 'copy'"),
    ({**HEAT, "x": {"label": "elements", "values": [1, 1]}}, "x.values must contain unique items"),
    ({**HEAT, "x": {"label": "x", "values": list(range(11))}, "cells": [[1] * 11]}, "must contain less than or equal to 10"),
    ({**TIMELINE, "lanes": [{**LANE, "spans": [{**SPAN, "end": 0.5}]}]}, "'copy' ends at 0.5, before its start at 1.0"),
    ({**TIMELINE, "lanes": [LANE, LANE]}, "two of its lanes are named 'in turn: copy'"),
    ({**TIMELINE, "lanes": [{**LANE, "spans": []}]}, "no lane holds a span"),
    ({**TIMELINE, "lanes": [{**LANE, "spans": [{**SPAN, "color": 6}]}]}, "color must be smaller than or equal to 5; it is 6"),
    ({**TIMELINE, "unit": "s"}, "unit must be one of ['ms', 'µs']; it is 's'")])
def test_a_table_that_is_at_odds_with_itself_is_refused(lab, table, message):
    with pytest.raises(ResultsError, match=re.escape(message)):
        results.add("forward", table)


@pytest.mark.parametrize("table", [
    without(BENCH, "rounds"),
    {**BENCH, "rows": []},
    {**BENCH, "rows": [{**TIMING, "median_us": 0}]},
    {**BENCH, "rows": [{**TIMING, "median_us": float("nan")}]},
    {**BENCH, "rows": [{**TIMING, "host_bound": "no"}]},
    {**BENCH, "rows": [without(TIMING, "max_error")]},
    {**BENCH, "more": 1},
    {**ROWS, "rows": [{"variant": "a"}]},
    {**ROWS, "rows": [{"variant": "a", "bytes": [1]}]},
    {**CURVE, "series": {}},
    {**CURVE, "x": {"label": "x"}},
    {**CURVE, "series": {"a": [float("inf"), 1.0]}},
    {"kind": "guess"}, {}])
def test_tables_that_break_the_schema_are_refused(lab, table):
    with pytest.raises(ResultsError, match="forward"):
        results.add("forward", table)


def test_the_schema_uses_no_keyword_that_its_checker_would_pass_over():
    """fastjsonschema knows JSON Schema up to draft 7, and says nothing of a later draft's keywords."""
    known = {"$schema", "$defs", "$ref", "title", "description", "type", "enum", "const", "required", "properties",
             "additionalProperties", "patternProperties", "propertyNames", "minProperties", "maxProperties", "dependencies",
             "items", "additionalItems", "contains", "minItems", "maxItems", "uniqueItems", "minimum", "maximum",
             "exclusiveMinimum", "exclusiveMaximum", "multipleOf", "minLength", "maxLength", "pattern", "allOf", "anyOf",
             "oneOf", "not", "if", "then", "else"}

    def keywords(schema):
        for part in schema if isinstance(schema, list) else [schema]:
            for word, value in part.items() if isinstance(part, dict) else ():
                yield word
                named = word in ("properties", "patternProperties", "$defs", "dependencies")
                yield from keywords(list(value.values()) if named else value)

    assert set(keywords(json.loads(results.SCHEMA.read_text()))) <= known


def test_numpy_numbers_are_taken(lab):
    results.start("04_fused_kernel")
    results.add("bytes", {**ROWS, "rows": [{"variant": "a", "bytes": numpy.float32(0.5)}]})
    assert results.session().tables["bytes"]["rows"] == [{"variant": "a", "bytes": 0.5}]


@pytest.mark.parametrize("spoil", [
    lambda text: text[:-20],
    lambda text: text.replace('"schema": 1', '"schema": 2'),
    lambda text: text.replace("2.5", "NaN"),
    lambda text: text.replace('"low_us"', '"min_us"')])
def test_a_spoilt_file_is_refused_and_never_overwritten(lab, spoil):
    path = run_once(forward=BENCH)
    path.write_text(spoil(path.read_text()))
    spoilt = path.read_text()
    with pytest.raises(ResultsError, match="nvidia-test.json"):
        results.recorded("04_fused_kernel", "forward")
    with pytest.raises(ResultsError, match="nvidia-test.json"):
        run_once(forward=BENCH)
    assert path.read_text() == spoilt


def test_every_committed_results_file_is_valid(monkeypatch):
    monkeypatch.delenv("LABKIT_RESULTS", raising=False)
    for path in results.files():
        assert results._read(path)["gpu"]["slug"] == path.stem


# -- the hash of sources ------------------------------------------------------------------------------------

@pytest.mark.parametrize("path, text, changes", [
    ("kernels/gelu/gelu.cu", "// another comment\n/* and\n one more */ int  a=1;\n\n", False),
    ("kernels/gelu/gelu.cu", "// a comment\nint a = 2;\n", True),
    ("kernels/gelu/gelu.cu", "// int a = 1;\n", True),
    ("kernels/gelu/gelu.cu", 'const char* a = "// a string, not a comment";', True),
    ("kernels/gelu/op.py", "# a comment\n\na = 1\n", False),
    ("kernels/gelu/op.py", "a = 2  # one\n", True),
    ("kernels/gelu/notes.txt", "anything", False),
    ("kernels/gelu/more.cu", "int b;", True),
    ("kernels/include/vector.cuh", "int v; // a comment\n", False),
    ("kernels/include/vector.cuh", "float v;\n", True),
    ("kernels/other/other.cu", "int o;", False)])
def test_what_the_hash_counts(lab, path, text, changes):
    before = sources.sources_hash("04_fused_kernel")
    (lab / path).parent.mkdir(exist_ok=True)
    (lab / path).write_text(text)
    assert (sources.sources_hash("04_fused_kernel") != before) == changes


@pytest.mark.parametrize("code, changes", [
    ("labkit.levels(1)", True), ("labkit.in_flight(1)", True), ("labkit.bench(1)", False)])
def test_the_hash_of_a_lab_that_measures_the_memory_counts_its_probes(lab, code, changes):
    write_notebook(lab, code)
    hashes = set()
    for text in ("int a;", "int b;"):
        (lab / sources.PROBES).write_text(text)
        hashes.add(sources.sources_hash("04_fused_kernel"))
    assert len(hashes) == 1 + changes


@pytest.mark.parametrize("code, changes", [
    ('labkit.sass("gelu", 4, "v4::")', True), ('labkit.sass_counts("n", {"v4": Code("gelu", 4, "v4::")}, "T")', True),
    ('labkit.compile_cubin("gelu", 4).log', True), ('labkit.sass_counts("gelu", {}, "T")', False)])
def test_the_hash_counts_the_kernels_whose_machine_code_a_lab_reads(lab, code, changes):
    write_notebook(lab, code)
    before = sources.sources_hash("04_fused_kernel")
    (lab / "kernels/gelu/gelu.cu").write_text("int a = 2;\n")
    assert (sources.sources_hash("04_fused_kernel") != before) == changes


def test_the_hash_counts_a_notebooks_code(lab):
    before = sources.sources_hash("04_fused_kernel")
    write_notebook(lab, '\nop = labkit.load("gelu")  # another comment\n', outputs=[{"text": "x"}])
    assert sources.sources_hash("04_fused_kernel") == before
    write_notebook(lab, 'op = labkit.load("gelu")\nop.versions')
    assert sources.sources_hash("04_fused_kernel") != before


@pytest.mark.parametrize("line", ["import model", "from model import Model", "import math, model as m",
                                  "if True:\n    import model"])
def test_the_hash_counts_the_modules_of_labs_that_a_lab_imports(lab, line):
    write_notebook(lab, line)
    alone = sources.sources_hash("04_fused_kernel")
    (lab / "labs/model.py").write_text("a = 1\n")
    with_module = sources.sources_hash("04_fused_kernel")
    (lab / "labs/model.py").write_text("# a comment\na = 1  # another\n")
    assert alone != with_module == sources.sources_hash("04_fused_kernel")
    (lab / "labs/model.py").write_text("a = 2\n")
    assert sources.sources_hash("04_fused_kernel") != with_module


@pytest.mark.parametrize("line", ["import models", "import math  # , model", "# import model", "from math import model"])
def test_the_hash_leaves_out_modules_that_a_lab_does_not_import(lab, line):
    write_notebook(lab, line)
    before = sources.sources_hash("04_fused_kernel")
    (lab / "labs/model.py").write_text("a = 1\n")
    assert sources.sources_hash("04_fused_kernel") == before


def test_the_hash_follows_imports_from_module_to_module_and_what_they_load(lab):
    write_notebook(lab, "from model import Model")
    (lab / "labs/model.py").write_text("import model, layer\n")
    (lab / "labs/layer.py").write_text('from model import Model\ngelu = labkit.load("gelu")\n')
    before = sources.sources_hash("04_fused_kernel")
    (lab / "kernels/gelu/gelu.cu").write_text("int a = 2;\n")
    other_kernel = sources.sources_hash("04_fused_kernel")
    (lab / "labs/layer.py").write_text("b = 1\n")
    assert len({before, other_kernel, sources.sources_hash("04_fused_kernel")}) == 3
    (lab / "kernels/gelu/gelu.cu").write_text("int a = 3;\n")  # which nothing loads now
    without_load = sources.sources_hash("04_fused_kernel")
    (lab / "kernels/gelu/gelu.cu").write_text("int a = 4;\n")
    assert sources.sources_hash("04_fused_kernel") == without_load


def test_a_string_with_two_slashes_is_not_a_comment():
    assert sources._cxx('f("a//b"); // c') == ("f", "(", '"a//b"', ")", ";")


def test_missing_labs_and_operators_are_named(lab):
    with pytest.raises(FileNotFoundError, match="labs: 04_fused_kernel"):
        sources.sources_hash("04_fused")
    write_notebook(lab, 'labkit.load("silu")')
    with pytest.raises(FileNotFoundError, match="silu"):
        sources.sources_hash("04_fused_kernel")


def test_the_hash_that_a_notebook_states(lab, capsys):
    notebook = sources.notebook("04_fused_kernel")
    assert sources.stated_hash(notebook) is None
    results.start("04_fused_kernel")
    printed = capsys.readouterr().out.splitlines(keepends=True)
    write_notebook(lab, 'op = labkit.load("gelu")', outputs=[{"text": printed}])
    assert sources.stated_hash(notebook) == sources.sources_hash("04_fused_kernel")
    write_notebook(lab, 'op = labkit.load("gelu")', outputs=[{"text": "something else"}])
    with pytest.raises(ValueError, match="labkit.start"):
        sources.stated_hash(notebook)


# -- the README's block -------------------------------------------------------------------------------------

def test_readme_block_is_rewritten_in_place(lab):
    readme = lab / "README.md"
    readme.write_text("# Title\n<!-- results:begin -->\nold\n<!-- results:end -->\nrest\n")
    assert labkit_readme.write(readme)
    assert "No results are recorded yet" in readme.read_text()
    ladder = [{**TIMING, "name": f"v{rung}", "median_us": 10.0 - rung} for rung in (1, 2, 3)]
    run_once(forward={**BENCH, "rows": [TIMING, *ladder]}, backward=BENCH)
    assert labkit_readme.write(readme) and not labkit_readme.write(readme)
    text = readme.read_text()
    assert text.startswith("# Title\n<!-- results:begin -->\nRecorded on NVIDIA Test")
    assert text.endswith("end -->\nrest\n")
    assert "ours (v3) | 7.00 |" in text and "v2" not in text
    assert "| backward | copy | 2.50 | 10 | 100.0% |" in text


def test_a_readme_without_the_marks_is_refused(lab):
    (lab / "README.md").write_text("# Title\n")
    with pytest.raises(ResultsError, match="results:begin"):
        labkit_readme.write(lab / "README.md")
