"""The book: what its numbers come from, what must fail its build, and how its figures are drawn."""

import json
import os
import re
import shutil
import sys
import types
from pathlib import Path

import nbformat
import pytest

from labkit import __main__ as command_line
from labkit import figures, prose
from labkit.environment import importable

REPOSITORY = Path(__file__).resolve().parents[1]
LAB = "04_fused_kernel"


def timing(name, median_us, **changes):
    return {"name": name, "median_us": median_us, "low_us": 0.99 * median_us, "high_us": 1.02 * median_us,
            "gbps": 1e6 / median_us, "of_limit": 250 / median_us, "host_bound": False, "max_error": None,
            **changes}


TABLES = {
    "forward": {"kind": "bench", "title": "GeLU forward", "size": [16384, 16384], "dtype": "bfloat16",
                "bytes": 1 << 30, "rounds": 30, "limit": "copy",
                "rows": [timing("copy", 250.0), timing("gelu v6", 253.25), timing("F.gelu", 300.0),
                         timing("eager", 2000.0, host_bound=True)]},
    "kernels": {"kind": "table", "title": "Kernels", "columns": ["variant", "kernels launched"],
                "rows": [{"variant": "eager", "kernels launched": 8},
                         {"variant": "v6", "kernels launched": 1}]},
    "ulp_curves": {"kind": "curve", "title": "Error", "x": {"label": "x", "values": [-1.0, 0.0, 1.0]},
                   "y": {"label": "error, ULP", "scale": "log"},
                   "series": {"tanh": [2048.0, None, 0.5], "sigmoid": [0.75, 0.5, 0.5], "none": [None, None, None]},
                   "points": [{"label": "worst", "x": -0.75, "y": 1.5}]},
    "geometry": {"kind": "heat", "title": "Geometry", "unit": "GB/s",
                 "x": {"label": "elements a thread", "values": [1, 4]},
                 "y": {"label": "threads a block", "values": [32, 1024]}, "cells": [[500.0, 2000.0], [4000.0, None]],
                 "marks": [{"label": "the article's choice", "x": 4, "y": 32}, {"label": "too many", "x": 4, "y": 1024}],
                 "lines": [{"label": "copy", "value": 4100.0}]},
    "launches": {"kind": "heat", "title": "Launches", "unit": "µs", "best": "least",
                 "x": {"label": "streams", "values": [1, 2]}, "y": {"label": "batches", "values": [1]}, "cells": [[5.5, 2.75]]},
    "streams": {"kind": "timeline", "title": "Streams", "unit": "ms", "lanes": [
        {"name": "copy", "group": "in turn", "spans": [{"start": 0.5, "end": 1.5}, {"start": 2.5, "end": 4.5}]},
        {"name": "kernel", "group": "in turn", "spans": [{"start": 1.5, "end": 2.5}]},
        {"name": "copy", "group": "at once", "spans": [{"start": 0.0, "end": 2.0}]},
        {"name": "host", "spans": []}]},
}
DOCUMENT = {
    "schema": 1,
    "gpu": {"name": "NVIDIA Test", "capability": "9.0", "sms": 132, "memory_gib": 140.0, "l2_mib": 50.0,
            "slug": "nvidia-test"},
    "runs": [{"lab": LAB, "date": "2026-01-02T03:04:05Z", "sources": "0" * 12, "clocks": None,
              "tables": TABLES, "versions": {"driver": "580.159", "cuda": "13.0", "torch": "2.11.0"}}]}


@pytest.fixture
def recorded(tmp_path, monkeypatch):
    """A results folder with one run of the lab."""
    folder = tmp_path / "results"
    folder.mkdir()
    (folder / "nvidia-test.json").write_text(json.dumps(DOCUMENT))
    monkeypatch.setenv("LABKIT_RESULTS", str(folder))
    return folder


# -- substitutions and directives, on a book of one page ----------------------------------------------------

@pytest.fixture
def page(one_page, recorded):
    """page(text) builds a book of that one page and returns its HTML and the warnings."""
    return lambda text: one_page(text, "extensions = ['myst_parser', 'labkit.book']",
                                 "myst_enable_extensions = ['substitution']", "numfig = True", "html_theme = 'basic'")


