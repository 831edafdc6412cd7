"""Sphinx's settings for the workshop's slides: the book's own directives, so that numbers and figures come from results/."""

import sys
from pathlib import Path

from docutils import nodes

REPOSITORY = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(REPOSITORY))

project = "Kernel to Gradient"
extensions = ["myst_parser", "labkit.book", "sphinx-mathjax-offline", "sphinx_revealjs"]
myst_enable_extensions = ["colon_fence", "dollarmath", "substitution"]
revealjs_static_path = [str(REPOSITORY / "book" / "_static"), "slides.css"]
revealjs_css_files = ["book.css", "slides.css"]
revealjs_style_theme = "white"
revealjs_script_conf = {"hash": True, "slideNumber": True, "width": 1280, "height": 800, "center": False, "transition": "none",
                        "controls": False}
revealjs_script_plugins = [{"name": "RevealNotes", "src": "revealjs/plugin/notes/notes.js"}]
numfig = False
nitpicky = True


def setup(app):
    def to_the_end(app, doctree):
        """What is recorded no longer as it was: the book says so under a title, and here it would fill the first slide."""
        last = list(doctree.findall(nodes.section))[-1]
        for note in list(doctree.findall(nodes.note)):
            note.parent.remove(note)
            last += note

    app.connect("doctree-read", to_the_end, priority=600)  # after labkit.book, which puts it there
