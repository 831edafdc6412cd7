"""The book: what its numbers come from, what must fail its build, and how its figures are drawn."""

import json
import os
import re
import shutil
import subprocess
import sys
import types
from pathlib import Path

import nbformat
import pytest

from labkit import book, figures, readme, results, sources

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
                   "series": {"tanh": [2048.0, None, 0.5], "sigmoid": [0.75, 0.5, 0.5]}},
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
def page(tmp_path, recorded):
    """page(text) builds a book of that one page and returns its HTML and the warnings."""
    from sphinx.testing.util import SphinxTestApp

    source = tmp_path / "page"
    source.mkdir()
    (source / "conf.py").write_text(
        "extensions = ['myst_parser', 'labkit.book']\nmyst_enable_extensions = ['substitution']\n"
        "numfig = True\nhtml_theme = 'basic'\n")

    def build(text):
        (source / "index.md").write_text("# Title\n\n" + text)
        app = SphinxTestApp("html", srcdir=source)
        try:
            app.build()
            return (Path(app.outdir) / "index.html").read_text(), app.warning.getvalue()
        finally:
            app.cleanup()

    return build


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
    'unfused.forward["copy"].us': "'unfused' is undefined",
}


def test_unknown_keys_are_warned_about_with_page_and_key(page):
    _, warnings = page("".join(f"{{{{ {key} }}}}\n\n" for key in UNKNOWN))
    lines = [line for line in warnings.splitlines() if "WARNING" in line]
    assert len(lines) == len(UNKNOWN)
    for line, (key, message) in zip(lines, UNKNOWN.items()):
        assert "index.md:" in line and message in line, key


def test_a_lab_without_results_is_named(page, recorded):
    (recorded / "nvidia-test.json").unlink()
    with pytest.raises(book.UnknownResult, match="no results are recorded for the lab 04_fused_kernel"):
        book.Lab(LAB)["forward"]


def test_pages_are_read_again_when_results_change_and_only_then(recorded):
    before = book.labs()
    assert book.labs() == before
    changed = json.loads(json.dumps(DOCUMENT))
    changed["runs"][0]["tables"]["forward"]["rows"][0]["median_us"] = 251.0
    (recorded / "nvidia-test.json").write_text(json.dumps(changed))
    assert book.labs() != before


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


def build_book(folder, chapter, toc=()):
    """Build a copy of this book's frame with one chapter, as `python -m labkit book` does."""
    shutil.copy(REPOSITORY / "_config.yml", folder)
    pages = "".join(f"  - file: {page}\n" for page in [f"book/{LAB}", f"labs/{LAB}", *toc])
    (folder / "_toc.yml").write_text(f"format: jb-book\nroot: book/index\nchapters:\n{pages}")
    shutil.copytree(REPOSITORY / "book/_static", folder / "book/_static")
    (folder / "labs").mkdir()
    (folder / "book/index.md").write_text("# Title\n\n```{tableofcontents}\n```\n")
    (folder / f"book/{LAB}.md").write_text(f"# Chapter\n\n{chapter}\n")
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_markdown_cell("# Lab")])
    notebook.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3", "language": "python"}
    nbformat.write(notebook, folder / f"labs/{LAB}.ipynb")
    command = [sys.executable, "-c", "from jupyter_book.cli.main import main; main()", "build", str(folder),
               "-W", "-n", "--keep-going"]
    path = os.pathsep.join(filter(None, [str(REPOSITORY), os.environ.get("PYTHONPATH")]))
    environment = {**os.environ, "PYTHONPATH": path}
    return subprocess.run(command, capture_output=True, text=True, env=environment, check=False)


def test_a_sound_book_builds_and_loads_nothing_from_the_net(tmp_path, recorded):
    done = build_book(tmp_path, "$x^2$ takes {{ fused_kernel.forward[\"copy\"].us }}.")
    assert done.returncode == 0, done.stdout + done.stderr
    pages = {path: path.read_text() for path in (tmp_path / "_build/html").rglob("*.html")}
    html = pages[tmp_path / f"_build/html/book/{LAB}.html"]
    assert "250.0\u202fµs" in html
    for path, text in pages.items():
        assert not re.findall(r"""<(?:script|link|img)[^>]*(?:src|href)="(?:https?:)?//[^"]*""", text), path
    script = re.search(r'src="(\.\./_static/mathjax/[^"?]*)', html)[1]
    assert (tmp_path / "_build/html/book" / script).exists()


