"""The first cell of every lab, and the address of the repository that it fetches.

The address and the branch stand in pyproject.toml alone. `python -m labkit.first_cell` writes the cell into every lab, with
that address; the book takes its links from there.
"""

from __future__ import annotations

import string
import sys
from pathlib import Path

from labkit import REPOSITORY, results
from labkit.sources import SETUP

LABS = REPOSITORY / "labs"
HEAD = "Set-up for Colab"
FOLDED = {"tags": [SETUP, "hide-input"], "mystnb": {"code_prompt_show": HEAD, "code_prompt_hide": HEAD},  # on the book's pages
          "cellView": "form", "jupyter": {"source_hidden": True}}  # on Colab, and in JupyterLab
CELL = string.Template("""\
# @title Set-up: on Colab, fetches the repository and installs what is missing; beside the repository, does nothing
import importlib.util

if not importlib.util.find_spec("labkit"):
    import subprocess
    import sys
    from pathlib import Path

    repository = Path("..").resolve()
    if not (repository / "labkit" / "colab.py").exists():
        repository = Path("$name").resolve()
        if (repository / "labkit" / "colab.py").exists():
            print(f"Found {repository}. For the newest one, delete that folder, restart the runtime and run this cell again.")
        else:
            clone = ["git", "clone", "--quiet", "--depth=1", "--branch=$branch", "$address"]
            cloned = subprocess.run([*clone, str(repository)], capture_output=True, text=True)
            if cloned.returncode:
                raise RuntimeError(f"The repository was not fetched: {cloned.stderr.strip()}\\n"
                                   "Check the network, the address above and the folder, then run this cell again.")
            print("Fetched $address into", repository)
    sys.path.insert(0, str(repository))
    from labkit import colab

    colab.prepare()
""")


def address() -> tuple[str, str]:
    """The repository's address, without a slash at its end, and the branch or tag that belongs to these notebooks.

    Raises ValueError where pyproject.toml names no repository of GitHub's, the only ones that Colab opens.
    """
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    read = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))
    url, branch = read["project"]["urls"]["Repository"].rstrip("/"), read["tool"]["labkit"]["branch"]
    parts = url.removeprefix("https://github.com/").split("/")
    if not url.startswith("https://github.com/") or len(parts) != 2 or not all(parts):
        raise ValueError(f"pyproject.toml: Repository is {url!r}; write it as https://github.com/OWNER/NAME")
    return url, branch


def text() -> str:
    """The source of the cell, for the address of now."""
    url, branch = address()
    return CELL.substitute(address=url, branch=branch, name=url.rsplit("/", 1)[1]).rstrip()


def write(path: Path) -> bool:
    """Give the notebook at `path` the cell, before its first code cell; True when the file had to change."""
    import nbformat

    notebook, source = nbformat.read(path, as_version=4), text()
    cells = notebook.cells
    first = next(i for i, cell in enumerate(cells) if cell.cell_type == "code")
    if SETUP not in cells[first].metadata.get("tags", []):
        cells.insert(first, nbformat.v4.new_code_cell(source, id=SETUP))
    cells[first].update(source=source, metadata=FOLDED)
    before = path.read_text(encoding="utf-8")
    after = nbformat.writes(notebook) + "\n"
    if after != before:
        results.replace(path, after)
    return after != before


if __name__ == "__main__":
    changed = [path.stem for path in sorted(LABS.glob("*.ipynb")) if write(path)]
    print(f"Written into {', '.join(changed)}" if changed else "The first cell of every lab is as it should be")
