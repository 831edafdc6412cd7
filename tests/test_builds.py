"""What chapter 05 shows of builds: the commands read back, what is compiled again, the ladder's ways, the faults."""

import os
import re
import shutil
import subprocess
import sys
import types

import pytest
import torch

import labkit
from labkit import build, build_faults, caching, climbing, diagnosis, dissection, graphs, machine, nvcc_stages, rungs
from labkit.environment import importable


# -- anatomy ------------------------------------------------------------------------------------------------

@pytest.fixture(scope="module")
def copy():
    return labkit.load("copy", backend="host")


def test_the_commands_are_those_that_ran(copy):
    """Each word of ninja's own record is in the table, but for the files; and each is explained."""
    rows = dissection.anatomy("words", copy)
    shown = " ".join(row["word"] for row in rows)
    for command in dissection.commands(copy.library.parent):
        for word in (word for word in command if word.startswith("-") and word not in ("-c", "-o", "-isystem")):
            plain = re.sub(r"^(-[IL])/.*/", r"\1…/", word).replace(copy.namespace.split("_")[-1], "HASH")
            assert plain in shown, word
    assert [row["word"] for row in rows if not row["what for"]] == []


def test_the_words_say_who_put_them_there(copy):
    origin = {word: row["from"] for row in dissection.anatomy("words", copy) for word in row["word"].split()}
    for ours in ("-O1", build.STABLE_ABI, "-DNAMESPACE=copy_HASH", "-ffp-contract=off"):
        assert origin[ours] == "labkit", ours
    for torchs in ("-MMD", "-DTORCH_API_INCLUDE_EXTENSION_H", "-shared", "-ltorch_cpu"):
        assert origin[torchs] == "torch", torchs


def test_nothing_of_this_machine_is_shown(copy):
    rows = dissection.anatomy("words", copy)
    assert not any(re.search(r"/(?!\()\w+/\w", row["word"]) for row in rows)
    assert copy.namespace not in str(rows)


NVCC = ("/opt/cuda/bin/nvcc -MD -MF gelu.cuda.o.d -ccbin /opt/gcc/bin/gcc -DTORCH_EXTENSION_NAME=gelu_0123 "
        "-I/a/kernels/include -isystem /v/torch/include -D__CUDA_NO_HALF_OPERATORS__ -D__CUDA_NO_BFLOAT16_CONVERSIONS__ "
        "--expt-relaxed-constexpr --compiler-options -fPIC -std=c++20 -gencode=arch=compute_90,code=sm_90 -lineinfo "
        "-diag-suppress=177 -c /a/kernels/gelu/gelu.cu -o gelu.cuda.o").split()


def test_the_words_of_nvcc_are_explained_too():
    operator = types.SimpleNamespace(name="gelu", namespace="gelu_0123", backend="host")
    rows = dissection.explained(NVCC, operator)
    assert [row["word"] for row in rows if not row["what for"]] == []
    assert {row["in"] for row in rows} == {"nvcc: gelu.cuda.o"}
    assert "-ccbin …/gcc" in [row["word"] for row in rows] and "-MF OBJECT.d" in [row["word"] for row in rows]


def test_folders_whose_names_hold_spaces_are_shortened_too():
    operator = types.SimpleNamespace(name="gelu", namespace="gelu_0123", backend="host")
    command = [re.sub("^(-I|)/", r"\1/my books/", word).replace("gelu.cuda.o", "/my books/gelu.cuda.o") for word in NVCC]
    rows = [(row["word"], row["in"]) for row in dissection.explained(command, operator)]
    assert {"-I…/include", "-isystem …/include", "-ccbin …/gcc", "-MF OBJECT.d"} <= {word for word, _ in rows}
    assert "my" not in str(rows)


def test_a_build_folder_that_has_gone_is_told(copy, tmp_path):
    gone = types.SimpleNamespace(name="copy", library=tmp_path / "copy.so")
    for build_of in (gone, labkit.load("copy", version=1, backend="host")):  # the second is made without ninja
        with pytest.raises(FileNotFoundError, match='build it again with labkit.load\\("copy", rebuild=True\\)'):
            dissection.anatomy("words", build_of)


