"""The claims ledger: every claim has a row, its verdict follows from the numbers, and the chapters say the same."""

import json
import re
from pathlib import Path

import nbformat
import pytest
import yaml
from doctored_results import another_gpu, document, row, table, write
from mdit_py_plugins.anchors.index import slugify
from test_truth import typed_numbers

from labkit import __main__ as command_line
from labkit import claims, machine, report, results

REPOSITORY = Path(__file__).resolve().parents[1]
GPU = "nvidia-h200"
ALL = [f"C{number}" for number in range(1, 15)]


def verdicts(gpu=GPU):
    return {each.claim.id: each.verdict for each in claims.rows(gpu)}


def rows_of(found, tmp_path, monkeypatch):
    """{id: row} of the ledger of a results file."""
    write(tmp_path, found)
    monkeypatch.setenv("LABKIT_RESULTS", str(tmp_path))
    return {each.claim.id: each for each in claims.rows(found["gpu"]["slug"])}


# -- every claim --------------------------------------------------------------------------------------------

def test_each_claim_of_the_article_stands_there_once():
    assert re.findall(r"^(\w+):", claims.CLAIMS.read_text(encoding="utf-8"), re.MULTILINE) == ALL


@pytest.mark.parametrize("path", results.files(), ids=lambda path: path.stem)
def test_every_claim_whose_lab_a_gpu_has_recorded_has_a_reading_and_a_verdict(path):
    recorded = {run["lab"] for run in json.loads(path.read_text(encoding="utf-8"))["runs"]}
    for each in claims.rows(path.stem):
        if each.claim.lab.partition("#")[0] in recorded:
            assert each.verdict in claims.VERDICTS and re.search(r"\d", each.reading) and each.reason.endswith("."), each
            assert "{" not in each.reading + each.reason
        else:
            assert each.verdict is None and each.claim.lab in each.reason


def test_the_books_gpu_has_recorded_the_lab_of_every_claim_but_of_those_that_are_not_in_the_book():
    toc = (REPOSITORY / "_toc.yml").read_text(encoding="utf-8")
    without = {each.claim.id for each in claims.rows(results.BOOK_GPU) if each.verdict is None}
    assert without == {claim.id for claim in claims.claims() if f"labs/{claim.lab.partition('#')[0]}" not in toc}


def headings(page):
    if page.suffix == ".ipynb":
        cells = nbformat.read(page, as_version=4).cells
        text = "\n".join(cell.source for cell in cells if cell.cell_type == "markdown")
    else:
        text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    return [slugify(re.sub(r"`", "", heading)) for heading in re.findall(r"^#{2,4} (.+)", text, re.MULTILINE)]


@pytest.mark.parametrize("claim", claims.claims(), ids=lambda claim: claim.id)
def test_a_claim_names_a_heading_of_its_lab_and_of_its_chapter_once_these_are_in_the_book(claim):
    toc = (REPOSITORY / "_toc.yml").read_text(encoding="utf-8")
    for folder, place, suffix in (("labs", claim.lab, ".ipynb"), ("book", claim.chapter, ".md")):
        stem, _, heading = place.partition("#")
        if f"{folder}/{stem}" in toc:
            assert heading in headings(REPOSITORY / folder / f"{stem}{suffix}"), f"{claim.id}: {folder}/{place}"


def test_no_measured_number_is_typed_into_a_reading_or_a_test():
    for claim in claims.claims():
        assert typed_numbers(claim.reading) == [] and typed_numbers(claim.test) == [], claim.id


def said_in_chapters():
    """(page, id, verdict) for each claim that a page's admonition judges."""
    for page in sorted((REPOSITORY / "book").glob("[0-9]*.md")):
        for box in re.findall(r"^:::\{admonition\} What the article claims.*?^:::$", page.read_text(encoding="utf-8"),
                              re.MULTILINE | re.DOTALL):
            for claim, text in re.findall(r"^\*\*(C\d+)\b(.*?)(?=^\*\*C\d|\Z)", box, re.MULTILINE | re.DOTALL):
                said = re.findall(r"(?<!\*)\*([A-Z][a-z ]+?)\.?\*(?!\*)", text)
                yield pytest.param(claim, said, id=f"{page.stem[:2]}-{claim}")


