"""`labkit.what_limits`, `labkit.saved_report`: from a report's counts to what limits a kernel; what is said without counts."""

import subprocess
import types
from pathlib import Path

import pytest
import torch
from stub_ncu_report import Action, read_in_place

import labkit
from labkit import build, limiting, ncu_reports, profiling, report, results, without_counters
from labkit.gpu_counts import Case, Rival, named
from labkit.limiting import limit_of, tables
from labkit.ncu_reports import Launch
from labkit.without_counters import Known, launch_figures, longest, smaller

GELU, OTHER = Case("gelu", 7, (4096, 4096), "bfloat16"), Rival("gelu", "native", (4096, 4096), "bfloat16")
CASES = [GELU, OTHER]
STALL = "smsp__average_warps_issue_stalled_{}_per_issue_active.ratio"
COUNTED = {
    "gpu__time_duration.sum": (20_000, "nsecond"), "dram__bytes.sum": (70_000_000, "byte"),
    "gpu__compute_memory_throughput.avg.pct_of_peak_sustained_elapsed": 91.23,
    "gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed": 91.23, "sm__throughput.avg.pct_of_peak_sustained_elapsed": 30.04,
    "sm__warps_active.avg.pct_of_peak_sustained_active": 71.04, "sm__maximum_warps_per_active_cycle_pct": 75.0,
    "launch__registers_per_thread": 40, "smsp__inst_executed.sum": 24 * 4096 * 4096 // 32,
    "l1tex__t_sectors_pipe_lsu_mem_global_op_ld_lookup_hit.sum": 400, "l1tex__t_requests_pipe_lsu_mem_local_op_ld.sum": 3,
    "l1tex__t_requests_pipe_lsu_mem_local_op_st.sum": 4, "l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum": 1600,
    "l1tex__t_requests_pipe_lsu_mem_global_op_ld.sum": 100, "l1tex__t_sectors_pipe_lsu_mem_global_op_st.sum": 800,
    "l1tex__t_requests_pipe_lsu_mem_global_op_st.sum": 100, STALL.format("long_scoreboard"): 6.0, STALL.format("wait"): 2.0,
    STALL.format("selected"): 1.0, STALL.format("brand_new"): 1.0, STALL.format("long_scoreboard_not_issued"): 50.0,
    STALL.format("mio_throttle_pipe_mio"): 60.0,
    "smsp__average_warps_issue_stalled_long_scoreboard.ratio": 90.0,
    "sm__inst_executed_pipe_xu.avg.pct_of_peak_sustained_elapsed": 53.24,
    "sm__issue_active.avg.pct_of_peak_sustained_elapsed": 80,
    "sm__pipe_alu_cycles_active.avg.pct_of_peak_sustained_elapsed": 40,
    "sm__pipe_fma_cycles_active.max.pct_of_peak_sustained_elapsed": 99}


@pytest.fixture
def gpu(session, monkeypatch):
    monkeypatch.setattr(limiting.machine, "backend", lambda: "cuda")
    monkeypatch.setattr(limiting.machine, "gpu", lambda: {"slug": "nvidia-test"})
    monkeypatch.setattr(profiling.machine, "find_ncu", lambda: Path("/nowhere/ncu"))
    monkeypatch.setattr(report, "here", lambda: "a GPU")
    monkeypatch.setattr(limiting, "here", lambda: "a GPU")
    monkeypatch.setattr(limiting, "copy_gbps", lambda: 4000.0)
    return session


def ncu(monkeypatch, said="", code=0, writes=True):
    """In place of ncu: keeps its command, says `said`, and leaves a report or not, which holds what it was to launch."""
    commands = []

    def run(command, **options):
        commands.append(list(map(str, command)))
        if writes:
            launched = commands[-1][commands[-1].index("labkit.gpu_counts") + 1:]
            Path(commands[-1][commands[-1].index("--export") + 1]).write_text("\n".join(launched))
        return types.SimpleNamespace(stdout=said, stderr="", returncode=code)

    monkeypatch.setattr(profiling, "run_whole", run)
    return commands


def holding(monkeypatch, *actions):
    """Each report holds those of the actions whose case was launched for it; see `ncu`."""
    read_in_place(monkeypatch, list(actions),
                  holds=lambda content, action: bool(set(action.labels) & set(content.decode().splitlines())))


