"""`load`: from kernels/<name>/ to a running operator, on this machine's backend.

A build is named by a hash over everything that goes into it: sources, headers, flags, compiler and torch. So an
edited header is a new build, an old build is never mistaken for a new one, and two of them live side by side in one
process, each in a torch.ops namespace of its own. Builds are made by torch.utils.cpp_extension (ninja, and nvcc or
the C++ compiler) in a folder of their own and moved into place when they are whole; on the host backend one of a single
version, or a traced one, by the C++ compiler alone.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import platform
import re
import shutil
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Sequence

import torch

from labkit import diagnosis, host, machine, results, source_files
from labkit.build_errors import BuildError, first_error, remedy, short
from labkit.build_folder import build_root, is_whole, locked, made_once, note_use, remove, remove_unused, whole_or_not_at_all
from labkit.operator import Operator, check_listed, check_version, kernels, listed_versions, python_part, source_path
from labkit.toolchain import jobs, tools_on_path, torchs_builder

# Headers of torch 2.9's stable ABI: a library built so runs on 2.9 and on every later torch.
STABLE_ABI = "-DTORCH_TARGET_VERSION=0x0209000000000000"
CXX_FLAGS = ["-O1", "-std=c++20", STABLE_ABI]

# op.py counts as well: it registers gradients for the namespace of a build, and that can be done once.
_SOURCES = {".cu", ".cuh", ".h", ".cpp", ".py"}

_loaded: dict[str, Operator] = {}
_loading: dict[str, threading.Lock] = {}

_remove_unused = functools.cache(remove_unused)  # once a process: it looks at every build that there is


def load(name: str, version: int | None = None, rebuild: bool = False, backend: str | None = None,
         launch: bool = True, cuda_flags: Sequence[str] = ()) -> Operator:
    """Builds the operator kernels/<name>/ for this machine, or takes the build that is there, and loads it.

    name: a folder of kernels/, such as "gelu".
    version: compile only this version of the kernel, for a short way from an edit to a launch; by default all.
    rebuild: compile again although nothing has changed, to see how long it takes.
    backend: "cuda"; "host", to run on the CPU also where there is a GPU; or "trace", the host backend with every memory
        access watched (see `trace`). By default "cuda" where there is a GPU and nvcc, else "host".
    launch: whether the kernel runs once, to be ready; one that is known to be faulty had better not.
    cuda_flags: further flags for nvcc, such as "-fmad=false"; another set of flags is another build.

    Prints one line, unless this process has loaded that build before: what was built, for which backend, how long it took up
    to and with the first launch, and where it lies; and one before that where it waits for another process that builds it.
    Returns an Operator. Raises FileNotFoundError for an unknown name, TypeError for one that is no text or for flags that are
    no list, ValueError for an unknown version, a source that lists none or is not in UTF-8, or flags where nvcc does not
    compile, and BuildError, with the compiler's first error on top, when it does not compile, a tool is missing, torch has no
    code for this GPU, or the system refuses the files; where a remedy is known it is the line after that.
    """
    source = source_path(name)
    versions = listed_versions(source_files.text(source))
    check_listed(name, source.name, versions)
    if version is not None:
        check_version(name, version, source.name, versions)
    if backend not in (None, "cuda", "host", "trace"):
        raise ValueError(f"{name}: backend is {backend!r}; it takes 'cuda', 'host' or 'trace'")
    if backend == "cuda" and machine.backend() != "cuda":
        raise ValueError(f"{name}: backend is 'cuda', and there is no GPU with nvcc here; see `labkit.doctor()`")
    backend = backend or machine.backend()
    if isinstance(cuda_flags, str) or not isinstance(cuda_flags, Sequence):
        raise TypeError(f"{name}: cuda_flags is {cuda_flags!r}; it has to be a list, such as ['-fmad=false']")
    if cuda_flags and backend != "cuda":
        raise ValueError(f"{name}: cuda_flags is {list(cuda_flags)}; these are nvcc's, and for the backend {backend!r} the C++ "
                         "compiler compiles. Leave them out, or run it where there is a GPU")
    cxx_flags, nvcc = flags(backend, version)
    nvcc += cuda_flags
    key = fingerprint(name, backend, [*cxx_flags, *nvcc], salt=time.time_ns() if rebuild else 0)
    with _loading.setdefault(key, threading.Lock()):  # two threads may ask for the same
        if key not in _loaded:
            _loaded[key] = _load(name, version, versions, backend, key, (cxx_flags, nvcc, cuda_flags), launch)
        return _loaded[key]


def _load(name: str, version: int | None, versions: dict[int, str], backend: str, key: str,
          flags: tuple[list[str], list[str], Sequence[str]], launch: bool) -> Operator:
    """flags: the C++ compiler's, nvcc's, and which of these were given beside the usual ones."""
    start, source = time.perf_counter(), source_path(name)
    cxx_flags, nvcc, cuda_flags = flags
    namespace = f"{name}_{key}"
    folder = build_root() / name / f"{backend}-{key}"
    built = _build(name, version, namespace, backend, folder, cxx_flags, nvcc)
    held = {version: versions[version]} if version else versions
    operator = Operator(name, backend, torch.device("cuda" if backend == "cuda" else "cpu"), namespace, held,
                        source, folder / f"{namespace}.so", python_part(name, "op").define(namespace, max(held)),
                        python_part(name, "reference"), python_part(name, "rivals"))
    if launch:
        operator.first_launch()
    seconds = time.perf_counter() - start

    what = f"version {version}" if version else f"{len(held)} versions"
    what += f" with {' '.join(cuda_flags)}" if cuda_flags else ""
    how = "built" if built else "reused, built"
    print(f"{name}: {what} {how} for {_target(backend)}, {'first launch' if launch else 'ready'} after {seconds:.1f} s, "
          f"in {short(folder)}")
    if built and launch:
        _report(f"{name}, {what}", seconds)
    return operator


def _report(what: str, seconds: float) -> None:
    results.note("built", what, f"{seconds:.1f} s from source to first launch")
    table = results.session().tables.get("build", {"kind": "table", "title": "From source to first launch",
                                                   "columns": ["build", "seconds"], "rows": []})
    others = [row for row in table["rows"] if row["build"] != what]
    results.add("build", {**table, "rows": [*others, {"build": what, "seconds": round(seconds, 2)}]})


def _target(backend: str) -> str:
    if backend != "cuda":
        return "the CPU" if backend == "host" else "the CPU, with every access traced"
    return machine.arch()


def flags(backend: str, version: int | None = None) -> tuple[list[str], list[str]]:
    """(flags of the C++ compiler, flags of nvcc) for a backend; `version`: of this version of an operator alone."""
    if backend == "cuda":
        return [*CXX_FLAGS, "-DUSE_CUDA"], nvcc_flags(machine.arch(), version)
    return [*CXX_FLAGS, *host.CXX_FLAGS, *_chosen(version), *(["-O2", "-DCUDA_HOST_TRACE"] if backend == "trace" else [])], []


def nvcc_flags(arch: str, version: int | None) -> list[str]:
    """What nvcc is told, beside torch's own flags, to compile one version, or all, for `arch`, such as "sm_90"."""
    # -lineinfo lets profilers and compute-sanitizer name source lines; it costs nothing at run time. Warning 177 is
    # about constants of the versions that are left out.
    return ["-std=c++20", f"-gencode=arch={arch.replace('sm', 'compute')},code={arch}", "-lineinfo", "-diag-suppress=177",
            *_chosen(version)]


