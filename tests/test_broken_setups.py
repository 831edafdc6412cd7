"""Set-ups that people report again and again: what the doctor finds, and that its remedy makes the same check green."""

import errno
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from packaging.requirements import Requirement

import labkit
from labkit import REPOSITORY, build, build_errors, build_folder, diagnosis, machine, requirements

TOO_NEW = ("/crt/host_config.h:137:2: error: #error -- unsupported GNU version! gcc versions later than 15 are not supported! "
           "The nvcc flag '-allow-unsupported-compiler' can be used")


def program(path, script):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return path


def toolkit(home, version="13.0.88", takes="*"):
    """A CUDA toolkit whose nvcc takes the C++ compilers of a pattern, and makes code for sm_75 and newer."""
    program(home / "bin" / "nvcc", f"""case "$*" in
--version) echo 'V{version}' ;;
*compute_6*) echo "nvcc fatal   : Unsupported gpu architecture 'compute_60'" >&2; exit 1 ;;
{takes}) ;;
*) echo "{TOO_NEW}" >&2; exit 1 ;;
esac""")
    return home


@pytest.fixture
def here(monkeypatch, tmp_path):
    """A machine whose GPU (sm_90, driver 580), torch (CUDA 13.0) and programs a test can change; it has no nvcc yet."""
    for name in ("CUDA_HOME", "CUDA_PATH", "CUDA_VISIBLE_DEVICES", "CC", "CXX", "LABKIT_BACKEND", "LABKIT_BUILD"):
        monkeypatch.delenv(name, raising=False)
    here = SimpleNamespace(folder=tmp_path, python=tmp_path / "env" / "bin" / "python", capability="9.0", driver="580.1",
                           archs=["sm_80", "sm_90", "compute_90"], env=monkeypatch.setenv, unset=monkeypatch.delenv,
                           patch=monkeypatch.setattr)
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    monkeypatch.setattr(sys, "executable", str(here.python))
    gpu = {"name": "NVIDIA Test", "memory_gib": 80.0}
    monkeypatch.setattr(machine, "gpu", lambda: here.capability and {**gpu, "capability": here.capability})
    monkeypatch.setattr(machine, "driver", lambda: here.driver)
    monkeypatch.setattr(machine, "versions", lambda: {"cuda": "13.0"})
    monkeypatch.setattr(machine, "torch_archs", lambda: here.archs)
    monkeypatch.setattr(machine, "_pypi_programs", lambda name: [])
    real = machine.is_program
    monkeypatch.setattr(machine, "is_program", lambda path: str(path).startswith(str(tmp_path)) and real(path))
    return here


def no_ninja(here):
    here.env("PATH", str(here.folder / "bin"))
    yield "not on PATH", "pip install ninja"
    program(here.python.parent / "ninja", "echo 1.13")  # beside the Python of an environment that is not activated


def no_nvcc(here):
    yield "none, so kernels run on the CPU", "python3 -m labkit setup"
    toolkit(here.python.parent.parent)


def wrong_cuda_home(here):
    program(here.folder / "bin" / "nvcc", "echo V13.0.88")
    here.env("CUDA_HOME", "/nowhere")
    yield "CUDA_HOME=/nowhere holds none", "unset CUDA_HOME"
    here.unset("CUDA_HOME")


def wrong_cuda_home_and_no_other(here):
    here.env("CUDA_HOME", "/nowhere")
    yield "none, and CUDA_HOME=/nowhere holds none", "set CUDA_HOME to a CUDA toolkit"
    here.env("CUDA_HOME", str(toolkit(here.folder / "cuda")))


def nvcc_of_another_major(here):
    here.env("CUDA_HOME", str(toolkit(here.folder / "cuda-12", version="12.8.93")))
    yield "12.8.93 at", "set CUDA_HOME to a CUDA 13 toolkit"
    here.env("CUDA_HOME", str(toolkit(here.folder / "cuda-13")))


def compiler_too_new(here):
    here.env("CUDA_HOME", str(toolkit(here.folder / "cuda", takes="*-ccbin*g++-13*")))
    yield "it says: unsupported GNU version! gcc versions later than 15 are not supported", "CC=g++-13 CXX=g++-13"
    program(here.folder / "bin" / "g++-13", "exit")
    here.env("CC", "g++-13")


