"""Sphinx extension of the appendices that are made of data: the claims ledger, the recorded GPUs, the teaching guide.

    {claims-ledger}     every claim of book/claims.yml with its test, and for each GPU the reading and the verdict
    {compare-gpus}      a switch between two recorded GPUs; a line that says what is missing where there is only one
    {recorded-gpus}     a section a GPU: machine, versions, dates, headline benchmarks and figures
    {workshop-plan} P   the plan P of workshop/plans.yml, by the clock
    {all-exercises}     every exercise with its lab
"""

from __future__ import annotations

from collections import Counter

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

from labkit import claims, exercises, figures, gpus_figure, headlines, outdated, results, teaching
from labkit.book import figure_node, stale_note, table_node


class _Appendix(SphinxDirective):
    """What the directives of the appendices share: they are made anew when a results file changes."""

    def documents(self) -> list[dict]:
        """What the results files hold; that of the book's GPU first."""
        for path in results.files():
            self.env.note_dependency(str(path))
        return sorted(results.documents(), key=lambda document: document["gpu"]["slug"] != results.BOOK_GPU)

    def words(self, text: str) -> list[nodes.Node]:
        """Markdown of one line as the nodes inside of a paragraph."""
        paragraph, = self.parse_text_to_nodes(text)
        return paragraph.children


class ClaimsLedger(_Appendix):
    """The claims as one table: a claim's cell stands beside a row for each GPU. Before it, how many have which verdict."""

    def run(self) -> list[nodes.Node]:
        self.env.note_dependency(str(claims.CLAIMS))
        gpus = [document["gpu"] for document in self.documents()]
        if not gpus:
            return [nodes.paragraph("", "No GPU has recorded anything yet.")]
        found = [claims.rows(gpu["slug"]) for gpu in gpus]
        table = nodes.table("", classes=["ledger"])
        group = nodes.tgroup("", *(nodes.colspec(colwidth=width) for width in (42, 30, 28)), cols=3)
        group += nodes.thead("", nodes.row("", *(nodes.entry("", nodes.paragraph("", head)) for head in
                                                 ("the article says, and our test", "reading", "verdict"))))
        body = nodes.tbody("")
        for of_claim in zip(*found):
            for place, (gpu, row) in enumerate(zip(gpus, of_claim)):
                first = [self._claim(row.claim, len(gpus))] if place == 0 else []
                body += nodes.row("", *first, *self._measured(gpu, row))
        table += group
        group += body
        self.set_source_info(table)
        return [*(_counted(gpu, rows) for gpu, rows in zip(gpus, found)), table]

    def _claim(self, claim: claims.Claim, gpus: int) -> nodes.entry:
        links = [link for link in (self._link("the lab", "labs", claim.lab, ".ipynb"),
                                   self._link("the chapter", "book", claim.chapter, ".md")) if link]
        test = self.words(f"{claim.test} " + (f"See {' and '.join(links)}." if links else ""))
        return nodes.entry("", nodes.paragraph("", "", nodes.strong("", claim.id), nodes.Text(" "), *self.words(claim.says)),
                           nodes.paragraph("", "", *test, classes=["ledger-test"]), morerows=gpus - 1)

    def _link(self, words: str, folder: str, place: str, suffix: str) -> str | None:
        """A link to the heading; None while the book does not have that page."""
        stem, _, heading = place.partition("#")
        if f"{folder}/{stem}" not in self.env.found_docs:
            return None
        return f"[{words}](/{folder}/{stem}{suffix}{'#' * bool(heading)}{heading})"

    def _measured(self, gpu: dict, row: claims.Row) -> list[nodes.entry]:
        day = [nodes.Text(", "), nodes.inline("", row.date, classes=["day"])] if row.date else []
        kind = (row.verdict or "none").replace(" ", "-")
        return [nodes.entry("", nodes.paragraph("", "", nodes.Text(gpu["name"]), *day, classes=["ledger-gpu"]),
                            nodes.paragraph("", "", *self.words(row.reading))),
                nodes.entry("", nodes.paragraph("", row.verdict or "no verdict", classes=["verdict", f"verdict-{kind}"]),
                            nodes.paragraph("", "", *self.words(row.reason)))]


def _counted(gpu: dict, rows: list[claims.Row]) -> nodes.paragraph:
    counts = Counter(row.verdict or "not measured" for row in rows)
    told = ", ".join(f"{counts[word]} {word}" for word in (*claims.VERDICTS, "not measured") if counts[word])
    return nodes.paragraph("", f"On {gpu['name']}: {told}.")


class CompareGpus(_Appendix):
    """Two GPUs beside each other, chosen by the reader."""

    def run(self) -> list[nodes.Node]:
        documents = self.documents()
        if len(documents) < 2:
            there = f"one GPU is recorded here: {documents[0]['gpu']['name']}" if documents else "no GPU is recorded here"
            return [nodes.paragraph("", "", *self.words(
                f"So far {there}. With two, a switch between them stands at this place. How to [add yours](#add-your-gpu) is "
                "said below."))]
        return [nodes.raw("", gpus_figure.html(documents), format="html")]


class RecordedGpus(_Appendix):
    """A section for each recorded GPU."""

    def run(self) -> list[nodes.Node]:
        return [self._section(document) for document in self.documents()]

    def _section(self, document: dict) -> nodes.section:
        gpu, latest = document["gpu"], results.latest_runs(document["runs"])
        section = nodes.section("", nodes.title("", gpu["name"]), ids=[gpu["slug"]], names=[gpu["slug"]])
        self.state.document.note_explicit_target(section)
        section += stale_note(outdated.remarks(latest.values()))
        facts = headlines.facts(document)
        heads, rows = figures.grid(results.table_of("", [{"what": name, "recorded": value} for name, value in facts.items()]))
        section += table_node(heads, rows, "The machine, and when it was measured")
        found = headlines.headlines(latest)
        if found:
            table = headlines.table(found)
            caption = f"{figures.title(table)}, on {gpu['name']}"
            section += table_node(*figures.grid(table), caption)
            section += figure_node(figures.figure(headlines.shares(found)), f"{headlines.SHARES}, on {gpu['name']}")
        for lab, name in headlines.FIGURES:
            if lab in latest and (record := latest[lab]["tables"].get(name)):
                caption = f"{figures.title(record)}. {results.Recorded(gpu, latest[lab], record).caption()}."
                section += (table_node(*figures.grid(record), caption) if record["kind"] == "table"
                            else figure_node(figures.figure(record), caption))
        return section


class WorkshopPlan(SphinxDirective):
    """A plan as a table."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        self.env.note_dependency(str(teaching.PLANS))
        try:
            plan = teaching.plan(self.arguments[0])
        except teaching.PlanError as error:
            raise self.error(str(error)) from error
        return [table_node(*figures.grid(plan), plan["title"])]


class AllExercises(SphinxDirective):
    """The exercises as a table."""

    def run(self) -> list[nodes.Node]:
        for path in exercises.FOLDER.glob("*/exercise.yml"):
            self.env.note_dependency(str(path))
        found = teaching.all_exercises()
        return [table_node(*figures.grid(found), found["title"])]


def setup(app: Sphinx) -> dict:
    """Register the directives with Sphinx."""
    app.add_directive("claims-ledger", ClaimsLedger)
    app.add_directive("compare-gpus", CompareGpus)
    app.add_directive("recorded-gpus", RecordedGpus)
    app.add_directive("workshop-plan", WorkshopPlan)
    app.add_directive("all-exercises", AllExercises)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
