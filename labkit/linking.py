"""`device_link` and `separate_cost`: what -dc asks for, step by step, and what a call from one file to another costs.

The two files are labs/flags/near.cu, a kernel, and labs/flags/far.cu, the function that it calls. It needs nvcc and no GPU.
"""

from __future__ import annotations

import ctypes
import re
import subprocess
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from labkit import REPOSITORY, build, disassembly, machine, results, toolchain
from labkit.build_errors import without_folders
from labkit.cubin import NoCompiler
from labkit.machine_code import ARCH, HOW
from labkit.report import keep, show_recorded

SOURCES = REPOSITORY / "labs" / "flags"
LOAD = "torch's load([near.cu, far.cu], extra_cuda_cflags=[\"-dc\"])"
COMPILED, OPENED = "compiled", "opened"
_SHARED = "c++ -shared {} -o {} -lcudart_static"
STEPS = {
    "each file by itself": ["nvcc -c near.cu -o near.o"],
    "-dc, and the C++ linker": ["nvcc -dc near.cu -o near.o", "nvcc -dc far.cu -o far.o",
                                _SHARED.format("near.o far.o", "missing.so"), "open missing.so"],
    "the device link before it": ["nvcc -dlink near.o far.o -o link.o", _SHARED.format("near.o far.o link.o", "whole.so"),
                                  "open whole.so"],
    "nvcc links both": ["nvcc -shared near.o far.o -o both.so", "open both.so"],
    "-dc with -rdc=false": ["nvcc -dc -rdc=false near.cu -o near.o"],
}


def device_link(name: str) -> list[dict]:
    """Builds a library from two files that need one another, wrongly and rightly, and opens it.

    name: what the table is called in results/.

    A row a command: the way, the command (without this machine's paths, -fPIC and -arch), and what came of it: COMPILED,
    OPENED, or the first line of the error. On a GPU torch's `load` with "-dc" is one more way. Without nvcc or a C++ compiler
    the recorded table is shown and [] returned.
    """
    title = "Two files and one library: -dc and the device link"
    if machine.nvcc_version() is None or machine.find_cxx() is None:
        return show_recorded([name], title, "there is no nvcc, or no C++ compiler, here")
    with tempfile.TemporaryDirectory() as folder:
        rows = [{"way": way, "command": command, "outcome": _outcome(command, Path(folder))}
                for way, commands in STEPS.items() for command in commands]
        if machine.backend() == "cuda":
            rows.append({"way": "torch", "command": LOAD, "outcome": _by_torch(Path(folder))})
    results.note("exact", title, f"{sum(row['outcome'] == OPENED for row in rows)} libraries opened")
    keep({name: results.table_of(title, rows)}, f"By nvcc {machine.nvcc_version()}")
    return rows


def separate_cost(name: str, arch: str | None = None) -> list[dict]:
    """Counts the kernel's instructions where the function that it calls is in its file, in another, and linked with -dlto.

    name: what the table is called in results/. arch: such as "sm_90"; by default that of the GPU here, else ARCH.

    A row a build: instructions of the kernel and of the function beside it, calls, and registers of the kernel, by cuobjdump;
    for a build that this toolkit does not make, the error. Without nvcc, nvdisasm or cuobjdump the recorded table is shown and
    [] returned.
    """
    title = "A function in the same file and in another"
    arch = arch or machine.arch() or ARCH
    if machine.nvcc_version() is None or None in map(machine.find_cuda_tool, ("nvdisasm", "cuobjdump")):
        return show_recorded([name], title, "there is no nvcc, no nvdisasm or no cuobjdump here")
    ptx = arch.replace("sm", "compute")
    builds = {"one file": ("one.cu", f"-arch={arch}", ""), "two files, -dc": ("near.cu far.cu", f"-arch={arch}", ""),
              "two files, -dc -dlto": ("near.cu far.cu", f"-gencode=arch={ptx},code={arch.replace('sm', 'lto')}", "-dlto")}
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor() as pool:
        one = "\n".join((SOURCES / part).read_text(encoding="utf-8") for part in ("far.cu", "near.cu"))
        (Path(folder) / "one.cu").write_text(one, encoding="utf-8")
        found = pool.map(lambda build: _linked(Path(folder), build[0].split(), build[1], arch, build[2]), builds.values())
        rows = [{"build": label, **each} for label, each in zip(builds, found)]
    results.note("built", title, f"{len(rows)} builds")
    keep({name: results.table_of(f"{title}, by nvcc {machine.nvcc_version()} for {arch}", rows)}, HOW)
    return rows


