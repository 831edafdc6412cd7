"""A kernel's machine code beside the source lines that it came from: as HTML in the page's colours, and as plain text."""

from __future__ import annotations

import html
from collections import Counter
from typing import Iterable

from labkit.disassembly import CLASSES, Instruction, class_of
from labkit.figures import BLUE, GREEN, GREY, ORANGE, PURPLE, SKY, VERMILION

NOTE = "What comes from CUDA's own mathematics, such as tanhf, has no line: it stands with the line that came before it."
MOST = 10  # instructions of a line in sight; the rest unfolds, where it is more than two
_COLOURS = dict(zip(CLASSES, (BLUE, VERMILION, GREY, SKY, GREEN, PURPLE, ORANGE, "currentColor")))
_MEANING = {"16 bytes": "16 bytes of memory at once", "local memory": "local memory: spills, or arrays not in registers",
            "constant": "a constant into a register", "conversion": "conversion between types",
            "fused": "fused multiply-add", "special function": "the special-function unit", "branch": "branch, call, return",
            "barrier": "barrier or fence"}
_LOOK = """
figure:has(> .sass) { display: flex; flex-direction: column; margin-inline: 0; }
figure:has(> .sass) figcaption { order: -1; margin-block-end: 0.5rem; }
.sass { container-type: inline-size; text-align: left;
  font: 0.8rem/1.5 ui-monospace, SFMono-Regular, Menlo, Consolas, monospace; }
.sass .line { display: grid; grid-template-columns: minmax(0, 5fr) minmax(0, 7fr); gap: 0 1.2rem; padding: 0.3rem 0;
  border-top: 1px solid color-mix(in srgb, currentColor 20%, transparent); }
@container (max-width: 38rem) { .sass .line { grid-template-columns: minmax(0, 1fr); } }
.sass :is(.source, .one) { white-space: pre-wrap; overflow-wrap: anywhere; }
.sass .source { padding-left: 1em; text-indent: -1em; }
.sass :is(.place, .address) { opacity: 0.75; }
.sass .place { display: block; }
.sass .one { display: flex; gap: 0 0.8em; padding-left: 0.4em; border-left: 3px solid transparent; }
.sass .text { flex: 1; padding-left: 1em; text-indent: -1em; }
.sass .kind { border-color: var(--kind); background: color-mix(in srgb, var(--kind) 20%, transparent); }
.sass .kind::after { content: attr(data-kind); text-align: right; }
.sass :is(.legend, .note) { font-family: system-ui, sans-serif; margin: 0 0 0.5rem; }
.sass .legend { display: flex; flex-wrap: wrap; gap: 0.2rem 1.2rem; }
.sass .legend span { border-left: 0.8em solid var(--kind); padding-left: 0.4em; }
.sass summary { cursor: pointer; padding-left: 0.4em; }
"""


def record(title: str, instructions: Iterable[Instruction]) -> dict:
    """Instructions as results/schema.json describes a "listing": grouped by the source lines that they came from."""
    blocks: dict[tuple, list[Instruction]] = {}
    for one in instructions:
        blocks.setdefault(one.place or one.routine, []).append(one)
    return {"kind": "listing", "title": title,
            "blocks": [{**_origin(of), "code": [[one.address, one.text] for one in code]} for of, code in blocks.items()]}


def listing_text(listing: dict) -> str:
    """The whole listing in letters: each source line with its instructions below it, and what kind they are."""
    lines = []
    for block in listing["blocks"]:
        lines.append(f"{block['place']}  {block['source']}".rstrip())
        for address, text in block["code"]:
            kind = class_of(text)
            lines.append(f"    {address:04x}  " + (f"{text:<56}  <- {kind}" if kind else text))
    return "\n".join([*lines, NOTE])


def listing_html(listing: dict) -> str:
    """The listing as HTML: source lines on the left, their instructions on the right, long ones folded."""
    found = {class_of(text) for block in listing["blocks"] for _, text in block["code"]}
    legend = "".join(f'<span style="--kind: {_COLOURS[kind]}">{kind}: {meaning}</span>'
                     for kind, meaning in _MEANING.items() if kind in found)
    lines = "".join(f'<div class="line"><div class="source"><span class="place">{html.escape(block["place"])}</span>'
                    f'{html.escape(block["source"])}</div><div>{_code(block["code"])}</div></div>'
                    for block in listing["blocks"])
    return (f'<div class="sass"><style>{_LOOK}</style><div class="legend">{legend}</div>{lines}'
            f'<div class="note">{NOTE}</div></div>')


def _origin(of: tuple | str) -> dict[str, str]:
    if isinstance(of, str):
        return {"place": of, "source": ""}
    path, line = of
    return {"place": f"{path.name}:{line}", "source": path.read_text(encoding="utf-8").splitlines()[line - 1].strip()}


def _code(code: list[list]) -> str:
    shown = [_one(address, text) for address, text in code]
    if len(code) <= MOST + 2:
        return "".join(shown)
    kinds = Counter(kind for _, text in code[MOST:] if (kind := class_of(text)))
    holds = ", ".join(f"{count} × {kind}" for kind, count in kinds.most_common())
    return ("".join(shown[:MOST]) + f"<details><summary>{len(code) - MOST} more{f': {holds}' if holds else ''}</summary>"
            + "".join(shown[MOST:]) + "</details>")


def _one(address: int, text: str) -> str:
    kind = class_of(text)
    look = f'class="one kind" style="--kind: {_COLOURS[kind]}" data-kind="{kind}"' if kind else 'class="one"'
    return (f'<div {look}><span class="address">{address:04x}</span>'
            f'<span class="text">{html.escape(text)}</span></div>')
