"""`compile_cubin`: the machine code of an operator's kernels, compiled and read without a GPU.

nvcc compiles for any architecture on any machine, and ptxas, its last stage, says what each kernel takes. What it made is
named by a hash of sources, flags and nvcc's version, and kept, as `load` keeps its builds.
"""

from __future__ import annotations

import functools
import hashlib
import re
import shutil
import struct
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Sequence

from labkit import build, disassembly, machine, source_files
from labkit.build_folder import build_root, made_once
from labkit.operator import check_version, kernels, listed_versions, source_path

_CUBIN, _LOG = "kernels.cubin", "nvcc.log"  # in a folder of their own
_ENTRY = re.compile(r"Compiling entry function '(\w+)' for '\w+'")


class NoCompiler(RuntimeError):
    """A program that machine code is made or read with is not here, or does not work; the message says which."""


@dataclass(frozen=True)
class Kernel:
    """What one kernel takes, by ptxas.

    name: as in the source, with its template arguments and without its parameters. symbol: the same, mangled.
    registers: of a thread. stack, spill_stores, spill_loads: bytes of a thread in local memory; the spills are those of
    registers that it had too few of, each store or load counted once. shared: bytes of a block, less those that a launch adds.
    constant: bytes of constant memory, parameters among them, less __constant__ variables.
    """

    name: str
    symbol: str
    registers: int
    stack: int
    spill_stores: int
    spill_loads: int
    shared: int
    constant: int


@dataclass(frozen=True)
class Cubin:
    """What `compile_cubin` returns.

    made_by: "nvcc 13.0.88 for sm_90". path: the file. log: what nvcc and ptxas said, whole. folders: where the sources lie.
    kernels: those in it.
    """

    made_by: str
    path: Path
    log: str
    folders: tuple[Path, ...]
    kernels: tuple[Kernel, ...]

    def kernel(self, words: str) -> Kernel:
        """The kernel whose name holds each of `words`, which are set apart by blanks: "v4:: Forward< bfloat16".

        ValueError, with the names that there are, where it is none or more than one.
        """
        found = [kernel for kernel in self.kernels if all(word in kernel.name for word in words.split())]
        if len(found) == 1:
            return found[0]
        fit = f"{len(found)} kernels do" if found else "none does"
        names = "\n  ".join(kernel.name for kernel in found or self.kernels)
        raise ValueError(f"kernel is {words!r}; the name of one kernel must hold each of these words, and {fit}:\n  {names}")

    def code(self, kernel: Kernel) -> list[disassembly.Instruction]:
        """The kernel's instructions with their source lines. NoCompiler where nvdisasm is missing."""
        tool = machine.find_cuda_tool("nvdisasm")
        if tool is None:
            raise NoCompiler("there is no nvdisasm here (on Linux the set-up installs it)")
        return _disassembled(tool, self.path, self.folders)[kernel.symbol]


def compile_cubin(name: str, version: int | None = None, arch: str = "sm_90", flags: Sequence[str] = (),
                  source: str | Path | None = None, without: Sequence[str] = ()) -> Cubin:
    """Compiles the kernels of an operator for a GPU that need not be there, or takes what was kept.

    name: a folder of kernels/, such as "gelu". version: compile only this one; by default all. arch: as nvcc names it, such
    as "sm_90". flags: for nvcc, added to those of `load`, such as "-fmad=false". source: the text, or the path, of a .cu
    file in place of the operator's; `name` then only names it. An edit of what lies beside that file does not count.
    without: flags of `load` to leave out, such as "-lineinfo".

    Raises NoCompiler where nvcc is missing, or takes no C++ compiler that is here; build.BuildError, with the first error on
    top, when the source does not compile; FileNotFoundError for an unknown name, ValueError for an unknown version or what
    is no architecture, TypeError for flags that are no list.
    """
    if isinstance(flags, str):
        raise TypeError(f"flags is {flags!r}; it has to be a list: {flags.split()}")
    if not re.fullmatch(r"sm_\d+[a-z]?", str(arch)):
        raise ValueError(f"arch is {arch!r}; it is a name such as 'sm_90', the compute capability without its dot")
    folder = build_root().resolve() / "cubin"
    path = source if isinstance(source, Path) else source_path(name) if source is None else folder / f"{name}.cu"
    path = path.resolve()
    text = source if isinstance(source, str) else source_files.text(path)
    versions = listed_versions(text)
    if version is not None:
        check_version(name, version, path.name, versions)
    nvcc, nvcc_version = machine.find_nvcc(), machine.nvcc_version()
    if nvcc_version is None:
        raise NoCompiler(f"{nvcc} does not work" if nvcc else "there is no nvcc here (on Linux the set-up installs it)")

    from torch.utils.cpp_extension import COMMON_NVCC_FLAGS  # a second of import, and only a compilation needs it

    options = [flag for flag in (*COMMON_NVCC_FLAGS, *build.nvcc_flags(arch, version)) if flag not in without] + [*flags]
    counted = build.sources_under(kernels() / "include", *([path.parent] if source is None else []))
    key = build.digest(counted, text, str(path), options, nvcc_version)
    if isinstance(source, str):
        path = made_once(folder / f"{name}-{key}.cu", lambda work: work.write_text(source, encoding="utf-8"))
    command = [str(nvcc), *options, "-Xptxas=-v", *(f"-I{it}" for it in build.include_folders(path)), str(path)]
    made = folder / f"{name}-{key}"
    made_once(made, lambda work: _compile(command, work, made.with_suffix(".log")))
    cubin, log = made / _CUBIN, (made / _LOG).read_text(encoding="utf-8")
    return Cubin(f"nvcc {nvcc_version} for {arch}", cubin, log, (kernels().resolve(), path.parent),
                 tuple(_kernels(log, cubin.read_bytes())))


