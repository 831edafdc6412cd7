"""Recorded tables as people see them: numbers with units, tables as text and HTML, figures as inline SVG.

The notebooks and the book share these, so that a figure looks the same in both. A figure is SVG inside HTML:
its text and axes are `currentColor`, that is, the colour of the text around it, in a light page and in a dark
one. Drawings are narrow and tall, to be read on a phone as well.
"""

from __future__ import annotations

import html
import io
import itertools
import re

# Okabe and Ito's palette, which colour-blind readers tell apart as well.
BLUE, VERMILION, GREEN, ORANGE, PURPLE, SKY = "#0072B2", "#D55E00", "#009E73", "#E69F00", "#CC79A7", "#56B4E9"
PALETTE = (BLUE, VERMILION, GREEN, ORANGE, PURPLE, SKY)
LINES = [(VERMILION, "-"), (BLUE, "-"), (GREEN, "--"), (ORANGE, "-"), (PURPLE, "--"), (SKY, "-")]
GREY = "#8a8a8a"
LONGEST = 2.5  # times the fastest: bars beyond would squeeze the differences that matter
WIDTH = 5.2  # inches: at 72 points each, the drawing's own width
INK = "#010203"  # stands for currentColor while matplotlib draws, since it only knows real colours
LEFT = ' style="text-align: left"'
THIN = "\u202f"  # narrow no-break space between a number and its unit

_STYLE = {
    "svg.fonttype": "none", "svg.hashsalt": "kernel to gradient", "font.size": 13, "text.color": INK,
    "axes.edgecolor": INK, "axes.labelcolor": INK, "xtick.color": INK, "ytick.color": INK,
    "axes.spines.top": False, "axes.spines.right": False, "legend.frameon": False,
}


# -- numbers ------------------------------------------------------------------------------------------------

def number(value: float | str | bool | None) -> str:
    """A cell's value as text: up to four significant digits for a fraction, thousands set off by commas."""
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, str):
        return value
    if isinstance(value, int) or value == int(value) and abs(value) < 1e15:
        return f"{int(value):,}"
    if 1e-3 <= abs(value) < 1e6:
        text = f"{value:,.{max(0, 3 - _magnitude(value))}f}"
        return text.rstrip("0").rstrip(".") if "." in text else text
    return f"{value:.2e}"


def microseconds(value: float) -> str:
    """A time of `value` microseconds, without its unit: tenths below a thousand, hundredths below ten."""
    return f"{value:,.{2 if value < 10 else 1 if value < 1000 else 0}f}"


def percent(share: float) -> str:
    """A share (1 is the whole) in per cent, to a tenth."""
    return f"{100 * share:.1f}%"


def ratio(value: float) -> str:
    """How many times: "1.15×", "8×" where it is exact, tenths from ten up, whole numbers from a hundred."""
    return f"{value:.{0 if value == int(value) or value >= 100 else 1 if value >= 10 else 2}f}×"


def _magnitude(value: float) -> int:
    return int(f"{value:e}".split("e")[1])


# -- tables -------------------------------------------------------------------------------------------------

def column(head: str, values: list) -> list[str]:
    """The cells of one column as text: fractions with as many decimals as the one that needs most, so that they line up, but
    no more than five significant digits of the largest.

    Each is written as it is where that would leave a smaller one less than two digits, and in a column of the head "value",
    which holds things of different kinds.
    """
    cells = [number(value) for value in values]
    fraction = [isinstance(value, float) and "e" not in cell for value, cell in zip(values, cells)]
    decimals = max((len(cell.partition(".")[2]) for cell, counts in zip(cells, fraction) if counts), default=0)
    if head == "value" or not decimals:
        return cells
    largest = max(abs(value) for value, counts in zip(values, fraction) if counts)
    decimals = min(decimals, max(0, 4 - _magnitude(largest)))
    least = min((abs(value) for value, counts in zip(values, fraction) if counts and value), default=largest)
    if _magnitude(largest) >= 4 and decimals + _magnitude(least) < 1:
        return cells
    plain = [type(value) in (int, float) and "e" not in cell for value, cell in zip(values, cells)]
    return [f"{value:,.{decimals}f}" if lines_up else cell for value, cell, lines_up in zip(values, cells, plain)]


def title(table: dict) -> str:
    """The record's title; of a benchmark with what was measured: "GeLU forward, 16384 × 16384 bfloat16"; of a heat map with
    its unit.
    """
    if table["kind"] == "heat":
        return f"{table['title']}, {table['unit']}"
    if table["kind"] != "bench":
        return table["title"]
    return f"{table['title']}, {' × '.join(map(str, table['size']))} {table['dtype']}"