@pytest.mark.parametrize("claim, said", list(said_in_chapters()))
def test_a_chapter_and_the_ledger_give_the_same_verdict(claim, said):
    verdict = verdicts(results.BOOK_GPU)[claim]
    assert [word.lower() for word in said] == [verdict], f"{claim}: the chapter says {said}, the ledger {verdict!r}"


def test_the_chapters_judge_every_claim_that_has_a_verdict():
    assert {param.values[0] for param in said_in_chapters()} >= {name for name, verdict in verdicts().items() if verdict}


# -- verdicts follow from the numbers -----------------------------------------------------------------------

def lab_10(forward, both, memory=30.0, native=100.0):
    """A run of the case study in which the composed form takes 100 ms and 40 GiB a step."""
    def change(found):
        rows = [{"variant": name, "ms a step": ms, "memory, GiB": gib} for name, ms, gib in (
            ("composed", 100.0, 40.0), ("fused forward", forward, 36.0), ("fused", both, memory),
            ("F.gelu", native, 30.0), ("torch.compile of the model", 50.0, 30.0))]
        others = [run for run in found["runs"] if run["lab"] != "10_case_study"]
        ours = {**others[0], "lab": "10_case_study", "tables": {"step": results.table_of("A step", rows)}}
        found["runs"] = [*others, ours]
    return change


def cells(lab, name, values):
    """Sets {(row, column): value} of a table."""
    def change(found):
        for (first, column), value in values.items():
            assert column in row(found, lab, name, first), column
            row(found, lab, name, first)[column] = value
    return change


def times(lab, name, medians):
    """Sets the medians of rows of a benchmark, with a narrow spread."""
    def change(found):
        for first, median in medians.items():
            row(found, lab, name, first).update(median_us=median, low_us=0.99 * median, high_us=1.01 * median)
    return change


def heat(medians):
    """Sets cells of the launch-geometry sweep, {threads: GB/s}, at 4 elements a thread."""
    def change(found):
        sweep = table(found, "02", "sweep_bfloat16_consecutive")
        for threads, value in medians.items():
            sweep["cells"][sweep["y"]["values"].index(threads)][sweep["x"]["values"].index(4)] = value
    return change


def together(*changes):
    def change(found):
        for each in changes:
            each(found)
    return change


def share(composed, native):
    return cells("01", "share_50", {("composed", "its share, %"): composed, ("F.gelu", "its share, %"): native})


def losses(**values):
    names = {"plain": "float16 autocast, no scaler", "scaled": "float16 autocast, GradScaler", "bfloat16": "bfloat16 autocast"}
    return cells("06", "losses", {(names[name], "final loss"): value for name, value in values.items()})


def instructions(saved, us):
    return together(cells("09", "kept_why", {("gelu v7 backward", "instructions an element"): 20.0,
                                             ("gelu v7 backward_saved", "instructions an element"): 20.0 - saved}),
                    cells("09", "kept", {("gelu v7 backward", "µs"): 100.0, ("gelu v7 backward_saved", "µs"): us}))


def wrong(one, many):
    return cells("08", "missing_barrier", {("256 threads a block", "wrong, many blocks"): many,
                                           **{(f"{threads} threads a block", "wrong, new input"): one
                                              for threads in (128, 256, 512, 1024)}})


def tuned(memory, repeated, softmax):
    return together(times("06", "flag_times_float32", {"v7": memory, "v7, --use_fast_math": 1.0}),
                    times("06", "flag_times_repeated", {"v4": repeated, "v4, --use_fast_math": 1.0}),
                    times("09", "softmax", {"v4": 2.0, "v5": softmax, "v6": 1.0}))


def kernels(composed, fused):
    return together(*(cells("09", f"hot_{name}_summary", {("that is, of the distinct kernels, %", "value"): value})
                      for name, value in (("composed", composed), ("fused", fused))))


def builds(load, stable):
    return cells("05", "ladder", {("nvcc by hand, setup.py", "cold, s"): 100.0, ("load(), stable ABI", "cold, s"): stable,
                                  ("load(), torch/extension.h in the binding", "cold, s"): load})


