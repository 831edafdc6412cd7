"""Sphinx extension of the book: recorded results in the prose, in tables and figures; kernels as listings.

In the prose a number is a substitution, evaluated by Jinja while the page is read. Each lab gives one name,
its own without the number: what labs/04_fused_kernel recorded is `fused_kernel`. Then come the table, the
row, and what to say of it (see `Timing`, `Cells` and `Series`):

    {{ fused_kernel.forward["gelu v6"].us }}                        263.9 µs
    {{ fused_kernel.forward["gelu v6"].speedup_over("F.gelu") }}    1.14×
    {{ fused_kernel.kernels["eager"].launched }}                    8, of a plain table's column "launched"
    {{ fused_kernel.ulp_curves["F.gelu"].max }}                     2,048
    {{ fused_kernel.gpu }}                                          NVIDIA H200

Directives take the same address: `{results-table} fused_kernel.forward`, and `{results-figure}` likewise;
`{kernel-source} gelu` shows a kernel. What does not exist is a warning that names page and key, and the book
is built with warnings as errors.
"""

from __future__ import annotations

import re

from docutils import nodes
from docutils.parsers.rst import directives
from sphinx.application import Sphinx
from sphinx.directives.code import container_wrapper
from sphinx.util.docutils import SphinxDirective

from labkit import figures, results

_NARROW = figures.THIN


class UnknownResult(Exception):
    """The prose asks for a result that is not recorded. Not a LookupError: Jinja would swallow that."""


class _Value:
    """Compared by what it holds: Sphinx reads the pages again when a value of its configuration changes."""

    def __eq__(self, other) -> bool:
        return type(self) is type(other) and vars(self) == vars(other)

    __hash__ = None


class Timing(_Value):
    """One row of a benchmark in the prose; it prints as its median.

    All is text but `median_us`, `low_us` and `high_us`, which are numbers to calculate with.
    """

    def __init__(self, row: dict, table: Table):
        self._table = table
        self.median_us, self.low_us, self.high_us = row["median_us"], row["low_us"], row["high_us"]
        self._row = row

    def __str__(self) -> str:
        return self.us if self.median_us < 1e4 else self.ms

    @property
    def us(self) -> str:
        """The median: "263.9 µs"."""
        return f"{figures.microseconds(self.median_us)}{_NARROW}µs"

    @property
    def ms(self) -> str:
        """The median: "0.264 ms"."""
        return f"{figures.number(self.median_us / 1e3)}{_NARROW}ms"

    @property
    def spread(self) -> str:
        """10th to 90th percentile: "261.3–269.2 µs"."""
        return f"{figures.microseconds(self.low_us)}–{figures.microseconds(self.high_us)}{_NARROW}µs"

    @property
    def gbps(self) -> str:
        """Bytes that must move over the median: "4,069 GB/s"."""
        return f"{self._rate():,.0f}{_NARROW}GB/s"

    @property
    def tbps(self) -> str:
        """The same: "4.07 TB/s"."""
        return f"{self._rate() / 1e3:.2f}{_NARROW}TB/s"

    def _rate(self) -> float:
        if self._row["gbps"] is None:
            raise UnknownResult(f"{self._table.address} was measured without a number of bytes")
        return self._row["gbps"]

    @property
    def of_limit(self) -> str:
        """Share of the limit's speed: "99.3%"."""
        if self._row["of_limit"] is None:
            raise UnknownResult(f"{self._table.address} was measured without a limit")
        return figures.percent(self._row["of_limit"])

    @property
    def max_error(self) -> str:
        """The largest absolute difference from the float64 reference."""
        return figures.number(self._row["max_error"])

    def speedup_over(self, other: str | Timing) -> str:
        """The other's median over this one's: "1.14×". `other`: a row's name in this table, or any row."""
        other = other if isinstance(other, Timing) else self._table[other]
        return figures.ratio(other.median_us / self.median_us)


class Cells(_Value):
    """One row of a plain table in the prose: `row["time, s"]`, or `row.time_s`, is that column's cell."""

    def __init__(self, row: dict, table: Table):
        self._row, self._table = row, table

    def plain(self, column: str) -> float | int | str | bool | None:
        """The cell as recorded."""
        for name, value in self._row.items():
            if column in (name, _identifier(name)):
                return value
        raise UnknownResult(f"{self._table.address} has no column {column!r}; it has {', '.join(self._row)}")

    def __getitem__(self, column: str) -> str:
        return figures.number(self.plain(column))

    def ratio(self, column: str, other: str) -> str:
        """How many times the cell of the row `other` goes into this row's: "8×"."""
        return figures.ratio(self.plain(column) / self._table[other].plain(column))


class Series(_Value):
    """One line of a curve in the prose: `.max` and `.min` over x."""

    def __init__(self, values: list, table: Table):
        known = [value for value in values if value is not None]
        self.max, self.min = figures.number(max(known)), figures.number(min(known))