def _chosen(version: int | None) -> list[str]:
    return [f"-DBUILD_VERSION={version}"] if version else []


def include_folders(source: Path) -> list[str]:
    """Where a .cu file finds its headers: kernels/include, and beside it."""
    return [str(kernels() / "include"), str(source.parent)]


def sources_under(*folders: Path) -> list[Path]:
    """The files of some folders of kernels/ that a build depends on."""
    return sorted(path for folder in folders for path in source_files.under(folder) if path.suffix in _SOURCES)


def digest(paths: list[Path], *more: object) -> str:
    """A build's name: 12 hex digits, from the files' names and contents and whatever else it depends on."""
    found = hashlib.sha256()
    for path in paths:
        found.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    found.update(repr(list(more)).encode())
    return found.hexdigest()[:12]


def fingerprint(name: str, backend: str, flags: list[str], salt: int = 0) -> str:
    """The hash that names a build of an operator: 12 hex digits over all that goes into it, and over `salt`."""
    paths = sources_under(kernels() / name, kernels() / "include")
    if backend != "cuda":  # and all that turns a .cu into C++
        paths += _host_headers()
        paths += sorted(Path(host.__file__).parent.glob("host*.py"))
    compiler = [_cxx_version(), os.environ.get("CC")]
    if backend == "cuda":  # whose nvcc also calls the C++ compiler, and takes flags from the environment
        compiler += [machine.nvcc_version(), *(os.environ.get(f"NVCC_{where}_FLAGS") for where in ("PREPEND", "APPEND"))]
    return digest(paths, flags, compiler, torch.__version__, sys.platform, platform.machine(), salt)


