"""Sphinx extension of the book: recorded results in the prose, in tables and figures; kernels as listings.

In the prose a number is a substitution, evaluated by Jinja while the page is read. Each lab gives one name,
its own without the number: what labs/04_fused_kernel recorded is `fused_kernel`. Then come the table, the
row, and what to say of it (see labkit/prose.py):

    {{ fused_kernel.forward["gelu v6"].us }}                        263.9 µs
    {{ fused_kernel.forward["gelu v6"].speedup_over("F.gelu") }}    1.14×
    {{ fused_kernel.kernels["eager"].launched }}                    8, of a plain table's column "launched"
    {{ fused_kernel.ulp_curves["F.gelu"].max }}                     2,048
    {{ grid_block_thread.geometry["32"]["4"] }}                     1,993, of a heat map's cell at y 32 and x 4
    {{ grid_block_thread.geometry.best_at }}                        256 threads a block, 4 elements a thread
    {{ memory_hierarchy.streams["in turn: copy in"].total }}        4.800 ms, of a timeline's lane
    {{ fused_kernel.gpu }}                                          NVIDIA H200

Directives take the same address: `{results-table} fused_kernel.forward`, and `{results-figure}` likewise;
`{kernel-source} gelu` shows a kernel. What does not exist is a warning that names page and key, and the book
is built with warnings as errors.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterable
from pathlib import Path

from docutils import nodes
from docutils.parsers.rst import directives
from sphinx.application import Sphinx
from sphinx.directives.code import container_wrapper
from sphinx.environment import BuildEnvironment
from sphinx.util import logging
from sphinx.util.docutils import SphinxDirective

from labkit import figures, first_cell, outdated, results
from labkit.prose import Lab, UnknownResult, addressed, labs

PAGES = "book/*.md", "labs/*.ipynb"

_SHOWN = re.compile(r"\{\{(.+?)\}\}|\{results-(?:table|figure)\}([^\n]+)", re.DOTALL)  # where a page names what it shows

log = logging.getLogger(__name__)


class _ResultsDirective(SphinxDirective):
    """What the two results directives share: the address, the dependency, the label."""

    required_arguments = 1
    option_spec = {"name": directives.unchanged, "caption": directives.unchanged}

    def recorded(self) -> results.Recorded:
        """The table at the directive's address, such as fused_kernel.forward."""
        for path in results.files():
            self.env.note_dependency(str(path))
        name, _, table = self.arguments[0].partition(".")
        known = labs()
        if name not in known:
            raise self.error(f"{self.name}: there is no lab {name!r} (of {', '.join(known)}); "
                             "write {lab}.{table}, as in fused_kernel.forward")
        try:
            return known[name].recorded(table)
        except UnknownResult as unknown:
            raise self.error(f"{self.name}: {unknown}") from unknown

    def caption(self, found: results.Recorded) -> str:
        """The option `caption`, or the table's own title, and where it was recorded."""
        return f"{self.options.get('caption') or figures.title(found.table)}. {found.caption()}."


class ResultsTable(_ResultsDirective):
    """A recorded benchmark, plain table, heat map or timeline as a table.

    Option `rows`: names of the rows to show, separated by commas.
    """

    option_spec = {**_ResultsDirective.option_spec, "rows": directives.unchanged}

    def run(self) -> list[nodes.Node]:
        found = self.recorded()
        try:
            heads, rows = figures.grid(self._chosen(found.table))
        except (UnknownResult, ValueError) as problem:
            raise self.error(f"{self.name}: {self.arguments[0]}: {problem}") from problem
        table = table_node(heads, rows, self.caption(found))
        self.set_source_info(table)
        self.add_name(table)
        return [table]

    def _chosen(self, record: dict) -> dict:
        record = figures.tabulated(record)
        if "rows" not in self.options:
            return record
        first = "name" if record["kind"] == "bench" else record["columns"][0]
        rows = {str(row[first]): row for row in record["rows"]}
        wanted = [name.strip() for name in self.options["rows"].split(",")]
        if missing := [name for name in wanted if name not in rows]:
            raise UnknownResult(f"no row {missing[0]!r}; there are {', '.join(rows)}")
        return {**record, "rows": [rows[name] for name in wanted]}


def table_node(heads: list[str], rows: list[list[str]], caption: str) -> nodes.table:
    """A table of measurements, from what `figures.grid` gives."""
    table = nodes.table("", nodes.title("", caption), classes=["results"])
    group = nodes.tgroup("", *(nodes.colspec(colwidth=1) for _ in heads), cols=len(heads))
    kinds = figures.column_kinds(heads, rows)
    group += nodes.thead("", _row(heads, kinds))
    group += nodes.tbody("", *(_row(row, kinds) for row in rows))
    table += group
    return table


def figure_node(svg: str, caption: str) -> nodes.figure:
    """A drawing of `figures.figure` with its caption."""
    return nodes.figure("", nodes.raw("", svg, format="html"), nodes.caption("", caption))