class Table(_Value):
    """One recorded table in the prose: `table["row"]`, and what it says of itself."""

    def __init__(self, address: str, found: results.Recorded):
        self.address, self._record = address, found.table
        self.caption, self.gpu, self.date = found.caption(), found.gpu["name"], found.run["date"][:10]
        self.title, self.dtype, self.limit, self.rounds = (
            found.table.get(key) for key in ("title", "dtype", "limit", "rounds"))
        self.size = " × ".join(map(str, found.table.get("size", [])))
        self.bytes = figures.number(found.table.get("bytes"))

    def __getitem__(self, name: str) -> Timing | Cells | Series:
        record = self._record
        if record["kind"] == "curve":
            kind, rows = Series, record["series"]
        else:
            kind = Timing if record["kind"] == "bench" else Cells
            first = "name" if record["kind"] == "bench" else record["columns"][0]
            rows = {str(row[first]): row for row in record["rows"]}
        if name not in rows:
            raise UnknownResult(f"{self.address} has no row {name!r}; it has {', '.join(rows)}")
        return kind(rows[name], self)


class Lab(_Value):
    """The latest recorded run of one lab in the prose: its tables by name, and `gpu`, `date`, `caption`."""

    def __init__(self, lab: str):
        self.lab, self.name = lab, lab.partition("_")[2]
        self._found = results.latest(lab)

    def recorded(self, table: str) -> results.Recorded:
        """Table `table` of the run; UnknownResult where there is none."""
        if self._found is None:
            raise UnknownResult(f"no results are recorded for the lab {self.lab}, so no {self.name}.{table}")
        gpu, run = self._found
        if table not in run["tables"]:
            raise UnknownResult(f"{self.name} has no table {table!r}; it has {', '.join(run['tables'])}")
        return results.Recorded(gpu=gpu, run=run, table=run["tables"][table])

    def __getitem__(self, name: str) -> Table | str:
        if self._found and name in ("gpu", "date", "caption"):
            gpu, run = self._found
            about = results.Recorded(gpu=gpu, run=run, table={})
            return {"gpu": gpu["name"], "date": run["date"][:10], "caption": about.caption()}[name]
        return Table(f"{self.name}.{name}", self.recorded(name))


def labs() -> dict[str, Lab]:
    """Every lab by its name in the prose: those in labs/, and those that have recorded results."""
    names = {path.stem for path in (results.REPOSITORY / "labs").glob("[0-9]*.ipynb")} | results.labs()
    return {lab.name: lab for lab in map(Lab, sorted(names))}


def _identifier(name: str) -> str:
    return re.sub(r"\W+", "_", name.lower()).strip("_")


# -- directives ---------------------------------------------------------------------------------------------

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
    """A recorded benchmark or plain table. Option `rows`: names of the rows to show, separated by commas."""

    option_spec = {**_ResultsDirective.option_spec, "rows": directives.unchanged}

    def run(self) -> list[nodes.Node]:
        found = self.recorded()
        try:
            heads, rows = figures.grid(self._chosen(found.table))
        except (UnknownResult, ValueError) as problem:
            raise self.error(f"{self.name}: {self.arguments[0]}: {problem}") from problem
        table = nodes.table("", nodes.title("", self.caption(found)), classes=["results"])
        group = nodes.tgroup("", *(nodes.colspec(colwidth=1) for _ in heads), cols=len(heads))
        kinds = figures.column_kinds(heads, rows)
        group += nodes.thead("", _row(heads, kinds))
        group += nodes.tbody("", *(_row(row, kinds) for row in rows))
        table += group
        self.set_source_info(table)
        self.add_name(table)
        return [table]

    def _chosen(self, record: dict) -> dict:
        if "rows" not in self.options or "rows" not in record:
            return record
        first = "name" if record["kind"] == "bench" else record["columns"][0]
        rows = {str(row[first]): row for row in record["rows"]}
        wanted = [name.strip() for name in self.options["rows"].split(",")]
        if missing := [name for name in wanted if name not in rows]:
            raise UnknownResult(f"no row {missing[0]!r}; there are {', '.join(rows)}")
        return {**record, "rows": [rows[name] for name in wanted]}


def _row(cells: list[str], kinds: list[str]) -> nodes.row:
    return nodes.row("", *(nodes.entry("", nodes.paragraph("", cell), classes=[kind]) for cell, kind in zip(cells, kinds)))


class ResultsFigure(_ResultsDirective):
    """A recorded benchmark as bars, or a recorded curve as lines."""

    def run(self) -> list[nodes.Node]:
        found = self.recorded()
        try:
            svg = figures.figure(found.table)
        except ValueError as problem:
            raise self.error(f"{self.name}: {self.arguments[0]}: {problem}") from problem
        figure = nodes.figure("", nodes.raw("", svg, format="html"), nodes.caption("", self.caption(found)))
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


def setup(app: Sphinx) -> dict:
    """Register the substitutions and directives with Sphinx."""
    def substitute(app, config):
        config.myst_substitutions = {**config.myst_substitutions, **labs()}

    app.connect("config-inited", substitute)
    app.add_directive("results-table", ResultsTable)
    app.add_directive("results-figure", ResultsFigure)
    app.add_directive("kernel-source", KernelSource)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
