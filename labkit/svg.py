"""What drawings that are written as SVG share: the frame, text in the page's font, ink that can be read on a colour."""

from __future__ import annotations

import html

from labkit.figures import WIDTH

WIDE = 72 * WIDTH  # of a drawing, in its own units
FONT, LINE = 12.5, 16  # size of text, height of a line
ON_BRIGHT, ON_DARK = "#050505", "#ffffff"  # text on a coloured ground: one of them has a contrast of 4.5 with any colour


def drawing(body: str, height: float, description: str) -> str:
    """`body`, SVG elements in a frame of WIDE by `height`, as an element of an HTML page, in the page's colour and font."""
    return (f'<svg class="results-figure" role="img" aria-label="{html.escape(description, quote=True)}" '
            f'viewBox="0 0 {WIDE:.0f} {height:.0f}" style="width:100%;max-width:32rem" xmlns="http://www.w3.org/2000/svg" '
            f'font-family="system-ui, sans-serif" font-size="{FONT}" fill="currentColor">{body}</svg>')


def text(x: float, y: float, words: str, anchor: str = "start", more: str = "") -> str:
    """A line of text with its baseline at y; anchor: which part of it stands at x, "start", "middle" or "end"."""
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{more}>{html.escape(words)}</text>'


def text_width(words: str, size: float = FONT) -> float:
    """How wide a line of text is in DejaVu Sans, which is wider than what most pages are set in."""
    from matplotlib.font_manager import FontProperties
    from matplotlib.textpath import text_to_path

    return text_to_path.get_text_width_height_descent(words, FontProperties(family="DejaVu Sans", size=size), ismath=False)[0]


def wrapped(words: str, width: float) -> list[str]:
    """The text in lines no wider than `width`, except for a word that is wider by itself."""
    lines: list[str] = []
    for word in words.split(" "):
        if lines and text_width(f"{lines[-1]} {word}") <= width:
            lines[-1] += f" {word}"
        else:
            lines.append(word)
    return lines


def ink_on(color: str) -> str:
    """Of ON_BRIGHT and ON_DARK the colour of text that is easier to read on `color`, "#rrggbb"."""
    return max(ON_BRIGHT, ON_DARK, key=lambda ink: contrast(ink, color))


def contrast(one: str, other: str) -> float:
    """The contrast of two colours, "#rrggbb", as the Web Content Accessibility Guidelines define it: 1 to 21."""
    def luminance(color: str) -> float:
        parts = [int(color[k:k + 2], 16) / 255 for k in (1, 3, 5)]
        linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    dark, bright = sorted([luminance(one), luminance(other)])
    return (bright + 0.05) / (dark + 0.05)
