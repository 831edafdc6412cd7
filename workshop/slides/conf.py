"""Sphinx's settings for the workshop's slides: the book's own directives, so that numbers and figures come from results/."""

import sys
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(REPOSITORY))

project = "Kernel to Gradient"
extensions = ["myst_parser", "labkit.book", "sphinx-mathjax-offline", "sphinx_revealjs"]
myst_enable_extensions = ["colon_fence", "dollarmath", "substitution"]
revealjs_static_path = [str(REPOSITORY / "book" / "_static"), "slides.css"]
revealjs_css_files = ["book.css", "slides.css"]
revealjs_style_theme = "white"
revealjs_script_conf = {"hash": True, "slideNumber": True, "width": 1280, "height": 800, "center": False, "transition": "none"}
revealjs_script_plugins = [{"name": "RevealNotes", "src": "revealjs/plugin/notes/notes.js"}]
numfig = False
nitpicky = True