SHOWN = {
    'fused_kernel.forward["gelu v6"].us': "253.2\u202fµs",
    'fused_kernel.forward["eager"].ms': "2\u202fms",
    'fused_kernel.forward["copy"]': "250.0\u202fµs",
    'fused_kernel.forward["copy"].spread': "247.5–255.0\u202fµs",
    'fused_kernel.forward["copy"].gbps': "4,000\u202fGB/s",
    'fused_kernel.forward["copy"].tbps': "4.00\u202fTB/s",
    'fused_kernel.forward["gelu v6"].of_limit': "98.7%",
    'fused_kernel.forward["gelu v6"].speedup_over("F.gelu")': "1.18×",
    'fused_kernel.forward["copy"].speedup_over(fused_kernel.forward["eager"])': "8×",
    'fused_kernel.forward["copy"].median_us + 1': "251.0",
    "fused_kernel.forward.size": "16384 × 16384",
    "fused_kernel.forward.caption":
        "Recorded on NVIDIA Test, driver 580.159, CUDA 13.0, torch 2.11.0, 2026-01-02",
    'fused_kernel.kernels["eager"].kernels_launched': "8",
    'fused_kernel.kernels["eager"]["kernels launched"]': "8",
    'fused_kernel.kernels["eager"].ratio("kernels launched", "v6")': "8×",
    'fused_kernel.ulp_curves["tanh"].max': "2,048",
    'fused_kernel.ulp_curves["tanh"].min': "0.5",
    'fused_kernel.ulp_curves["tanh"].at(-1)': "2,048",
    'fused_kernel.ulp_curves["tanh"].at(0)': "–",
    'fused_kernel.ulp_curves.point("worst").y': "1.5",
    'fused_kernel.ulp_curves.point("worst").x': "-0.75",
    'fused_kernel.geometry["32"]["4"]': "2,000",
    'fused_kernel.geometry["1024"]["4"]': "–",
    'fused_kernel.geometry["1024"].plain("1") / 2': "2000.0",
    'fused_kernel.geometry["1024"].ratio("1", "32")': "8×",
    "fused_kernel.geometry.best": "4,000",
    "fused_kernel.geometry.best_at": "1,024 threads a block, 1 element a thread",
    "fused_kernel.geometry.unit": "GB/s",
    'fused_kernel.geometry.mark("the article\'s choice")': "2,000",
    'fused_kernel.geometry.line("copy")': "4,100",
    'fused_kernel.geometry.plain("copy") + 1': "4101.0",
    'fused_kernel.geometry.ratio("best", "the article\'s choice")': "2×",
    'fused_kernel.geometry.share("best", "copy")': "97.6%",
    "fused_kernel.launches.best": "2.75",
    "fused_kernel.launches.best_at": "1 batch, 2 streams",
    'fused_kernel.streams["in turn: copy"].total': "3\u202fms",
    'fused_kernel.streams["in turn: copy"].start': "0.5\u202fms",
    'fused_kernel.streams["in turn: copy"].end': "4.5\u202fms",
    'fused_kernel.streams["kernel"].lasts': "1\u202fms",
    'fused_kernel.streams["host"].total': "0\u202fms",
    'fused_kernel.streams["in turn"].lasts': "4\u202fms",
    'fused_kernel.streams["in turn"].total': "4\u202fms",
    'fused_kernel.streams["at once"].speedup_over("in turn")': "2×",
    "fused_kernel.gpu": "NVIDIA Test",
    "fused_kernel.date": "2026-01-02",
}


def test_substitutions(page):
    html, warnings = page("".join(f"[{{{{ {key} }}}}]\n\n" for key in SHOWN))
    assert not warnings
    shown = re.findall(r"<p>\[(.*?)\]</p>", html)
    assert dict(zip(SHOWN, shown)) == SHOWN


