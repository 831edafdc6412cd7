"""What nvcc's flags change: in machine code, in what compiles and links, and on a GPU in numbers, streams and time."""

import inspect

import pytest
import torch
from torch.utils import cpp_extension

import labkit
from labkit import (REPOSITORY, binaries, build, flag_effects, half_expressions, linking, listing, machine, null_stream,
                    ptxas_log, sources)
from labkit.cubin import compile_cubin
from labkit.flag_effects import DEFAULT, Change
from labkit.machine_code import Code
from labkit.operator import python_part

needs_nvcc = pytest.mark.skipif(machine.find_nvcc() is None, reason="nvcc is not installed")
needs_tools = pytest.mark.skipif(machine.find_nvcc() is None or machine.find_cuda_tool("nvdisasm") is None,
                                 reason="nvcc or nvdisasm is not installed")
V1, V7 = Code("gelu", 1, "v1:: Forward< float>"), Code("gelu", 7, "v4:: Forward< bfloat16")
RATIO = REPOSITORY / "labs" / "flags" / "ratio.cu"
IDLE = ("-dc", "--default-stream per-thread", "--ptxas-options=-v", "--fmad=true", "-O3", "without the two macros",
        "without -lineinfo", "-prec-div=false", "-prec-sqrt=false")  # what changes nothing in version 1


@pytest.fixture
def only(monkeypatch):
    """only(*flags): the table has these rows alone. Further rows by their names: only("-dc", both=Change(...))."""
    return lambda *flags, **more: monkeypatch.setattr(
        flag_effects, "CHANGES", {**{flag: flag_effects.CHANGES[flag] for flag in (DEFAULT, *flags)}, **more})


def rows_of(code):
    return {row["flag"]: row for row in labkit.flags("flags", code, arch="sm_90")}


# -- machine code -------------------------------------------------------------------------------------------

@needs_tools
def test_each_flag_changes_in_version_1_what_its_name_says_and_the_others_nothing(only):
    idle = [flag_effects.CHANGES[flag] for flag in IDLE]  # all at once: a compilation each is long
    only("-arch=sm_80", "-fmad=false", "-ftz=true", "--use_fast_math", "-Xptxas -O0",
         idle=Change(sum((each.added for each in idle), ()), sum((each.without for each in idle), ())))
    rows = rows_of(V1)
    assert [flag for flag, row in rows.items() if row["same machine code"]] == [DEFAULT, "idle"]
    default, unfused, fast = rows[DEFAULT], rows["-fmad=false"], rows["--use_fast_math"]
    assert unfused["fused (FFMA)"] == default["fused (FFMA)"] - 1
    assert unfused["FMUL, FADD"] == default["FMUL, FADD"] + 2
    assert default[".FTZ"] == 0 < rows["-ftz=true"][".FTZ"]
    assert rows["-ftz=true"]["instructions"] == default["instructions"]
    assert default["special functions"] == "EX2, RCP" and fast["special functions"] == "TANH"
    assert fast["instructions"] < 0.75 * default["instructions"]
    assert rows["-Xptxas -O0"]["instructions"] > 2 * default["instructions"]
    assert "calls" not in default  # which no flag changes


@needs_tools
def test_version_7_names_its_instructions_so_that_only_denormals_are_left_to_flags(only):
    only("-fmad=false", "-ftz=true", "--use_fast_math")
    rows = rows_of(V7)
    assert rows["-fmad=false"]["same machine code"] and not rows["-ftz=true"]["same machine code"]
    code = [compile_cubin("gelu", 7, "sm_90", flag_effects.CHANGES[flag].added) for flag in ("-ftz=true", "--use_fast_math")]
    ftz, fast = ([one.text for one in cubin.code(cubin.kernel(V7.kernel))] for cubin in code)
    assert ftz == fast


@needs_tools
def test_divisions_and_roots_lose_their_calls(only):
    only("-dc", "-prec-div=false", "-prec-sqrt=false", "the last three", "--use_fast_math")
    rows = rows_of(RATIO)
    assert [row["calls"] for row in rows.values()] == [2, 2, 1, 1, 0, 0]
    assert not rows["-dc"]["same machine code"]  # the routines are functions, apart from the kernel
    assert rows["the last three"]["instructions"] < rows[DEFAULT]["instructions"] / 5


# -- load, mutant -------------------------------------------------------------------------------------------

