"""`labkit.roofline`: operations as the hardware counts them, and where that puts a kernel under the ceilings."""

import re
import subprocess
import types
from pathlib import Path

import pytest
from stub_ncu_report import Action, read_in_place

import labkit
from labkit import REPOSITORY, ceilings, machine, occupancy, profiling, report, results, rooflines
from labkit.gpu_counts import Case, Rival, named
from labkit.ncu_reports import Launch
from labkit.profiling import NotCounted
from labkit.rooflines import Point, points_of, row_of
from labkit.sources import PEAKS

GELU, NATIVE, COPY = Case("gelu", 7, (1024, 512), "bfloat16"), Rival("gelu", "native", (1024, 512)), Case("copy", 1, (4096,))
OP = "smsp__sass_thread_inst_executed_op_{}_pred_on.sum"
ROOFS = {"float32": 60_000.0, "bfloat16": 120_000.0, "tensor cores, bfloat16": 700_000.0}


def counts(seconds, moved, **operations):
    return {"gpu__time_duration.sum": seconds, "dram__bytes.sum": moved,
            **{OP.format(word): operations.get(word, 0) for words in rooflines._OPERATIONS.values() for word in words}}


@pytest.fixture
def gpu(session, monkeypatch):
    monkeypatch.setattr(rooflines.machine, "backend", lambda: "cuda")
    monkeypatch.setattr(report, "here", lambda: "a GPU")
    monkeypatch.setattr(profiling.machine, "find_ncu", lambda: Path("/nowhere/ncu"))
    monkeypatch.setattr(rooflines, "copy_gbps", lambda: 4000.0)
    monkeypatch.setattr(rooflines, "gflops", ROOFS.get)
    monkeypatch.setattr(rooflines, "tensor_gflops", lambda dtype: ROOFS[f"tensor cores, {dtype}"])
    monkeypatch.setattr(rooflines.machine, "native_bfloat16", lambda: True)
    monkeypatch.setattr(rooflines, "median_us", lambda case: 10.0)
    return session


def test_operations_of_a_case_are_those_of_all_its_kernels():
    launches = [Launch("a", GELU, counts(1e-6, 100, fadd=5, fmul=7, ffma=10)),
                Launch("b", GELU, counts(2e-6, 50, hadd=1, hfma=1)), Launch("other", None, counts(9, 9, fadd=9))]
    assert points_of([GELU], launches) == [Point("gelu v7", pytest.approx(3e-6), 150, 5 + 7 + 20 + 2 + 4, "float32")]


@pytest.mark.parametrize("case, operations, dtype", [
    (GELU, {"hfma": 1, "ffma": 1}, "bfloat16"), (NATIVE, {"hfma": 1}, "float16"), (GELU, {"hadd": 1, "ffma": 2}, "float32"),
    (NATIVE, {"dfma": 3, "ffma": 2}, "float64"), (COPY, {}, "float32")])
def test_a_point_is_of_the_type_that_most_operations_are_in(case, operations, dtype):
    assert points_of([case], [Launch("k", case, counts(1, 1, **operations))])[0].dtype == dtype


@pytest.mark.parametrize("launches", [[], [Launch("k", GELU, {})], [Launch("k", NATIVE, counts(1, 1))],
                                      [Launch("k", GELU, {"gpu__time_duration.sum": 1, "dram__bytes.sum": 1})]])
def test_a_case_without_its_counts_is_not_counted(launches):
    with pytest.raises(NotCounted, match="gelu v7"):
        points_of([GELU], launches)


@pytest.mark.parametrize("point, expected", [
    (Point("x", 1e-3, 1e9, 5e9, "float32"), (5, 5000, 20_000, 25, "memory")),
    (Point("x", 1e-3, 1e9, 3e10, "float32"), (30, 30_000, 60_000, 50, "arithmetic in float32")),
    (Point("x", 1e-3, 1e9, 2.5e10, "bfloat16"), (25, 25_000, 100_000, 25, "memory")),
    (Point("x", 1e-3, 1e9, 2.5e10, "float16"), (25, 25_000, 60_000, 41.7, "arithmetic in float16")),
    (Point("x", 1e-3, 1e9, 0, "float32"), (0, 0, 0, None, "memory"))])
def test_the_roof_is_the_lower_of_memory_and_arithmetic(point, expected):
    assert tuple(row_of(point, 4000.0, ROOFS).values()) == ("x", *expected)


def counted(monkeypatch, *actions):
    def run(command, **options):
        Path(command[command.index("--export") + 1]).write_bytes(b"")
        return types.SimpleNamespace(stdout="", stderr="", returncode=0)

    monkeypatch.setattr(profiling, "run_whole", run)
    read_in_place(monkeypatch, list(actions))


def test_cases_under_the_ceilings(gpu, monkeypatch):
    counted(monkeypatch, Action("v7", [named(GELU)], counts((5000, "ns"), 2e6, ffma=4e6)),
            Action("k", [named(COPY)], counts((5000, "ns"), 2e6)))
    rows = labkit.roofline("roofline", [GELU, COPY], "GeLU")
    tables = gpu().tables
    assert rows == tables["roofline"]["rows"]
    assert rows[0] == {"launch": "gelu v7", "operations a byte": 4, "GFLOP/s": 1600, "roof, GFLOP/s": 16_000,
                       "of the roof, %": 10, "roof": "memory"}
    assert [(row["what"], row["GFLOP/s"]) for row in tables["roofline_ceilings"]["rows"]] == [
        ("a copy", None), ("float32", 60_000), ("bfloat16", 120_000), ("tensor cores, bfloat16", 700_000)]
    drawn = tables["roofline_figure"]
    assert drawn["points"] == [{"label": "gelu v7", "x": 4, "y": 1600}]  # a copy has no place on a logarithmic axis
    xs = drawn["x"]["values"]
    for name, peak in ROOFS.items():
        line = drawn["series"][name]
        assert max(line) == peak and line[0] == pytest.approx(4000 * xs[0], rel=1e-4)
        assert all(y == pytest.approx(min(4000 * x, peak), rel=1e-4) for x, y in zip(xs, line))
    assert min(xs) <= 1 / 4 and max(xs) > 700_000 / 4000


