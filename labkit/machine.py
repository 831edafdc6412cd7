"""What this machine has: the backend that kernels run on, its GPU, nvcc and versions. It only reads.

torch is imported inside the functions that need it, so that the command line can load this module before
anything is installed.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import platform
import re
import shutil
import subprocess
import sys
from pathlib import Path

_CLOCK_QUERY = {"sm_mhz": "clocks.sm", "memory_mhz": "clocks.mem", "sm_max_mhz": "clocks.max.sm",
                "memory_max_mhz": "clocks.max.mem", "power_limit_w": "power.limit",
                "temperature_c": "temperature.gpu"}
_homes: dict[Path, Path] = {}  # toolkits by their nvcc
MEMINFO, CGROUP = Path("/proc/meminfo"), Path("/sys/fs/cgroup")


def backend() -> str:
    """ "cuda" where torch sees a GPU and nvcc is found, else "host" (kernels run on the CPU).

    The environment variable LABKIT_BACKEND=host forces the host backend; any other value of it raises ValueError.
    """
    return "host" if forced_host() or not _torch_sees_gpu() or find_nvcc() is None else "cuda"


def forced_host() -> bool:
    """Whether LABKIT_BACKEND forces the host backend. ValueError for a value of it that means nothing."""
    forced = os.environ.get("LABKIT_BACKEND", "")
    if forced not in ("", "host"):
        raise ValueError(f"LABKIT_BACKEND is {forced!r}; set it to 'host' to force the host backend, or unset it")
    return bool(forced)


def device():
    """The torch.device that tensors of a lab belong on: "cuda" (the current GPU) or "cpu" for the host backend."""
    import torch

    return torch.device("cuda" if backend() == "cuda" else "cpu")


def find_nvcc() -> Path | None:
    """Where nvcc is: CUDA_HOME, CUDA_PATH, PATH, beside this Python (where conda puts it), /usr/local/cuda, then PyPI's package
    in this Python's environment.

    A home that the user named comes first, as torch's own extension builder has it. None where there is none.
    """
    homes = [os.environ[name] for name in ("CUDA_HOME", "CUDA_PATH") if os.environ.get(name)]
    on_path = shutil.which("nvcc")
    candidates = [Path(home) / "bin" / "nvcc" for home in homes]
    candidates += [Path(on_path)] if on_path else []
    candidates += [Path(sys.executable).parent / "nvcc", Path("/usr/local/cuda/bin/nvcc"), *_pypi_programs("nvcc")]
    return _first_program(candidates)


def find_cuda_tool(name: str) -> Path | None:
    """Where a program of the CUDA toolkit is, such as "nvdisasm": beside nvcc, on PATH, then in PyPI's packages in this
    Python's environment. None where there is none.
    """
    home, on_path = cuda_home(), shutil.which(name)
    candidates = [home / "bin" / name] if home else []
    candidates += [Path(on_path)] if on_path else []
    return _first_program([*candidates, *_pypi_programs(name)])


def find_ncu() -> Path | None:
    """Where Nsight Compute's command line is: PATH, the toolkit, then its own package. None where there is none."""
    on_path = shutil.which("ncu")
    places = [Path("/usr/local/cuda/bin/ncu"), *sorted(Path("/opt/nvidia/nsight-compute").glob("*/ncu"), reverse=True)]
    return Path(on_path) if on_path else next((path for path in places if path.exists()), None)


def cuda_home() -> Path | None:
    """The toolkit folder that nvcc belongs to (it holds bin/ and include/), or None without nvcc."""
    nvcc = find_nvcc()
    if nvcc is None:
        return None
    home = nvcc.parent.parent
    if any((folder / "cuda_runtime.h").is_file() for folder in folders_of(home, "include")):
        return home
    return _home_by_nvcc(nvcc) or home


def folders_of(home: Path, part: str) -> list[Path]:
    """Where a toolkit may hold `part`, "include" or "lib": at its top, or for each kind of CPU apart, such as sbsa-linux."""
    return [home / part, *sorted((home / "targets").glob(f"*/{part}"))]


