"""Lines over x, with single points and vertical marks among them, as a picture and as text."""

from __future__ import annotations

from labkit.figures import GREY, INK, LINES, WIDTH, Canvas, inline, number
from labkit.svg import text_width

MARKERS = "osD^vPX*"
FONT = 13  # points
ROW = 1.3 * FONT  # height of a line of text
TWO_COLUMNS = 215  # points of names that fit beside each other above the axes, with their lines or markers
_POLE = {"color": GREY, "linewidth": 1.2, "linestyle": (0, (4, 3))}


def curves_text(curve: dict) -> str:
    """The greatest and the last value of each line, and the points, a line each."""
    return "\n".join(_said(curve))


def curves_svg(curve: dict) -> str:
    """One line a series over x. On a log axis, values that are not positive leave a gap.

    Points are markers, named in the legend: beside them their names would cover one another where they are close.
    Vertical lines are named above the axes.
    """
    from matplotlib.ticker import NullFormatter
    from matplotlib.transforms import offset_copy

    x, y = curve["x"], curve.get("y", {"label": ""})
    points, vertical = curve.get("points", []), curve.get("vertical", [])
    labels = [*curve["series"], *(point["label"] for point in points)]
    rows = -(-len(labels) // 2)
    widths = [max((text_width(label, FONT) for label in half), default=0) for half in (labels[:rows], labels[rows:])]
    columns = 2 if sum(widths) < TWO_COLUMNS else 1
    rows = -(-len(labels) // columns)
    with Canvas(height=4.6 + ROW / 72 * max(0, rows - 3)) as (axes, svg):
        for (name, values), (color, dash) in zip(curve["series"].items(), LINES * len(curve["series"])):
            values = [float("nan") if value is None else value for value in values]
            axes.plot(x["values"], values, label=name, color=color, linestyle=dash, linewidth=1.8)
        for k, point in enumerate(points):  # hollow, so that one that lies on another leaves it in sight
            color, _ = LINES[(len(curve["series"]) + k) % len(LINES)]
            axes.plot(point["x"], point["y"], MARKERS[k % len(MARKERS)], label=point["label"], markersize=9,
                      markerfacecolor="none", markeredgewidth=2, color=color, clip_on=False, zorder=3)
        for scale, axis in ((axes.set_xscale, x), (axes.set_yscale, y)):
            scale(axis.get("scale", "linear"))
        for side, axis in ((axes.xaxis, x), (axes.yaxis, y)):
            if "ticks" in axis:
                side.set_ticks(axis["ticks"], labels=axis.get("tick_labels", [f"{tick:g}" for tick in axis["ticks"]]))
                side.minorticks_off()
            elif axis.get("scale", "linear") != "linear":
                side.set_major_formatter(lambda value, place: f"{value:,.0f}" if value >= 1 else f"{value:g}")
                side.set_minor_formatter(NullFormatter())  # or matplotlib adds 6 × 10² and the like between powers of ten
        if text_width(" ".join(x.get("tick_labels", [])), FONT) > 0.8 * 72 * WIDTH:
            axes.tick_params(axis="x", labelrotation=90)
        axes.set(xlabel=x["label"], ylabel=y["label"])
        axes.grid(color=INK, alpha=0.18, linewidth=0.7)
        above = _verticals(axes, vertical)
        axes.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=columns, borderaxespad=0.2, columnspacing=1.2,
                    bbox_transform=offset_copy(axes.transAxes, axes.figure, y=above, units="points"))
    return inline(svg, f"Lines, {curve['title']}, over {x['label']}. {'; '.join(_said(curve))}.")


def _said(curve: dict) -> list[str]:
    x = curve["x"]["label"]
    drawn = {name: [v for v in values if v is not None] for name, values in curve["series"].items()}
    lines = [f"{name}: at most {number(float(max(values)))}, at the end {number(float(values[-1]))}"
             for name, values in drawn.items() if values]
    points = [f"{point['label']}: {number(point['y'])} at {x} {number(point['x'])}" for point in curve.get("points", [])]
    return [*lines, *points, *(f"{mark['label']}: at {x} {number(mark['x'])}" for mark in curve.get("vertical", []))]


def _verticals(axes, vertical: list[dict]) -> float:
    """Draws the vertical lines, up to their names above the axes; how high the rows of names are, in points.

    A name stands to the right of its line, as a flag on a pole; poles further right are shorter, so that none goes through
    a name. A name for which there is no room on the right stands on the left of its line, above the names there.
    """
    for mark in vertical:
        axes.axvline(mark["x"], **_POLE, zorder=1)
    axes.figure.draw_without_rendering()  # so that the axes have their width
    point, right = axes.figure.dpi / 72, axes.transAxes.transform((1, 0))[0]
    onward, backward = [], []  # flags: where the pole stands, the name's width, the mark
    for mark in sorted(vertical, key=lambda mark: mark["x"]):
        pole, width = axes.transData.transform((mark["x"], axes.get_ylim()[1]))[0], text_width(mark["label"], FONT - 1) * point
        (onward if pole + width + 3 * point <= right else backward).append((pole, width + 6 * point, mark))
    placed: list[tuple[float, float, float, int]] = []  # pole, start, end, row
    for flags, side, align in ((onward[::-1], 1, "left"), (backward, -1, "right")):
        for pole, width, mark in flags:
            start, end = sorted([pole, pole + side * width])
            row = max((of + 1 for other, _, _, of in placed if side < 0 and start <= other), default=0)
            while any(of == row and start < to and begin < end for _, begin, to, of in placed):
                row += 1
            placed.append((pole, start, end, row))
            above = {"xycoords": axes.get_xaxis_transform(), "textcoords": "offset points"}
            axes.annotate("", (mark["x"], 1), (0, ROW * (row + 1)), arrowprops={"arrowstyle": "-", **_POLE, "shrinkA": 0,
                                                                               "shrinkB": 0}, **above)
            axes.annotate(mark["label"], (mark["x"], 1), (3 * side, 2 + ROW * row), ha=align, va="bottom", fontsize=FONT - 1,
                          **above)
    return ROW * max((row + 1 for *_, row in placed), default=0)
