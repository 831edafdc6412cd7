"""Recorded results as the book's prose names them: `{{ fused_kernel.forward["gelu v6"].us }}` and the like.

A lab holds tables by name, and what a table gives depends on its kind: `Table` for "bench" and "table", `Curve`,
`Heat`, `Timeline`. All of it is text ready to be read, except where it says "as recorded". What does not exist
is an UnknownResult that names the address and what there is.
"""

from __future__ import annotations

import re

from labkit import figures, heat_figure, results, timeline_figure

_NARROW = figures.THIN


class UnknownResult(Exception):
    """The prose asks for a result that is not recorded. Not a LookupError: Jinja would swallow that."""


class NotRecorded(UnknownResult):
    """The prose asks for a table of `lab`, which has no recorded run."""

    def __init__(self, lab: str, wanted: str):
        super().__init__(f"no results are recorded for the lab {lab}, so no {wanted}")
        self.lab = lab


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
    """One line of a curve in the prose: `.max` and `.min` over x, and `.at(x)`."""

    def __init__(self, values: list, table: Table):
        self._values, self._table = values, table

    @property
    def max(self) -> str:
        """The greatest value."""
        return figures.number(max(self._known()))

    @property
    def min(self) -> str:
        """The least value."""
        return figures.number(min(self._known()))

    def at(self, x: float) -> str:
        """The value at this x, one of those that were measured: "4,069"; "–" where the line has a gap."""
        return figures.number(self.plain(x))

    def plain(self, x: float) -> float | None:
        """The value at this x as recorded."""
        values = self._table.x_values
        if x not in values:
            nearest = sorted(sorted(values, key=lambda value: abs(value - x))[:3])
            raise UnknownResult(f"{self._table.address} has nothing at x {x}; near it are {', '.join(map(str, nearest))}")
        return self._values[values.index(x)]

    def _known(self) -> list[float]:
        known = [value for value in self._values if value is not None]
        if not known:
            raise UnknownResult(f"{self._table.address} has a line without any value")
        return known


class Point(_Value):
    """A single point of a curve in the prose: `.x` and `.y`."""

    def __init__(self, point: dict):
        self.x, self.y = figures.number(point["x"]), figures.number(point["y"])


class Lanes(_Value):
    """One lane of a timeline, or a group of them, in the prose.

    `.start` and `.end` are those of the first and the last span, `.lasts` the time between, `.total` the sum of all
    spans; each with its unit.
    """

    def __init__(self, lanes: list[dict], table: Table, name: str):
        self._table, self._name, self._unit = table, name, table.unit
        self._start, self._end, self._total = timeline_figure.extent_of([span for lane in lanes for span in lane["spans"]])

    @property
    def start(self) -> str:
        """When the first span starts: "1.200 ms"."""
        return self._with_unit(self._when()[0])

    @property
    def end(self) -> str:
        """When the last span ends: "10.50 ms"."""
        return self._with_unit(self._when()[1])

    @property
    def lasts(self) -> str:
        """From the first start to the last end: "9.300 ms"."""
        return self._with_unit(self._length())

    @property
    def total(self) -> str:
        """The lengths of all spans together: "2.400 ms"."""
        return self._with_unit(self._total)

    def speedup_over(self, other: str | Lanes) -> str:
        """How long the other lasts over how long this lasts: "1.78×". `other`: a lane or group of this timeline, or any."""
        other = other if isinstance(other, Lanes) else self._table[other]
        return figures.ratio(other._length() / self._length())

    def _when(self) -> tuple[float, float]:
        if self._start is None:
            raise UnknownResult(f"{self._table.address} has no span in {self._name!r}")
        return self._start, self._end

    def _length(self) -> float:
        start, end = self._when()
        return end - start

    def _with_unit(self, value: float) -> str:
        return f"{figures.number(value)}{_NARROW}{self._unit}"


class Table(_Value):
    """One recorded table in the prose: `table["row"]`, and what it says of itself."""

    def __init__(self, address: str, found: results.Recorded):
        self.address, self._record = address, found.table
        self.caption, self.gpu, self.date = found.caption(), found.gpu["name"], found.run["date"][:10]
        self.title, self.dtype, self.limit, self.rounds = (
            found.table.get(key) for key in ("title", "dtype", "limit", "rounds"))
        self.size = " × ".join(map(str, found.table.get("size", [])))
        self.bytes = figures.number(found.table.get("bytes"))

    def __getitem__(self, name: str) -> Timing | Cells:
        """The row of this name, of a heat map that of a value of y."""
        table = figures.tabulated(self._record)
        first, kind = ("name", Timing) if table["kind"] == "bench" else (table["columns"][0], Cells)
        return kind(self._of({str(row[first]): row for row in table["rows"]}, str(name), "row"), self)

    def _of(self, known: dict, name: str, what: str):
        """known[name], or UnknownResult with the names that there are."""
        if name not in known:
            raise UnknownResult(f"{self.address} has no {what} {name!r}; it has {', '.join(known) or 'none'}")
        return known[name]


class Curve(Table):
    """A recorded curve: `curve["series"]` is one of its lines, `curve.point("label")` one of its points."""

    def __init__(self, address: str, found: results.Recorded):
        super().__init__(address, found)
        self.x_values = found.table["x"]["values"]

    def __getitem__(self, name: str) -> Series:
        return Series(self._of(self._record["series"], name, "row"), self)

    def point(self, label: str) -> Point:
        """The point of this label."""
        return Point(self._of({point["label"]: point for point in self._record.get("points", [])}, label, "point"))