def cuda_include() -> Path | None:
    """The folder of CUDA's headers: the toolkit's, else what PyPI's packages bring with torch. None where there is none."""
    places = [folder for home in filter(None, [cuda_home()]) for folder in folders_of(home, "include")]
    places += [path for folder in _pypi_nvidia() for path in sorted(Path(folder).glob("c*/include"), reverse=True)]
    return next((place for place in places if (place / "cuda_bf16.h").is_file()), None)


def is_program(path: Path) -> bool:
    """Whether it is a file that this user may run."""
    return os.access(path, os.X_OK) and path.is_file()


def runs_programs_from(folder: Path) -> bool:
    """Whether programs can be run, and libraries loaded, from the disk that a folder is on: it is not mounted noexec."""
    return not os.statvfs(folder).f_flag & getattr(os, "ST_NOEXEC", 0)  # not every system knows that flag


def cpu() -> str:
    """The CPU and how many of its cores this process may use, such as "AMD EPYC 9554, 16 cores"."""
    try:
        told = Path("/proc/cpuinfo").read_text(encoding="utf-8")
        named = re.search(r"^model name\s*:\s*(.+?)(?: \d+-Core)?(?: Processor)?$", told, re.MULTILINE)
    except OSError:
        named = None
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return f"{named[1] if named else platform.processor() or platform.machine()}, {cores} cores"


def free_memory() -> float | None:
    """The memory that new processes can have, in GiB: what the system has left, or less by the limit of a container.

    None where the system does not tell.
    """
    found = re.search(r"^MemAvailable:\s*(\d+) kB", text_of(MEMINFO), re.MULTILINE)
    left = [int(found[1]) / 2**20] if found else []
    limit, used = text_of(CGROUP / "memory.max").strip(), text_of(CGROUP / "memory.current").strip()
    if limit.isdigit() and used.isdigit():
        cached = re.search(r"^inactive_file (\d+)", text_of(CGROUP / "memory.stat"), re.MULTILINE)  # goes when needed
        left.append((int(limit) - int(used) + int(cached[1] if cached else 0)) / 2**30)
    return min(left) if left else None


def find_cxx() -> Path | None:
    """The C++ compiler that torch's builder would call: CXX where it is set, else c++. None where it is not found."""
    found = shutil.which(os.environ.get("CXX") or "c++")
    return Path(found) if found else None


def gpu() -> dict | None:
    """The current GPU as torch sees it, whichever backend is chosen; None where torch sees none.

    Keys: name; capability ("9.0"); sms (int); memory_gib and l2_mib (float); slug, the name as a file name; and bus_bits (int),
    the width of the memory, where torch tells it.
    """
    if not _torch_sees_gpu():
        return None
    import torch

    seen = torch.cuda.get_device_properties(torch.cuda.current_device())
    return {"name": seen.name, "capability": f"{seen.major}.{seen.minor}", "sms": seen.multi_processor_count,
            "memory_gib": round(seen.total_memory / 2**30, 1), "l2_mib": round(seen.L2_cache_size / 2**20, 1),
            "slug": slug(seen.name), **({"bus_bits": width} if (width := getattr(seen, "memory_bus_width", 0)) else {})}


def slug(name: str) -> str:
    """A GPU's name as a file name: "nvidia-h200"."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")


def arch() -> str | None:
    """The current GPU's architecture as nvcc names it, such as "sm_90"; None where torch sees no GPU."""
    seen = gpu()
    return f"sm_{seen['capability'].replace('.', '')}" if seen else None


def torch_archs() -> list[str]:
    """The architectures that torch holds its own kernels for, such as ["sm_80", "compute_80"]."""
    import torch

    return torch.cuda.get_arch_list()


def native_bfloat16() -> bool:
    """Whether the device that tensors of a lab belong on computes in bfloat16 by itself: GPUs from compute capability 8.0 on.

    An older GPU holds bfloat16 and computes it through float32. True without a GPU: a CPU does what it is asked.
    """
    seen = gpu() if backend() == "cuda" else None
    return seen is None or int(seen["capability"].partition(".")[0]) >= 8


