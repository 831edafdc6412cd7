"""A line of what a look at a machine found, and the table of such lines."""

from __future__ import annotations

import importlib.util
import sys
from dataclasses import dataclass


@dataclass(frozen=True)
class Finding:
    """One line: `what` was looked at, its `state` ("ok", "warn" or "fail"), what was `seen`, and what to do."""

    what: str
    state: str
    seen: str
    advice: str = ""


def show(findings: list[Finding]) -> None:
    """Prints findings as a table, or plainly where rich is not installed."""
    if importlib.util.find_spec("rich") is None:
        for finding in findings:
            print(f"{finding.state:5} {finding.what}: {finding.seen}")
            if finding.advice:
                print(f"      do: {finding.advice}")
        return
    from rich import box
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    colours = {"ok": "green", "warn": "yellow", "fail": "bold red"}
    table = Table("", "what", "seen", "what to do", box=box.SIMPLE_HEAD)
    for finding in findings:
        table.add_row(f"[{colours[finding.state]}]{finding.state}[/]", escape(finding.what), escape(finding.seen),
                      escape(finding.advice))
    Console(width=None if sys.stdout.isatty() else 140).print(table)
