"""The source article's claims held against what GPUs recorded: a reading, a verdict and its reason for each.

book/claims.yml holds the claims, each with its test, how its reading is made of recorded tables, and the conditions of its
verdicts; nothing here or there holds a verdict. So another GPU can come to another one. The book's appendix shows them for
every recorded GPU, and `ledger` those of the reader's.
"""

from __future__ import annotations

import dataclasses
import functools
import sys
import textwrap

import jinja2
import yaml

from labkit import REPOSITORY, figures, machine, outdated, prose, report, results

CLAIMS = REPOSITORY / "book" / "claims.yml"
VERDICTS = ("reproduced", "conditional", "not reproduced")


class ClaimsError(ValueError):
    """book/claims.yml holds something that cannot be: a verdict of another name, an expression that fails."""


@dataclasses.dataclass(frozen=True)
class Claim:
    """One claim of book/claims.yml, which says what its parts are. lab, chapter: the stem of a file, or stem#heading."""

    id: str
    says: str
    test: str
    lab: str
    chapter: str
    numbers: dict[str, str]
    reading: str
    verdict: dict[str, dict[str, str]]


@dataclasses.dataclass(frozen=True)
class Row:
    """A claim on one GPU. verdict: one of VERDICTS, or None where it was not measured; `reason` then says what is missing.

    date: the day of the lab's run, None where there is none.
    """

    claim: Claim
    reading: str
    verdict: str | None
    reason: str
    date: str | None


def claims() -> list[Claim]:
    """The claims, in their order. Raises ClaimsError for one that book/claims.yml does not say whole."""
    known = {field.name for field in dataclasses.fields(Claim)} - {"id"}
    found = []
    for name, said in yaml.safe_load(CLAIMS.read_text(encoding="utf-8")).items():
        if set(said) != known:
            raise ClaimsError(f"{CLAIMS.name}: {name} must have {', '.join(sorted(known))}, and has {', '.join(sorted(said))}")
        if not set(said["verdict"]) <= set(VERDICTS):
            raise ClaimsError(f"{CLAIMS.name}: {name} has the verdicts {', '.join(said['verdict'])}; "
                              f"there are {', '.join(VERDICTS)}")
        *conditional, (last, end) = said["verdict"].items()
        if "if" in end or any("if" not in each for _, each in conditional):
            raise ClaimsError(f"{CLAIMS.name}: {name}: each verdict needs a condition, but for the last, {last!r}")
        found.append(Claim(id=name, **said))
    return found


def rows(gpu: str) -> list[Row]:
    """Every claim on the GPU of this slug, by its latest run of each lab."""
    all_claims = claims()
    known = {lab.lab: lab for lab in prose.labs(gpu).values()}
    absent = {_stem(claim) for claim in all_claims} - set(known)  # a lab that is being written
    known |= {stem: prose.Lab(stem, gpu) for stem in absent}
    return [_row(claim, known, gpu) for claim in all_claims]


def _stem(claim: Claim) -> str:
    return claim.lab.partition("#")[0]


def _row(claim: Claim, known: dict[str, prose.Lab], gpu: str) -> Row:
    lab = known[_stem(claim)]
    date = lab["date"] if lab.is_recorded else None
    environment = _environment()
    names = {lab.name: lab for lab in known.values()}
    try:
        for name, expression in claim.numbers.items():
            names[name] = _value(environment, expression, names)
        verdict = next(word for word, each in claim.verdict.items()
                       if "if" not in each or _value(environment, each["if"], names))
        reading = environment.from_string(claim.reading).render(names)
        because = [claim.verdict[verdict]["because"], *_remarks(claim, known)]
        return Row(claim, reading, verdict, " ".join(because), date)
    except prose.NotRecorded as missing:
        return Row(claim, "Not measured yet.", None, f"The lab {missing.lab} has no recorded run on this GPU.", date)
    except prose.UnknownResult as missing:
        return Row(claim, "Not measured.", None, f"In the lab's run, {str(missing).partition(';')[0]}.", date)
    except (ArithmeticError, TypeError) as error:  # a cell that is empty, or 0, on this GPU
        return Row(claim, "Not measured.", None, f"The lab's run lacks a number: {error}.", date)
    except jinja2.TemplateError as error:
        raise ClaimsError(f"{CLAIMS.name}: {claim.id}, on {gpu}: {error}") from error