# -- the steps ----------------------------------------------------------------------------------------------

def _run(folder: Path, *command: str) -> tuple[bool, str]:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    return done.returncode == 0, done.stdout + done.stderr


def _outcome(command: str, folder: Path) -> str:
    program, *words = command.split()
    if program == "open":
        return _opened(folder / words[0])
    words = [str(SOURCES / word) if word.endswith(".cu") else word for word in words]
    if program == "nvcc":
        target = f"-arch={machine.arch() or ARCH}"
        worked, said = _run(folder, str(machine.find_nvcc()), target, "-Xcompiler=-fPIC", *words)
    else:
        home = machine.cuda_home()
        places = [f"-L{folder}" for folder in (home / "lib64", *machine.folders_of(home, "lib"))]
        worked, said = _run(folder, str(machine.find_cxx()), *words, *places, "-ldl", "-lrt", "-lpthread")
    return COMPILED if worked else _first_error(said)


def _opened(library: Path) -> str:
    try:
        ctypes.CDLL(str(library))
    except OSError as error:
        return _plain(str(error))
    return OPENED


def _by_torch(folder: Path) -> str:
    with toolchain.torchs_builder() as cpp_extension:
        try:
            cpp_extension.load("near_and_far", [str(SOURCES / "near.cu"), str(SOURCES / "far.cu")], extra_cuda_cflags=["-dc"],
                               build_directory=str(folder), with_cuda=True, is_python_module=False)
        except (OSError, RuntimeError) as error:
            return _first_error(str(error.__cause__ or error))  # torch's own words name the library alone
    return OPENED


def _first_error(said: str) -> str:
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    return _plain(next((line for line in lines if re.search(r"error|fatal|undefined", line)), lines[-1]))


def _plain(text: str) -> str:
    """Without paths, and without the hashes in nvcc's names."""
    return without_folders(re.sub(r"(__cudaRegisterLinkedBinary)_\w+", r"\1_…", text))


# -- the cost -----------------------------------------------------------------------------------------------

def _linked(folder: Path, sources: list[str], target: str, arch: str, lto: str) -> dict:
    """What is in the code that nvlink makes of the sources."""
    nvcc, objects = str(machine.find_nvcc()), []
    for source in sources:
        path = folder / source if (folder / source).exists() else SOURCES / source
        objects.append(f"{path.stem}{lto}.o")
        worked, said = _run(folder, nvcc, target, "-dc", str(path), "-o", objects[-1])
        if not worked:
            raise build.BuildError(build.first_error(said, folder / f"{objects[-1]}.log"))
    worked, said = _run(folder, nvcc, f"-arch={arch}", *([lto] if lto else []), "-dlink", "-cubin", *objects, "-o",
                        linked := f"{objects[0]}.cubin")
    if not worked:  # -dlto takes a library that not every toolkit has
        return {"kernel": None, "function": None, "calls": None, "registers": None,
                "outcome": f"{_first_error(said)} (this toolkit lacks nvJitLink's library)" if "library load" in said
                else _first_error(said)}
    found = disassembly.parse(_shown_by("nvdisasm", "-c", folder / linked), [])
    kernel = next(code for symbol, code in found.items() if "kernel" in symbol)
    # nvlink's -v says it as well, but not of what it compiles itself (-dlto).
    usage = _shown_by("cuobjdump", "--dump-resource-usage", folder / linked)
    registers = re.search(r"Function \w*kernel\w*:\s*REG:(\d+)", usage)
    return {"kernel": len(kernel), "function": sum(map(len, found.values())) - len(kernel),
            "calls": sum(one.opcode.startswith("CALL") for one in kernel), "registers": int(registers[1]), "outcome": COMPILED}


def _shown_by(tool: str, option: str, path: Path) -> str:
    done = subprocess.run([machine.find_cuda_tool(tool), option, path], capture_output=True, text=True)
    if done.returncode:
        raise NoCompiler(f"{tool} does not read what nvcc made: {done.stderr.strip()}")
    return done.stdout
