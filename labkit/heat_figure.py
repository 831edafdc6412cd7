"""What was measured for each pair of two settings: a map of coloured cells with the number in each, and the same as a table."""

from __future__ import annotations

import html
import re

from labkit.figures import THIN, number
from labkit.svg import FONT, LINE, WIDE, drawing, ink_on, text, text_width, wrapped

ROW, GAP = 31, 6  # height of a row of cells; between cells, where the outline of a marked one finds room
KEY = 13  # height of the colour key
DASHES = ("none", "7 3", "2 2.5", "9 3 2 3")  # of outlines, so that several marks are told apart


def table_of(heat: dict) -> dict:
    """The same numbers as a record of kind "table": a row a value of y, a column a value of x."""
    first = f"{heat['y']['label']} ↓ {heat['x']['label']} →"
    columns = [first, *map(str, heat["x"]["values"])]
    rows = [dict(zip(columns, [value, *cells])) for value, cells in zip(heat["y"]["values"], heat["cells"])]
    return {"kind": "table", "title": heat["title"], "columns": columns, "rows": rows}


def place_of(heat: dict, x: float, y: float) -> str:
    """The settings of a cell: "256 threads a block, 4 elements a thread"."""
    return f"{_counted(y, heat['y']['label'])}, {_counted(x, heat['x']['label'])}"


def _counted(value: float, label: str) -> str:
    """The label after a value, its first word in the singular after 1: "1 element a thread"."""
    if value == 1:
        label = re.sub(r"^(\w+?)(?:(?<=ss|ch|sh)es|(?<!s)s)\b", r"\1", label)
    return f"{number(value)} {label}"


def known_cells(heat: dict) -> list[tuple[float, float, float]]:
    """The cells that hold a number, as (number, x, y), from the least to the greatest; a record has at least one."""
    return sorted((cell, x, y) for y, cells in zip(heat["y"]["values"], heat["cells"])
                  for x, cell in zip(heat["x"]["values"], cells) if cell is not None)


def cell_at(heat: dict, x: float, y: float) -> float | None:
    """The number for these two settings, None where nothing was measured."""
    return heat["cells"][heat["y"]["values"].index(y)][heat["x"]["values"].index(x)]


def heat_svg(heat: dict) -> str:
    """The map as SVG: its cells, the key of its colours with the reference values as ticks, and what is marked, in words."""
    cells, height = _cells(heat)
    key, height = _key(heat, height + 10)
    legend, height = _legend(heat, height + 8)
    return drawing(cells + key + legend, height, _spoken(heat))


def _range(heat: dict) -> tuple[float, float]:
    """From the darkest colour to the brightest: all cells and all reference values."""
    values = [cell for cell, _, _ in known_cells(heat)] + [line["value"] for line in heat.get("lines", [])]
    return min(values), max(values)


def _color(share: float) -> str:
    """Of cividis, which colour-blind readers see as others do; 0 is its dark blue, 1 its yellow."""
    from matplotlib import colormaps, colors

    return colors.to_hex(colormaps["cividis"](share))


def _marked(heat: dict) -> dict[tuple[float, float], list[str]]:
    """The labels of each marked cell, {(x, y): labels}: what is fastest may be the article's choice too."""
    found: dict[tuple[float, float], list[str]] = {}
    for mark in heat.get("marks", []):
        found.setdefault((mark["x"], mark["y"]), []).append(mark["label"])
    return found


def _with_unit(heat: dict, value: float | None) -> str:
    return "not measured" if value is None else f"{number(value)}{THIN}{heat['unit']}"