REFUSED = "==ERROR== ERR_NVGPUCTRPERM - The user does not have permission to access NVIDIA GPU Performance Counters"


def refused(monkeypatch):
    monkeypatch.setattr(profiling, "run_whole",
                        lambda *a, **o: types.SimpleNamespace(stdout=REFUSED, stderr="", returncode=1))


def test_where_counters_are_refused_operations_may_be_given(gpu, monkeypatch, capsys):
    refused(monkeypatch)
    rows = labkit.roofline("roofline", [GELU, COPY], "GeLU", operations={"gelu v7": 12})
    said = capsys.readouterr().out
    assert "ERR_NVGPUCTRPERM" in said and "Operations are as given" in said
    row, = rows
    assert row["operations a byte"] == 3 and row["GFLOP/s"] == pytest.approx(12 * 1024 * 512 / 10e-6 / 1e9, rel=1e-3)
    assert gpu().tables["roofline"]["title"] == "GeLU, operations as given"


def test_where_counters_are_refused_and_nothing_is_given_it_is_said(gpu, monkeypatch, capsys):
    refused(monkeypatch)
    assert labkit.roofline("roofline", [GELU], "GeLU") == [] and not gpu().tables
    said = capsys.readouterr().out
    assert "ERR_NVGPUCTRPERM" in said and "With operations=" in said and "nothing is recorded" in said


def test_operations_of_no_case_and_cases_of_no_operator_are_refused(session):
    with pytest.raises(ValueError, match="roofline: operations names 'gelu v8'; the cases are gelu v7"):
        labkit.roofline("roofline", [GELU], "GeLU", operations={"gelu v8": 1})
    with pytest.raises(ValueError, match="roofline: "):
        labkit.roofline("roofline", [Case("gelu", 99, (4,))], "GeLU")


def test_without_a_gpu_the_recorded_roofline_is_shown(session, monkeypatch, capsys):
    monkeypatch.setattr(rooflines.machine, "backend", lambda: "host")
    assert labkit.roofline("roofline", [GELU], "GeLU") == [] and not session().tables
    assert "GeLU: there is no GPU here, and nothing is recorded" in capsys.readouterr().out


def test_each_type_has_its_ceilings_and_float32_always(gpu, monkeypatch):
    assert list(rooflines.ceilings(["bfloat16"])) == ["float32", "bfloat16", "tensor cores, bfloat16"]
    assert list(rooflines.ceilings(["float32", "float32"])) == ["float32"]
    monkeypatch.setattr(rooflines.machine, "native_bfloat16", lambda: False)  # a T4 multiplies bfloat16 in float32
    assert list(rooflines.ceilings(["bfloat16"])) == ["float32"]


# -- the probes ------------------------------------------------------------------------------------------------

@pytest.mark.skipif(machine.find_nvcc() is None, reason="nvcc is not installed")
@pytest.mark.parametrize("arch, kinds", [("sm_75", 3), ("sm_80", 4)])
def test_the_probes_compile_without_a_header_and_do_little_but_multiply_and_add(arch, kinds, tmp_path):
    ptx = tmp_path / "peaks.ptx"
    done = subprocess.run([machine.find_nvcc(), f"-arch={arch}", "-ptx", "-o", ptx, REPOSITORY / PEAKS], capture_output=True,
                          text=True)
    assert done.returncode == 0 and not done.stderr, done.stderr
    kernels = dict(re.findall(r"\.entry (\w+)\((.*?)^}", ptx.read_text(), re.MULTILINE | re.DOTALL))
    assert len(kernels) == kinds
    for name, code in kernels.items():
        loop = max(re.findall(r"^\$\w+:(.*?)bra", code, re.MULTILINE | re.DOTALL), key=len)
        instructions = [line.split()[0] for line in loop.split("\n") if re.match(r"\s+[a-z]", line)]
        assert sum(word.startswith("fma.rn") for word in instructions) == 32 * ceilings.CHAINS, name
        assert "ld" not in " ".join(instructions)
    assert f"CHAINS = {ceilings.CHAINS};" in (REPOSITORY / PEAKS).read_text(encoding="utf-8")


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
def test_a_probe_computes_what_it_should_and_no_more_than_the_hardware_can(dtype):
    if dtype == "bfloat16" and not machine.native_bfloat16():
        pytest.skip("this GPU does not compute in bfloat16")
    limits = occupancy.limits()
    # Twice what 128 lanes an SM do with two numbers each.
    most = 2 * 2 * 2 * 128 * limits["sms"] * limits["clock_khz"] * 1e3 / 1e9
    assert 10 < ceilings.gflops(dtype) < most


@pytest.mark.gpu
def test_the_ceilings_of_a_gpu_are_in_order():
    assert ceilings.copy_gbps() > 50
    assert ceilings.gflops("float64") < 1.1 * ceilings.gflops("float32") < 3 * ceilings.tensor_gflops("float16")


@pytest.mark.gpu
def test_gelu_lies_under_the_memorys_roof(session):
    rows = labkit.roofline("roofline", [Case("gelu", 7, (1 << 26,), "bfloat16")], "GeLU", operations={"gelu v7": 20})
    assert rows[0]["roof"] == "memory" and 50 < rows[0]["of the roof, %"] < 120
    assert results.session().tables["roofline_figure"]["points"]