def c_compiler_that_is_not_there(here):
    here.env("CUDA_HOME", str(toolkit(here.folder / "cuda")))
    here.env("CC", "gcc-99")
    yield "CC=gcc-99, which it is to call, is not there", "unset CC, or name one program in it"
    here.unset("CC")


def backend_that_there_is_not(here):
    here.env("LABKIT_BACKEND", "hots")
    yield "LABKIT_BACKEND is 'hots'", "set it to 'host' to force the host backend, or unset it"
    here.unset("LABKIT_BACKEND")


def kernels_that_are_nowhere(here):
    here.env("LABKIT_KERNELS", "/nowhere")
    yield "LABKIT_KERNELS=/nowhere is no folder", "unset LABKIT_KERNELS, or name a copy of kernels/"
    here.env("LABKIT_KERNELS", str(REPOSITORY / "kernels"))


def builds_in_the_home_of_nobody(here):
    here.env("LABKIT_BUILD", "~no-such-user/builds")
    yield "LABKIT_BUILD is '~no-such-user/builds', and that home", "name the folder by its whole path, or unset LABKIT_BUILD"
    here.unset("LABKIT_BUILD")


def older_package_that_pythonpath_brings(here):
    (here.folder / "site" / "rich-0.1.dist-info").mkdir(parents=True)
    (here.folder / "site" / "rich-0.1.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: rich\nVersion: 0.1\n")
    here.env("PYTHONPATH", str(here.folder / "site"))
    here.patch(sys, "path", [str(here.folder / "site"), *sys.path])
    here.patch(requirements, "asked", lambda: [Requirement("rich>=1")])
    yield "not as requirements.txt asks: rich 0.1, which PYTHONPATH brings", "unset PYTHONPATH"
    here.unset("PYTHONPATH")
    here.patch(sys, "path", sys.path[1:])


def gpu_that_the_toolkit_has_no_code_for(here):
    here.capability = "6.0"
    here.env("CUDA_HOME", str(toolkit(here.folder / "cuda")))
    yield "it says: Unsupported gpu architecture 'compute_60'", "set LABKIT_BACKEND=host"
    here.env("LABKIT_BACKEND", "host")


def gpu_too_new_for_torch(here):
    here.capability, here.archs = "12.0", ["sm_80", "sm_90"]
    yield "sm_120, 80 GiB, driver 580.1; this torch has code for sm_80, sm_90 alone", "the wheel of a newer CUDA"
    here.archs = ["sm_80", "sm_90", "sm_120"]


def gpu_too_old_for_torch(here):
    here.capability = "6.1"
    yield "this torch has code for sm_80, sm_90, compute_90 alone", "the wheel of an older CUDA; or set LABKIT_BACKEND=host"
    here.env("LABKIT_BACKEND", "host")


def driver_too_old(here):
    here.capability, here.driver = None, "570.124"
    yield "driver 570.124, but torch (CUDA 13.0) does not see a GPU: CUDA 13.0 needs driver 580", "update the driver to 580"
    here.capability, here.driver = "9.0", "580.65"


def gpu_hidden(here):
    here.capability = None
    here.env("CUDA_VISIBLE_DEVICES", "")
    here.patch(machine, "gpu", lambda: None if "CUDA_VISIBLE_DEVICES" in os.environ else {
        "name": "Test", "capability": "9.0", "memory_gib": 80.0})
    yield "CUDA_VISIBLE_DEVICES is ''", "unset CUDA_VISIBLE_DEVICES"
    here.unset("CUDA_VISIBLE_DEVICES")


def little_memory(here):
    here.patch(machine, "MEMINFO", here.folder / "meminfo")
    machine.MEMINFO.write_text("MemFree: 9 kB\nMemAvailable:  500000 kB\n")
    here.patch(machine, "CGROUP", here.folder)
    yield "0.5 GiB free", "close other programs, or let one compiler run at a time: MAX_JOBS=1"
    machine.MEMINFO.write_text("MemAvailable:  5000000 kB\n")


def no_space_for_builds(here):
    full, usage = here.folder / "full", shutil.disk_usage("/")
    here.patch(shutil, "disk_usage", lambda place: usage._replace(free=0 if str(full) in str(place) else 2**40))
    full.mkdir()
    here.env("LABKIT_BUILD", str(full / "not yet" / "there"))
    yield "0.0 GiB free for builds, in ", "name another folder in LABKIT_BUILD"
    here.env("LABKIT_BUILD", str(here.folder))


