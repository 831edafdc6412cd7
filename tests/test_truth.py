"""No measured number is typed into the prose, and what is printed is of the sources that are here."""

import re
from pathlib import Path

import nbformat
import pytest

from labkit import outdated, readme, results, sources

REPOSITORY = Path(__file__).resolve().parents[1]

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


def untrue(lab):
    """What is not right about the outputs and the record of a lab that is in the book, with its remedy; None where all is."""
    here, stated, (gpu, run) = sources.sources_hash(lab), sources.stated_hash(sources.notebook(lab)), results.latest(lab)
    record = f"run `python -m labkit labs {lab} --save` on a GPU and commit both"
    if stated != run["sources"]:
        return f"labs/{lab}.ipynb: no outputs, or of another run than the figures of {gpu['name']}; {record}"
    if stated != here and lab not in outdated.declared():
        return f"{lab} is recorded from other sources than those that are here; {record}, or declare it in {outdated.DECLARED}"
    if stated == here and lab in outdated.declared():
        return f"{lab} is recorded from the sources that are here; remove it from {outdated.DECLARED}"
    return None


@pytest.mark.parametrize("lab", lab_names())
def test_outputs_and_figures_are_of_the_sources_that_are_here_or_declared_to_be_of_earlier_ones(lab, monkeypatch):
    monkeypatch.delenv("LABKIT_RESULTS", raising=False)
    if f"labs/{lab}" not in (REPOSITORY / "_toc.yml").read_text(encoding="utf-8"):
        # The book does not have it yet: then it shows nothing, rather than something of other sources.
        assert sources.stated_hash(sources.notebook(lab)) is None and results.latest(lab) is None
        return
    assert untrue(lab) is None


@pytest.mark.parametrize("stated, recorded, declares, problem", [
    ("a", "a", False, None), ("b", "b", True, None),
    ("b", "b", False, r"other sources than .*; run `python -m labkit labs 04_fused_kernel --save`.*, or declare it"),
    ("a", "a", True, "04_fused_kernel is recorded .*; remove it from results/stale.yml"),
    ("b", "c", True, "of another run than the figures of X; run"), ("a", "b", True, "of another run"),
    ("b", "a", False, "of another run"), (None, "b", True, "no outputs")])
def test_a_lab_is_stale_exactly_where_that_is_declared(monkeypatch, stated, recorded, declares, problem):
    """The sources that are here have the hash "a"."""
    lab = "04_fused_kernel"
    monkeypatch.setattr(sources, "sources_hash", lambda name: "a")
    monkeypatch.setattr(sources, "stated_hash", lambda path: stated)
    monkeypatch.setattr(results, "latest", lambda name: ({"name": "X"}, {"sources": recorded}))
    monkeypatch.setattr(outdated, "declared", lambda: {lab: "A change."} if declares else {})
    found = untrue(lab)
    assert found is None if problem is None else re.search(problem, found), found


def test_the_readme_shows_what_is_recorded(monkeypatch):
    monkeypatch.delenv("LABKIT_RESULTS", raising=False)
    text = (REPOSITORY / "README.md").read_text(encoding="utf-8")
    begin, end = readme.MARKS
    shown = text.partition(begin)[2].partition(end)[0].strip()
    assert shown == readme.block(), "run `python -m labkit.readme`"
