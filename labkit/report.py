"""What a lab's reader sees of a table: HTML with a figure in a notebook, plain text in a terminal."""

from __future__ import annotations

import html
from typing import Callable, Iterable

from labkit import figures, machine, results

NO_GPU = "there is no GPU here"


def in_notebook() -> bool:
    """Whether this Python runs the cells of a notebook."""
    try:
        from IPython import get_ipython
    except ImportError:
        return False
    return hasattr(get_ipython(), "kernel")


def here() -> str:
    """Where this process computes, as a caption: the GPU with versions and day, or the CPU."""
    if machine.backend() == "cuda":
        return results.conditions(machine.gpu(), machine.versions(), results.today())
    return f"the CPU (host backend), torch {machine.versions()['torch']}, {results.today()}"


def show_html(page: Callable[[], str], plain: str) -> None:
    """Shows the HTML that `page` makes in a notebook, `plain` in a terminal."""
    if not in_notebook():
        print(plain)
        return
    from IPython.display import display

    display({"text/html": page(), "text/plain": plain}, raw=True)


def show_table(table: dict, caption: str | None = None, figure: bool = False) -> None:
    """Shows a record as a table (see `figures.tabulated`), with its figure where asked.

    By default the caption says where it ran.
    """
    caption = caption or f"On {here()}"
    plain = f"{figures.title(table)}. {caption}.\n{figures.text_table(table)}"
    show_html(lambda: figures.html_table(table, caption) + (figures.figure(table) if figure else ""), plain)


def show_figure(record: dict, caption: str | None = None) -> None:
    """Shows a record's drawing, in a terminal what it says in words; by default the caption says where it ran."""
    said = f"{figures.title(record)}. {caption or f'On {here()}'}."
    show_html(lambda: f"<figure>{figures.figure(record)}<figcaption>{html.escape(said)}</figcaption></figure>",
              f"{said}\n{figures.text_figure(record)}")


def show(record: dict, caption: str | None = None) -> None:
    """Shows a record as what it is: a table, a drawing, or both: a benchmark, and a table of which something is drawn."""
    if record["kind"] in ("bench", "table"):
        show_table(record, caption, figure=record["kind"] == "bench" or "bars" in record)
    else:
        show_figure(record, caption)


def keep(records: dict[str, dict], caption: str | None = None) -> None:
    """Adds records to the session, by their names in results/, and shows them."""
    for name, record in records.items():
        results.add(name, record)
    for record in records.values():
        show(record, caption)


def show_recorded(names: Iterable[str], title: str, why: str = NO_GPU, asked: Iterable[str] = ()) -> list:
    """Shows what the session's lab has recorded under `names`, since nothing is measured now, and `why`; returns [].

    asked: the labels with which rows of the first were asked for; those that it does not have are named. ValueError where no
    lab was started.
    """
    if results.session().lab is None:
        raise ValueError(f"{title}: {why}, and no lab was started whose record could be shown; call "
                         'labkit.start("NN_topic") first')
    for name in names:
        found = results.recorded(results.session().lab, name)
        if found is None:
            print(f"{title}: {why}, and nothing is recorded.")
            return []
        show(found.table, f"{found.caption()}; not measured on this machine: {why}")
        note_recorded(name, found)
        say_absent(found.table, asked)
        asked = ()
    return []


def note_recorded(name: str, found: results.Recorded) -> None:
    """Notes that a table was shown as it is recorded, so that it is not taken for one of this machine."""
    results.note("recorded", name, f"shown, not measured here: {found.gpu['name']}, {found.run['date'][:10]}")


def say_absent(table: dict, asked: Iterable[str]) -> None:
    """Prints those of the labels asked for with which no row of a recorded table begins."""
    rows = [str(next(iter(row.values()))) for row in table.get("rows", [])]
    if absent := [label for label in asked if not any(row.startswith(label) for row in rows)]:
        print(f"Not in that record: {', '.join(absent)}.")


def take_recorded(tables: dict[str, dict], columns: Iterable[str]) -> str:
    """Fills columns of a GPU, where there is none, from what the session's lab has recorded in rows of the same name.

    tables: records of kind "table", by their names in results/. Returns their caption, which says where both halves come from.
    """
    lab = results.session().lab
    caption = f"The CPU; {NO_GPU}, and nothing of one is recorded"
    for name, table in tables.items():
        found = results.recorded(lab, name) if lab else None
        if found is None:
            continue
        caption = f"The CPU; {', '.join(columns)}: {found.caption()}"
        first = table["columns"][0]
        known = {row[first]: row for row in found.table["rows"]}
        note_recorded(f"{name}: {', '.join(columns)}", found)
        for row in table["rows"]:
            row.update({column: value for column, value in known.get(row[first], {}).items() if column in columns})
    return caption
