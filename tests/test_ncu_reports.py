"""`labkit.ncu_reports`: reading what NVIDIA's module tells of a report, and the module that is found."""

import lzma
import importlib
import subprocess
import sys

import pytest
from stub_ncu_report import NOT_COUNTED, Action, Context, Domain, Metric, Range, State, read_in_place
from written_ncu_report import write

from labkit import ncu_reading, ncu_reports
from labkit.gpu_counts import Case, Rival, case_of, named
from labkit.ncu_reports import Launch, NotRead, pack, read

CASE = Case("gelu", 7, (64, 32), "bfloat16", note="größer")
RIVAL = Rival("gelu", "native", (64, 32))
METRICS = {"gpu__time_duration.sum": (2500, "nsecond"), "dram__bytes.sum": (3.5, "Mbyte"), "launch__registers_per_thread": 40,
           "device__attribute_display_name": "NVIDIA H200", "sm__throughput.avg.pct_of_peak_sustained_elapsed": (12.5, "%"),
           "dram__bytes.sum.per_second": (4.0, "Tbyte/second"), "missing": NOT_COUNTED, "empty": None}


@pytest.fixture
def report(tmp_path):
    path = tmp_path / "some.ncu-rep"
    path.write_bytes(b"NVR report" * 1000)
    return path


@pytest.mark.parametrize("case", [CASE, RIVAL])
def test_a_case_is_named_in_ascii_and_found_by_it(case):
    assert case_of(named(case)) == case
    assert named(case).isascii()


def test_launches_are_read_with_their_cases_and_in_base_units(monkeypatch, report):
    read_in_place(monkeypatch, [Action("k1", ["outer", named(CASE)], METRICS)],
            [Action("k2", [named(RIVAL)], {}), Action("k3", None, {}), Action("k4", ["[1]", "{}"], {})])
    first, *others = read(report)
    assert first == Launch("k1", CASE, {"gpu__time_duration.sum": pytest.approx(2.5e-6), "dram__bytes.sum": 3.5e6,
                                        "launch__registers_per_thread": 40, "dram__bytes.sum.per_second": 4.0,
                                        "sm__throughput.avg.pct_of_peak_sustained_elapsed": 12.5})
    assert others == [Launch("k2", RIVAL, {}), Launch("k3", None, {}), Launch("k4", None, {})]


@pytest.mark.parametrize("unit, scale", [("second", 1), ("s", 1), ("ns", 1e-9), ("usecond", 1e-6), ("msecond", 1e-3),
                                         ("byte", 1), ("Kbyte", 1e3), ("MB", 1e6), ("Gbyte", 1e9), ("", 1), (None, 1), ("%", 1),
                                         ("byte/second", 1), ("Gbyte/second", 1), ("sector", 1), ("inst", 1), ("nhz", 1)])
def test_only_times_and_bytes_are_scaled(unit, scale):
    assert ncu_reading._scale("some", unit) == scale


@pytest.mark.parametrize("unit, scale", [("", 1e-9), (None, 1e-9), ("us", 1e-6)])
def test_a_time_without_a_unit_is_in_nanoseconds(unit, scale):
    assert ncu_reading._scale("gpu__time_duration.sum", unit) == scale


def test_a_value_and_a_ratio_of_a_launch():
    launch = Launch("k", None, {"sectors": 12.0, "requests": 8.0, "none": 0.0, "time": 2.5e-6})
    assert launch.get("sectors", "requests", digits=2) == 1.5 and launch.get("time", scale=1e6) == 2.5
    assert launch.get("sectors", "none") is launch.get("sectors", "other") is launch.get("other") is None
    assert launch.get("none") == 0


def test_a_packed_report_is_the_same_and_its_bytes_depend_on_nothing_else(monkeypatch, report, tmp_path):
    module = read_in_place(monkeypatch, [Action("k", None, {})])
    packed = tmp_path / "deep" / "some.ncu-rep.xz"
    size = pack(report, packed)
    first = packed.read_bytes()
    assert size == len(first) < report.stat().st_size / 5
    pack(report, packed)
    assert packed.read_bytes() == first
    read(packed)
    (name, content), = module.loaded
    assert name.endswith("some.ncu-rep") and content == report.read_bytes() == lzma.decompress(first)


def test_what_is_no_report_is_said(monkeypatch, report, tmp_path):
    read_in_place(monkeypatch)
    with pytest.raises(NotRead, match="some.ncu-rep holds no launch"):
        read(report)
    with pytest.raises(FileNotFoundError, match="there is no report"):
        read(tmp_path / "none.ncu-rep")