def _cells(heat: dict) -> tuple[str, float]:
    xs, ys, (low, high), marked = heat["x"]["values"], heat["y"]["values"], _range(heat), _marked(heat)
    left = max(text_width(number(y)) for y in ys) + 6
    width = (WIDE - left) / len(xs)
    size = min(FONT, FONT * (width - GAP - 2) / max(text_width(number(cell)) for row in heat["cells"] for cell in row))
    parts, top = [text(0, LINE - 4, heat["y"]["label"])], LINE + 2.0
    for y, row in zip(ys, heat["cells"]):
        parts.append(text(left - 6, top + ROW / 2 + 4.5, number(y), "end"))
        for k, (x, cell) in enumerate(zip(xs, row)):
            at = left + k * width
            color = _color((cell - low) / (high - low) if high > low else 0.5) if cell is not None else None
            look = f'fill="{color}"' if color else 'fill="none" stroke-dasharray="2 3"'
            parts.append(f'<rect x="{at + GAP / 2:.1f}" y="{top + GAP / 2:.1f}" width="{width - GAP:.1f}" height="{ROW - GAP}" '
                         f'{look} stroke="currentColor" stroke-opacity="{0.25 if color else 0.6}" stroke-width="0.7">'
                         f"<title>{html.escape(f'{place_of(heat, x, y)}: {_with_unit(heat, cell)}')}</title></rect>")
            if (x, y) in marked:
                parts.append(_outline(at + 1, top + 1, width - 2, ROW - 2, list(marked).index((x, y))))
            parts.append(text(at + width / 2, top + ROW / 2 + 0.36 * size, number(cell), "middle",
                              f' font-size="{size:.3g}" fill="{ink_on(color) if color else "currentColor"}"'))
        top += ROW
    parts += [text(left + (k + 0.5) * width, top + LINE - 3, number(x), "middle") for k, x in enumerate(xs)]
    parts.append(text((left + WIDE) / 2, top + 2 * LINE - 2, heat["x"]["label"], "middle"))
    return "".join(parts), top + 2 * LINE + 2


def _outline(x: float, y: float, width: float, height: float, mark: int) -> str:
    return (f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" fill="none" stroke="currentColor" '
            f'stroke-width="2" stroke-dasharray="{DASHES[mark % len(DASHES)]}"/>')


def _key(heat: dict, top: float) -> tuple[str, float]:
    """The colours from the least value to the greatest, in steps that overlap a little lest the page shows between them."""
    low, high = _range(heat)
    if low == high:
        return "", top
    steps, left, right = 48, 2.0, WIDE - 2
    step = (right - left) / steps
    parts = [f'<rect x="{left + k * step:.2f}" y="{top:.1f}" width="{step + 0.4 * (k < steps - 1):.2f}" height="{KEY}" '
             f'fill="{_color(k / (steps - 1))}"/>' for k in range(steps)]
    for line in heat.get("lines", []):
        parts.append(_tick(left + (right - left) * (line["value"] - low) / (high - low), top - 5, KEY + 5))
    below = top + KEY + LINE - 2
    parts += [text(left, below, number(low)), text(right, below, _with_unit(heat, high), "end")]
    return "".join(parts), below + 4


def _tick(x: float, top: float, height: float) -> str:
    return f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{top:.1f}" y2="{top + height:.1f}" stroke="currentColor" stroke-width="2"/>'


def _legend(heat: dict, top: float) -> tuple[str, float]:
    """What each outline and each tick stands for, a paragraph each."""
    indent, parts = 32, []
    entries = [(_outline(2, 3, 22, 13, k), words) for k, words in enumerate(_said_of_marks(heat))]
    entries += [(_tick(13, 3, 12), words) for words in _said_of_lines(heat)]
    for swatch, words in entries:
        parts.append(f'<g transform="translate(0 {top:.1f})">{swatch}</g>')
        for line in wrapped(words, WIDE - indent):
            parts.append(text(indent, top + LINE - 3, line))
            top += LINE
        top += 3
    return "".join(parts), top + 1


def _said_of_marks(heat: dict) -> list[str]:
    return [f"{'; '.join(labels)}: {_with_unit(heat, cell_at(heat, *place))} at {place_of(heat, *place)}"
            for place, labels in _marked(heat).items()]


def _said_of_lines(heat: dict) -> list[str]:
    return [f"{line['label']}: {_with_unit(heat, line['value'])}" for line in heat.get("lines", [])]


def _spoken(heat: dict) -> str:
    (least, *at_least), (greatest, *at_greatest) = [known_cells(heat)[k] for k in (0, -1)]
    said = [f"Largest: {_with_unit(heat, greatest)} at {place_of(heat, *at_greatest)}",
            f"smallest: {_with_unit(heat, least)} at {place_of(heat, *at_least)}", *_said_of_marks(heat), *_said_of_lines(heat)]
    return f"Heat map, {heat['title']}. {'; '.join(said)}."