def test_flags_of_nvcc_are_refused_where_the_cxx_compiler_compiles():
    with pytest.raises(ValueError, match=r"cuda_flags is \['-fmad=false'\]; these are nvcc's, .* 'host'"):
        labkit.load("copy", 1, backend="host", cuda_flags=["-fmad=false"])


def test_further_flags_are_another_build(monkeypatch):
    class Enough(Exception):
        pass

    builds = []

    def note(name, version, namespace, backend, folder, cxx_flags, cuda_flags):
        builds.append((folder, cuda_flags))
        raise Enough

    monkeypatch.setattr(machine, "backend", lambda: "cuda")
    monkeypatch.setattr(machine, "arch", lambda: "sm_90")
    monkeypatch.setattr(build, "_build", note)
    for flags in ([], ["-fmad=false"], ["-ftz=true"], ["-fmad=false"]):
        with pytest.raises(Enough):
            labkit.load("copy", 1, cuda_flags=flags)
    folders = [folder for folder, _ in builds]
    assert folders[1] == folders[3] and len(set(folders)) == 3
    assert builds[1][1] == [*builds[0][1], "-fmad=false"]


def test_the_repeated_kernel_applies_gelu_as_often_as_it_says():
    x = torch.linspace(-8, 8, 1001)
    y = flag_effects.repeated_gelu("host").ops.forward(x, 4)
    exact = flag_effects._repeat(python_part("gelu", "reference").gelu, x.double())
    assert (y - exact).abs().max() < 1e-5
    assert (exact - python_part("gelu", "reference").gelu(exact)).abs().max() > 0.01  # once more would be seen


def test_the_inputs_are_those_up_to_three_with_denormals():
    for dtype in (torch.bfloat16, torch.float16, torch.float32):
        x = flag_effects.inputs_of(dtype, "cpu")
        assert x.dtype == dtype and x.max() <= 3 and x.min() >= -3
        assert ((x != 0) & (x.abs() < torch.finfo(dtype).tiny)).sum() > 100
    assert (x == 0).sum() < len(x) / 1000 and len(x) > 2_000_000
    assert flag_effects.inputs_of(torch.bfloat16, "cpu").numel() == 2 * (0x4040 + 1)  # 3 is 0x4040


# -- macros -------------------------------------------------------------------------------------------------

@needs_nvcc
def test_each_macro_takes_away_what_it_names_and_the_functions_stay(session):
    rows = {row["expression"]: row for row in labkit.half_macros("macros")}
    assert {row["no macro"] for row in rows.values()} == {True}

    def refused(column):
        return {expression for expression, row in rows.items() if not row[column]}

    operators, conversions = {"half + half", "half < half"}, {"float x = half", "half h = float"}
    assert refused("no half operators") == operators and refused("no half conversions") == conversions
    assert refused("the article's two") == operators | conversions
    assert refused("torch's") == operators | conversions | {"half2 + half2", "float x = bfloat16", "bfloat16 b = float"}
    assert refused("and no bfloat16 operators") == refused("torch's") | {"bfloat16 + bfloat16"}
    assert set(half_expressions.ARTICLE) < set(half_expressions.torch_macros())
    assert set(session().tables) == {"macros", "macros_errors", "macros_torch"}

    errors = {row["expression"]: row for row in session().tables["macros_errors"]["rows"]}
    assert set(errors) == refused("and no bfloat16 operators")
    assert errors["half + half"]["nvcc says"] == 'no operator "+" matches these operands'
    assert "from \"__half\" to \"float\"" in errors["float x = half"]["nvcc says"]
    for row in errors.values():
        assert all(rows[row["write instead"]][macros] for macros in list(rows["half + half"])[1:]), row
        wrong, right = (half_expressions.EXPRESSIONS[row[of]][:2] for of in ("expression", "write instead"))
        assert wrong == right  # the same types


# -- ptxas, architectures -----------------------------------------------------------------------------------

@needs_nvcc
def test_ptxas_is_read_word_by_word(session):
    code = Code("gelu", 5, "v5:: Backward< bfloat16")
    few = "-maxrregcount=24"
    rows = {row["words"]: row for row in labkit.ptxas_words("words", code, 24, arch="sm_90")}
    for column, flags in (("as load() has it", []), (few, [few])):
        kernel = compile_cubin("gelu", 5, "sm_90", flags).kernel(code.kernel)
        assert [rows[words][column] for words in ("Used … registers", "… bytes stack frame", "… bytes spill stores",
                                                  "… bytes spill loads")] == [
            kernel.registers, kernel.stack, kernel.spill_stores, kernel.spill_loads]
    assert rows["… bytes spill stores"][few] > 0 == rows["… bytes spill stores"]["as load() has it"]
    assert rows["Compiling entry function '…' for '…'"][few] == "sm_90"


