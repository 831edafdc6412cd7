"""Labs that results/stale.yml declares: what can be declared, what may be recorded of them, and where a reader is told."""

import re
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
from doctored_results import another_gpu, document, write

from labkit import REPOSITORY, claims, outdated, readme, recording, results, sources

LAB = "04_fused_kernel"
REASON = "A refusal names `x` now."
TOLD = re.compile(r"The figures of labs? (.+?) were recorded before a later change of their sources")


def run_of(found, lab=LAB):
    return next(run for run in found["runs"] if run["lab"] == lab)


@pytest.fixture
def stale(tmp_path, monkeypatch):
    """stale(*labs): declares them; the results file of the H200 in a folder of its own, with their runs of other sources."""
    folder = tmp_path / "results"
    folder.mkdir()
    monkeypatch.setenv("LABKIT_RESULTS", str(folder))

    def declare(*labs):
        monkeypatch.setattr(outdated, "declared", lambda: dict.fromkeys(labs, REASON))
        found = document()
        for run in found["runs"]:
            run["sources"] = "0" * 12 if run["lab"] in labs else sources.sources_hash(run["lab"])
        write(folder, found)
        return found

    return declare


# -- what is declared ---------------------------------------------------------------------------------------

@pytest.fixture
def say(tmp_path, monkeypatch):
    """say(text): the file, in a repository that has one lab."""
    monkeypatch.setattr(sources, "REPOSITORY", tmp_path)
    for folder in ("labs", "results"):
        (tmp_path / folder).mkdir()
    (tmp_path / f"labs/{LAB}.ipynb").write_text("{}")
    return (tmp_path / outdated.DECLARED).write_text


def test_without_a_file_or_with_an_empty_one_nothing_is_declared(say):
    assert outdated.declared() == {}
    say("# nothing\n")
    assert outdated.declared() == {}


def test_a_reason_may_stand_on_several_lines(say):
    say(f"{LAB}: A refusal names\n  `x` now.\n")
    assert outdated.declared() == {LAB: REASON}


@pytest.mark.parametrize("text, message", [
    ("04_fused: A change.", r"stale.yml: no lab '04_fused'.*labs: 04_fused_kernel"), (f"{LAB}:", "reason for 04_.* is None"),
    (f"{LAB}: ' '", "reason for 04_.* is ' '; say in a sentence"), (f"{LAB}: a change", "reason .* is 'a change'"),
    (f"{LAB}: 4", "is 4"), (f"- {LAB}", "must hold lines such as"), (f"{LAB}: [", "not valid YAML")])
def test_what_cannot_be_declared_is_refused(say, text, message):
    say(text)
    with pytest.raises(results.ResultsError, match=message):
        outdated.declared()


# -- what may be recorded -----------------------------------------------------------------------------------

def test_a_declared_lab_may_have_the_run_that_its_notebook_shows_and_no_other(stale, monkeypatch):
    found = stale(LAB)
    refused = f"{LAB}: it ran other sources (000000000000) than those that are here ({sources.sources_hash(LAB)})"
    assert recording.problems(found) == [refused]
    monkeypatch.setattr(sources, "stated_hash", lambda path: "0" * 12)
    assert recording.problems(found) == []
    monkeypatch.setattr(outdated, "declared", dict)
    assert recording.problems(found) == [refused]


# -- where a reader is told ---------------------------------------------------------------------------------

def test_a_run_is_remarked_on_where_it_is_declared_and_of_other_sources(stale):
    found = stale(LAB)
    assert outdated.remarks([run_of(found)]) == ["The figures of lab 04 were recorded before a later change of their sources, "
                                                 f"and will be recorded again. The change: {REASON}"]
    assert outdated.remarks([{**run_of(found), "sources": sources.sources_hash(LAB)}]) == []
    assert outdated.remarks([{**run_of(found, "05_jit_builds"), "sources": "0" * 12}]) == []


def test_labs_with_one_reason_are_named_together(stale, monkeypatch):
    labs = ["03_memory_hierarchy", LAB, "05_jit_builds", "06_mixed_precision"]
    runs = [run_of(stale(*labs), lab) for lab in labs]
    monkeypatch.setattr(outdated, "declared", lambda: {**dict.fromkeys(labs, REASON), LAB: "Another change."})
    assert [TOLD.findall(remark) for remark in outdated.remarks(runs)] == [["03, 05 and 06"], ["04"]]