def no_space_for_temporary_files(here):
    usage = shutil.disk_usage("/")
    here.patch(shutil, "disk_usage", lambda place: usage._replace(free=0 if str(place) == "/full" else 2**40))
    here.patch(diagnosis.tempfile, "gettempdir", lambda: os.environ.get("TMPDIR", "/full"))
    here.unset("TMPDIR", raising=False)
    yield "0.0 GiB free for temporary files, in /full", "name another folder in TMPDIR"
    here.env("TMPDIR", str(here.folder))


def no_folder_for_temporary_files(here):
    def gettempdir():
        if "TMPDIR" in os.environ:
            return os.environ["TMPDIR"]
        raise FileNotFoundError(errno.ENOENT, "No usable temporary directory found")

    here.unset("TMPDIR", raising=False)
    here.patch(diagnosis.tempfile, "gettempdir", gettempdir)
    yield "no folder for temporary files", "name one in TMPDIR"
    here.env("TMPDIR", str(here.folder))


def build_folder_that_is_not_mine(here):
    here.env("LABKIT_BUILD", "/proc/1/mine")  # where root may not write either
    yield "/proc/1/mine: No such file or directory", "name a folder that is yours in LABKIT_BUILD"
    here.env("LABKIT_BUILD", str(here.folder / "mine"))


def file_system_without_locks(here):
    real = build_folder.fcntl.flock

    def flock(file, how):
        if "network" in file.name:
            raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))
        real(file, how)

    here.patch(build_folder.fcntl, "flock", flock)
    here.env("LABKIT_BUILD", str(here.folder / "network"))
    yield "No locks available", "name a folder that is yours in LABKIT_BUILD"
    here.env("LABKIT_BUILD", str(here.folder / "mine"))


def file_system_that_runs_no_programs(here):
    flags = SimpleNamespace(f_flag=os.ST_NOEXEC)
    real = os.statvfs
    here.patch(os, "statvfs", lambda place: flags if "noexec" in str(place) else real(place))
    here.env("LABKIT_BUILD", str(here.folder / "noexec"))
    yield "noexec: no library can be loaded from there", "name a folder in LABKIT_BUILD from whose disk programs may be run"
    here.env("LABKIT_BUILD", str(here.folder / "mine"))


def sign_of_ninja_in_the_build_folder(here):
    program(here.python.parent / "ninja", "echo 1.13")
    here.env("LABKIT_BUILD", str(here.folder / "cash$"))
    yield f"it cannot take the $ in {here.folder / 'cash$'}", "name another folder for builds in LABKIT_BUILD"
    here.env("LABKIT_BUILD", str(here.folder / "cash"))


def sign_of_ninja_in_the_repositorys_folder(here):
    program(here.python.parent / "ninja", "echo 1.13")
    here.env("LABKIT_BUILD", str(here.folder))
    here.patch(diagnosis, "REPOSITORY", here.folder / "day 1: kernels")
    yield f"it cannot take the : in {here.folder / 'day 1: kernels'}", "move that folder to a path without $ and :"
    here.patch(diagnosis, "REPOSITORY", here.folder / "day 1 (kernels & \"it's\"), 100%")


def sign_of_nvcc_in_the_repositorys_folder(here):
    here.env("CUDA_HOME", str(toolkit(here.folder / "cuda")))
    here.env("LABKIT_BUILD", str(here.folder))
    here.patch(diagnosis, "REPOSITORY", here.folder / "one's kernels")
    yield f"it cannot take the ' in {here.folder}/one's kernels", "move that folder to a path without commas and quotes"
    here.patch(diagnosis, "REPOSITORY", here.folder / "all kernels (& more)")


def space_in_torchs_folder(here):
    here.patch(diagnosis, "_version", lambda name: "2.13.0")
    here.patch(requirements, "asked", lambda: [])
    prefix = sys.prefix
    here.patch(sys, "prefix", "/my book/.venv")
    yield "torch.compile cannot build for the CPU with torch in /my book/.venv", "clone the repository into a path"
    here.patch(sys, "prefix", prefix)