def _compile(command: list[str], folder: Path, refused: Path) -> None:
    """Makes a folder with the cubin and what was said. refused: the file for what is said where it does not compile."""
    folder.mkdir()
    done = subprocess.run([*command, "-cubin", "-o", str(folder / _CUBIN)], capture_output=True, encoding="utf-8",
                          errors="replace")
    said = done.stdout + done.stderr
    if done.returncode:
        if unsupported := re.search(r"unsupported (GNU|clang) version.*", said):
            raise NoCompiler(f"nvcc takes no C++ compiler that is here: {unsupported[0]}")
        raise build.BuildError(build.first_error(said, refused))
    (folder / _LOG).write_text(said, encoding="utf-8")


def _kernels(log: str, cubin: bytes) -> list[Kernel]:
    """Of each entry function what ptxas says, and its constant memory, by the file."""
    _, *parts = _ENTRY.split(log)
    sizes = _section_sizes(cubin)
    symbols = parts[::2]
    found = []
    for symbol, name, said in zip(symbols, _demangled(symbols), parts[1::2]):
        local = re.search(rf"Function properties for {symbol}\n\s+(\d+) bytes stack frame, (\d+) bytes spill stores, "
                          r"(\d+) bytes spill loads", said)
        used = re.search(r"Used (\d+) registers(?:.*?(\d+) bytes smem)?", said)
        constant = sum(size for section, size in sizes.items() if re.fullmatch(rf"\.nv\.constant\d+\.{symbol}", section))
        found.append(Kernel(name, symbol, int(used[1]), *map(int, local.groups()), int(used[2] or 0), constant))
    return found


@functools.lru_cache(maxsize=4)  # a cubin's name tells what is in it
def _disassembled(tool: Path, cubin: Path, folders: tuple[Path, ...]) -> dict[str, list[disassembly.Instruction]]:
    # What is printed is kept too, by the cubin's content: flags that change nothing make the same one.
    content = hashlib.sha256(cubin.read_bytes()).hexdigest()
    printed = cubin.parents[1] / f"{build.digest([], content, str(tool), machine.output(tool, '--version'))}.sass"

    def disassemble(work: Path) -> None:
        done = subprocess.run([tool, "-c", "-gi", cubin], capture_output=True, encoding="utf-8", errors="replace")
        if done.returncode:
            raise NoCompiler(f"{tool} does not read what nvcc made: {done.stderr.strip()}")
        work.write_text(done.stdout, encoding="utf-8")

    return disassembly.parse(made_once(printed, disassemble).read_text(encoding="utf-8"), folders)


def _section_sizes(elf: bytes) -> dict[str, int]:
    """{name: bytes} of the sections of a 64-bit ELF file, which a cubin is."""
    table, = struct.unpack_from("<Q", elf, 0x28)
    entry, count, names = struct.unpack_from("<HHH", elf, 0x3A)
    sections = [struct.unpack_from("<IIQQQQ", elf, table + k * entry) for k in range(count)]
    text = elf[sections[names][4]:][:sections[names][5]]
    return {text[name:text.index(b"\0", name)].decode(): size for name, _, _, _, _, size in sections}


def _demangled(symbols: list[str]) -> list[str]:
    """Names as in the source, without parameters: "v4::kernel<Forward<ByTanh<ExactTanh>>, float>"."""
    tool = shutil.which("c++filt")
    if tool is None:
        raise NoCompiler("there is no c++filt here, which tells the names of kernels; it comes with binutils")
    told = subprocess.run([tool], input="\n".join(symbols), capture_output=True, text=True, check=True).stdout
    return [bare(line) for line in told.splitlines()]


def bare(name: str) -> str:
    """A kernel's demangled name without "void" and its parameters: what comes before the last pair of parentheses that is
    not inside another.
    """
    name, depth = name.removeprefix("void ").replace("> >", ">>").replace("> >", ">>"), 0
    for k in range(len(name) - 1, -1, -1):
        depth += (name[k] == ")") - (name[k] == "(")
        if name[k] == "(" and depth == 0:
            return name[:k]
    return name