def _host_headers() -> list[Path]:
    return source_files.under(host.INCLUDE_DIR)


def _cxx_version() -> str:
    return (machine.output(machine.find_cxx() or "c++", "--version") or "").partition("\n")[0]


def _build(name: str, version: int | None, namespace: str, backend: str, folder: Path, flags: list[str],
           cuda_flags: list[str]) -> bool:
    """Makes sure that `folder` holds the library and loads it; True where it had to be built."""
    library = folder / f"{namespace}.so"
    if _loads(library):  # with no lock, which another user's folder may refuse
        return False
    try:
        with locked(folder, name):
            if _loads(library):
                return False
            remove(folder)
            with whole_or_not_at_all(folder) as work:
                work.mkdir()
                _check_tools(name, backend)
                if backend == "cuda" or (backend == "host" and not version):
                    _compile(name, namespace, backend, work, flags, cuda_flags)
                else:
                    _assemble(name, namespace, backend, work, flags)
        _remove_unused(build_root())
        return True
    except BuildError:
        raise
    except RuntimeError as error:
        raise BuildError(first_error(str(error), folder.with_suffix(".log"))) from None
    except OSError as error:  # torch names the library alone, and the linker's words are the cause
        words = str(error.__cause__ or error)
        raise BuildError(f"{name}: {words}{remedy(words)}") from None


def _loads(library: Path) -> bool:
    """Loads a library that was built before; False where there is none, or none that is whole and of this kind of machine."""
    with contextlib.suppress(OSError):
        if is_whole(library.parent):
            note_use(library)
            torch.ops.load_library(library)
            return True
    return False


def tracer() -> Path:
    """The object file of kernels/host/trace.cpp, which every traced library holds a copy of; compiled once and kept."""
    options, _ = flags("trace")
    return _kept("tracer", host.INCLUDE_DIR / "trace.cpp", _host_headers(), options, [str(host.INCLUDE_DIR)], gcc=True)


def _binding(source: Path, namespace: str, include: list[str]) -> bytes:
    """The object file of a binding.cpp. One is compiled and kept for all builds, which differ in their namespaces alone:
    these are as long as the one that it is compiled for, and texts, so that the right one can be put in its place.
    """
    any_build = re.sub(r"[0-9a-f]{12}$", "x" * 12, namespace)
    options, _ = flags("host")
    kept = _kept(f"binding-{source.parent.name}", source, _included(source, include), [*options, f"-DNAMESPACE={any_build}"],
                 [*include, str(Path(torch.__file__).parent / "include")])
    return kept.read_bytes().replace(any_build.encode(), namespace.encode())


def _included(source: Path, folders: list[str]) -> list[Path]:
    """The files of some folders that a C++ file includes, itself or by another of them."""
    found, left = [], [source]
    while left:
        names = re.findall(r"""^\s*#\s*include\s*["<]([^">]+)""", source_files.text(left.pop()), re.MULTILINE)
        files = (next((path for folder in folders if (path := Path(folder) / name).is_file()), None) for name in names)
        new = [path for path in dict.fromkeys(files) if path and path not in found]
        found += new
        left += new
    return sorted(found)