def test_each_case_is_launched_once_and_nothing_of_the_gpu_is_set(gpu, monkeypatch):
    commands = ncu(monkeypatch)
    holding(monkeypatch, Action("v7", [named(GELU)], COUNTED), Action("gelu_cuda", [named(OTHER)], COUNTED))
    labkit.what_limits("limits", CASES, "GeLU")
    for command, case in zip(commands, CASES, strict=True):  # rivals by themselves
        for option, value in (("--clock-control", "none"), ("--profile-from-start", "off")):
            assert command[command.index(option) + 1] == value
        assert [command[k + 1] for k, word in enumerate(command) if word == "--section"] == list(limiting.SECTIONS)
        assert command[command.index("--metrics") + 1].split(",") == list(limiting.METRICS)
        assert "--nvtx" in command and command[-3:] == ["-m", "labkit.gpu_counts", named(case)]


def test_what_limits_a_launch_and_why(gpu, monkeypatch):
    ncu(monkeypatch)
    holding(monkeypatch, Action("v7", [named(GELU)], COUNTED), Action("gelu_cuda", [named(OTHER)], {}))
    rows = labkit.what_limits("limits", CASES, "GeLU")
    assert rows == gpu().tables["limits"]["rows"]
    assert rows[0] == {"launch": "gelu v7", "µs": 20, "memory, %": 91.2, "DRAM, %": 91.2, "instructions, %": 30,
                       "DRAM, MB": 70, "must move, MB": 67.1, "limit": "memory"}
    why, unknown = gpu().tables["limits_why"]["rows"]
    assert why == {"launch": "gelu v7", "instructions an element": 24, "sectors a load": 16, "L1 had, %": 25,
                   "sectors a store": 8, "local memory": 7, "occupancy, %": 71, "at most, %": 75, "registers": 40,
                   "warps wait for": "data (long scoreboard), 60%", "busiest pipe": "special functions (xu), 53%"}
    assert rows[1]["launch"] == "gelu native" and rows[1]["must move, MB"] == 67.1
    assert {rows[1][column] for column in ("µs", "memory, %", "limit")} == {None}
    assert set(unknown.values()) == {"gelu native", None}


@pytest.mark.parametrize("memory, dram, instructions, expected", [
    (90, 90, 30, "memory"), (60, 48, 50, "memory"), (90, 30, 80, "L1 or L2"), (70, 70, 80, "instructions"),
    (60, 48, 59, "memory and instructions"), (90, 30, 99.9, "L1 or L2 and instructions"),
    (70, 70, 79.9, "memory and instructions"),
    (59.9, 59.9, 20, "latency"), (20, 20, 59.9, "latency"), (None, 1, 2, None), (1, 1, None, None), (90, None, 3, "memory")])
def test_the_limit_is_what_was_busy(memory, dram, instructions, expected):
    assert limit_of(memory, dram, instructions) == expected


def test_a_reason_without_words_of_its_own_keeps_nsight_computes():
    why = tables([Launch("k", None, {STALL.format("brand_new"): 3.0, STALL.format("selected"): 1.0})])[1][0]
    assert why["warps wait for"] == "brand new, 75%"
    assert tables([Launch("k", None, {STALL.format("selected"): 1.0})])[1][0]["warps wait for"] is None


def test_kernels_of_one_case_are_told_apart_and_unnamed_launches_go_by_their_kernel():
    launches = [Launch("mul", OTHER, {}), Launch("add", OTHER, {}), Launch("v7", GELU, {}), Launch("other", None, {}),
                Launch("other", None, {})]
    assert [row["launch"] for row in tables(launches)[0]] == ["gelu native, mul 1", "gelu native, add 2", "gelu v7",
                                                              "other, 1", "other, 2"]
    # What a case must move its launches move together, so that it is said once.
    assert [row["must move, MB"] for row in tables(launches)[0]] == [67.1, None, 67.1, None, None]


