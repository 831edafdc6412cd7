"""The host backend's compiler front: a .cu file's text as C++20, and refusals in plain words.

With the headers in kernels/host a C++ compiler understands nearly all of a .cu file. `transform` changes
the rest:

- ``kernel<<<grid, block, shared, stream>>>(args)`` becomes
  ``(::cuda_host::configure(grid, block, shared, stream), kernel(args))``, so that arguments are converted and
  template arguments deduced by the language itself;
- the body of a ``__global__`` function becomes a lambda that returns void, which the backend runs once a thread;
- ``extern __shared__ T name[];`` becomes a pointer to the block's dynamic shared memory;
- every other ``__shared__`` variable becomes a reference into the block's shared memory.

Line numbers stay, so compiler errors and the messages of failed launches point into the .cu file.
"""

from __future__ import annotations

import functools
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from labkit import machine, source_files
from labkit.host_refused import explain
from labkit.host_scan import PAIRS, HostBackendError, Scan

__all__ = ["CXX_FLAGS", "INCLUDE_DIR", "HostBackendError", "WATCH_FLAGS", "compile_object", "explain", "is_gcc", "link",
           "parse_header", "transform", "transform_into"]

INCLUDE_DIR = Path(__file__).resolve().parent.parent / "kernels" / "host"

CXX_FLAGS = [
    "-std=c++20",
    "-O1",
    "-pthread",
    "-fvisibility=hidden",  # two builds of an edited file, in one process, must share nothing
    "-fwrapv",  # a signed overflow wraps, as it does on a GPU
    "-fno-strict-aliasing",  # float* read through float4*
    "-fno-delete-null-pointer-checks",  # what follows a null pointer is not left out
    "-ffp-contract=off",  # the same result on every CPU
    "-U_FORTIFY_SOURCE",  # it forbids longjmp between stacks
]

# The compiler calls trace.cpp before every load and store, and in every basic block. Vectors have to stay whole, and
# the blocks in which they are accessed one: what else -O1 does is what nvcc does too.
WATCH_FLAGS = ["-O1", "-fsanitize=thread", "-fsanitize-coverage=trace-pc", "-fno-tree-sra", "-fno-thread-jumps", "-g1"]


def _kernel(scan: Scan, i: int) -> None:
    """Rewrites the __global__ function whose keyword is token `i`; a declaration only loses the keyword."""
    word = scan.tokens[i]
    bound, name = "0", ""
    j = i + 1
    while j < len(scan.tokens):
        if scan.tokens[j].directive != word.directive:
            j = len(scan.tokens)
        elif scan.text(j) == ";":
            break
        elif scan.text(j) == "{":
            break
        elif scan.text(j) == "(":
            end = scan.close(j)
            before = scan.text(j - 1)
            if before == "__launch_bounds__":
                stop = j + 1
                while stop < end and scan.text(stop) != ",":
                    stop = scan.close(stop) + 1 if scan.text(stop) in PAIRS else stop + 1
                bound = re.sub(r"\s+", " ", scan.source[scan.tokens[j].end : scan.tokens[stop].start])
            elif not name and before not in (
                "__attribute__",
                "__align__",
                "alignas",
                "__maxnreg__",
                "__cluster_dims__",
            ):
                name = before
            j = end + 1
        else:
            j += 1
    if j >= len(scan.tokens) or not name:
        raise scan.refuse(
            word,
            "`__global__` stands in a macro without the kernel's body; the host backend has to see "
            "both together. Write `__global__ void name(...) { ... }` in full",
        )
    scan.replace(word.start, word.end, " " * len(word.text))
    if scan.text(j) == "{":
        end = scan.close(j)
        scan.kernels.append((j, end))
        at = scan.tokens[j].end
        scan.replace(
            at,
            at,
            f' static ::cuda_host::KernelInfo cuda_host_kernel{{"{name}", static_cast<int>({bound}), 0}}; '
            "::cuda_host::run(cuda_host_kernel, [=]() mutable -> void {",
        )
        scan.replace(scan.tokens[end].start, scan.tokens[end].start, "}); ")


