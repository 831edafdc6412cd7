"""`anatomy`: what torch's builder did for one operator, read from what it left in the build folder."""

from __future__ import annotations

import re
import shlex
import subprocess
from pathlib import Path

from labkit import build, results, toolchain
from labkit.arguments import loaded
from labkit.operator import Operator
from labkit.report import keep

# What the words of the three commands are for, by how they begin; the first that fits counts.
_PURPOSES = [
    (r"-DTORCH_EXTENSION_NAME=", "the name that a binding may register under"),
    (r"-DTORCH_API_INCLUDE_EXTENSION_H", "says that the sources are an extension"),
    (r"-DTORCH_TARGET_VERSION=", "only the stable ABI, as of torch 2.9"),
    (r"-DUSE_CUDA", "torch's headers offer what CUDA needs"),
    (r"-DNAMESPACE=", "torch.ops.<namespace>, one for each build"),
    (r"-DBUILD_VERSION=", "one version of the kernel alone"),
    (r"-DCUDA_HOST_TRACE", "the host backend reports every access"),
    (r"-D__CUDA_NO_.*(HALF|BFLOAT16)", "takes the implicit conversions or operators of 16-bit types away"),
    (r"-D", "a macro"),
    (r"-isystem", "headers of torch and Python"),
    (r"-I", "headers of the operator"),
    (r"-gencode|-arch", "machine code for this GPU"),
    (r"--generate-dependencies-with-compile|-MD", "writes down which headers were read"),
    (r"-MMD", "writes down which headers were read, but for those of -isystem"),
    (r"--dependency-output|-MF", "where to: ninja compiles again when one of them is newer"),
    (r"--expt-relaxed-constexpr", "constexpr functions of the host may be used in kernels"),
    (r"--compiler-options|-fPIC", "position-independent code, as a shared library needs it"),
    (r"-ccbin", "the C++ compiler that nvcc calls"),
    (r"-std=", "the C++ standard"),
    (r"-O", "how much the C++ compiler optimises"),
    (r"-lineinfo", "profilers can name source lines"),
    (r"-diag-suppress", "no warning about constants of versions left out"),
    (r"-pthread|-U|-f", "what the host backend asks of the C++ compiler"),
    (r"-shared", "a shared library"),
    (r"-L", "where libraries are looked for"),
    (r"-l", "a library that must be there when this one is loaded"),
]
_WITH_VALUE = ("-isystem", "-MF", "--dependency-output", "--compiler-options", "-o", "-ccbin", "-Xcompiler")
_FILES = {"build.ninja": "the commands, written anew by each load()", ".ninja_log": "when each command ran, and a hash of it",
          ".ninja_deps": "the headers that each object file was made from"}
_SUFFIXES = {".o": "an object file", ".so": "the library", ".cpp": "the kernel as C++, for the host backend"}


def anatomy(name: str, operator: Operator) -> list[dict]:
    """Shows what stands behind a build: the files that it left, and the commands that ran, word by word.

    name: what the tables are called in results/: <name> for the words, <name>_files for the files.

    Returns the words: a row each, with where it comes from (torch or labkit), what it is for and the commands that have it.
    Raises FileNotFoundError where the build folder has gone, or holds what torch's builder did not make: a single version on
    the CPU.
    """
    loaded("anatomy", "operator", operator)
    folder = operator.library.parent
    if not (folder / "build.ninja").is_file():
        raise FileNotFoundError(f"{operator.name}: {folder} holds no build.ninja; build it again with "
                                f'labkit.load("{operator.name}", rebuild=True)')
    files = [{"file": _plain(path.name, operator), "bytes": path.stat().st_size,
              "what it is": _FILES.get(path.name) or _SUFFIXES.get(path.suffix, "")}
             for path in sorted(folder.iterdir()) if path.is_file()]
    words = _gathered([row for command in commands(folder) for row in explained(command, operator)])
    keep({f"{name}_files": results.table_of(f"What a build of {operator.name} leaves behind", files),
          name: results.table_of(f"The commands that built {operator.name}, word by word", words)})
    return words


def commands(folder: Path) -> list[list[str]]:
    """The commands of a build folder's build.ninja, in the order in which ninja runs them, as words."""
    with toolchain.tools_on_path():
        shown = subprocess.run(["ninja", "-C", str(folder), "-t", "commands"], capture_output=True, text=True, check=True)
    return [shlex.split(line) for line in shown.stdout.splitlines() if not line.startswith("ninja: ")]


def explained(command: list[str], operator: Operator) -> list[dict]:
    """A row for each word of one command: the step, the word (paths shortened), its origin, its purpose."""
    cxx, cuda = build.flags(operator.backend)
    own = {*cxx, *cuda, f"-DNAMESPACE={operator.namespace}"}
    step = f"{Path(command[0]).name}: {_plain(command[command.index('-o') + 1], operator)}"
    rows, at = [], 1
    while at < len(command):
        word, taken = command[at], 2 if command[at] in _WITH_VALUE else 1
        if word.startswith("-") and word not in ("-c", "-o"):  # the others are the files that the step names
            ours = word in own or word.startswith(("-I", "-DBUILD_VERSION"))
            plain = " ".join(_plain(part, operator) for part in command[at:at + taken])
            rows.append({"word": plain, "from": "labkit" if ours else "torch",
                         "what for": next((text for pattern, text in _PURPOSES if re.match(pattern, word)), ""), "in": step})
        at += taken
    return rows


def _gathered(rows: list[dict]) -> list[dict]:
    """A row for the words that have origin, purpose and steps in common."""
    steps: dict[tuple, list[str]] = {}
    for row in rows:
        key = (row["word"], row["from"], row["what for"])
        steps.setdefault(key, [])
        steps[key] += [row["in"]] if row["in"] not in steps[key] else []
    words: dict[tuple, list[str]] = {}
    for (word, origin, purpose), found in steps.items():
        words.setdefault((origin, purpose, ", ".join(found)), []).append(word)
    return [{"what for": purpose, "word": " ".join(found), "from": origin, "in": where}
            for (origin, purpose, where), found in words.items()]


def _plain(word: str, operator: Operator) -> str:
    """Without the folders of this machine, whose names may hold spaces, and the hash of this build."""
    word = word.replace(operator.namespace.removeprefix(f"{operator.name}_"), "HASH")
    return "OBJECT.d" if word.endswith(".d") else re.sub(r"^(-I|-L|)/.*/", r"\1…/", word)