def test_a_report_is_kept_and_shown_again_without_a_gpu(gpu, monkeypatch, capsys):
    ncu(monkeypatch)
    holding(monkeypatch, Action("v7", [named(GELU)], COUNTED), Action("gelu_cuda", [named(OTHER)], COUNTED))
    rows = labkit.what_limits("limits", CASES, "GeLU")
    kept = results.folder() / "reports" / "nvidia-test" / "11_trace_limits.ncu-rep.xz"
    assert kept.is_file()
    monkeypatch.setattr(limiting.machine, "backend", lambda: "host")
    capsys.readouterr()
    for given in ("limits", kept, str(kept)):
        assert labkit.saved_report(given, "Again") == rows[:1]
        said = capsys.readouterr().out
        assert "Again. From 11_trace_limits.ncu-rep.xz" in said and "Again: why" in said and "long scoreboard" in said
    assert labkit.saved_report("other") == []
    assert "No report 'other' of 11_trace is kept; it has limits." in capsys.readouterr().out


def test_what_is_recorded_beside_a_report_says_its_title_its_gpu_and_what_it_has_not(gpu, monkeypatch, capsys):
    ncu(monkeypatch)
    holding(monkeypatch, Action("v7", [named(GELU)], COUNTED), Action("gelu_cuda", [named(OTHER)], COUNTED))
    rows = labkit.what_limits("limits", CASES, "GeLU")
    table = results.table_of("As recorded", rows[:1])
    known = types.SimpleNamespace(table=table, caption=lambda: "Recorded on a GPU, that day", gpu={"name": "a GPU"},
                                  run={"date": "2026-01-02T00:00:00Z"})
    asked = []
    monkeypatch.setattr(results, "recorded", lambda *which: asked.append(which) or known)
    monkeypatch.setattr(limiting.machine, "backend", lambda: "host")
    capsys.readouterr()
    labkit.saved_report("limits")
    said = capsys.readouterr().out
    assert "As recorded. Recorded on a GPU, that day; Nsight Compute's report" in said and "As recorded: why" in said
    assert asked == [("11_trace", "limits", "nvidia-test")]
    assert (gpu().notes[-1]["kind"], gpu().notes[-1]["name"]) == ("recorded", "limits")
    assert labkit.what_limits("limits", CASES, "GeLU") == []
    assert capsys.readouterr().out.count(f"Not in that record: {OTHER.label}.") == 1


def test_the_books_gpu_comes_first_among_kept_reports(session, monkeypatch):
    read = []
    monkeypatch.setattr(limiting, "read", lambda path: read.append(path) or [Launch("k", None, {})])
    for slug in ("a-first", results.BOOK_GPU):
        path = results.folder() / "reports" / slug / "11_trace_limits.ncu-rep.xz"
        path.parent.mkdir(parents=True)
        path.touch()
    labkit.saved_report("limits")
    assert read[0].parent.name == results.BOOK_GPU


def test_a_report_that_cannot_be_read_is_said(session, monkeypatch, capsys, tmp_path):
    (tmp_path / "x.ncu-rep").touch()
    holding(monkeypatch)
    assert labkit.saved_report(tmp_path / "x.ncu-rep") == []
    assert "Not shown: x.ncu-rep holds no launch" in capsys.readouterr().out
    with pytest.raises(FileNotFoundError):
        labkit.saved_report("none.ncu-rep")
    monkeypatch.setattr(results, "_session", results.Session())
    with pytest.raises(ValueError, match="no lab was started"):
        labkit.saved_report("limits")


# -- where counters are refused --------------------------------------------------------------------------------

# As ncu prints it.
REFUSED = ("==PROF== Connected to process 9012 (/usr/bin/python3.11)\n==ERROR== ERR_NVGPUCTRPERM - The user does not have "
           "permission to access NVIDIA GPU Performance Counters on the target device 0. For instructions on enabling "
           "permissions and to get more information see https://developer.nvidia.com/ERR_NVGPUCTRPERM\n"
           "==PROF== Disconnected from process 9012\n")


def hangs(*arguments, **options):
    raise subprocess.TimeoutExpired("ncu", 180)


def refuse(monkeypatch, how):
    if how == "missing":
        monkeypatch.setattr(profiling.machine, "find_ncu", lambda: None)
    elif how == "hangs":
        monkeypatch.setattr(profiling, "run_whole", hangs)
    elif how == "refused":
        ncu(monkeypatch, REFUSED, 0, writes=False)
    elif how == "one missing":
        ncu(monkeypatch)
        read_in_place(monkeypatch, [Action("v7", [named(GELU)], COUNTED)])
    else:
        ncu(monkeypatch)

        monkeypatch.setattr(ncu_reports, "in_a_new_process", lambda *arguments, **options: "no module")