def _kept(name: str, source: Path, headers: list[Path], options: list[str], include: list[str], gcc: bool = False) -> Path:
    """The object file of a C++ file, compiled once and kept, under a hash of all that goes into it."""
    given = [*options, *(f"-I{folder}" for folder in include)]
    return made_once(build_root() / f"{name}-{_key_of(source, headers, options)}.o",
                     lambda work: host.compile_object(source, given, work, gcc))


def _key_of(source: Path, headers: list[Path], options: list[str]) -> str:
    return digest([source, *headers], options, _cxx_version(), os.environ.get("CXX"), torch.__version__, platform.machine())


def _parsed_header(options: list[str]) -> list[str]:
    """The option by which g++ finds cuda_host.h already parsed for these options, which is up to half of its work on a kernel.
    [] for another compiler.
    """
    if not host.is_gcc(machine.find_cxx() or "c++"):
        return []
    header = host.INCLUDE_DIR / "cuda_host.h"

    def parse(work: Path) -> None:
        work.mkdir()
        shutil.copyfile(header, work / header.name)  # found where a file includes it once more, and passed over
        host.parse_header(header, options, work / f"{header.name}.gch")

    folder = made_once(build_root() / f"parsed-{_key_of(header, _host_headers(), options)}", parse)
    return [f"-I{folder}"]


def _check_tools(name: str, backend: str) -> None:
    """BuildError, with the doctor's word on it, where a tool is missing or does not fit, or torch has no code for the GPU;
    torch's checks come late or not.
    """
    of_a_gpu = [diagnosis.gpu, diagnosis.nvcc] if backend == "cuda" else []
    with tools_on_path():
        for look in (diagnosis.python, diagnosis.compiler, diagnosis.ninja, *of_a_gpu):
            found = look()
            if found.state == "fail":
                raise BuildError(f"{name}: {found.what}: {found.seen}. To mend it: {found.advice}.")


def _assemble(name: str, namespace: str, backend: str, work: Path, flags: list[str]) -> None:
    """Compiles a kernel's file for the host, links it with the objects that are kept, and loads the library.

    That takes a quarter of the CPU time that torch's builder takes, which compiles the binding each time.
    """
    source = source_path(name)
    include, traced = include_folders(source), backend == "trace"
    written = host.transform_into(work, source, include)
    options = [*flags, *(host.WATCH_FLAGS if traced else [])]
    folders = [f"-I{folder}" for folder in (work, host.INCLUDE_DIR, *include)]
    objects = [work / "kernel.o", work / "binding.o"]

    def kernel() -> None:
        # A version's number is for the kernel alone: one parsed header serves all.
        parsed = _parsed_header([option for option in options if not option.startswith("-DBUILD_VERSION=")])
        host.compile_object(written, [*options, *parsed, *folders], objects[0], gcc=traced)

    with ThreadPoolExecutor(jobs()) as pool:
        begun = [pool.submit(kernel), pool.submit(_binding, source.parent / "binding.cpp", namespace, include),
                 *([pool.submit(tracer)] if traced else [])]
        _, binding, *tracers = [made.result() for made in begun]
    objects[1].write_bytes(binding)
    library = work / f"{namespace}.so"
    host.link([*objects, *tracers], library, Path(torch.__file__).parent / "lib")
    torch.ops.load_library(library)


def _compile(name: str, namespace: str, backend: str, work: Path, flags: list[str], cuda_flags: list[str]) -> None:
    """Compiles and loads the library into this process, by torch's builder."""
    source = source_path(name)
    include = include_folders(source)
    sources = [source]
    if backend != "cuda":
        sources = [host.transform_into(work, source, include)]
        include = [str(work), str(host.INCLUDE_DIR), *include]
    with torchs_builder() as cpp_extension:
        # torch builds nothing whose sources it has seen in this process, though that build may have failed.
        cpp_extension.JIT_EXTENSION_VERSIONER.entries.pop(namespace, None)
        cpp_extension.load(namespace, [*map(str, sources), str(source.parent / "binding.cpp")],
                           extra_cflags=[*flags, f"-DNAMESPACE={namespace}"], extra_cuda_cflags=cuda_flags,
                           extra_include_paths=include, build_directory=str(work),
                           with_cuda=backend == "cuda", is_python_module=False)