def test_without_a_module_it_is_said_where_to_get_one(monkeypatch, report):
    monkeypatch.setitem(sys.modules, "ncu_report", None)  # as if it were not installed
    monkeypatch.setattr(ncu_reading.machine, "find_ncu", lambda: None)
    with pytest.raises(ImportError, match="pip install ncu-report"):
        ncu_reading.find_module()
    monkeypatch.setattr(ncu_reports, "in_a_new_process", lambda *arguments, **options: "pip install ncu-report")
    with pytest.raises(NotRead, match="pip install ncu-report"):
        read(report)


@pytest.mark.parametrize("error, says", [(RuntimeError(""), "fails on some.ncu-rep: it crashes"), (RuntimeError("no"), ": no"),
                                         (subprocess.TimeoutExpired("python", 120), "timed out after 120 seconds")])
def test_a_module_that_crashes_or_hangs_costs_no_more_than_its_process(monkeypatch, report, error, says):
    def fail(*arguments, **options):
        raise error

    monkeypatch.setattr(ncu_reports, "in_a_new_process", fail)
    with pytest.raises(NotRead, match=says):
        read(report)


def test_the_process_that_reads_has_no_torch_in_it():
    """ncu_report 2025.3.1 crashes where torch was imported before."""
    asked = "import labkit.ncu_reading, sys; print([name for name in sys.modules if name.startswith('torch')])"
    assert subprocess.run([sys.executable, "-c", asked], capture_output=True, text=True).stdout == "[]\n"


def test_the_module_of_nsight_compute_serves_where_none_is_installed(monkeypatch, tmp_path):
    python = tmp_path / "2025.3.1" / "extras" / "python"
    python.mkdir(parents=True)
    (python / "ncu_report.py").write_text("def load_report(name): raise RuntimeError('of Nsight Compute')")
    (tmp_path / "2025.3.1" / "ncu").touch()
    (tmp_path / "ncu").symlink_to(tmp_path / "2025.3.1" / "ncu")
    monkeypatch.setattr(ncu_reading.machine, "find_ncu", lambda: tmp_path / "ncu")
    monkeypatch.delitem(sys.modules, "ncu_report", raising=False)
    installed = importlib.import_module

    def only_there(name):  # as if none were installed
        if str(python) not in sys.path:
            raise ImportError(name)
        return installed(name)

    monkeypatch.setattr(importlib, "import_module", only_there)
    before = list(sys.path)
    with pytest.raises(RuntimeError, match="of Nsight Compute"):
        ncu_reading.find_module().load_report("some")
    assert sys.path == before
    sys.modules.pop("ncu_report")


def test_nvidias_module_reads_a_report_that_is_written_as_its_format_says(tmp_path):
    pytest.importorskip("ncu_report")
    counted = {"gpu__time_duration.sum": 2500.0, "dram__bytes.sum": 3.5e6, "launch__registers_per_thread": 40,
               "device__attribute_display_name": "NVIDIA H200", "smsp__inst_executed.sum": NOT_COUNTED}
    path, packed = tmp_path / "written.ncu-rep", tmp_path / "written.ncu-rep.xz"
    write(path, [("v7", named(CASE), counted), ("gelu_cuda", named(RIVAL), {"dram__bytes.sum": 1.0}), ("other", "a range", {})])
    pack(path, packed)
    for file in (path, packed):
        first, second, third = read(file)
        assert (first.kernel, first.case, second.case, third.case) == ("v7", CASE, RIVAL, None)
        of_labkit = {name: value for name, value in first.values.items() if not name.startswith("device__")}
        assert of_labkit == {"gpu__time_duration.sum": pytest.approx(2.5e-6), "dram__bytes.sum": 3.5e6,
                             "launch__registers_per_thread": 40}
        assert second.values["dram__bytes.sum"] == 1


def test_nvidias_module_has_what_is_asked_of_it(tmp_path):
    """The stub, by which the tests read, must not know more than the module itself."""
    real = pytest.importorskip("ncu_report")
    pairs = ((Context, real.IContext), (Range, real.IRange), (Action, real.IAction), (Metric, real.IMetric),
             (State, real.INvtxState), (Domain, real.INvtxDomainInfo))
    for stub, theirs in pairs:
        asked = {name for name in vars(stub) if not name.startswith("_")}
        assert asked and not asked - set(dir(theirs)), (stub, asked - set(dir(theirs)))
    junk = tmp_path / "junk.ncu-rep"
    junk.write_text("no report")
    with pytest.raises(NotRead, match="no report, or one of a newer Nsight Compute"):
        read(junk)