def timed(gives, careful):
    return together(cells("07", "mistakes", {("the article's way: the mean of 100", "gives, µs"): gives,
                                             ("the article's way: the mean of 100", "right, µs"): 20.0}),
                    cells("07", "mistakes_spread", {("bench", "mean off by at most, %"): careful}))


def geometry(narrow, wide):
    return together(*(times("02", f"sweep_{dtype}", {"F.gelu": factor, "the article's choice": 1.0})
                      for dtype, factor in (("bfloat16", narrow), ("float32", wide))))


def backward(kept, again):
    return times("04", "forward_backward", {"ours, derivative kept": kept, "ours, input kept": again})


def fused(native, composed):
    return times("04", "forward_backward", {"ours, input kept": 1.0, "F.gelu": native, "composed": composed})


def shared(stencil, times_each):
    return cells("03", "reuse", {("stencil v2", "fewer than the first, %"): stencil, ("gelu v7", "times each"): times_each})


DOCTORED = [
    ("C1", share(18, 12), "reproduced"), ("C1", share(34, 5), "conditional"), ("C1", share(34, 16), "conditional"),
    ("C1", share(9, 3), "not reproduced"), ("C1", share(40, 30), "not reproduced"),
    ("C2", fused(3.0, 12), "reproduced"), ("C2", fused(1.1, 12), "conditional"), ("C2", fused(1.1, 2.5), "not reproduced"),
    ("C3", geometry(5.1, 4.6), "reproduced"), ("C3", geometry(5.1, 1.0), "conditional"),
    ("C3", geometry(0.3, 1.2), "conditional"), ("C3", geometry(0.3, 1.0), "not reproduced"),
    ("C4", shared(90, 10), "reproduced"), ("C4", shared(90, 1), "conditional"), ("C4", shared(79, 1), "not reproduced"),
    ("C5", backward(90, 100), "reproduced"), ("C5", backward(99.5, 100), "conditional"),
    ("C5", backward(120, 100), "conditional"),
    ("C6", builds(10, 5), "reproduced"), ("C6", builds(60, 5), "conditional"), ("C6", builds(60, 50), "not reproduced"),
    ("C7", losses(plain=0.78, scaled=0.78, bfloat16=0.78), "reproduced"), ("C7", losses(plain=None), "conditional"),
    ("C7", losses(plain=2.0, scaled=2.0), "conditional"),
    ("C7", losses(plain=2.0, scaled=None, bfloat16=2.0), "not reproduced"),
    ("C7", cells("06", "step_types", {("float16 autocast, GradScaler", "times as fast as float32"): 0.9}), "not reproduced"),
    ("C8", timed(20.5, 1.0), "reproduced"), ("C8", timed(60.0, 1.0), "conditional"), ("C8", timed(60.0, 6.0), "not reproduced"),
    ("C9", lab_10(84.2, 58.6), "reproduced"), ("C9", lab_10(99.0, 70.0), "conditional"),
    ("C9", lab_10(84.2, 75.0), "conditional"), ("C9", lab_10(84.2, 58.6, native=60.0), "conditional"),
    ("C9", lab_10(99.0, 95.0), "not reproduced"), ("C9", lab_10(84.2, 58.6, memory=41.0), "not reproduced"),
    ("C10", instructions(8, 80.0), "reproduced"), ("C10", instructions(8, 99.0), "conditional"),
    ("C10", instructions(5, 80.0), "not reproduced"),
    ("C11", wrong("20 of 1000", "0 of 1000"), "reproduced"), ("C11", wrong("0 of 1000", "1000 of 1000"), "conditional"),
    ("C11", wrong("0 of 1000", "0 of 1000"), "not reproduced"), ("C11", wrong("400 of 1000", "1000 of 1000"), "not reproduced"),
    ("C12", heat({32: 900, 256: 3000, 1024: 4000}), "reproduced"),
    ("C12", heat({32: 900, 256: 3600, 1024: 3600}), "conditional"),
    ("C12", heat({32: 3600, 256: 3600, 1024: 4000}), "not reproduced"),
    ("C13", tuned(1.0, 1.04, 1.04), "reproduced"), ("C13", tuned(1.0, 2.5, 1.0), "conditional"),
    ("C13", tuned(1.0, 1.0, 1.2), "conditional"), ("C13", tuned(1.1, 2.5, 1.2), "not reproduced"),
    ("C14", kernels(15, 20), "reproduced"), ("C14", kernels(15, 30), "conditional"), ("C14", kernels(30, 41), "not reproduced"),
]