@pytest.mark.parametrize("how, says", [
    ("refused", "(https://developer.nvidia.com/ERR_NVGPUCTRPERM), and a container needs --cap-add=SYS_ADMIN"),
    ("missing", "ncu is not installed"), ("hangs", "timed out"),
    ("one missing", "holds 1 launches, and none of gelu native"), ("unread", "no module")])
def test_without_counters_it_is_said_and_what_is_known_is_shown(gpu, monkeypatch, capsys, how, says):
    refuse(monkeypatch, how)
    known = {GELU: Known(18.0, 40, 75.0, 16.0, 8.0, "0 B a thread spilled"), OTHER: Known(50.0, None, None, None, None, None)}
    monkeypatch.setattr(limiting, "known", known.get)
    rows = labkit.what_limits("limits", CASES, "GeLU")
    said = capsys.readouterr().out
    why, follows = [line for line in said.splitlines() if not line.startswith("The report, ")][:2]
    assert says in why and follows == "What follows is known without counters."
    assert [(row["launch"], row["µs"], row["a copy's time, %"], row["limit"]) for row in rows] == [
        ("gelu v7", 18, 93.2, "at a copy's rate"), ("gelu native", 50, 33.6, "not known")]
    why = gpu().tables["limits_why"]["rows"]
    assert why[0]["registers"] == 40 and why[0]["occupancy at most, %"] == 75
    assert all("without counters" in gpu().tables[name]["title"] for name in ("limits", "limits_why"))
    assert "times by CUDA events" in said


def test_without_a_gpu_the_recorded_tables_are_shown(session, monkeypatch, capsys):
    monkeypatch.setattr(limiting.machine, "backend", lambda: "host")
    assert labkit.what_limits("limits", CASES, "GeLU") == [] and not session().tables
    assert "GeLU: there is no GPU here, and nothing is recorded" in capsys.readouterr().out


@pytest.mark.parametrize("cases", [[], [Case("gelu", 99, (4,))], [Rival("gelu", "no_such_function", (4,))], [GELU, GELU],
                                   ["gelu"], [Rival("gelu", "native", (4,), mode="sideways")],
                                   [Rival("gelu", "native", (4,), "f32")]])
def test_cases_that_make_no_sense_are_refused(cases, session, monkeypatch):
    monkeypatch.setattr(limiting.machine, "backend", lambda: "host")
    with pytest.raises(ValueError, match="what_limits: "):
        labkit.what_limits("limits", cases, "GeLU")


@pytest.mark.parametrize("case, numbers", [
    (Case("gelu", 1, (8, 4), "bfloat16"), (8 * 4 * 2) * 2), (Case("gelu", 1, (8, 4), mode="backward"), (8 * 4 * 3) * 4),
    (Case("row_sum", 1, (8, 4), "float64"), (8 * 4 + 8) * 8), (Rival("row_sum", "native", (8, 4)), (8 * 4 + 8) * 4),
    (Case("transpose", 1, (8, 4)), (8 * 4 * 2) * 4),
    # x, residual, y and h; weight and bias; mean and rstd, which are float32
    (Case("add_norm", 1, (8, 4), "bfloat16"), (4 * 8 * 4 + 2 * 4) * 2 + 2 * 8 * 4),
    (Case("add_norm", 1, (8, 4), "float64"), (4 * 8 * 4 + 2 * 4 + 2 * 8) * 8)])
def test_the_bytes_that_must_move(case, numbers):
    assert case.must_move == numbers


KERNEL = {"ph": "X", "cat": "kernel", "name": "void v7::kernel<float>(int)", "ts": 3, "dur": 9,
          "args": {"registers per thread": 40, "block": [256, 1, 1], "grid": [8, 1, 1], "shared memory": 1024}}
SM = {"threads_a_warp": 32, "threads_a_block": 1024, "threads_an_sm": 2048, "blocks_an_sm": 32, "registers_an_sm": 65536,
      "shared_bytes_a_block": 232448, "shared_bytes_an_sm": 233472, "shared_bytes_reserved_a_block": 1024, "capability": "9.0"}