@pytest.fixture
def pages(tmp_path, monkeypatch):
    """pages(): {page: the labs that its note names} of a book of a chapter, its lab, and pages that show and do not show it.

    Built in a process of its own: what MyST-NB sets up would stay in this one.
    """
    texts = {f"book/{LAB}": "Text.", "book/20_number": 'It takes {{ fused_kernel.forward["v7"].us }}.',
             "book/21_table": "```{results-table} fused_kernel.forward\n```",
             "book/22_argument": '{{ memory_hierarchy.copy_float32["clone"].speedup_over(\nfused_kernel.forward["v7"]) }}',
             "book/23_none": 'The `fused_kernel.forward`: {{ memory_hierarchy.copy_float32["clone"].us }}.'}
    source = tmp_path / "source"
    for folder in ("book", "labs"):
        (source / folder).mkdir(parents=True)
    for page, text in texts.items():
        (source / f"{page}.md").write_text(f"# Title\n\n{text}\n")
    nbformat.write(nbformat.v4.new_notebook(cells=[nbformat.v4.new_markdown_cell("# Lab\n\nText.")]),
                   source / f"labs/{LAB}.ipynb")
    names = [*texts, f"labs/{LAB}"]
    (source / "index.md").write_text("# Title\n\n```{toctree}\n" + "\n".join(names) + "\n```\n")
    monkeypatch.setenv("PYTHONPATH", str(REPOSITORY))

    def build():
        (source / "conf.py").write_text("extensions = ['myst_nb', 'labkit.book']\nmyst_enable_extensions = ['substitution']\n"
                                        "html_theme = 'basic'\nnb_execution_mode = 'off'\nfrom labkit import outdated\n"
                                        f"outdated.declared = {outdated.declared()!r}.copy\n")
        sphinx = [sys.executable, "-m", "sphinx", "-W", "-q", source, tmp_path / "html"]
        ran = subprocess.run(sphinx, capture_output=True, text=True)
        assert ran.returncode == 0, ran.stderr
        found = {}
        for page in [*names, "index"]:
            html = (tmp_path / f"html/{page}.html").read_text()
            if told := TOLD.findall(html):
                found[page] = told
                note = r'<div class="admonition note">\s*<p class="admonition-title">Note</p>\s*<p>The figures of labs? 0'
                assert re.search(r"</h1>\s*" + note, html), page
                assert html.count('names <code class="docutils literal notranslate"><span class="pre">x</span>') == len(told)
        return found

    return build


def test_the_chapter_the_lab_and_every_page_that_shows_its_figures_say_so(stale, pages):
    stale(LAB)
    showing = [f"book/{LAB}", f"labs/{LAB}", "book/20_number", "book/21_table", "book/22_argument"]
    assert pages() == dict.fromkeys(showing, ["04"])


def test_a_page_names_all_such_labs_and_is_made_anew_when_one_is_declared(stale, pages, monkeypatch):
    stale("03_memory_hierarchy", LAB)
    with monkeypatch.context() as before:
        before.setattr(outdated, "declared", dict)
        assert pages() == {}
    found = pages()
    assert found["book/22_argument"] == ["03 and 04"] and found["book/23_none"] == ["03"] and found[f"labs/{LAB}"] == ["04"]


def test_the_ledger_says_so_in_each_claim_that_reads_the_run_and_only_for_that_gpu(stale):
    stale("06_mixed_precision")
    other = another_gpu("NVIDIA Test")
    run_of(other, "06_mixed_precision")["sources"] = sources.sources_hash("06_mixed_precision")
    write(results.folder(), other)
    told = {row.claim.id: row.reason for row in claims.rows(results.BOOK_GPU) if TOLD.search(row.reason)}
    assert set(told) == {"C7", "C13"}, "C13 reads labs 06 and 09"
    assert all(reason.endswith(f". The change: {REASON}") and TOLD.findall(reason) == ["06"] for reason in told.values())
    assert not any(TOLD.search(row.reason) for row in claims.rows("nvidia-test"))


def test_the_appendix_of_results_says_so_under_the_gpu(stale, tmp_path):
    from sphinx.testing.util import SphinxTestApp

    stale(LAB)
    source = tmp_path / "source"
    source.mkdir()
    (source / "conf.py").write_text("extensions = ['myst_parser', 'labkit.book', 'labkit.appendices']\nhtml_theme = 'basic'\n")
    (source / "index.md").write_text("# Title\n\n```{recorded-gpus}\n```\n")
    app = SphinxTestApp("html", srcdir=source)
    try:
        app.build()
        html = (Path(app.outdir) / "index.html").read_text()
    finally:
        app.cleanup()
    assert TOLD.findall(html) == ["04"]
    assert html.index("<h2>NVIDIA H200") < TOLD.search(html).start() < html.index("The machine, and when it was measured")


def test_the_readmes_table_says_so(stale):
    stale("03_memory_hierarchy")
    assert not TOLD.search(readme.block())
    stale(LAB)
    (remark,) = outdated.remarks([results.latest(LAB)[1]])
    assert f"\n{remark}\n\n| GeLU |" in readme.block()
