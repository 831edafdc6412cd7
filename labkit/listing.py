"""`show`: one version of a kernel, or what it changes in another, highlighted where a notebook can."""

from __future__ import annotations

import difflib
import re

from labkit import source_files
from labkit.operator import check_version, listed_versions, source_path


def show(name: str, version: int, diff: int | None = None) -> None:
    """Shows the source of one version of an operator, or with `diff` its changes against another version.

    name: a folder of kernels/. version, diff: versions that the header of its .cu file lists.
    Raises FileNotFoundError for an unknown name and ValueError for an unknown version.
    """
    show_source(*(source(name, version), "cpp") if diff is None else (difference(name, diff, version), "diff"))


def show_source(text: str, language: str | None) -> None:
    """Shows a text in a notebook, highlighted as `language` or, where that is None, as Markdown; elsewhere prints it."""
    try:
        from IPython import get_ipython
        from IPython.display import Markdown, display
    except ImportError:
        print(text)
        return
    if get_ipython() is None:
        print(text)
    else:
        display(Markdown(f"```{language}\n{text}\n```" if language else text))


def source(name: str, version: int) -> str:
    """The text of one version: what stands in `namespace v<version>` of the .cu file, without the namespace."""
    path = source_path(name)
    text = source_files.text(path)
    check_version(name, version, path.name, listed_versions(text))
    body = re.search(rf"^namespace v{version} {{\n(.*?)^}}  // namespace v{version}$", text, re.MULTILINE | re.DOTALL)
    if body is None:
        raise ValueError(f"{path.name} lists version {version}, but has no `namespace v{version} {{ ... }}  "
                         f"// namespace v{version}`")
    return body.group(1).strip("\n")


def difference(name: str, old: int, new: int) -> str:
    """What version `new` changes in version `old`: the whole of both, removed lines with -, added ones with +."""
    before, after = source(name, old).splitlines(), source(name, new).splitlines()
    lines = list(difflib.unified_diff(before, after, f"v{old}", f"v{new}", n=max(len(before), len(after)), lineterm=""))
    return "\n".join(lines[:2] + lines[3:])  # the third line holds line numbers, of no use here