def _callee(scan: Scan, i: int) -> int:
    """The first token of the kernel named just before token `i`, as `a::k<int, f<2>()>` or `table[v]`."""
    j = i - 1
    while True:
        if scan.text(j) == ">":
            depth = 0
            while j >= 0:
                if scan.text(j) in (")", "]", "}"):
                    j = scan.open(j)
                elif scan.text(j) in (";", "{"):
                    raise scan.refuse(scan.tokens[i], "no kernel found before `<<<`")
                depth += (scan.text(j) == ">") - (scan.text(j) == "<")
                if depth == 0:
                    break
                j -= 1
            j -= 1
        elif scan.text(j) in (")", "]"):
            j = scan.open(j)
            if (
                j == 0
                or not (scan.tokens[j - 1].kind == "name" or scan.text(j - 1) in (")", "]", ">"))
                or scan.text(j - 1) in ("return", "else", "do")
            ):
                return j
            j -= 1
        elif j >= 0 and scan.tokens[j].kind == "name":
            if scan.text(j - 1) == "template":
                j -= 1
            if scan.text(j - 1) not in ("::", ".", "->"):
                return j
            if scan.text(j - 1) == "::" and not (
                scan.tokens[j - 2].kind == "name"
                and j >= 2
                and scan.text(j - 2) not in ("return", "else", "do")
                or scan.text(j - 2) == ">"
            ):
                return j - 1
            j -= 2
        else:
            raise scan.refuse(scan.tokens[i], "no kernel found before `<<<`")


def _adjacent(scan: Scan, i: int, sign: str) -> bool:
    """Whether three `sign` tokens stand together from token `i` on."""
    run = scan.tokens[i : i + 3]
    return len(run) == 3 and all(t.text == sign and t.start == run[0].start + k for k, t in enumerate(run))


def _launch(scan: Scan, i: int) -> None:
    """Rewrites the launch whose `<<<` begins at token `i`."""
    for begin, end in scan.kernels:
        if begin < i < end:
            raise scan.refuse(
                scan.tokens[i], "a kernel launches a kernel; the host backend has no dynamic parallelism"
            )
    first = _callee(scan, i)
    j, commas = i + 3, 0
    while not (_adjacent(scan, j, ">") and scan.text(j + 3) == "("):
        if j >= len(scan.tokens) or scan.text(j) == ";":
            raise scan.refuse(scan.tokens[i], "`<<<` without `>>>(`")
        commas += scan.text(j) == ","
        j = scan.close(j) + 1 if scan.text(j) in PAIRS else j + 1
    opening, closing = scan.tokens[i].start, scan.tokens[j + 2].end
    arguments = scan.source[scan.tokens[i + 3].start : scan.tokens[j].start]
    one_line = re.sub(r"/\*.*?\*/|//[^\n]*|\\\n|\n", " ", arguments, flags=re.DOTALL).strip()
    lines = re.findall(r"\\?\n", scan.source[opening:closing])
    scan.replace(scan.tokens[first].start, scan.tokens[first].start, f"(::cuda_host::configure({one_line}), ")
    scan.replace(opening, closing, "".join(lines))
    end = scan.close(j + 3)
    scan.replace(scan.tokens[end].end, scan.tokens[end].end, ")")