def test_words_of_older_and_newer_toolkits_are_known():
    known = {ptxas_log._shown(words) for words in ptxas_log.WORDS}
    assert {"… bytes cmem[0]", "… bytes cmem[…]", "… bytes smem", "Compile time = … ms"} < known


@needs_nvcc
def test_the_articles_architecture_is_machine_code_for_the_a100_and_ptx_for_the_h200(session):
    article, ptx, sass = labkit.arch_flags("arch", ["-arch=sm_80", "-arch=compute_80", "-gencode arch=compute_80,code=sm_80"])
    assert (article["SASS"], article["PTX"]) == ("sm_80", "compute_80")
    assert (ptx["SASS"], ptx["PTX"], sass["SASS"], sass["PTX"]) == ("none", "compute_80", "sm_80", "none")
    assert article[binaries.RUNS] == "8.0, 8.6, 8.9" and article[binaries.BY_DRIVER] == "9.0, 10.0, 12.0"
    assert sass[binaries.RUNS] == "8.0, 8.6, 8.9" and sass[binaries.BY_DRIVER] == "none"
    with pytest.raises(TypeError, match="code is 'labs/flags/ratio.cu'; it has to be a labkit.Code, or the pathlib.Path"):
        labkit.flags("a", "labs/flags/ratio.cu")
    with pytest.raises(ValueError, match="nvcc does not take '-arch=sm_1'"):
        labkit.arch_flags("arch", ["-arch=sm_1"])


# -- the device link ----------------------------------------------------------------------------------------

@pytest.mark.skipif(machine.find_nvcc() is None or machine.find_cxx() is None, reason="needs nvcc and a C++ compiler")
def test_dc_needs_a_device_link_and_says_so_when_the_library_is_opened(session):
    outcome = {row["command"].replace("near.o far.o", "…"): row["outcome"] for row in labkit.device_link("link")}
    assert "Unresolved extern function '_Z4geluf'" in outcome["nvcc -c near.cu -o near.o"]
    assert outcome["c++ -shared … -o missing.so -lcudart_static"] == "compiled"
    assert outcome["open missing.so"] == "missing.so: undefined symbol: __cudaRegisterLinkedBinary_…"
    assert outcome["open whole.so"] == outcome["open both.so"] == "opened"
    assert "not compatible" in outcome["nvcc -dc -rdc=false near.cu -o near.o"]


def test_torchs_load_has_no_device_link():
    assert not [name for name in inspect.signature(cpp_extension.load).parameters if "dlink" in name]
    assert "dlink" in inspect.getsource(cpp_extension.CUDAExtension)  # which setup scripts use has one


@needs_tools
def test_a_call_to_another_file_is_a_call(session):
    rows = {row["build"]: row for row in labkit.separate_cost("cost", arch="sm_90")}
    one, two, lto = rows["one file"], rows["two files, -dc"], rows["two files, -dc -dlto"]
    assert (one["calls"], two["calls"]) == (0, 1) and two["function"] > 0
    assert two["registers"] > one["registers"]
    if lto["outcome"] == "compiled":
        assert lto["calls"] == 0 and lto["kernel"] <= one["kernel"]
    else:
        assert lto["outcome"].startswith("nvlink fatal") and lto["kernel"] is None


# -- streams ------------------------------------------------------------------------------------------------

@needs_nvcc
@pytest.mark.parametrize("flags, per_thread", [([], False), (["--default-stream=per-thread"], True)])
def test_the_stream_of_a_launch_is_chosen_in_the_host_code(tmp_path, flags, per_thread):
    worked, said = linking._run(tmp_path, str(machine.find_nvcc()), "-arch=sm_90", "-dc", *flags,
                                    str(REPOSITORY / "labs/flags/near.cu"), "-o", "near.o")
    assert worked, said
    assert (b"cudaLaunchKernel_ptsz" in (tmp_path / "near.o").read_bytes()) == per_thread


def test_the_launch_that_is_changed_is_there():
    assert listing.source("copy", 1).count(null_stream.OLD) == 1


# -- without the tools --------------------------------------------------------------------------------------

