"""Who writes which element, as a picture: a cell an element, coloured by block, with the thread's number in it."""

from __future__ import annotations

import html

import torch

from labkit.figures import PALETTE
from labkit.svg import LINE, WIDE, drawing, text, wrapped

COLUMNS, ROWS = 16, 8  # of cells in a drawing
LEFT, ROW = 34, 21  # the width before the first cell, the height of a row
DIM, BRIGHT = 0.2, 0.42  # opacity of a cell: threads of even and odd numbers are told apart by it


def record(title: str, block: torch.Tensor, thread: torch.Tensor, launches: list[dict],
           whose: str, inside: torch.Tensor) -> dict:
    """The first elements as results/schema.json describes them.

    block, thread: int64, of the output's shape. whose: whose request is outlined; inside: bool, of that shape, what is part
    of it. A matrix keeps its rows; anything else is laid out as a vector.
    """
    is_matrix = block.dim() == 2

    def cut(t: torch.Tensor) -> list[list]:
        if is_matrix:
            return t[:ROWS, :COLUMNS].tolist()
        return [row.tolist() for row in t.flatten()[:ROWS * COLUMNS].split(COLUMNS)]

    cells = [[[b, t] if t >= 0 else None for b, t in zip(*rows)] for rows in zip(cut(block), cut(thread))]
    outlined = [[y, x] for y, row in enumerate(cut(inside)) for x, is_in in enumerate(row) if is_in]
    sizes = " × ".join(str(n) for n in launches[-1]["block"] if n > 1) if launches else ""
    return {"kind": "owners", "title": f"{title}, blocks of {sizes or 1} threads: who writes each element",
            "rows": "row" if is_matrix else "element", "starts": [y * (1 if is_matrix else COLUMNS) for y in range(len(cells))],
            "cells": cells, "request": outlined, "whose": whose if outlined else ""}


def owners_text(owners: dict) -> str:
    """The picture in letters: a line a row, in it runs of the same block with their threads."""
    lines = []
    for start, row in zip(owners["starts"], owners["cells"]):
        blocks: list[tuple[int | None, list[str]]] = []
        for cell in row:
            block, thread = cell or (None, None)
            if not blocks or blocks[-1][0] != block:
                blocks.append((block, []))
            blocks[-1][1].append("–" if thread is None else str(thread))
        lines.append(f"  {owners['rows']} {start}: " + "; ".join(
            f"block {block}, threads {' '.join(threads)}" if block is not None else "not written" for block, threads in blocks))
    said = [f"  one request of {owners['whose']}: {len(owners['request'])} of these"] if owners["whose"] else []
    return "\n".join([*lines, *said])


def owners_svg(owners: dict) -> str:
    """The picture as SVG, in the colours of the page around it."""
    width = (WIDE - LEFT) / COLUMNS
    blocks = sorted({cell[0] for row in owners["cells"] for cell in row if cell})
    color = {block: PALETTE[k % len(PALETTE)] for k, block in enumerate(blocks)}
    parts, request, top = [], {tuple(place) for place in owners["request"]}, 2.0
    for y, (start, row) in enumerate(zip(owners["starts"], owners["cells"])):
        parts.append(text(LEFT - 5, top + 15, f"{start}", "end"))
        for x, cell in enumerate(row):
            at = LEFT + x * width
            parts.append(_cell(at, top, width, cell, color[cell[0]] if cell else None))
        top += ROW
    parts += [f'<rect x="{LEFT + x * width + 0.8:.1f}" y="{2 + y * ROW + 0.8:.1f}" width="{width - 1.6:.1f}" '
              f'height="{ROW - 1.6:.1f}" fill="none" stroke="currentColor" stroke-width="1.6"/>' for y, x in sorted(request)]
    top += 6
    for k, block in enumerate(blocks[:len(PALETTE)]):
        at, down = 2 + WIDE / 3 * (k % 3), top + LINE * (k // 3)
        parts += [f'<rect x="{at:.1f}" y="{down:.1f}" width="14" height="12" fill="{color[block]}" fill-opacity="{BRIGHT}"/>',
                  text(at + 19, down + 11, f"block {block}")]
    top += LINE * -(-min(len(blocks), len(PALETTE)) // 3)
    said = ["In a cell: the thread of the block that writes it."]
    said += [f"{len(blocks)} blocks: the colours repeat."] if len(blocks) > len(PALETTE) else []
    said += [f"Outlined: one request of {owners['whose']}."] if owners["whose"] else []
    for line in [line for words in said for line in wrapped(words, WIDE - 4)]:
        top += LINE
        parts.append(text(2, top - 2, line))
    return drawing("".join(parts), top + 4, f"{owners['title']}. {' '.join(said)}")


def _cell(x: float, y: float, width: float, cell: list[int] | None, color: str | None) -> str:
    size = f'x="{x + 0.5:.1f}" y="{y + 0.5:.1f}" width="{width - 1:.1f}" height="{ROW - 1}"'
    if cell is None:
        return (f'<rect {size} fill="none" stroke="currentColor" stroke-opacity="0.6" stroke-dasharray="2 3">'
                "<title>not written</title></rect>")
    block, thread = cell
    words = html.escape(f"block {block}, thread {thread}: lane {thread % 32} of warp {thread // 32}")
    font = 11 if thread < 100 else 9.5 if thread < 1000 else 8
    return (f'<rect {size} fill="{color}" fill-opacity="{BRIGHT if thread % 2 else DIM}"><title>{words}</title></rect>'
            + text(x + width / 2, y + 14.5, str(thread), "middle", f' font-size="{font}"'))