@pytest.mark.parametrize("claim, change, verdict", DOCTORED,
                         ids=[f"{claim}-{verdict}-{place}" for place, (claim, _, verdict) in enumerate(DOCTORED)])
def test_other_numbers_give_another_verdict(claim, change, verdict, tmp_path, monkeypatch):
    found = document()
    change(found)
    ledger = rows_of(found, tmp_path, monkeypatch)
    assert ledger[claim].verdict == verdict
    because, _, _ = ledger[claim].reason.partition(" The figures of lab")  # so begins what is said of a stale record
    assert because == ledger[claim].claim.verdict[verdict]["because"]


def test_each_verdict_that_a_claim_can_have_is_reached_above():
    assert {(claim, verdict) for claim, _, verdict in DOCTORED} == {
        (claim.id, verdict) for claim in claims.claims() for verdict in claim.verdict}


def test_readings_are_of_the_numbers_that_were_recorded(tmp_path, monkeypatch):
    found = document()
    together(lab_10(99.0, 70.0), share(34.25, 4.5), wrong("7 of 1000", "8 of 1000"), kernels(21.5, 33.0))(found)
    ledger = rows_of(found, tmp_path, monkeypatch)
    assert "34.25% composed, 4.5% with `F.gelu`" in ledger["C1"].reading
    assert ledger["C9"].reading.startswith("100 ms and 40 GiB composed; 99 ms (1.0% less) and 36 GiB")
    assert "7 of 1000 launches of one block are wrong and 8 of 1000 of many" in ledger["C11"].reading
    assert ledger["C14"].reading.startswith("21.5% of the kernels") and "33% with the fused" in ledger["C14"].reading


# -- what was not measured ----------------------------------------------------------------------------------

def test_a_lab_without_a_run_gives_its_claims_no_verdict_and_is_named(tmp_path, monkeypatch):
    ledger = rows_of(another_gpu("NVIDIA Test", leave_out=["04", "06"]), tmp_path, monkeypatch)
    without = {name for name, each in ledger.items() if each.verdict is None}
    assert {"C2", "C5", "C7", "C13"} <= without <= {"C2", "C5", "C7", "C9", "C13"}
    assert ledger["C2"].reading == "Not measured yet." and ledger["C2"].date is None
    assert ledger["C2"].reason == "The lab 04_fused_kernel has no recorded run on this GPU."
    assert "06_mixed_precision" in ledger["C13"].reason, "its main lab is recorded, another that it needs is not"


def test_a_table_that_a_run_lacks_is_named(tmp_path, monkeypatch):
    found = document()
    for run in found["runs"]:
        run["tables"].pop("kept_why", None)
        run["tables"].pop("warps_consecutive", None)
    ledger = rows_of(found, tmp_path, monkeypatch)
    assert ledger["C10"].verdict is None and ledger["C10"].reading == "Not measured."
    assert ledger["C10"].reason == "In the lab's run, profiling_80_20 has no table 'kept_why'."
    assert ledger["C12"].verdict == "conditional", "counters are no part of it"
    assert "slots" not in ledger["C12"].reading


@pytest.mark.parametrize("change, message", [
    (lambda claim: claim.pop("test"), "must have"),
    (lambda claim: claim["verdict"].update(proven={"because": "x"}), "proven"),
    (lambda claim: claim["verdict"]["reproduced"].pop("if"), "needs a condition"),
    (lambda claim: claim["verdict"]["not reproduced"].update({"if": "native > 1"}), "needs a condition")])
def test_a_claim_that_is_not_said_whole_is_refused(tmp_path, monkeypatch, change, message):
    said = yaml.safe_load(claims.CLAIMS.read_text(encoding="utf-8"))
    change(said["C1"])
    (tmp_path / "claims.yml").write_text(yaml.safe_dump(said, sort_keys=False), encoding="utf-8")
    monkeypatch.setattr(claims, "CLAIMS", tmp_path / "claims.yml")
    with pytest.raises(claims.ClaimsError, match=f"C1.*{message}"):
        claims.claims()