def _dynamic_shared(scan: Scan, first: int, last: int) -> None:
    """Rewrites `extern __shared__ T name[];`, tokens `first` to `last`, as a pointer."""
    words, j, keyword = [], first, next(t for t in scan.tokens[first:] if t.text == "__shared__")
    while j < last and scan.text(j) != "[":
        if scan.text(j) in ("__align__", "alignas"):
            j = scan.close(j + 1)
        elif scan.text(j) not in ("extern", "__shared__"):
            words.append(scan.tokens[j])
        j += 1
    if scan.text(j) != "[" or scan.text(j + 1) != "]" or len(words) < 2:
        raise scan.refuse(
            keyword, "dynamic shared memory has to be declared as `extern __shared__ T name[];`"
        )
    if not scan.in_function(first):
        raise scan.refuse(keyword, "`extern __shared__` outside a function; declare it inside the kernel")
    kind = " ".join(t.text for t in words[:-1])
    rest = "".join(t.text for t in scan.tokens[j + 2 : last])
    pointer = f"{kind} (*){rest}" if rest else f"{kind}*"
    name = f"(*const {words[-1].text}){rest}" if rest else f"* const {words[-1].text}"
    start, end = scan.tokens[first].start, scan.tokens[last].end
    lines = "".join(re.findall(r"\\?\n", scan.source[start:end]))
    memory = f'::cuda_host::dynamic_shared("{words[-1].text}")'
    scan.replace(start, end, f"{kind} {name} = ({pointer}){memory};{lines}")


def _static_shared(scan: Scan, first: int, i: int, last: int) -> None:
    """Rewrites the declaration at tokens `first` to `last`, with its `__shared__` at token `i`, as references.

    A member of a structure can be declared just so, and the member's type is then the variable's.
    """
    if not scan.in_function(i):
        raise scan.refuse(scan.tokens[i], "`__shared__` outside a function; declare it inside the kernel")
    names, name, dimensions, angle, j = [], "", False, 0, i + 1
    while j <= last:
        text = scan.text(j)
        if text in ("=", "{") and name and (text == "=" or scan.text(j - 1) == name or dimensions):
            if not _is_type_body(scan, i, j):
                raise scan.refuse(
                    scan.tokens[i],
                    f"`{name}` is __shared__ and has an initializer, which CUDA forbids; "
                    "assign to it in the kernel, then __syncthreads()",
                )
        angle += (text == "<") - (text == ">")
        if text in (",", ";") and angle == 0:
            names.append(name)
            name, dimensions = "", False
        elif text in PAIRS:
            dimensions = dimensions or text == "["
            j = scan.close(j)
        elif scan.tokens[j].kind == "name" and not dimensions:
            name = text
        j += 1
    declared = " ".join(t.text for t in scan.tokens[first : last + 1] if t.text not in ("static", "__shared__"))
    references = " ".join(
        f'auto& {name} = ::cuda_host::shared("{name}", [] {{ struct Shared {{ {declared} }}; '
        f"return &Shared::{name}; }});"
        for name in names
    )
    start, end = scan.tokens[first].start, scan.tokens[last].end
    scan.replace(start, end, references + "".join(re.findall(r"\\?\n", scan.source[start:end])))


def _is_type_body(scan: Scan, i: int, j: int) -> bool:
    """Whether the `{` at token `j` opens the members of a struct or union named in the declaration at `i`."""
    return scan.text(j) == "{" and any(scan.text(k) in ("struct", "union", "class") for k in range(i, j))


def transform(source: str, path: str) -> str:
    """The text of a .cu file as C++20 for the host backend; lines keep their numbers, under the name `path`.

    Raises HostBackendError, naming line and construct, for what only the source shows to be unsupported.
    """
    scan = Scan(source, path)
    tokens = scan.tokens
    for i, token in enumerate(tokens):
        if token.text == "__global__":
            _kernel(scan, i)
    for i, token in enumerate(tokens):
        if token.text == "<" and _adjacent(scan, i, "<") and scan.text(i - 1) != "operator":
            _launch(scan, i)
        elif token.text == "__shared__":
            first, last = scan.statement(i)
            if any(t.text == "extern" for t in tokens[first:last]):
                _dynamic_shared(scan, first, last)
            else:
                _static_shared(scan, first, i, last)
        elif token.text == "__noinline__" and scan.text(i - 1) != "(":
            scan.replace(token.start, token.end, "__attribute__((noinline))")
        elif token.text in ("__asm__", "__asm"):
            scan.replace(token.start, token.end, "asm")
    pieces, at = [], 0
    for start, end, text in sorted(scan.edits, key=lambda edit: edit[:2]):
        pieces += [source[at:start], text]
        at = end
    name = path.replace("\\", "\\\\").replace('"', '\\"')
    return f'#include "cuda_host.h"\n#line 1 "{name}"\n' + "".join(pieces) + source[at:]