def tabulated(record: dict) -> dict:
    """The record as one of kind "bench" or "table": of a "heat" a row a y, of a "timeline" a row a lane.

    ValueError for the other kinds.
    """
    from labkit import heat_figure, timeline_figure

    if record["kind"] in ("bench", "table"):
        return record
    if record["kind"] == "heat":
        return heat_figure.table_of(record)
    if record["kind"] == "timeline":
        return timeline_figure.table_of(record)
    raise ValueError(f"a record of kind {record['kind']!r} is drawn as a figure, not as a table")


def grid(table: dict) -> tuple[list[str], list[list[str]]]:
    """The column heads and rows of a record, as text; the first column names the row. ValueError as `tabulated`."""
    table = tabulated(table)
    if table["kind"] == "table":
        heads = table["columns"]
        columns = [column(head, [row[head] for row in table["rows"]]) for head in heads]
        return heads, [list(cells) for cells in zip(*columns)]
    heads = ["variant", "median, µs", "10–90%, µs"]
    rows = [[_name(row), microseconds(row["median_us"]),
             f"{microseconds(row['low_us'])}–{microseconds(row['high_us'])}"]
            for row in table["rows"]]
    if table["bytes"]:
        heads.append("GB/s")
        rows = [[*cells, f"{row['gbps']:,.0f}"] for cells, row in zip(rows, table["rows"])]
    if table["limit"]:
        heads.append(f"of {table['limit']}")
        rows = [[*cells, percent(row["of_limit"])] for cells, row in zip(rows, table["rows"])]
    return heads, rows


def column_kinds(heads: list[str], rows: list[list[str]]) -> list[str]:
    """What each column holds: "number", "name", "code" (a source line with its number), or "words", which may be broken
    into lines. The first names the row: it holds no numbers.
    """
    def kind(cells: list[str]) -> str:
        if any(re.match(r"\d+: ", cell) for cell in cells):
            return "code"
        if any(len(cell) > 30 for cell in cells):
            return "words"
        return "name" if any(re.search("[a-zA-Z]{3}", cell) for cell in cells) else "number"

    if not rows:
        return ["name" for _ in heads]
    first, *others = map(list, zip(*rows))
    return ["words" if kind(first) == "words" else "name", *map(kind, others)]


def text_table(table: dict) -> str:
    """The record as plain text in columns."""
    heads, rows = grid(table)
    columns = []
    for kind, *cells in zip(column_kinds(heads, rows), heads, *rows):
        width = max(map(len, cells))
        columns.append([cell.rjust(width) if kind == "number" else cell.ljust(width) for cell in cells])
    return "\n".join("  ".join(line).rstrip() for line in zip(*columns))


def html_table(table: dict, caption: str) -> str:
    """The record as an HTML table with a caption."""
    import pandas

    heads, rows = grid(table)
    frame = pandas.DataFrame(rows, columns=heads)
    with pandas.option_context("display.max_colwidth", None):  # or long cells end in dots
        body = frame.to_html(index=False, border=0, classes="results", justify="unset")
    kinds = itertools.cycle(column_kinds(heads, rows))  # pandas writes row after row, the heads first
    # A notebook sets all cells to the right, and has none of the book's style sheet.
    body = re.sub("<(t[hd])>", lambda cell: f'<{cell[1]} class="{(kind := next(kinds))}"'
                                            f'{"" if kind == "number" else LEFT}>', body)
    top = f"<caption>{html.escape(title(table))}. {html.escape(caption)}.</caption>"
    return body.replace("<thead>", f"{top}<thead>", 1)


# -- figures ------------------------------------------------------------------------------------------------

def figure(table: dict) -> str:
    """The record drawn as SVG text: "bench" and a "table" with `bars` as bars, "curve" as lines, "heat" as a map of cells,
    "timeline" as bars over time, "request" as the lanes of a warp, "owners" as cells; or "listing" as HTML, machine code
    beside its source. ValueError for a "table" without.
    """
    from labkit import (bars_figure, curve_figure, heat_figure, owners_figure, sass_figure, timeline_figure,
                        trace_figure)  # which take colours from here

    draw = {"bench": bars, "curve": curve_figure.curves_svg, "heat": heat_figure.heat_svg,
            "timeline": timeline_figure.timeline_svg, "request": trace_figure.lanes_svg, "owners": owners_figure.owners_svg,
            "listing": sass_figure.listing_html}
    if "bars" in table:
        return bars_figure.bars_svg(table)
    if table["kind"] not in draw:
        raise ValueError(f"a record of kind {table['kind']!r} is a table; it has no figure")
    return draw[table["kind"]](table)


def text_figure(record: dict) -> str:
    """What a figure shows, as plain text: the greatest of each line of a "curve", the lanes of a "request", the threads of
    "owners", a "listing" whole, or the table.
    """
    from labkit import curve_figure, owners_figure, sass_figure, trace_figure

    tell = {"curve": curve_figure.curves_text, "request": trace_figure.lanes_text, "owners": owners_figure.owners_text,
            "listing": sass_figure.listing_text}
    return tell.get(record["kind"], text_table)(record)