UNKNOWN = {
    'fused_kernel.forward["gelu v9"].us': "fused_kernel.forward has no row 'gelu v9'",
    'fused_kernel.sideways["copy"].us': "fused_kernel has no table 'sideways'",
    'fused_kernel.forward["copy"].seconds': "has no attribute 'seconds'",
    'fused_kernel.kernels["eager"].bytes': "fused_kernel.kernels has no column 'bytes'",
    'fused_kernel.ulp_curves["exact"].max': "fused_kernel.ulp_curves has no row 'exact'",
    'fused_kernel.ulp_curves["tanh"].at(0.25)': "fused_kernel.ulp_curves has nothing at x 0.25; near it are -1.0, 0.0, 1.0",
    'fused_kernel.ulp_curves["none"].max': "fused_kernel.ulp_curves has a line without any value",
    'fused_kernel.ulp_curves.point("best")': "fused_kernel.ulp_curves has no point 'best'; it has worst",
    'fused_kernel.geometry["33"]["4"]': "fused_kernel.geometry has no row '33'; it has 32, 1024",
    'fused_kernel.geometry["32"]["5"]': "fused_kernel.geometry has no column '5'",
    'fused_kernel.geometry.mark("copy")': "fused_kernel.geometry has no mark 'copy'; it has the article's choice, too many",
    'fused_kernel.geometry.line("peak")': "fused_kernel.geometry has no line 'peak'; it has copy",
    'fused_kernel.geometry.ratio("copy", "too many")': "fused_kernel.geometry holds no number at 'too many'",
    'fused_kernel.streams["copy"].total': "has no lane of its own, nor a group, 'copy'; it has in turn: copy",
    'fused_kernel.streams["host"].end': "fused_kernel.streams has no span in 'host'",
    'unfused.forward["copy"].us': "'unfused' is undefined",
}


def test_unknown_keys_are_warned_about_with_page_and_key(page):
    _, warnings = page("".join(f"{{{{ {key} }}}}\n\n" for key in UNKNOWN))
    lines = [line for line in warnings.splitlines() if "WARNING" in line]
    assert len(lines) == len(UNKNOWN)
    for line, (key, message) in zip(lines, UNKNOWN.items()):
        assert "index.md:" in line and message in line, key


def test_heat_maps_and_timelines_are_figures_and_tables(page):
    html, warnings = page(
        "```{results-figure} fused_kernel.geometry\n```\n```{results-figure} fused_kernel.streams\n```\n"
        "```{results-table} fused_kernel.geometry\n:rows: 1024\n```\n```{results-table} fused_kernel.streams\n```\n")
    assert not warnings
    assert html.count("<svg") == 2 and html.count("Geometry, GB/s. Recorded on NVIDIA Test") == 2
    cells = re.findall(r"<td[^>]*><p>(.*?)</p></td>", html)
    assert cells[:3] == ["1,024", "4,000", "–"]
    assert cells[3:8] == ["in turn: copy", "2", "0.5", "4.5", "3"]


def test_a_lab_without_results_is_named(page, recorded):
    (recorded / "nvidia-test.json").unlink()
    with pytest.raises(prose.UnknownResult, match="no results are recorded for the lab 04_fused_kernel"):
        prose.Lab(LAB)["forward"]


def test_pages_are_read_again_when_results_change_and_only_then(recorded):
    before = prose.labs()
    assert prose.labs() == before
    changed = json.loads(json.dumps(DOCUMENT))
    changed["runs"][0]["tables"]["forward"]["rows"][0]["median_us"] = 251.0
    (recorded / "nvidia-test.json").write_text(json.dumps(changed))
    assert prose.labs() != before


def test_results_directives(page):
    html, warnings = page(
        "```{results-table} fused_kernel.forward\n:name: first\n:rows: copy, eager\n```\n"
        "```{results-table} fused_kernel.kernels\n:caption: Launches\n```\n"
        "```{results-figure} fused_kernel.forward\n:name: bars\n```\n"
        "```{results-figure} fused_kernel.ulp_curves\n```\n{numref}`first` and {numref}`bars`\n")
    assert not warnings
    assert "eager (waits for the host)" in html and html.count("F.gelu") < 3
    assert "GeLU forward, 16384 × 16384 bfloat16. Recorded on NVIDIA Test" in html and "Launches. Recorded on" in html
    assert html.count("<svg") == 2
    assert re.search(r'href="#first"[^>]*>.*?Table 1', html)
    assert re.search(r'href="#bars"[^>]*>.*?Fig. 1', html)


