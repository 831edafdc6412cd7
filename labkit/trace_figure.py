"""One request of a warp as a picture: its lanes against the sectors of global memory, or the banks of shared memory."""

from __future__ import annotations

import html
from typing import TYPE_CHECKING, Iterable

from labkit.figures import BLUE, GREY, VERMILION

if TYPE_CHECKING:
    from labkit.tracing import Access

SECTOR, LINE = 32, 128  # bytes
BANKS, WORD = 32, 4  # of shared memory; bytes of a bank
MOST_ROWS = 8  # lines or wavefronts in a picture; more would only repeat them
LEFT, BYTE, ROW, TOP = 44, 2.6, 34, 6  # of the drawing, in pixels: margin, width of a byte, height of a line, margin


def record(access: Access) -> dict:
    """The request of `access.example` as results/schema.json describes it, with what the picture shows as its title."""
    example = [address for address in access.example if address is not None]
    title = (f"Warp {access.warp} of block {access.block} {access.does} {len(example)} × {access.size} bytes of "
             f"{access.array} at {access.line}")
    found = {"kind": "request", "title": title, "shared": access.shared, "size": access.size, "starts": access.starts,
             "example": list(access.example)}
    if access.shared:
        rows = len(_wavefronts(found))
        return {**found, "title": f"{title}: {rows} wavefront{'s' * (rows != 1)}"}
    touched = len(_sectors(found))
    fewest = -(-len({address + k for address in example for k in range(access.size)}) // SECTOR)
    return {**found, "title": f"{title}: {touched} sector{'s' * (touched != 1)} of {SECTOR} bytes, {fewest} would hold them"}


def lanes_text(request: dict) -> str:
    """The picture in letters: a line a sector, or a wavefront, with its lanes."""
    if request["shared"]:
        rows = [f"  wavefront {k + 1}: " + ", ".join(f"bank {bank} lane{'s' * (len(lanes) > 1)} {ranges(lanes)}"
                                                     for bank, lanes in sorted(row.items()))
                for k, row in enumerate(_wavefronts(request))]
    else:
        rows = [f"  bytes {sector * SECTOR:,} to {sector * SECTOR + SECTOR - 1:,}: lane{'s' * (len(lanes) > 1)} {ranges(lanes)}"
                for sector, lanes in sorted(_sectors(request).items())]
    return "\n".join([f"{request['title']}.", *rows])


def lanes_svg(request: dict) -> str:
    """The picture as SVG, in the colours of the page around it."""
    body, height = (_banks if request["shared"] else _lines)(request)
    words, width = html.escape(request["title"], quote=True), LEFT + LINE * BYTE + 8
    return (f'<svg class="results-figure" viewBox="0 0 {width:.0f} {height:.0f}" style="width:100%;'
            f'max-width:{1.5 * width:.0f}px" role="img" font-size="10.5" fill="currentColor" aria-label="{words}">'
            f"<title>{words}</title>{body}</svg>")


def ranges(lanes: Iterable[int]) -> str:
    """Lane numbers in short: "0–7", "0, 4, 8", "0–2, 9"."""
    runs: list[list[int]] = []
    for lane in sorted(set(lanes)):
        if runs and lane == runs[-1][-1] + 1:
            runs[-1].append(lane)
        else:
            runs.append([lane])
    return ", ".join(f"{run[0]}–{run[-1]}" if len(run) > 2 else ", ".join(map(str, run)) for run in runs)


def _sectors(request: dict) -> dict[int, list[int]]:
    found: dict[int, list[int]] = {}
    for lane, address in enumerate(request["example"]):
        if address is not None:
            for sector in range(address // SECTOR, (address + request["size"] - 1) // SECTOR + 1):
                found.setdefault(sector, []).append(lane)
    return found


def _lines(request: dict) -> tuple[str, float]:
    """Global memory, a row a line of 128 bytes: four sectors, those touched in colour, with the bytes that lanes want."""
    sectors, size = _sectors(request), request["size"]
    lines = sorted({sector * SECTOR // LINE for sector in sectors})
    parts, y = [], TOP
    for line in lines[:MOST_ROWS]:
        parts.append(f'<text x="{LEFT - 6}" y="{y + 22}" text-anchor="end">{line * LINE:,}</text>')
        for k in range(LINE // SECTOR):
            sector, x = line * LINE // SECTOR + k, LEFT + k * SECTOR * BYTE
            touched = sector in sectors
            look = (f'fill="{VERMILION}" fill-opacity="0.25" stroke="{VERMILION}"' if touched else
                    f'fill="none" stroke="{GREY}" stroke-dasharray="2 2"')
            parts.append(f'<rect x="{x + 1:.1f}" y="{y + 10}" width="{SECTOR * BYTE - 2:.1f}" height="18" {look} '
                         'stroke-width="0.8"/>')
            if touched:
                parts.append(f'<text x="{x + SECTOR * BYTE / 2:.1f}" y="{y + 7}" text-anchor="middle">'
                             f"{_fitting(ranges(sectors[sector]))}</text>")
        for lane, address in enumerate(request["example"]):
            if address is None or not line * LINE - size < address < (line + 1) * LINE:
                continue
            first, end = max(address, line * LINE), min(address + size, (line + 1) * LINE)
            parts.append(f'<rect x="{LEFT + (first % LINE) * BYTE + 0.3:.1f}" y="{y + 12}" '
                         f'width="{(end - first) * BYTE - 0.6:.1f}" height="14" fill="{BLUE}" '
                         f'fill-opacity="{0.95 if lane % 2 else 0.7}"><title>lane {lane}: bytes {address:,} to '
                         f"{address + size - 1:,}</title></rect>")
        y += ROW
    if len(lines) > MOST_ROWS:
        parts.append(f'<text x="{LEFT}" y="{y + 10}">and {len(lines) - MOST_ROWS} more lines of {LINE} bytes</text>')
        y += 14
    parts.append(f'<text x="{LEFT}" y="{y + 10}">above a sector: its lanes; blue: the bytes they want</text>')
    return "".join(parts), y + 16


def _fitting(text: str) -> str:
    return text if len(text) <= 17 else text[:text.rindex(",", 0, 15)] + ", …"


def _wavefronts(request: dict) -> list[dict[int, list[int]]]:
    """For each wavefront: which lanes each bank serves, {bank: lanes}."""
    rows: list[dict[int, list[int]]] = []
    for start in [lane for lane in range(32) if request["starts"] >> lane & 1]:
        later = [lane for lane in range(start + 1, 32) if request["starts"] >> lane & 1]
        words: dict[int, dict[int, list[int]]] = {}  # of this group: bank -> word -> lanes
        for lane in range(start, later[0] if later else 32):
            if request["example"][lane] is None:
                continue
            last = (request["example"][lane] + request["size"] - 1) // WORD
            for word in range(request["example"][lane] // WORD, last + 1):
                words.setdefault(word % BANKS, {}).setdefault(word, []).append(lane)
        depth = max((len(of_bank) for of_bank in words.values()), default=0)
        rows += [{bank: list(of_bank.values())[k] for bank, of_bank in words.items() if k < len(of_bank)} for k in range(depth)]
    return rows


def _banks(request: dict) -> tuple[str, float]:
    """Shared memory, a row a wavefront: which of the 32 banks it keeps busy."""
    rows = _wavefronts(request)
    width, height = LINE * BYTE / BANKS, 11
    parts = [f'<text x="{LEFT + (bank + 0.5) * width:.1f}" y="{TOP + 8}" text-anchor="middle">{bank}</text>'
             for bank in range(0, BANKS, 4)]
    parts.append(f'<text x="{LEFT - 6}" y="{TOP + 8}" text-anchor="end">bank</text>')
    y = TOP + 14
    for k, row in enumerate(rows[:MOST_ROWS]):
        if k in (0, min(len(rows), MOST_ROWS) - 1):
            parts.append(f'<text x="{LEFT - 6}" y="{y + 9}" text-anchor="end">{k + 1}</text>')
        for bank in range(BANKS):
            lanes = row.get(bank)
            parts.append(f'<rect x="{LEFT + bank * width + 0.5:.1f}" y="{y + 0.5:.1f}" width="{width - 1:.1f}" '
                         f'height="{height - 1}" fill="{BLUE if lanes else "none"}" stroke="{GREY}" stroke-width="0.4">'
                         + (f"<title>bank {bank}: lanes {ranges(lanes)}</title>" if lanes else "") + "</rect>")
        y += height
    if len(rows) > MOST_ROWS:
        parts.append(f'<text x="{LEFT}" y="{y + 12}">and {len(rows) - MOST_ROWS} more wavefronts</text>')
        y += 14
    parts.append(f'<text x="{LEFT}" y="{y + 12}">a row: one wavefront; blue: banks that serve a lane in it</text>')
    return "".join(parts), y + 18