class Heat(Table):
    """A recorded heat map: `heat["32"]["4"]` is the cell at y 32 and x 4, `.plain("4")` of a row the cell as recorded.

    Its best cell, its marks and its lines also go by their names: "best", and their labels.
    """

    def __init__(self, address: str, found: results.Recorded):
        super().__init__(address, found)
        self.unit = found.table["unit"]
        known = heat_figure.known_cells(found.table)
        self._best = known[0] if found.table.get("best") == "least" else known[-1]

    @property
    def best(self) -> str:
        """The best cell, the greatest where the record does not say otherwise: "4,102"."""
        return figures.number(self._best[0])

    @property
    def best_at(self) -> str:
        """Where it is: "256 threads a block, 4 elements a thread"."""
        return heat_figure.place_of(self._record, *self._best[1:])

    def mark(self, label: str) -> str:
        """The cell of this mark: "1,993"."""
        return figures.number(self._of(self._marks(), label, "mark"))

    def line(self, label: str) -> str:
        """This reference value: "4,153"."""
        return figures.number(self._of(self._lines(), label, "line"))

    def plain(self, name: str) -> float | None:
        """The best cell, or that of a mark or a line, as recorded."""
        return self._of({"best": self._best[0], **self._marks(), **self._lines()}, name, "mark or line")

    def ratio(self, name: str, other: str) -> str:
        """How many times `other` goes into `name`, both as in `plain`: "2.06×"."""
        return figures.ratio(self._measured(name) / self._measured(other))

    def share(self, name: str, other: str) -> str:
        """The part that `name` is of `other`, both as in `plain`: "48.6%"."""
        return figures.percent(self._measured(name) / self._measured(other))

    def _measured(self, name: str) -> float:
        if (value := self.plain(name)) is None:
            raise UnknownResult(f"{self.address} holds no number at {name!r}")
        return value

    def _marks(self) -> dict[str, float | None]:
        return {mark["label"]: heat_figure.cell_at(self._record, mark["x"], mark["y"])
                for mark in self._record.get("marks", [])}

    def _lines(self) -> dict[str, float]:
        return {line["label"]: line["value"] for line in self._record.get("lines", [])}


class Timeline(Table):
    """A recorded timeline: `timeline["group: lane"]` is one lane, `timeline["group"]` all lanes of a group together.

    A lane goes by its name alone where no other lane has it.
    """

    def __init__(self, address: str, found: results.Recorded):
        super().__init__(address, found)
        self.unit = found.table["unit"]

    def __getitem__(self, name: str) -> Lanes:
        lanes = self._record["lanes"]
        alone = [[lane] for lane in lanes if lane["name"] == name]
        whole = {timeline_figure.name_of(lane): [lane] for lane in lanes}
        for group in dict.fromkeys(lane["group"] for lane in lanes if "group" in lane):
            whole.setdefault(group, [lane for lane in lanes if lane.get("group") == group])
        if name not in whole and len(alone) == 1:
            return Lanes(alone[0], self, name)
        return Lanes(self._of(whole, name, "lane of its own, nor a group,"), self, name)


_KINDS = {"curve": Curve, "heat": Heat, "timeline": Timeline}


class Lab(_Value):
    """The latest recorded run of one lab in the prose: its tables by name, and `gpu`, `date`, `caption`.

    gpu: the slug of the GPU whose run it is; without, as `results.latest` chooses. `"table" in lab` says whether the run has
    that table.
    """

    def __init__(self, lab: str, gpu: str | None = None):
        self.lab, self.name = lab, lab.partition("_")[2]
        self._found = results.latest(lab, gpu)

    @property
    def is_recorded(self) -> bool:
        """Whether there is a run."""
        return self._found is not None

    @property
    def runs(self) -> list[dict]:
        """The latest run, alone; [] where there is none."""
        return [self._found[1]] if self._found else []

    def __contains__(self, table: str) -> bool:
        return self._found is not None and table in self._found[1]["tables"]

    def recorded(self, table: str) -> results.Recorded:
        """Table `table` of the run; NotRecorded where there is no run, UnknownResult where it has no such table."""
        if self._found is None:
            raise NotRecorded(self.lab, f"{self.name}.{table}")
        gpu, run = self._found
        if table not in run["tables"]:
            raise UnknownResult(f"{self.name} has no table {table!r}; it has {', '.join(run['tables'])}")
        return results.Recorded(gpu=gpu, run=run, table=run["tables"][table])

    def __getitem__(self, name: str) -> Table | str:
        if self._found and name in ("gpu", "date", "caption"):
            gpu, run = self._found
            about = results.Recorded(gpu=gpu, run=run, table={})
            return {"gpu": gpu["name"], "date": run["date"][:10], "caption": about.caption()}[name]
        found = self.recorded(name)
        return _KINDS.get(found.table["kind"], Table)(f"{self.name}.{name}", found)


def labs(gpu: str | None = None) -> dict[str, Lab]:
    """Every lab by its name in the prose: those in labs/, and those that have recorded results. gpu: as for `Lab`."""
    names = {path.stem for path in (results.REPOSITORY / "labs").glob("[0-9]*.ipynb")} | results.labs()
    return {lab.name: lab for lab in (Lab(name, gpu) for name in sorted(names))}


def addressed(expressions: str) -> set[str]:
    """The names that addresses in expressions begin with, such as fused_kernel in `fused_kernel.forward["v7"].us`."""
    return set(re.findall(r"(?<![.\w])(\w+)[.\[]", expressions))


def _identifier(name: str) -> str:
    return re.sub(r"\W+", "_", name.lower()).strip("_")