def test_registers_and_occupancy_come_from_the_profilers_trace():
    short = {**KERNEL, "dur": 1, "name": "short"}
    trace = {"traceEvents": [short, KERNEL, {**KERNEL, "cat": "gpu_memcpy", "dur": 99}]}
    assert longest(trace) == KERNEL and longest({"traceEvents": []}) is None
    assert launch_figures(KERNEL, SM) == (40, 75)
    assert launch_figures({"args": {}}, SM) == (None, None)


@pytest.mark.parametrize("shape, expected", [((16384, 16384), (32, 16384)), ((64, 96), (64, 96)), ((1 << 28,), (1 << 17,)),
                                             ((100_000, 128), (1024, 128)), ((64, 1024, 512), (1, 256, 512)), ((7, 0), (7, 0))])
def test_what_is_traced_is_small_and_has_the_same_rows(shape, expected):
    assert smaller(Case("gelu", 7, shape)).shape == expected


def test_sectors_are_traced_and_are_not_known_without_a_compiler(monkeypatch):
    assert without_counters._sectors(Case("copy", 2, (16384, 4096))) == (8, 8)  # 32 floats a warp are 128 bytes; v2 reads 16 B
    assert without_counters._sectors(OTHER) == (None, None)

    def refuse(case):
        raise build.BuildError("no compiler")

    monkeypatch.setattr(without_counters, "traced", refuse)
    assert without_counters._sectors(GELU) == (None, None)


@pytest.mark.skipif(labkit.machine.find_nvcc() is None, reason="nvcc is not installed")
def test_spills_are_those_of_the_kernel_that_ran(monkeypatch):
    monkeypatch.setattr(labkit.machine, "arch", lambda: "sm_90")
    kernels = labkit.compile_cubin("row_sum", 1, "sm_90").kernels
    ran = f"void {kernels[0].name}(float*, long)"
    assert without_counters._spills(Case("row_sum", 1, (4, 4)), ran) == "0 B a thread spilled"
    assert without_counters._spills(Case("row_sum", 1, (4, 4)), "void other(int)") is None
    assert without_counters._spills(OTHER, "anything") is None


# -- on a GPU --------------------------------------------------------------------------------------------------

# copy v4 reads every 32nd element, so that each sector passes L1 eight times and more; v5 reads 16-byte vectors.
COPY = [*(Case("copy", version, (1 << 26,), "bfloat16") for version in (1, 4, 5)),
        Rival("gelu", "native", (1 << 26,), "bfloat16")]


@pytest.mark.gpu
def test_a_copy_is_limited_by_memory_with_counters_or_without(session, capsys):
    rows = {row["launch"]: row for row in labkit.what_limits("limits", COPY, "Copies")}
    assert set(rows) == {"copy v1", "copy v4", "copy v5", "gelu native"}
    why = session().tables["limits_why"]["rows"]
    if "without counters" not in session().tables["limits"]["title"]:
        assert (rows["copy v4"]["limit"], rows["copy v5"]["limit"]) == ("L1 or L2", "memory")
        assert 0.8 < rows["copy v5"]["DRAM, MB"] / rows["copy v5"]["must move, MB"] < 1.2
        assert all(row["warps wait for"] and row["registers"] > 0 and row["busiest pipe"] for row in why)
        capsys.readouterr()
        again = labkit.saved_report("limits")
        assert [row["µs"] for row in again] == [rows[name]["µs"] for name in ("copy v1", "copy v4", "copy v5")]
    else:
        assert rows["copy v5"]["limit"] == "at a copy's rate" and 75 < rows["copy v5"]["a copy's time, %"] < 115


@pytest.mark.gpu
def test_what_is_known_without_counters_on_a_gpu(session):
    found = without_counters.known(COPY[2])
    assert found.us > 10 and 0 < found.registers <= 255 and 0 < found.occupancy <= 100
    assert found.load and found.store and found.spills == "0 B a thread spilled"
    rival = without_counters.known(COPY[3])
    assert rival.us > 10 and rival.registers > 0 and rival.load is rival.spills is None
    assert torch.cuda.is_available()
