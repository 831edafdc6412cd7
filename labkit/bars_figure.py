"""Columns of a plain table as bars, one below another; as points where the axis is logarithmic and has no zero to begin at."""

from __future__ import annotations

from labkit.figures import INK, PALETTE, Canvas, inline, number, title

_DECADE = 10 ** 0.5  # how far below the least value a logarithmic axis begins


def bars_svg(table: dict) -> str:
    """For each row its name, and a bar for each of the columns that `table["bars"]` names. A row without a number has none."""
    from matplotlib.patches import Patch

    chosen, log = table["bars"]["columns"], table["bars"].get("scale") == "log"
    named = table["columns"][0]
    values = [row[column] for row in table["rows"] for column in chosen if row[column] is not None]
    start = min(values) / _DECADE if log else 0
    height = 0.26
    with Canvas(height=(0.26 + height * len(chosen)) * len(table["rows"]) + 1.1) as (axes, svg):
        step = 1 + len(chosen)  # a line for the name, one for each bar
        for place, row in enumerate(table["rows"]):
            axes.annotate(str(row[named]), (0, step * place), (2, 0), xycoords=axes.get_yaxis_transform(),
                          textcoords="offset points", va="center")
            for k, column in enumerate(chosen):
                if row[column] is None:
                    continue
                at = step * place + k + 1
                if log:
                    axes.hlines(at, start, row[column], color=PALETTE[k], linewidth=1.4)
                    axes.plot(row[column], at, "o", color=PALETTE[k], markersize=9)
                else:
                    axes.barh(at, row[column], height=0.8, color=PALETTE[k])
                axes.annotate(number(row[column]), (row[column], at), (8, 0), textcoords="offset points", va="center")
        if log:
            axes.set_xscale("log")
            axes.xaxis.set_major_formatter(lambda value, place: f"{value:g}")
        axes.set(xlim=(start, max(values) * (6 if log else 1.18)), ylim=(step * len(table["rows"]) - 0.4, -0.7), yticks=[],
                 xlabel=table["bars"]["label"])
        axes.grid(axis="x", color=INK, alpha=0.18, linewidth=0.7)
        axes.spines["left"].set_visible(False)
        if len(chosen) > 1:
            axes.legend(handles=[Patch(color=color, label=column) for color, column in zip(PALETTE, chosen)], loc="lower left",
                        bbox_to_anchor=(0, 1), ncols=len(chosen), borderaxespad=0.2, columnspacing=1.2)
    spoken = "; ".join(f"{row[named]}: {', '.join(f'{column} {number(row[column])}' for column in chosen)}"
                       for row in table["rows"])
    return inline(svg, f"Bars, {title(table)}. {spoken}.")