@pytest.mark.parametrize("directive, message", [
    ("{results-table} fused_kernel.sideways", "fused_kernel has no table 'sideways'"),
    ("{results-table} unfused.forward", "no lab 'unfused'"),
    ("{results-table} fused_kernel.ulp_curves", "drawn as a figure"),
    ("{results-table} fused_kernel.forward\n:rows: copy, v9", "no row 'v9'"),
    ("{results-figure} fused_kernel.kernels", "has no figure"),
    ("{kernel-source} gelu", "add :version:"),
    ("{kernel-source} gelu\n:version: 99", "no version 99")])
def test_wrong_directives_are_warned_about(page, monkeypatch, directive, message):
    monkeypatch.setitem(sys.modules, "labkit.listing", fake_show())
    _, warnings = page(f"```{directive}\n```\n")
    assert "index.md:" in warnings and message in warnings


def fake_show():
    def source(name, version):
        if version == 99:
            raise ValueError("no version 99")
        return f"__global__ void {name}_v{version}();"

    def difference(name, old, new):
        return f"--- v{old}\n+++ v{new}\n-old\n+new"

    return types.SimpleNamespace(source=source, difference=difference)


def test_kernel_source(page, monkeypatch):
    monkeypatch.setitem(sys.modules, "labkit.listing", fake_show())
    html, warnings = page("```{kernel-source} gelu\n:version: 4\n:name: whole\n```\n"
                          "```{kernel-source} gelu\n:version: 4\n:diff: 3\n```\n{numref}`whole`\n")
    assert not warnings
    assert "highlight-cuda" in html and "gelu_v4" in html and "gelu, version 4" in html
    assert "highlight-diff" in html and "from version 3 to version 4" in html and "+++ v4" not in html


# -- what must fail the build, with the book's own configuration --------------------------------------------

FAULTS = {
    "![a picture](missing.png)": "missing.png",
    "[a page](missing.md)": "missing.md",
    "[a place](#no-such-place)": "no-such-place",
    "{ref}`no-such-label`": "no-such-label",
    "{numref}`no-such-figure`": "no-such-figure",
    '{{ fused_kernel.forward["gelu v9"].us }}': "gelu v9",
    "```{no-such-directive}\n```": "no-such-directive",
}


def make_book(folder, chapter, toc=(), outputs=()):
    """Makes a copy of this book's frame with one chapter, and a lab with one code cell."""
    shutil.copy(REPOSITORY / "_config.yml", folder)
    pages = "".join(f"  - file: {page}\n" for page in [f"book/{LAB}", f"labs/{LAB}", *toc])
    (folder / "_toc.yml").write_text(f"format: jb-book\nroot: book/index\nchapters:\n{pages}")
    shutil.copytree(REPOSITORY / "book/_static", folder / "book/_static")
    (folder / "labs").mkdir()
    (folder / "book/index.md").write_text("# Title\n\n```{tableofcontents}\n```\n")
    (folder / f"book/{LAB}.md").write_text(f"# Chapter\n\n{chapter}\n")
    cell = nbformat.v4.new_code_cell("1 / 0", outputs=list(outputs))
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_markdown_cell("# Lab"), cell])
    notebook.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3", "language": "python"}
    nbformat.write(notebook, folder / f"labs/{LAB}.ipynb")


@pytest.fixture
def build_book(tmp_path, recorded, monkeypatch, capfd):
    """Builds the book of tmp_path as `python -m labkit book` does; returns its status and what it wrote to stderr."""
    monkeypatch.setattr(command_line, "REPOSITORY", tmp_path)
    monkeypatch.setenv("PYTHONPATH", importable(os.environ)["PYTHONPATH"])
    return lambda: (command_line.book(), capfd.readouterr().err)


