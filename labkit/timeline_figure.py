"""What ran when: lanes of bars over one time axis, as a picture and as a table."""

from __future__ import annotations

import html
from typing import ItemsView

from labkit.figures import PALETTE, number
from labkit.svg import LINE, WIDE, drawing, ink_on, text, text_width, wrapped

BAR = 19  # height of a bar
NAME = 105  # width of a line of a lane's name
RIGHT = 10  # margin, for the axis's last number


def name_of(lane: dict) -> str:
    """The lane's name with that of its group: "in turn: copy"."""
    return f"{lane['group']}: {lane['name']}" if "group" in lane else lane["name"]


def extent_of(spans: list[dict]) -> tuple[float | None, float | None, float]:
    """(first start, last end, sum of the lengths) of spans, in the timeline's unit; (None, None, 0) where there are none."""
    total = sum(span["end"] - span["start"] for span in spans)
    return (min((span["start"] for span in spans), default=None), max((span["end"] for span in spans), default=None), total)


def table_of(timeline: dict) -> dict:
    """The lanes as a record of kind "table": a row each, with its first start, last end and total."""
    columns = ["lane", "spans", *(f"{head}, {timeline['unit']}" for head in ("start", "end", "total"))]
    rows = [dict(zip(columns, [name_of(lane), len(lane["spans"]), *extent_of(lane["spans"])])) for lane in timeline["lanes"]]
    return {"kind": "table", "title": timeline["title"], "columns": columns, "rows": rows}


def timeline_svg(timeline: dict) -> str:
    """The lanes as SVG, those of a group together under its name. A span's label stands in it where it fits."""
    names = {id(lane): wrapped(lane["name"], NAME) for lane in timeline["lanes"]}
    left = max(text_width(line) for lines in names.values() for line in lines) + 8
    begin, end, _ = extent_of([span for lane in timeline["lanes"] for span in lane["spans"]])
    begin = min(0, begin)
    scale = (WIDE - RIGHT - left) / ((end - begin) or 1)
    bars, top = [], 2.0
    for group, lanes in _groups(timeline):
        if group is not None:
            bars.append(text(0, top + LINE - 3, group, more=' font-weight="bold"'))
            top += LINE + 3
        for k, lane in enumerate(lanes):
            lines = names[id(lane)]
            height = max(BAR, LINE * len(lines))
            for j, line in enumerate(lines):
                bars.append(text(left - 8, top + height / 2 + 4.5 + LINE * (j - (len(lines) - 1) / 2), line, "end"))
            for span in lane["spans"]:
                bars.append(_bar(span, left + (span["start"] - begin) * scale, (span["end"] - span["start"]) * scale,
                                 top + (height - BAR) / 2, PALETTE[span.get("color", k % len(PALETTE))],
                                 f"{name_of(lane)}{' ' * ('label' in span)}{span.get('label', '')}: {number(span['start'])} to "
                                 f"{number(span['end'])} {timeline['unit']}"))
            top += height + 5
        top += 6
    axis = []
    for tick in _ticks(begin, end):
        x = left + (tick - begin) * scale
        axis.append(f'<line x1="{x:.1f}" x2="{x:.1f}" y1="2" y2="{top:.1f}" stroke="currentColor" stroke-opacity="0.22" '
                    'stroke-width="0.8"/>' + text(x, top + LINE - 2, f"{tick:,.6g}", "middle"))
    axis.append(text((left + WIDE - RIGHT) / 2, top + 2 * LINE, f"time, {timeline['unit']}", "middle"))
    return drawing("".join(axis + bars), top + 2 * LINE + 5, _spoken(timeline))


def _groups(timeline: dict) -> ItemsView[str | None, list[dict]]:
    groups: dict[str | None, list[dict]] = {}
    for lane in timeline["lanes"]:
        groups.setdefault(lane.get("group"), []).append(lane)
    return groups.items()


def _bar(span: dict, x: float, width: float, top: float, color: str, words: str) -> str:
    """The span, a little narrower than it lasted so that neighbours stay apart, but never too narrow to be seen."""
    shown = max(width - min(0.8, width / 4), 0.8)
    drawn = (f'<rect x="{x:.2f}" y="{top:.1f}" width="{shown:.2f}" height="{BAR}" fill="{color}">'
             f"<title>{html.escape(words)}</title></rect>")
    if "label" in span and text_width(span["label"]) + 2 <= width:
        drawn += text(x + width / 2, top + BAR / 2 + 4.5, span["label"], "middle",
                      f' fill="{ink_on(color)}" pointer-events="none"')
    return drawn


def _ticks(begin: float, end: float) -> list[float]:
    from matplotlib.ticker import MaxNLocator

    end = end if end > begin else begin + 1
    return [tick for tick in MaxNLocator(5, steps=[1, 2, 2.5, 5, 10]).tick_values(begin, end).tolist() if begin <= tick <= end]


def _spoken(timeline: dict) -> str:
    def lane_said(lane: dict) -> str:
        start, end, total = extent_of(lane["spans"])
        if start is None:
            return f"{name_of(lane)}: nothing"
        return f"{name_of(lane)}: {len(lane['spans'])} from {number(start)} to {number(end)}, {number(total)} in all"

    return f"Timeline, {timeline['title']}, in {timeline['unit']}. {'; '.join(map(lane_said, timeline['lanes']))}."