@pytest.mark.parametrize("claim, change, reason", [
    ("C1", share(34, None), "The lab's run lacks a number: "),
    ("C2", times("04", "forward_backward", {"ours, input kept": 0.0}), "The lab's run lacks a number: "),
    ("C11", wrong("hangs", "3 of 1000"), "In the lab's run, 'hangs' stands in place of a count.")])
def test_a_cell_without_a_number_gives_no_verdict(claim, change, reason, tmp_path, monkeypatch):
    found = document()
    change(found)
    monkeypatch.setattr(results, "documents", lambda: [found])  # a time of zero breaks the schema
    row_of_claim = {each.claim.id: each for each in claims.rows(GPU)}[claim]
    assert row_of_claim.verdict is None and row_of_claim.reading == "Not measured." and row_of_claim.reason.startswith(reason)


@pytest.mark.parametrize("condition", ["nativ > 1", "native >"])
def test_an_expression_that_fails_names_its_claim(tmp_path, monkeypatch, condition):
    said = yaml.safe_load(claims.CLAIMS.read_text(encoding="utf-8"))
    said["C1"]["verdict"]["reproduced"]["if"] = condition
    (tmp_path / "claims.yml").write_text(yaml.safe_dump(said, sort_keys=False), encoding="utf-8")
    monkeypatch.setattr(claims, "CLAIMS", tmp_path / "claims.yml")
    with pytest.raises(claims.ClaimsError, match="C1, on nvidia-h200"):
        claims.rows(GPU)


# -- the reader's own ---------------------------------------------------------------------------------------

@pytest.fixture
def with_gpu(tmp_path, monkeypatch):
    """A machine with a GPU whose name is "NVIDIA Test", and results of it and of the H200."""
    write(tmp_path, document(), another_gpu("NVIDIA Test", leave_out=["04"]))
    monkeypatch.setenv("LABKIT_RESULTS", str(tmp_path))
    monkeypatch.setattr(machine, "backend", lambda: "cuda")
    monkeypatch.setattr(machine, "gpu", lambda: {"name": "NVIDIA Test", "slug": "nvidia-test"})


def test_the_command_tells_of_this_machines_gpu(with_gpu, capsys):
    assert command_line.main(["ledger", "--here"]) == 0
    said = capsys.readouterr().out
    assert said.startswith("The article's claims on NVIDIA Test, as recorded.\n")
    assert re.findall(r"^(C\d+) ", said, re.MULTILINE) == ALL
    assert "C2  NO VERDICT\n" in said and "C3  NOT REPRODUCED, 20" in said and "`" not in said
    assert max(map(len, said.splitlines())) <= results.WIDTH


def test_the_command_tells_of_another_gpu_and_that_it_is_one(with_gpu, capsys):
    assert command_line.main(["ledger", "--here", "nvidia-h200"]) == 0
    assert capsys.readouterr().out.startswith("The article's claims on NVIDIA H200, as recorded; not this machine's GPU.\n")


def test_a_gpu_that_has_recorded_nothing_is_told_with_those_that_have(with_gpu, monkeypatch, capsys):
    monkeypatch.setattr(machine, "gpu", lambda: {"name": "NVIDIA T4", "slug": "nvidia-t4"})
    assert command_line.main(["ledger", "--here"]) == 2
    said = capsys.readouterr().err
    assert "nothing is recorded on 'nvidia-t4'" in said and "nvidia-h200, nvidia-test" in said and "make labs" in said


def test_without_a_gpu_it_is_the_books_and_says_so(monkeypatch, capsys):
    monkeypatch.setattr(machine, "backend", lambda: "host")
    claims.ledger()
    assert capsys.readouterr().out.startswith("The article's claims on NVIDIA H200, as recorded; there is no GPU here.\n")


def test_a_notebook_gets_a_table(with_gpu, monkeypatch):
    import IPython.display

    shown = []
    monkeypatch.setattr(report, "in_notebook", lambda: True)
    monkeypatch.setattr(IPython.display, "display", lambda data, raw: shown.append(data))
    claims.ledger()
    page = shown[0]["text/html"]
    assert page.count("<tr") == 1 + len(ALL) and "no recorded run on this GPU" in page and "not reproduced" in page
