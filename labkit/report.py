"""What a lab's reader sees of a table: HTML with a figure in a notebook, plain text in a terminal."""

from __future__ import annotations

from typing import Callable, Iterable

from labkit import figures, machine, results


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
    """Shows a "bench" or "table" record, with its figure where asked; by default the caption says where it ran."""
    caption = caption or f"On {here()}"
    plain = f"{figures.title(table)}. {caption}.\n{figures.text_table(table)}"
    show_html(lambda: figures.html_table(table, caption) + (figures.figure(table) if figure else ""), plain)


def show_curve(curve: dict, caption: str | None = None) -> None:
    """Shows a "curve" record: its values as a table, a row an x, and its figure."""
    caption = caption or f"On {here()}"
    columns = [curve["x"]["label"], *curve["series"]]
    rows = [dict(zip(columns, values)) for values in zip(curve["x"]["values"], *curve["series"].values())]
    table = results.table_of(curve["title"], rows)
    show_html(lambda: figures.html_table(table, caption) + figures.figure(curve),
              f"{curve['title']}. {caption}.\n{figures.text_table(table)}")


def show_recorded(names: Iterable[str], title: str, why: str) -> None:
    """Shows what the session's lab has recorded under `names`, where nothing can be measured; `why` says for what reason."""
    for name in names:
        found = results.recorded(results.session().lab, name)
        if found is None:
            print(f"{title}: {why}, and nothing is recorded.")
            return
        show = show_curve if found.table["kind"] == "curve" else show_table
        show(found.table, f"{found.caption()}; not measured on this machine: {why}")