def test_without_nvcc_the_recorded_tables_are_shown(session, monkeypatch, capsys):
    monkeypatch.setattr(machine, "find_nvcc", lambda: None)
    for call in (lambda: labkit.flags("a", V1), lambda: labkit.half_macros("b"), lambda: labkit.ptxas_words("c", V1, 24),
                 lambda: labkit.arch_flags("d", ["-arch=sm_80"]), lambda: labkit.device_link("e"),
                 lambda: labkit.separate_cost("f")):
        assert call() == []
        assert "there is no nvcc" in capsys.readouterr().out


def test_without_a_gpu_nothing_is_run(session, monkeypatch, capsys):
    monkeypatch.setattr(machine, "backend", lambda: "host")
    assert labkit.flag_errors("a") == labkit.default_stream("b") == []
    labkit.flag_times("c")
    shown = capsys.readouterr().out
    assert shown.count("there is no GPU here") == 5 and session().tables == {}


def test_the_sources_of_a_lab_count_what_these_calls_compile():
    for call, place in (("flags(", "labs/flags"), ("device_link(", "labs/flags"), ("flag_times(", "kernels/gelu"),
                        ("default_stream(", "kernels/copy")):
        found = [places for pattern, places in sources._BROUGHT.items() if pattern.search(f"labkit.{call}")]
        assert place in sum(found, []) and all((REPOSITORY / each).is_dir() for each in sum(found, []))
    assert not any(pattern.search("labkit.arch_flags(") for pattern in sources._BROUGHT)


# -- on a GPU -----------------------------------------------------------------------------------------------

@pytest.mark.gpu
def test_a_build_with_flags_stands_beside_the_one_without(capsys):
    plain, flagged = labkit.load("copy", 1), labkit.load("copy", 1, cuda_flags=["-fmad=false"])
    assert plain.library != flagged.library and torch.equal(flagged(torch.ones(3, device="cuda")).cpu(), torch.ones(3))
    assert "copy: version 1 with -fmad=false " in capsys.readouterr().out


@pytest.mark.gpu
def test_flags_change_the_errors_that_they_should(session):
    rows = {row["flag"]: row for row in labkit.flag_errors("errors")}
    plain, ftz, fast = rows["v1"], rows["v1, -ftz=true"], rows["v1, --use_fast_math"]
    assert max(plain[of] for of in ("bfloat16", "float16", "bfloat16, denormal", "float16, denormal")) <= 0.51
    assert ftz["bfloat16, denormal"] > 32 and ftz["float16, denormal"] <= 0.51  # float16's denormals are normal in float32
    growth = [fast[of] / plain[of] for of in ("float32", "float16", "bfloat16")]
    assert growth == sorted(growth, reverse=True) and growth[0] > 2 and growth[-1] >= 1
    assert {**rows["v7"], "flag": 0} == {**rows["v7, -fmad=false"], "flag": 0}


@pytest.mark.gpu
def test_only_torchs_current_stream_waits_for_the_producer(session):
    rows = {row["launch"]: row for row in labkit.default_stream("streams")}
    none, per_thread, current = rows.values()
    assert current["on torch's default stream"] == current["on a side stream"] == 0
    assert current["captured in a graph"] == "in the graph"
    assert none["on torch's default stream"] == per_thread["on torch's default stream"] == 0  # it waits for the legacy stream
    assert min(none["on a side stream"], per_thread["on a side stream"]) > 0
    assert not any(row["captured in a graph"].startswith("in the graph") for row in (none, per_thread))


@pytest.mark.gpu
def test_fast_math_gains_where_arithmetic_is_the_limit(session, monkeypatch):
    monkeypatch.setattr(flag_effects, "SHAPE", (8192, 8192))
    labkit.flag_times("times")
    tables = session().tables
    assert {*tables} - {"build"} == {"times_float32", "times_bfloat16", "times_repeated"}
    repeated = {row["name"]: row["median_us"] for row in tables["times_repeated"]["rows"]}
    assert repeated["v4, --use_fast_math"] < 0.8 * repeated["v4"] and repeated["v4"] > 2 * repeated["copy"]
    moved = {row["name"]: row["median_us"] for row in tables["times_float32"]["rows"]}
    assert moved["v7, --use_fast_math"] > 0.95 * moved["v7"]


@pytest.mark.gpu
def test_torchs_load_with_dc_ends_in_the_same_undefined_symbol(session):
    by_torch = labkit.device_link("link")[-1]
    assert by_torch["way"] == "torch" and "undefined symbol: __cudaRegisterLinkedBinary_" in by_torch["outcome"]