def bars(table: dict) -> str:
    """One bar a variant: the median, a line from the 10th to the 90th percentile, the limit as a dashed mark.

    The scale is that of the fast variants: a bar more than LONGEST times the fastest is cut, and its gap
    shows it.
    """
    rows = table["rows"]
    limit = next((row for row in rows if row["name"] == table["limit"]), None)
    fastest = min(row["median_us"] for row in rows)
    end = 1.03 * max(row["high_us"] for row in rows if row["median_us"] <= LONGEST * fastest)
    cut = any(row["median_us"] > end for row in rows)
    with Canvas(height=0.52 * len(rows) + 0.8) as (axes, svg):
        for place, row in enumerate(rows):
            color = GREY if row is limit else BLUE
            if row["median_us"] > end:
                axes.barh(place, 0.93 * end, height=0.42, color=color)
                axes.barh(place, 0.055 * end, left=0.945 * end, height=0.42, color=color)
            else:
                axes.barh(place, row["median_us"], height=0.42, color=color)
                axes.plot([row["low_us"], row["high_us"]], [place, place], color=INK, linewidth=1.6)
            if limit:
                axes.vlines(limit["median_us"], place - 0.21, place + 0.21, color=INK, linewidth=1.3,
                            linestyle=(0, (2, 1.5)))
            time = f"{microseconds(row['median_us'])} µs"
            time += f" · {percent(row['of_limit'])}" if limit else ""
            axes.annotate(_name(row), (0, place - 0.24), (2, 1), textcoords="offset points", va="bottom")
            axes.annotate(time, (1, place - 0.24), (0, 1), xycoords=axes.get_yaxis_transform(),
                          textcoords="offset points", va="bottom", ha="right")
        axes.set(xlim=(0, end), ylim=(len(rows) - 0.6, -0.8), yticks=[],
                 xlabel="microseconds" + ("; a bar with a gap is longer than drawn" if cut else ""))
        axes.spines["left"].set_visible(False)
    spoken = "; ".join(f"{_name(row)}: {microseconds(row['median_us'])} microseconds"
                       + (f", {percent(row['of_limit'])} of {table['limit']}" if limit else "")
                       for row in rows)
    return inline(svg, f"Bars, {table['title']}. {spoken}.")


def _name(row: dict) -> str:
    return row["name"] + (" (waits for the host)" if row["host_bound"] else "")


class Canvas:
    """`with Canvas(height) as (axes, svg)`: draw on `axes`; afterwards `svg` holds the drawing."""

    def __init__(self, height: float):
        self.height = height

    def __enter__(self):
        import matplotlib
        from matplotlib.backends.backend_svg import FigureCanvasSVG
        from matplotlib.figure import Figure

        self.style = matplotlib.rc_context(_STYLE)
        self.style.__enter__()
        self.drawing, self.svg = Figure(figsize=(WIDTH, self.height), layout="constrained"), io.StringIO()
        self.canvas = FigureCanvasSVG(self.drawing)
        return self.drawing.add_subplot(), self.svg

    def __exit__(self, kind, error, trace):
        try:
            if kind is None:
                self.drawing.savefig(self.svg, format="svg", transparent=True, metadata={"Date": None})
        finally:
            self.style.__exit__(kind, error, trace)


def inline(svg: io.StringIO, description: str) -> str:
    """matplotlib's file made into an element of an HTML page, in the page's colours and font."""
    text = svg.getvalue()
    text = text[text.index("<svg"):]
    text = re.sub(r"<metadata>.*?</metadata>\s*|<!--.*?-->\s*", "", text, flags=re.DOTALL)
    text = text.replace(INK, "currentColor")
    text = re.sub(r"'DejaVu Sans'[^;\"]*", "system-ui, sans-serif", text)
    # Several figures share a page: only the names that are referred to (clip paths, markers) may stay.
    used = set(re.findall(r"#([\w.-]+)", text))
    text = re.sub(r' id="([\w.-]+)"', lambda match: match[0] if match[1] in used else "", text)
    box = re.search(r'viewBox="[^"]*"', text)[0]
    label = html.escape(description, quote=True)
    head = (f'<svg class="results-figure" role="img" aria-label="{label}" {box}'
            ' style="width:100%;max-width:32rem" xmlns="http://www.w3.org/2000/svg"'
            ' xmlns:xlink="http://www.w3.org/1999/xlink">')
    # A blank line would end an HTML block in Markdown.
    return re.sub(r"\n\s*\n", "\n", head + text[text.index(">") + 1:]).strip()