def transform_into(folder: Path, source: Path, include: list[str]) -> Path:
    """Writes the transformed text of a .cu file into `folder` and returns its path.

    Headers of the folders `include`, and .cu files that may be included like headers, are transformed too where they hold
    kernels, launches or shared memory, and written beside it under their own names, where a compiler that searches
    `folder` first finds them.
    """
    headers = [path for place in include for path in source_files.under(Path(place))
               if path.parent == Path(place) and path.suffix in (".h", ".cuh", ".cu") and path != source]
    for header in headers:
        text = source_files.text(header)
        if re.search(r"__shared__|__global__|<<<", text):
            _write(folder / header.name, transform(text, str(header)))
    written = folder / f"{source.name}.cpp"
    _write(written, transform(source_files.text(source), str(source)))
    return written


def _write(path: Path, text: str) -> None:
    """Only where it is another text: ninja goes by the date."""
    if not path.exists() or path.read_text(encoding="utf-8") != text:
        path.write_text(text, encoding="utf-8")


def compile_object(source: Path, options: list[str], object_file: Path, gcc: bool = False) -> None:
    """Compiles a C++ file for a library. gcc: by g++ and no other compiler, as tracing needs it (with WATCH_FLAGS).

    Raises HostBackendError where there is no g++, RuntimeError with the compiler's output where it fails.
    """
    chosen = _gcc() if gcc else machine.find_cxx() or "c++"
    _run(object_file, chosen, *options, "-fPIC", "-c", source)


def parse_header(header: Path, options: list[str], parsed: Path) -> None:
    """Writes what g++ makes of a header, for a file that includes it first, under the same options; RuntimeError as above."""
    _run(parsed, machine.find_cxx() or "c++", *options, "-fPIC", "-w", "-x", "c++-header", header)


def link(objects: list[Path], library: Path, torch_libraries: Path) -> None:
    """Links object files into a library that torch loads; RuntimeError with the linker's output where it fails."""
    # libtorch.so brings the libraries that hold what is called, which are too large to be searched here.
    named = ["-undefined", "dynamic_lookup"] if sys.platform == "darwin" else ["-Wl,--no-as-needed", "-ltorch"]
    _run(library, machine.find_cxx() or "c++", "-shared", "-pthread", *objects, f"-L{torch_libraries}", *named)


def _run(made: Path, *command: str | Path) -> None:
    # LANGUAGE: in another language there would be no "error:" to look for.
    done = subprocess.run([*map(str, command), "-o", str(made)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          encoding="utf-8", errors="replace", env={**os.environ, "LANGUAGE": "en"})
    if done.returncode < 0:
        raise RuntimeError(f"{done.stdout}{command[0]}: fatal: ended by signal {-done.returncode}")
    if done.returncode:
        raise RuntimeError(done.stdout or f"{command[0]}: fatal: it ended with {done.returncode} and said nothing")
    if not made.exists():
        raise RuntimeError(f"{done.stdout}{command[0]}: fatal: it reported success and made no {made.name}")


def _gcc() -> str:
    compiler = next((found for found in (os.environ.get("CXX"), "c++", "g++") if found and is_gcc(found)), None)
    if compiler is None:
        raise HostBackendError("tracing needs g++; clang does not report the accesses of vectors whole. Install g++, or "
                               "name it in the environment variable CXX")
    return compiler


def is_gcc(compiler: str | Path) -> bool:
    """Whether a C++ compiler is there and is g++; clang says that it is GCC too."""
    found = shutil.which(compiler)
    return found is not None and _says_gcc(found)


@functools.cache
def _says_gcc(compiler: str) -> bool:
    shown = subprocess.run([compiler, "-dM", "-E", "-x", "c++", os.devnull], capture_output=True).stdout
    return b"__GNUC__" in shown and b"__clang__" not in shown