def test_a_sound_book_builds_and_loads_nothing_from_the_net(tmp_path, build_book):
    make_book(tmp_path, "$x^2$ takes {{ fused_kernel.forward[\"copy\"].us }}.")
    status, said = build_book()
    assert status == 0, said
    pages = {path: path.read_text() for path in (tmp_path / "_build/html").rglob("*.html")}
    html = pages[tmp_path / f"_build/html/book/{LAB}.html"]
    assert "250.0\u202fµs" in html
    for path, text in pages.items():
        assert not re.findall(r"""<(?:script|link|img)[^>]*(?:src|href)="(?:https?:)?//[^"]*""", text), path
    script = re.search(r'src="(\.\./_static/mathjax/[^"?]*)', html)[1]
    assert (tmp_path / "_build/html/book" / script).exists()


def test_every_fault_fails_the_build_and_is_named_the_second_time_as_well(tmp_path, build_book):
    failed = nbformat.v4.new_output("error", ename="ZeroDivisionError", evalue="division by zero", traceback=[])
    make_book(tmp_path, "\n\n".join(FAULTS), toc=["book/05_missing"], outputs=[failed])
    (tmp_path / "book/06_nowhere.md").write_text("# In no table of contents\n")
    elsewhere = {"a page of _toc.yml": "05_missing", "a page beside it": "06_nowhere.md is in no table of contents",
                 "a failed cell": "cell 2 failed: ZeroDivisionError: division by zero"}
    for _ in range(2):
        status, said = build_book()
        assert status == 1
        warnings = "\n".join(line for line in said.splitlines() if "WARNING" in line or "ERROR" in line)
        for fault, named in {**FAULTS, **elsewhere}.items():
            assert named in warnings, f"{fault} was not warned about\n{said}"


# -- figures ------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("name, said", [
    ("forward", "copy: 250.0 microseconds"), ("ulp_curves", "tanh: at most 2,048"), ("geometry", "Largest: 4,000"),
    ("streams", "in turn: copy: 2 from 0.5 to 4.5")])
def test_figures_take_the_pages_colours_and_can_be_read_aloud(name, said):
    svg = figures.figure(TABLES[name])
    assert "currentColor" in svg and figures.INK not in svg
    assert not re.search(r"#000(000)?\b|\bblack\b", svg), "a fixed black is invisible on a dark page"
    assert 'role="img"' in svg and 'style="width:100%' in svg and "<text" in svg
    label = re.search(r'aria-label="([^"]*)"', svg)[1]
    assert said in label
    ids = re.findall(r' id="([^"]*)"', svg)
    assert all(f"#{identifier}" in svg for identifier in ids), "only names that are referred to may stay"
    assert "\n\n" not in svg


def test_a_bar_far_longer_than_the_others_is_cut_and_says_so():
    assert "longer than drawn" in figures.bars(TABLES["forward"])
    fast = {**TABLES["forward"], "rows": TABLES["forward"]["rows"][:3]}
    assert "longer than drawn" not in figures.bars(fast)


@pytest.mark.parametrize("value, text", [
    (None, "–"), (True, "yes"), ("v1", "v1"), (8, "8"), (1073741824, "1,073,741,824"), (0.5, "0.5"), (0.99996, "1"),
    (100.04, "100"),
    (1.43213, "1.432"), (512.0, "512"), (12345.678, "12,346"), (1.5e-7, "1.50e-07")])
def test_numbers(value, text):
    assert figures.number(value) == text


@pytest.mark.parametrize("head, values, cells", [
    ("ms", [45.752, 3.7, 4.0, 0, None, "n/a"], ["45.75", "3.70", "4.00", "0.00", "–", "n/a"]),
    ("µs", [27013.6, 8.22, 25.0], ["27,014", "8.22", "25"]), ("µs", [27013.6, 822.25], ["27,014", "822"]),
    ("kernels", [552, 48], ["552", "48"]), ("bytes", [4.0, 512.0], ["4", "512"]), ("value", [332.0, 11.1], ["332", "11.1"]),
    ("error", [1.5e-7, 0.25], ["1.50e-07", "0.25"]), ("right", [True, 0.5], ["yes", "0.5"])])
def test_the_fractions_of_a_column_line_up(head, values, cells):
    assert figures.column(head, values) == cells