def test_every_fault_fails_the_build_and_is_named(tmp_path, recorded):
    done = build_book(tmp_path, "\n\n".join(FAULTS), toc=["book/05_missing"])
    assert done.returncode != 0
    warnings = "\n".join(line for line in done.stderr.splitlines() if "WARNING" in line or "ERROR" in line)
    for fault, named in {**FAULTS, "a page of _toc.yml": "05_missing"}.items():
        assert named in warnings, f"{fault} was not warned about\n{done.stderr}"


# -- figures ------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("name", ["forward", "ulp_curves"])
def test_figures_take_the_pages_colours_and_can_be_read_aloud(name):
    svg = figures.figure(TABLES[name])
    assert "currentColor" in svg and figures.INK not in svg
    assert not re.search(r"#000(000)?\b|\bblack\b", svg), "a fixed black is invisible on a dark page"
    assert 'role="img"' in svg and 'style="width:100%' in svg and "<text" in svg
    label = re.search(r'aria-label="([^"]*)"', svg)[1]
    assert ("copy: 250.0 microseconds" if name == "forward" else "tanh: at most 2,048") in label
    ids = re.findall(r' id="([^"]*)"', svg)
    assert all(f"#{identifier}" in svg for identifier in ids), "only names that are referred to may stay"
    assert "\n\n" not in svg


def test_a_bar_far_longer_than_the_others_is_cut_and_says_so():
    assert "longer than drawn" in figures.bars(TABLES["forward"])
    fast = {**TABLES["forward"], "rows": TABLES["forward"]["rows"][:3]}
    assert "longer than drawn" not in figures.bars(fast)


@pytest.mark.parametrize("value, text", [
    (None, "–"), (True, "yes"), ("v1", "v1"), (8, "8"), (1073741824, "1,073,741,824"), (0.5, "0.5000"),
    (1.43213, "1.432"), (512.0, "512"), (12345.678, "12,346"), (1.5e-7, "1.50e-07")])
def test_numbers(value, text):
    assert figures.number(value) == text


# -- truth --------------------------------------------------------------------------------------------------

MEASURED = re.compile(
    r"(?<![\w.,])\d[\d,.]*[\s\u202f~-]*(?:"
    r"(?:µs|μs|us|ms|ns|s|ULPs?|[GTM]i?B/s|[GTP]?FLOPS?(?:/s)?|W|MHz|GHz)\b|(?:micro|milli|nano)?seconds?\b"
    r"|%|per cent\b|percent\b|x\b(?!\s*\d)|×(?!\s*[\d(])|times\s+(?:as|faster|slower|more|less|fewer|the)\b)")
# Directives whose content is not prose.
CODE = {"code", "code-block", "code-cell", "kernel-source", "literalinclude", "math", "raw", "results-figure",
        "results-table", "mermaid"}
NOT_PROSE = re.compile(
    r"\A---\n.*?\n---\n|<abbr title=\"[^\"]+\">.*?</abbr>|<!--.*?-->|\{\{.*?\}\}|\$\$.*?\$\$|\$[^$\n]+\$"
    r"|(?<!`)(`+)(?!`).*?(?<!`)\1(?!`)|\]\([^)]*\)|^%[^\n]*|\\begin\{(\w+\*?)\}.*?\\end\{\2\}|<svg.*?</svg>",
    re.DOTALL | re.MULTILINE)


def typed_numbers(text):
    """Measured quantities written by hand in the prose of a MyST page, as (line, quantity).

    They belong into a substitution. A quantity that was not measured here but is defined or cited is written
    <abbr title="where it is from">4.8 TB/s</abbr>; the reader then sees the source too.
    """
    def blank(match):
        return "\n" * match[0].count("\n")

    kept, fence, hidden = [], None, False
    for line in text.splitlines():
        mark = re.match(r"\s*(`{3,}|~{3,})\s*(?:\{(\S+)\})?", line)
        if mark and fence is None:
            fence, hidden = mark[1], not mark[2] or mark[2] in CODE
            kept.append("")
        elif mark and fence and line.strip().startswith(fence) and set(line.strip()) == {fence[0]}:
            fence, hidden = None, False
            kept.append("")
        else:
            kept.append("" if hidden else line)
    prose = NOT_PROSE.sub(blank, "\n".join(kept))
    return [(prose.count("\n", 0, match.start()) + 1, match[0]) for match in MEASURED.finditer(prose)]