def stopped_builder(here):
    here.env("LABKIT_BUILD", str(here.folder))
    code = ("import sys, time; from pathlib import Path; from labkit.build_folder import locked\n"
            "with locked(Path(sys.argv[1])): print(flush=True); time.sleep(60)")
    builder = subprocess.Popen([Path(sys.prefix, "bin", "python"), "-c", code, here.folder / "copy" / "host-1"],
                               stdout=subprocess.PIPE, cwd=REPOSITORY)
    builder.stdout.readline()
    builder.send_signal(signal.SIGSTOP)
    os.waitid(os.P_PID, builder.pid, os.WSTOPPED)
    yield f"process {builder.pid}, stopped, holds {here.folder / 'copy' / 'host-1.lock'}", f"kill -9 {builder.pid}"
    subprocess.run(["/bin/sh", "-c", diagnosis.builds().advice.partition(": ")[2]], check=True)
    builder.wait()


def torch_lock_of_a_killed_build(here):
    here.env("LABKIT_BUILD", str(here.folder / "none"))
    here.env("TORCH_EXTENSIONS_DIR", str(here.folder / "it's torch's"))
    lock = here.folder / "it's torch's" / "gelu" / "lock"
    lock.parent.mkdir(parents=True)
    lock.touch()
    assert diagnosis.builds().state == "ok"  # it may well be building
    os.utime(lock, (1e9, 1e9))
    yield "torch's load waits for a build that was begun ", "remove its lock: rm "
    subprocess.run(["/bin/sh", "-c", diagnosis.builds().advice.partition(": ")[2]], check=True)


def home_that_cannot_be_written(here):
    here.env("HOME", "/dev/null/me")
    yield "/dev/null/me: Not a directory", "export HOME="
    here.env("HOME", str(here.folder))


KINDS = [
    (diagnosis.ninja, "fail", no_ninja), (diagnosis.nvcc, "warn", no_nvcc), (diagnosis.nvcc, "warn", wrong_cuda_home),
    (diagnosis.nvcc, "warn", wrong_cuda_home_and_no_other), (diagnosis.nvcc, "fail", nvcc_of_another_major),
    (diagnosis.nvcc, "fail", compiler_too_new), (diagnosis.nvcc, "fail", c_compiler_that_is_not_there),
    (diagnosis.variables, "fail", backend_that_there_is_not), (diagnosis.variables, "fail", kernels_that_are_nowhere),
    (diagnosis.variables, "fail", builds_in_the_home_of_nobody),
    (diagnosis.packages, "warn", older_package_that_pythonpath_brings),
    (diagnosis.nvcc, "fail", gpu_that_the_toolkit_has_no_code_for),
    (diagnosis.gpu, "fail", gpu_too_new_for_torch), (diagnosis.gpu, "fail", gpu_too_old_for_torch),
    (diagnosis.gpu, "warn", driver_too_old), (diagnosis.gpu, "warn", gpu_hidden), (diagnosis.memory, "warn", little_memory),
    (diagnosis.disk, "fail", no_space_for_builds), (diagnosis.disk, "fail", no_space_for_temporary_files),
    (diagnosis.disk, "fail", no_folder_for_temporary_files), (diagnosis.build_folder, "fail", build_folder_that_is_not_mine),
    (diagnosis.build_folder, "fail", file_system_without_locks),
    (diagnosis.build_folder, "fail", file_system_that_runs_no_programs),
    (diagnosis.ninja, "fail", sign_of_ninja_in_the_build_folder),
    (diagnosis.ninja, "fail", sign_of_ninja_in_the_repositorys_folder),
    (diagnosis.nvcc, "fail", sign_of_nvcc_in_the_repositorys_folder), (diagnosis.packages, "warn", space_in_torchs_folder),
    (diagnosis.builds, "warn", stopped_builder),
    (diagnosis.builds, "warn", torch_lock_of_a_killed_build),
    (diagnosis.home, "warn", home_that_cannot_be_written)]


@pytest.mark.parametrize("check, state, kind", KINDS, ids=[kind.__name__ for _, _, kind in KINDS])
def test_the_cause_is_told_in_a_line_and_its_remedy_makes_the_check_green(here, check, state, kind):
    story = kind(here)
    seen, advice = next(story)
    finding = check()
    assert finding.state == state and seen in finding.seen and advice in finding.advice, finding
    assert "\n" not in finding.seen + finding.advice
    assert next(story, None) is None  # the remedy
    assert check().state == "ok" and check().advice == "", check()


@pytest.mark.parametrize("capability, archs, refused", [
    ("12.0", ["sm_80", "sm_90"], True), ("12.0", ["sm_80", "compute_90"], False), ("12.0", ["sm_90", "compute_90a"], True),
    ("8.6", ["sm_80"], False), ("12.0", ["sm_80", "later_120"], False), ("8.0", ["sm_86", "compute_86"], True),
    ("7.0", ["sm_75", "sm_80", "compute_80"], True)])