def versions() -> dict:
    """Versions that a measurement depends on, each a string, or None where the thing is not there.

    Keys: python, torch, cuda (the one torch was built for), driver, nvcc, triton, platform.
    """
    found = {"python": platform.python_version(), "torch": _installed("torch"), "cuda": None, "driver": driver(),
             "nvcc": nvcc_version(), "triton": _installed("triton"),
             "platform": " ".join(filter(None, [platform.system(), platform.machine(), *platform.libc_ver()]))}
    if found["torch"]:
        import torch

        found["cuda"] = torch.version.cuda
    return found


def clocks() -> dict | None:
    """Clocks and limits of the current GPU at this moment; None without a GPU or nvidia-smi.

    Keys: sm_mhz, memory_mhz, sm_max_mhz, memory_max_mhz, power_limit_w, temperature_c; a float each, or None for
    one that this GPU does not report.
    """
    if not _torch_sees_gpu():
        return None
    import torch

    # nvidia-smi numbers all GPUs of the machine while torch numbers the visible ones; the UUID means one of them.
    uuid = torch.cuda.get_device_properties(torch.cuda.current_device()).uuid
    line = output("nvidia-smi", "-i", f"GPU-{uuid}", f"--query-gpu={','.join(_CLOCK_QUERY.values())}",
                  "--format=csv,noheader,nounits")
    values = line.split(", ") if line else []
    if len(values) != len(_CLOCK_QUERY):
        return None
    return {key: float(value) if re.fullmatch(r"\d+(\.\d+)?", value) else None
            for key, value in zip(_CLOCK_QUERY, values)}


def driver() -> str | None:
    """The version of the NVIDIA driver, for example "580.159.03"; None where nvidia-smi does not answer."""
    lines = (output("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader") or "").splitlines()
    return lines[0] if lines and re.match(r"\d", lines[0]) else None


def nvcc_version() -> str | None:
    """The version of the nvcc that `find_nvcc` finds, for example "13.0.88"; None where there is none."""
    nvcc = find_nvcc()
    match = re.search(r"\bV(\d+\.\d+\.\d+)", output(nvcc, "--version") or "") if nvcc else None
    return match.group(1) if match else None


def output(*command: str | Path, timeout: float = 10) -> str | None:
    """What a short command prints, stripped; None when it is missing, fails, or takes over `timeout` seconds."""
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                              encoding="utf-8", errors="replace", timeout=timeout, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()


def _torch_sees_gpu() -> bool:
    if importlib.util.find_spec("torch") is None:
        return False
    import torch

    return torch.version.cuda is not None and torch.cuda.is_available()


def text_of(path: Path) -> str:
    """What a small file of the system says; nothing where it is not there."""
    try:
        return path.read_text(encoding="utf-8")
    except OSError:
        return ""


def _first_program(candidates: list[Path]) -> Path | None:
    return next(filter(is_program, candidates), None)


def _pypi_programs(name: str) -> list[Path]:
    return sorted((path for folder in _pypi_nvidia() for path in Path(folder).glob(f"cu*/bin/{name}")), reverse=True)


def _pypi_nvidia() -> list[str]:
    # PyPI's packages put the toolkit into the namespace package `nvidia`, in a folder for its major version (of CUDA 12 in
    # one for each part).
    try:
        spec = importlib.util.find_spec("nvidia")
    except ValueError:
        return []
    return list(spec.submodule_search_locations if spec and spec.submodule_search_locations else [])


def _installed(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _home_by_nvcc(nvcc: Path) -> Path | None:
    # An nvcc on PATH may be a script or a link far from its toolkit, so it is asked: a dry run prints "#$ TOP=...".
    if nvcc in _homes:
        return _homes[nvcc]
    try:
        said = subprocess.run([nvcc, "--dryrun", "-x", "cu", os.devnull], stdin=subprocess.DEVNULL,
                              capture_output=True, encoding="utf-8", errors="surrogateescape", timeout=10).stderr
    except (OSError, subprocess.SubprocessError):
        return None
    top = re.search(r"^#\$ TOP=(.+)$", said, re.MULTILINE)
    if top:  # else it is asked again: what is wrong may be mended meanwhile
        _homes[nvcc] = Path(top.group(1)).resolve()
    return _homes.get(nvcc)