@pytest.mark.parametrize("text", [
    "It takes 263.9 µs.", "about 1,932us", "in 0.3 ms", "after 5 s", "3,912 GB/s", "4.8 TB/s", "1.15× faster",
    "1.15x faster", "10x", "97.8% of a copy", "97 % of a copy", "0.5 ULP", "ten and 12 times faster",
    "2.5 seconds", "a 3-second build", "**12.5 µs**", "| gelu v6 | 263.9 µs |", ":::{note}\n12 µs\n:::",
    "```{note}\n12 µs\n```", "{{ a.b }} is 2.1× as fast", "<abbr title=\"\">3 ms</abbr>",
    "16384 × 16384 in 3 ms"])
def test_a_typed_number_is_found(text):
    assert typed_numbers(f"# Title\n\n{text}\n")


@pytest.mark.parametrize("text", [
    "{{ fused_kernel.forward[\"v6\"].us }} at {{ a['5 ms'] }}", "`12 µs`", "``a ` 12 µs``", "$12\\,s$",
    "$$\n1 s\n$$", "```python\nx = 1  # 5 ms\n```", "```{code-block} cuda\n5 ms\n```",
    "16384 × 16384 elements",
    "32 threads x 4 elements", "<abbr title=\"NVIDIA H200 data sheet\">4.8 TB/s</abbr>", "sm_90", "2 bytes",
    "[a](page-5%20.md)", "128 registers", "% a comment about 5 ms", "the 90th percentile", "`x` 2x2 tiles",
    "\\begin{align*}\n5 s\n\\end{align*}", "CUDA 13.0 and torch 2.11.0"])
def test_what_is_no_typed_number(text):
    assert typed_numbers(f"# Title\n\n{text}\n") == []


def test_the_line_of_a_typed_number_is_right():
    page = "---\na: 1\n---\n# T\n\n```c\n5 ms\n```\n\n$$\nx\n$$\n\nIn 7 ms.\n"
    assert typed_numbers(page) == [(14, "7 ms")]


def pages():
    return sorted((REPOSITORY / "book").rglob("*.md"))


@pytest.mark.parametrize("path", pages(), ids=lambda path: path.name)
def test_no_number_is_typed_into_the_prose(path):
    found = typed_numbers(path.read_text(encoding="utf-8"))
    assert not found, "\n".join(f"{path.name}:{line}: {quantity!r} is typed in; see typed_numbers"
                                for line, quantity in found)


@pytest.mark.parametrize("path", sorted((REPOSITORY / "labs").glob("*.ipynb")), ids=lambda path: path.name)
def test_no_number_is_typed_into_a_labs_text(path):
    cells = nbformat.read(path, as_version=4).cells
    found = [quantity for cell in cells if cell.cell_type == "markdown"
             for _, quantity in typed_numbers(cell.source)]
    assert not found, f"{path.name}: {found} are typed in; see typed_numbers"


def lab_names():
    return [path.stem for path in sorted((REPOSITORY / "labs").glob("*.ipynb"))]


@pytest.mark.parametrize("lab", lab_names())
def test_committed_outputs_and_recorded_figures_are_of_the_sources_that_are_here(lab, monkeypatch):
    monkeypatch.delenv("LABKIT_RESULTS", raising=False)
    here, remedy = sources.sources_hash(lab), f"run `python -m labkit labs {lab} --save` on a GPU and commit both"
    assert sources.stated_hash(sources.notebook(lab)) == here, f"labs/{lab}.ipynb: no outputs, or of other sources; {remedy}"
    gpu, run = results.latest(lab)
    assert run["sources"] == here, f"the figures of {gpu['name']} are of other sources; {remedy}"


def test_the_readme_shows_what_is_recorded(monkeypatch):
    monkeypatch.delenv("LABKIT_RESULTS", raising=False)
    text = (REPOSITORY / "README.md").read_text(encoding="utf-8")
    begin, end = readme.MARKS
    shown = text.partition(begin)[2].partition(end)[0].strip()
    assert shown == readme.block(), "run `python -m labkit.readme`"