def _remarks(claim: Claim, known: dict[str, prose.Lab]) -> list[str]:
    """What is to know of the runs that the claim's numbers are of, where these are of earlier sources."""
    conditions = [each.get("if", "") for each in claim.verdict.values()]
    read = prose.addressed("\n".join([*claim.numbers.values(), claim.reading, *conditions]))
    return outdated.remarks(run for lab in known.values() if lab.name in read for run in lab.runs)


def _value(environment: jinja2.Environment, expression: str, names: dict[str, object]) -> object:
    return environment.compile_expression(expression, undefined_to_none=False)(names)


@functools.cache
def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(undefined=jinja2.StrictUndefined, autoescape=False)
    environment.filters |= {"number": figures.number, "ratio": figures.ratio, "share": _share}
    return environment


def _share(text: str) -> float:
    """ "3 of 200" as 0.015."""
    part, of, whole = text.partition(" of ")
    if not of:  # such as "hangs"
        raise prose.UnknownResult(f"{text!r} stands in place of a count")
    return int(part) / int(whole)


# -- the reader's own ---------------------------------------------------------------------------------------

def ledger(gpu: str | None = None) -> None:
    """Shows every claim on one GPU, as a table in a notebook and as text in a terminal.

    gpu: a name such as "NVIDIA H200", or its slug; when left out, this machine's, or without one that of the book. Raises
    ResultsError for a GPU that has recorded nothing.
    """
    here = machine.gpu() if machine.backend() == "cuda" else None
    slug = machine.slug(gpu) if gpu else here["slug"] if here else results.BOOK_GPU
    known = {document["gpu"]["slug"]: document["gpu"] for document in results.documents()}
    if slug not in known:
        raise results.ResultsError(f"nothing is recorded on {slug!r}; there is {', '.join(known) or 'no GPU'}. "
                                   "`make labs` on a machine with a GPU records what it measures")
    found = rows(slug)
    title = f"The article's claims on {known[slug]['name']}"
    why = "" if here and here["slug"] == slug else "; not this machine's GPU" if here else "; there is no GPU here"
    table = results.table_of(title, [
        {"claim": row.claim.id, "the article says": _plain(row.claim.says), "reading": _plain(row.reading),
         "verdict": row.verdict or "–", "why": _plain(row.reason), "measured": row.date or "–"} for row in found])
    report.show_html(lambda: figures.html_table(table, f"As recorded{why}"), f"{title}, as recorded{why}.\n\n{_text(found)}")


def tell(gpu: str | None = None) -> int:
    """`python -m labkit ledger [GPU]`: prints the ledger; returns the exit status, 2 where that GPU has recorded nothing."""
    try:
        ledger(gpu)
    except results.ResultsError as error:
        print(f"ledger: {error}.", file=sys.stderr)
        return 2
    return 0


def _text(found: list[Row]) -> str:
    lines = []
    for row in found:
        lines.append(f"{row.claim.id}  {(row.verdict or 'no verdict').upper()}" + (f", {row.date}" if row.date else ""))
        lines += [textwrap.fill(_plain(text), results.WIDTH, initial_indent="     ", subsequent_indent="     ")
                  for text in (f"Article: {row.claim.says}", f"Reading: {row.reading}", f"Why: {row.reason}")]
    return "\n".join(lines)


def _plain(text: str) -> str:
    """Without the marks of Markdown that claims.yml uses."""
    return text.replace("`", "")