def _row(cells: list[str], kinds: list[str]) -> nodes.row:
    return nodes.row("", *(nodes.entry("", nodes.paragraph("", cell), classes=[kind]) for cell, kind in zip(cells, kinds)))


class ResultsFigure(_ResultsDirective):
    """A recorded benchmark as bars, a curve as lines, a heat map as cells, a timeline as bars over time."""

    def run(self) -> list[nodes.Node]:
        found = self.recorded()
        try:
            svg = figures.figure(found.table)
        except ValueError as problem:
            raise self.error(f"{self.name}: {self.arguments[0]}: {problem}") from problem
        figure = figure_node(svg, self.caption(found))
        self.set_source_info(figure)
        self.add_name(figure)
        return [figure]


class KernelSource(SphinxDirective):
    """The code of one version of a kernel; with `diff`, what that version changes in the version `diff`."""

    required_arguments = 1
    option_spec = {"version": directives.positive_int, "diff": directives.positive_int,
                   "name": directives.unchanged, "caption": directives.unchanged}

    def run(self) -> list[nodes.Node]:
        from labkit.listing import difference, source  # here: only some pages need what it brings along

        operator, new, old = self.arguments[0], self.options.get("version"), self.options.get("diff")
        if new is None:
            raise self.error(f"{self.name}: {operator}: which version? add :version:")
        try:
            # The difference's first two lines name the versions, as the caption does.
            text = source(operator, new) if old is None else difference(operator, old, new).split("\n", 2)[2]
        except (ValueError, OSError) as problem:
            raise self.error(f"{self.name}: {operator}: {problem}") from problem
        for path in (results.REPOSITORY / "kernels" / operator).glob("*.cu"):
            self.env.note_dependency(str(path))
        block = nodes.literal_block(text, text, language="cuda" if old is None else "diff",
                                    classes=["kernel-source"])
        self.set_source_info(block)
        what = f"version {new}" if old is None else f"from version {old} to version {new}"
        block = container_wrapper(self, block, self.options.get("caption") or f"{operator}, {what}")
        self.add_name(block)
        return [block]


def _look_over(app: Sphinx, env: BuildEnvironment, docnames: list[str]) -> None:
    """Warns of what Sphinx passes over, at every build: a page that is in no table of contents, a cell that failed."""
    for path in sorted(path for pattern in PAGES for path in Path(app.srcdir).glob(pattern)):
        name = path.relative_to(app.srcdir).with_suffix("").as_posix()
        if name not in env.found_docs:
            log.warning("%s is in no table of contents, so that it is not built: name it in _toc.yml", path.name, location=name)
        if path.suffix == ".ipynb":
            for number, cell in enumerate(json.loads(path.read_text(encoding="utf-8"))["cells"], start=1):
                for failed in (output for output in cell.get("outputs", []) if output["output_type"] == "error"):
                    log.warning("cell %d failed: %s: %s", number, failed["ename"], failed["evalue"], location=name)


def stale_note(remarks: Iterable[str]) -> list[nodes.note]:
    """A note with a paragraph for each of `outdated.remarks`; no note where there is none."""
    paragraphs = [nodes.paragraph("", "", *(nodes.literal("", part) if code else nodes.Text(part)
                                            for part, code in zip(remark.split("`"), itertools.cycle([False, True]))))
                  for remark in remarks]
    return [nodes.note("", *paragraphs)] if paragraphs else []


def _note_what_is_stale(app: Sphinx, doctree: nodes.document) -> None:
    """Puts the note under the title of a lab's page, of its chapter and of any other that shows what the lab recorded."""
    page = Path(app.env.doc2path(app.env.docname))
    shown = addressed("\n".join("".join(parts) for parts in _SHOWN.findall(page.read_text(encoding="utf-8"))))
    title = next(doctree.findall(nodes.title), None)
    if title is not None:
        place = title.parent.index(title) + 1
        title.parent[place:place] = stale_note(outdated.remarks(
            run for lab in map(Lab, app.config.stale) if lab.lab == page.stem or lab.name in shown for run in lab.runs))


def setup(app: Sphinx) -> dict:
    """Register the substitutions and directives with Sphinx, the repository's address, and what else makes a build fail."""
    def substitute(app, config):
        config.myst_substitutions = {**config.myst_substitutions, **labs()}
        config.stale = outdated.declared()
        if "launch_buttons" in config.html_theme_options:  # which lead to a notebook in the repository
            url, branch = first_cell.address()
            config.html_theme_options = {**config.html_theme_options, "repository_url": url, "repository_branch": branch}

    app.add_config_value("stale", {}, "env", [dict])  # pages are read again when it changes
    app.connect("config-inited", substitute)
    app.connect("env-before-read-docs", _look_over)
    app.connect("doctree-read", _note_what_is_stale)
    app.add_directive("results-table", ResultsTable)
    app.add_directive("results-figure", ResultsFigure)
    app.add_directive("kernel-source", KernelSource)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