# -- rebuilds -----------------------------------------------------------------------------------------------

@pytest.fixture
def odd_torch(torch_in_an_odd_folder, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", torch_in_an_odd_folder)


def test_what_is_compiled_again(odd_torch):
    rows = {row["changed"]: list(row.values())[1:] for row in caching.rebuilds("rebuilds")}
    assert rows == {  # load() in the same process, in a new one; whether labkit.load has another folder for it
        "nothing": ["reused", "reused", False],
        "the date of the source": ["reused", "compiled", False],
        "a comment in the source": ["compiled", "compiled", True],
        "a number in the source": ["compiled", "compiled", True],
        "a number in a header beside it": ["stale", "compiled", True],
        "the release of torch, with a number in a header": ["stale", "stale", True],
        "a flag": ["compiled", "compiled", True]}


# -- the ladder ---------------------------------------------------------------------------------------------

def test_a_way_is_cold_then_warm_in_processes_of_its_own(tmp_path, odd_torch):
    before = set(sys.modules)
    cold = climbing._climb("load(), stable ABI", tmp_path)
    made = {path.name: path.stat().st_mtime_ns for path in tmp_path.iterdir() if path.suffix in (".o", ".so")}
    warm = climbing._climb("load(), stable ABI", tmp_path)
    assert {path.name: path.stat().st_mtime_ns for path in tmp_path.iterdir() if path.suffix in (".o", ".so")} == made
    assert set(made) == {"gelu_one.cu.o", "stable.o", "builds_stable.so"}
    assert cold["launch"] > 0 and warm["launch"] > 0
    assert set(sys.modules) == before


def test_a_way_that_computes_something_else_is_no_way(tmp_path, monkeypatch):
    wrong = rungs.Rung(lambda folder: lambda x: torch.nn.functional.gelu(x) * 1.02, (), "", "")
    right = rungs.Rung(lambda folder: lambda x: torch.nn.functional.gelu(x, approximate="tanh"), (), "", "")
    monkeypatch.setattr(rungs, "RUNGS", {"wrong": wrong, "right": right})
    with pytest.raises(RuntimeError, match="wrong: off by 0.1"):
        rungs.climb("wrong", tmp_path)
    assert set(rungs.climb("right", tmp_path)) == {"import", "launch"}


def _compiler(path, unhappy, word):
    """A C++ compiler that fails with `word` where its arguments match the shell pattern `unhappy`."""
    path.write_text(f'#!/bin/sh\ncase "$*" in {unhappy}) echo "{word}"; exit 1;; esac\nexec {machine.find_cxx()} "$@"\n')
    path.chmod(0o755)


def test_a_way_that_fails_gives_its_own_error(tmp_path, monkeypatch):
    _compiler(tmp_path / "c++", "*stable.cpp*", "x.cpp:1:1: error: no such thing")
    monkeypatch.setenv("CXX", str(tmp_path / "c++"))
    with pytest.raises(climbing.Failed, match=r"(?s)load\(\), stable ABI: .*error: no such thing"):
        climbing._climb("load(), stable ABI", tmp_path)


def test_the_ladder_times_short_ways_three_times_and_compares_with_the_slowest(monkeypatch):
    seconds = {"load(), torch/extension.h in the binding": [20.0, 1.0], "load(), ATen's headers": [5, 1],
               "load(), stable ABI": [0.4, 0.2, 0.3, 0.9]}  # cold, warm, cold again
    given = {way: iter(values) for way, values in seconds.items()}
    monkeypatch.setattr(climbing, "_climb", lambda way, folder: {"import": 0.5, "launch": next(given[way])})
    monkeypatch.setattr(climbing.machine, "backend", lambda: "cuda")
    kept = {}
    monkeypatch.setattr(climbing, "keep", kept.update)
    rows = climbing.ladder("ladder", rungs=tuple(seconds))
    assert [[row["cold, s"], row["warm, s"], row["cold, of the slowest"]] for row in rows] == [
        [20, 1, "100.0%"], [5, 1, "25.0%"], [0.4, 0.2, "2.0%"]]
    assert all(next(rest, None) is None for rest in given.values())
    assert kept["ladder"]["bars"]["columns"] == ["cold, s", "warm, s"]


def test_a_way_that_fails_is_left_out_and_says_why(monkeypatch, capsys):
    def climb(way, folder):
        if way.endswith("ABI"):
            raise climbing.Failed(f"{way}: out of luck")
        return {"import": 0.5, "launch": 1.0}

    monkeypatch.setattr(climbing, "_climb", climb)
    rows = climbing.ladder("ladder")
    assert [row["way"] for row in rows] == ["load(), torch/extension.h in the binding"]
    assert "Left out: load(), stable ABI, since here load(), stable ABI: out of luck" in capsys.readouterr().out
    monkeypatch.setattr(climbing, "_is_there", lambda module: False)
    with pytest.raises(climbing.Failed, match="none of the ways"):
        climbing.ladder("ladder")


def test_a_way_that_there_is_not_is_named():
    with pytest.raises(ValueError, match="rungs has 'make'; on this machine there are load"):
        climbing.ladder("ladder", rungs=("make",))


def libnvrtc():
    try:
        from cupy.cuda import nvrtc

        nvrtc.getVersion()
    except Exception:  # CuPy is not there, or finds no library: each of its releases says so in another way
        return None
    return nvrtc


@pytest.mark.skipif(libnvrtc() is None, reason="needs CuPy and libnvrtc")
@pytest.mark.skipif(machine.cuda_include() is None, reason="needs CUDA's headers")
@pytest.mark.parametrize("toolkit_first", [False, True])
def test_nvrtc_compiles_what_nvcc_compiles(toolkit_first):
    """torch searches the toolkit's headers before those that it is given, CuPy after."""
    nvrtc, include = libnvrtc(), rungs.nvrtc_include()
    include = [str(machine.cuda_include()), *include] if toolkit_first else include
    program = nvrtc.createProgram('#include "gelu_one.cuh"', "gelu_one.cu", [], [])
    nvrtc.compileProgram(program, ["-std=c++17", "-arch=sm_75", *rungs.NVRTC_OPTIONS, *(f"-I{path}" for path in include)])
    assert b"gelu_one" in nvrtc.getCUBIN(program)


@pytest.mark.skipif(machine.find_nvcc() is None, reason="needs nvcc")
def test_nvcc_compiles_the_ladders_kernel_without_a_header_of_torch(tmp_path):
    done = subprocess.run([machine.find_nvcc(), "-std=c++20", "-arch=sm_75", *(f"-I{path}" for path in rungs.INCLUDE), "-M",
                           rungs.SOURCES / "gelu_one.cu"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "gelu.cu" in done.stdout and "/torch/" not in done.stdout


TIMES = """\
source file name , phase name , phase input files , phase output file , arch , tool, metric , unit
a.cu , gcc (preprocessing 4) , a.cu  , a.ii ,  , nvcc , 300.5 , ms
a.cu , cicc , a.ii , a.ptx , compute_80 , nvcc , 500.0 , ms
a.cu , cicc , a.ii , a.ptx , compute_90 , nvcc , 250.0 , ms
 , nvcc (driver) ,  , a.o ,  , nvcc , 0.5 , ms
"""


def test_what_nvcc_says_of_its_stages_is_added_up():
    assert nvcc_stages.summed(TIMES) == {"gcc (preprocessing 4)": 0.3005, "cicc": 0.75, "nvcc (driver)": 0.0005}


@pytest.mark.skipif(machine.find_nvcc() is None, reason="needs nvcc")
def test_nvccs_stages_are_those_that_the_table_names(monkeypatch):
    monkeypatch.setattr(machine, "arch", lambda: "sm_75")
    seconds = nvcc_stages._measured(rungs.SOURCES / "gelu_one.cu")
    assert set(nvcc_stages.STAGES) <= set(seconds) and all(seconds[stage] > 0 for stage in nvcc_stages.STAGES)


# -- faults -------------------------------------------------------------------------------------------------

def test_provoked_faults_end_in_a_clear_error_or_are_mended(odd_torch):
    rows = {row["fault"]: (*row["torch"], *row["labkit"]) for row in build_faults.provoke("faults")}
    never_built = "OSError: Could not load this library: …/tried.so"
    assert {fault: (torchs, later) for fault, (torchs, later, _, _) in rows.items()} == {
        "ninja is not on PATH": (
            "RuntimeError: Ninja is required to load C++ extensions (pip install ninja to get it)", never_built),
        "ninja is not installed": (
            "RuntimeError: Ninja is required to load C++ extensions (pip install ninja to get it)", never_built),
        "CXX names no compiler": (
            "RuntimeError: ninja: build stopped: subcommand failed. (the last of 5 lines)", never_built),
        "a lock that a killed build has left": (
            f"waits and says nothing; ended after {build_faults.PATIENCE} s", never_built),
        "torch was upgraded, the cache was not": (
            "runs the old code and says nothing", "runs the old code and says nothing")}
    assert {fault: ours for fault, (_, _, ours, _) in rows.items()} == {
        "ninja is not on PATH": "works",
        "ninja is not installed": "BuildError: copy: ninja: not on PATH. To mend it: python3 -m labkit setup, or: python -m "
                                  "pip install ninja.",
        "CXX names no compiler": "BuildError: copy: C++ compiler: CXX=g++-98 is not there. To mend it: unset CXX, "
                                 "or name one program in it, such as CXX=g++-12.",
        "a lock that a killed build has left": "works",
        "torch was upgraded, the cache was not": "works, built again"}
    assert {later for _, _, _, later in rows.values()} == {"works"}


def test_a_fault_that_there_is_not_is_named():
    with pytest.raises(ValueError, match="faults has 'gremlins'; on this machine there are ninja"):
        build_faults.provoke("faults", faults=("gremlins",))


def test_an_nvcc_of_another_cuda_is_refused_before_it_runs(monkeypatch):
    wrong = diagnosis.Finding("nvcc", "fail", "11.8.89 at nvcc; torch is built for CUDA 13.0",
                              "set CUDA_HOME to a CUDA 13 toolkit")
    monkeypatch.setattr(diagnosis, "nvcc", lambda: wrong)
    with pytest.raises(build.BuildError, match="gelu: nvcc: 11.8.89 at nvcc; torch .* To mend it: set CUDA_HOME to a CUDA 13"):
        build._check_tools("gelu", "cuda")
    build._check_tools("gelu", "host")  # which needs no nvcc


@pytest.mark.skipif(machine.find_nvcc() is None or shutil.which("g++") is None, reason="needs nvcc and g++")
def test_a_compiler_too_new_for_nvcc_is_told_with_what_to_do(tmp_path):
    (tmp_path / "g++-99").write_text(f'#!/bin/sh\nexec {shutil.which("g++")} -U__GNUC__ -D__GNUC__=99 "$@"\n')
    (tmp_path / "g++-99").chmod(0o755)
    (tmp_path / "empty.cu").touch()
    done = subprocess.run([machine.find_nvcc(), "-ccbin", tmp_path / "g++-99", "-c", "empty.cu"], cwd=tmp_path,
                          capture_output=True, text=True)
    told = build.first_error(done.stdout + done.stderr, tmp_path / "work.log")
    assert re.search(r"error.*unsupported GNU version! gcc versions later than \d+ are not supported!\nTo mend it: install an "
                     r"older g\+\+, and name it in CC and CXX", told)
    assert "allow-unsupported-compiler" not in told


@pytest.mark.parametrize("version", [None, 1])
def test_a_failed_build_is_tried_again_in_the_same_process(tmp_path, monkeypatch, version):
    """torch's builder, which builds all versions, would not: it has seen these sources."""
    monkeypatch.setenv("LABKIT_BUILD", str(tmp_path / "Kern el ä"))
    _compiler(tmp_path / "c++", "*binding.cpp*", "error: out of luck")
    with monkeypatch.context() as broken:
        broken.setattr(build, "_cxx_version", lambda: "the same")
        broken.setenv("CXX", str(tmp_path / "c++"))
        with pytest.raises(build.BuildError, match="error: out of luck"):
            labkit.load("copy", version, backend="host")
        broken.delenv("CXX")
        assert torch.equal(labkit.load("copy", version, backend="host")(torch.ones(3)), torch.ones(3))


LEAVES = """
import labkit, os
from pathlib import Path
from labkit import build, toolchain

build._cxx_version = lambda: "the same"
try:
    labkit.load("copy", backend="host")
except build.BuildError as error:
    assert "error: out of luck" in str(error)
with toolchain.tools_on_path():
    inside = Path(os.environ["TMPDIR"])
assert (inside / "left").exists()  # a compiler of another thread may still write there
"""


def test_what_a_compiler_leaves_of_its_temporary_files_goes_when_python_ends(own_builds, tmp_path):
    """As an nvcc does that is interrupted."""
    temporary, compiler = tmp_path / "temporary", tmp_path / "c++"
    temporary.mkdir()
    _compiler(compiler, "*binding.cpp*", "error: out of luck")
    compiler.write_text(compiler.read_text().replace("\n", '\ntouch "$TMPDIR/left"\n', 1))
    variables = {**importable(os.environ), "TMPDIR": str(temporary), "CXX": str(compiler)}
    done = subprocess.run([sys.executable, "-c", LEAVES], env=variables, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert not list(temporary.iterdir())


# -- on a GPU -----------------------------------------------------------------------------------------------

@pytest.mark.gpu
@pytest.mark.parametrize("way", ["load(), stable ABI", "CuPy RawModule", "torch.cuda._compile_kernel", "Triton"])
def test_a_way_of_the_gpu_gets_there(way, tmp_path):
    if not all(map(climbing._is_there, rungs.RUNGS[way].imports)):
        pytest.skip(f"{way} is not installed")
    assert climbing._climb(way, tmp_path)["launch"] > 0


@pytest.mark.gpu
def test_faults_of_nvcc_end_in_a_clear_error_or_are_mended():
    rows = {row["fault"]: (*row["torch"], *row["labkit"]) for row in build_faults.provoke(
        "faults", faults=tuple(fault.name for fault in build_faults.FAULTS.values() if fault.gpu))}
    assert rows["built for another architecture"][0] == (
        "RuntimeError: CUDA error: no kernel image is available for execution on the device")
    assert rows["built for another architecture"][2] == rows["CUDA_HOME names no toolkit"][2] == "works"
    assert "To mend it: set CUDA_HOME to a CUDA" in rows["an nvcc that says it is of another CUDA"][2]
    assert "To mend it: install an older g++" in rows["the C++ compiler is too new for nvcc"][2]
    assert [row[3] for row in rows.values()] == ["works"] * len(rows)


@pytest.mark.gpu
def test_a_graph_replays_the_same_bits_and_a_wrong_replay_is_told(session):
    gelu = labkit.load("gelu")
    rows = graphs.captured("graphs", gelu, sizes=(1000,))
    assert rows[0]["times as fast"] > 1
    blind = types.SimpleNamespace(name="blind", device=gelu.device, latest=1, ops=types.SimpleNamespace(
        forward_out=lambda x, y, version: None, forward=lambda x, version: x.clone()))
    with pytest.raises(graphs.WrongReplay, match="blind: a replay on 1000 new elements"):
        graphs.captured("graphs", blind, sizes=(1000,))


def test_without_a_gpu_the_graphs_are_the_recorded_ones(monkeypatch):
    monkeypatch.setattr(machine, "backend", lambda: "host")
    asked = []
    monkeypatch.setattr(graphs, "show_recorded", lambda names, title: asked.append((names, title)) or [])
    assert graphs.captured("graphs", labkit.load("copy")) == []
    assert asked == [(["graphs"], "Launches one by one, and as a CUDA graph")]