def test_load_refuses_a_gpu_that_torch_has_no_code_for_before_it_compiles(here, capability, archs, refused):
    def compiler(*given):
        raise RuntimeError("fatal: the compiler was called")

    here.capability, here.archs = capability, archs
    here.env("CUDA_HOME", str(toolkit(here.folder / "cuda")))
    here.env("LABKIT_BUILD", str(here.folder))
    program(here.python.parent / "ninja", "echo 1.13")
    here.patch(machine, "backend", lambda: "cuda")
    here.patch(build, "_compile", compiler)
    says = (f"copy: GPU: NVIDIA Test, .*; this torch has code for {', '.join(archs)} alone. To mend it: install a torch with "
            f"code for sm_{capability.replace('.', '')}: ") if refused else "fatal: the compiler was called"
    with pytest.raises(build.BuildError, match=says):
        labkit.load("copy", backend="cuda")


def test_a_folder_with_other_letters_needs_a_python_that_can_name_it(tmp_path):
    copy = tmp_path / "Kern el ä"
    shutil.copytree(REPOSITORY / "labkit", copy / "labkit", ignore=shutil.ignore_patterns("__pycache__"))
    ask = "from labkit.diagnosis import python; found = python(); print(found.state, found.advice)"
    plain = {"PATH": os.environ["PATH"], "LC_ALL": "C", "PYTHONCOERCECLOCALE": "0"}
    said = [subprocess.run([sys.executable, "-c", ask], cwd=copy, capture_output=True, text=True,
                           env={**plain, "PYTHONUTF8": mode}).stdout.strip() for mode in "01"]
    assert said == ["fail set PYTHONUTF8=1 and start Python anew", "ok"]


# -- what compilers and the system say ----------------------------------------------------------------------

@pytest.mark.parametrize("words, first, remedy", [
    ("g++: fatal error: Killed signal terminated program cc1plus", "g++: fatal error: Killed signal", "MAX_JOBS=1"),
    ("[1/2] nvcc -c a.cu\nnvcc error   : 'cicc' died due to signal 9 (Kill signal)\nninja: stopped", "nvcc error   : 'cicc'",
     "MAX_JOBS=1"),
    ("cc1plus: out of memory allocating 48 bytes", "cc1plus: out of memory", "MAX_JOBS=1"),
    ("[1/2] g++ -c a.cpp\nKilled\nninja: build stopped", "Killed", "MAX_JOBS=1"),
    ("[1/2] g++ -c a.cpp\nvirtual memory exhausted: Cannot allocate memory", "virtual memory exhausted", "MAX_JOBS=1"),
    ("a.cpp:9:1: fatal error: error writing to /tmp/a.s: No space left on device", "a.cpp:9:1: fatal", "TMPDIR for the latter"),
    ("/usr/bin/ld: final link failed: No space left on device\ncollect2: error: ld returned 1", "/usr/bin/ld: final",
     "free some disk"),
    ("/usr/bin/ld: cannot find -lcudart\ncollect2: error: ld returned 1", "/usr/bin/ld: cannot find -lcudart", ""),
    ("a.o: in function `f':\na.cpp:3: undefined reference to `g'\ncollect2: error: ld returned 1", "a.cpp:3: undef", ""),
    ('k.cu(12): error: identifier "x" is undefined\nk.cu(13): error: more\n2 errors detected', "k.cu(12): error: ident", ""),
    ("copy.so: failed to map segment from shared object: Operation not permitted", "copy.so: failed", "mounted noexec"),
    ("nvcc fatal   : Unsupported gpu architecture 'compute_60'", "nvcc fatal", "set CUDA_HOME to a CUDA toolkit that lists")])
def test_the_first_error_comes_first_and_what_is_known_has_a_remedy(tmp_path, words, first, remedy):
    told = build_errors.first_error(words, tmp_path / "log")
    assert told.startswith(first) and remedy in told and ("To mend it: " in told) == bool(remedy)
    assert (tmp_path / "log").read_text() == words


def test_on_a_full_disk_the_error_is_told_though_no_log_can_be_written():
    assert build_errors.first_error("ld: No space left on device", Path("/dev/full/log")).startswith("ld: No space left")
