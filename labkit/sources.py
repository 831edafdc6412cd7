"""What code a lab ran, as a short hash: the tie between a committed notebook, a recorded run and the kernels.

A run stays comparable as long as nothing it ran has changed. So the hash covers the notebook's code cells, less those that
bring no figure, the modules of labs/ that they import, the modules that those import, and, for every operator that any of these
load, trace or compile by a literal name (`load("gelu")`), the files of kernels/<name>/ and of kernels/include/; and what calls
bring that take no operator's name: those that measure the GPU kernels/probes.cu or kernels/peaks.cu, those that build
labs/builds/ or labs/wheel/. Comments and blank space are not counted: rewording a comment does not make figures stale. labkit
and the host backend are not counted either, since a GPU's figures are not theirs.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import io
import json
import re
import tokenize
from pathlib import Path

from labkit import REPOSITORY, source_files

PROBES, PEAKS = "kernels/probes.cu", "kernels/peaks.cu"
SETUP, EXERCISE = "setup", "exercise"  # tags of cells that bring no figure: the set-up of Colab, and what a learner does
LABEL = "sources"  # how the first output of a lab introduces the hash
_LOAD = re.compile(r"\b(?:load|trace|owners|schedules|mutant|Fault|Case|Rival|sass|Code|compile_cubin|Shipped)"
                   r"""\(\s*["'](\w+)["']""")
_BROUGHT = {re.compile(r"\b(?:levels|in_flight)\("): [PROBES],  # calls, and what they compile
            re.compile(r"\broofline\("): [PEAKS],
            re.compile(r"\b(?:ladder|stages)\("): ["labs/builds", "kernels/nvrtc", "kernels/gelu"],
            re.compile(r"\bwheel\("): ["labs/wheel", "kernels/gelu"],
            re.compile(r"\b(?:flag_errors|flag_times)\("): ["kernels/gelu"],
            re.compile(r"\b(?:same_losses|survives)\("): ["labs/train.py", "labs/checkpoints.py"],
            re.compile(r"\blabkit\.scale\("): ["labs/scaling.py"],
            re.compile(r"\bdefault_stream\("): ["kernels/copy"],
            re.compile(r"\bagainst_nvbench\("): ["kernels/copy", "kernels/gelu", "kernels/row_sum", "kernels/stencil",
                                                  "kernels/transpose"],
            re.compile(r"\b(?:flags|device_link|separate_cost)\("): ["labs/flags"]}
_IMPORT = re.compile(r"^\s*(?:from\s+(\w+)[\w.]*\s+import\b|import\s+(.+))", re.MULTILINE)
_CXX_SUFFIXES = {".cu", ".cuh", ".cpp", ".h", ".hpp"}
_CXX_TOKEN = re.compile(
    r"""(?P<comment>//[^\n]*|/\*.*?\*/)|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*'|\w+|[^\w\s]""", re.DOTALL)


def sources_hash(lab: str) -> str:
    """The hash (12 hex digits) of what the lab runs; `lab` is a notebook's name, such as "04_fused_kernel".

    Raises FileNotFoundError when labs/<lab>.ipynb, or an operator that it loads, is not there.
    """
    cells = code_cells(notebook(lab))
    modules = _imported(cells)
    parts = [("cell", _python(cell)) for cell in cells]
    texts = cells + [path.read_text(encoding="utf-8") for path in modules]
    operators = sorted({name for text in texts for name in _LOAD.findall(text)})
    brought = {path for call, places in _BROUGHT.items() if any(call.search(text) for text in texts)
               for place in places for path in _files(REPOSITORY / place)}
    for path in modules + sorted({*_kernel_files(operators), *brought}):
        text = path.read_text(encoding="utf-8")
        counted = _python(text) if path.suffix == ".py" else _cxx(text)
        parts.append((path.relative_to(REPOSITORY).as_posix(), counted))
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:12]


def notebook(lab: str) -> Path:
    """The path of a lab's notebook; FileNotFoundError says which labs there are."""
    path = REPOSITORY / "labs" / f"{lab}.ipynb"
    if not path.exists():
        known = ", ".join(sorted(other.stem for other in path.parent.glob("*.ipynb"))) or "none"
        raise FileNotFoundError(f"no lab {lab!r}: {path} is not there (labs: {known})")
    return path


def code_cells(path: Path) -> list[str]:
    """The source of every code cell of a notebook, in order, less those tagged as bringing no figure."""
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    return ["".join(cell["source"]) for cell in cells
            if cell["cell_type"] == "code" and not {SETUP, EXERCISE} & set(cell.get("metadata", {}).get("tags", []))]


def stated_hash(path: Path) -> str | None:
    """The hash that a committed notebook's outputs state they came from; None for a notebook without outputs.

    Raises ValueError when it has outputs but states none: its figures then belong to nothing.
    """
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    outputs = [output for cell in cells for output in cell.get("outputs", [])]
    if not outputs:
        return None
    found = re.search(rf"^{LABEL}\s+([0-9a-f]{{12}})$", "".join(outputs[0].get("text", "")), re.MULTILINE)
    if not found:
        raise ValueError(f"{path.name} has outputs, but its first one does not state the hash of its "
                         "sources; its first cell must call labkit.start")
    return found[1]


def _imported(cells: list[str]) -> list[Path]:
    """The modules of labs/ that the cells import, and those that these import in turn."""
    found: set[Path] = set()
    texts = list(cells)
    while texts:
        lines = "\n".join(_python(texts.pop()))
        for package, names in _IMPORT.findall(lines):
            for name in [package] if package else re.findall(r"(?:^|,)\s*(\w+)", names):
                path = REPOSITORY / "labs" / f"{name}.py"
                if path not in found and path.is_file():
                    found.add(path)
                    texts.append(path.read_text(encoding="utf-8"))
    return sorted(found)


def _kernel_files(operators: list[str]) -> list[Path]:
    kernels = REPOSITORY / "kernels"
    files = []
    for name in operators:
        if not (kernels / name).is_dir():
            raise FileNotFoundError(f"a lab loads {name!r}, but {kernels / name} is not there")
        files += _files(kernels / name)
    return files + _files(kernels / "include")


def _files(place: Path) -> list[Path]:
    """The code in a folder, or a file itself; a header without a suffix is C++ as well."""
    return [path for path in (source_files.under(place) if place.is_dir() else [place])
            if path.suffix in _CXX_SUFFIXES | {".py", ".toml", ""}]


@functools.cache  # the pages ask for the hashes of all labs again and again
def _python(text: str) -> tuple[str, ...]:
    """The lines of Python code, less comments, blank lines and blank space at ends of lines."""
    lines = text.splitlines()
    # Tokens only tell where comments are: their kinds (of f-strings, say) differ between versions of Python,
    # and a notebook that was run with one version must not look stale to another.
    with contextlib.suppress(tokenize.TokenError, IndentationError):  # a cell with magics
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            if token.type == tokenize.COMMENT:
                row, column = token.start
                lines[row - 1] = lines[row - 1][:column]
    return tuple(line.rstrip() for line in lines if line.strip())


@functools.cache
def _cxx(text: str) -> tuple[str, ...]:
    """The tokens of CUDA or C++ code, less comments."""
    return tuple(match[0] for match in _CXX_TOKEN.finditer(text) if not match["comment"])
