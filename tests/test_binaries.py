"""Which GPU code a binary holds and which GPUs run it: the rule, cuobjdump's lists, and a GPU's own answer."""

import subprocess
import zipfile

import pytest

import labkit
from labkit import binaries, machine

RULE = labkit.REPOSITORY / "labs" / "wheel" / "gelu_op" / "compatibility.py"
needs_nvcc = pytest.mark.skipif(machine.find_nvcc() is None, reason="nvcc is not installed")

# What NVIDIA's programming guide says of binary and of PTX compatibility, a letter a GPU: runs, driver, none.
GPUS = ["7.0", "7.5", "8.0", "8.6", "8.9", "9.0", "10.0", "10.3", "12.0", "12.1"]
TABLE = {
    ("sm_75",): "NRNNNNNNNN",
    ("sm_80",): "NNRRRNNNNN",
    ("sm_86",): "NNNRRNNNNN",
    ("sm_90",): "NNNNNRNNNN",
    ("sm_90a",): "NNNNNRNNNN",
    ("sm_100",): "NNNNNNRRNN",
    ("sm_100a",): "NNNNNNRNNN",
    ("sm_100f",): "NNNNNNRRNN",
    ("sm_120",): "NNNNNNNNRR",
    ("compute_75",): "NDDDDDDDDD",
    ("compute_86",): "NNNDDDDDDD",
    ("compute_90a",): "NNNNNDNNNN",
    ("compute_100f",): "NNNNNNDDNN",
    ("compute_120",): "NNNNNNNNDD",
    ("compute_80", "sm_80"): "NNRRRDDDDD",  # machine code comes before PTX, wherever it stands
    ("sm_75", "sm_90", "compute_90"): "NRNNNRDDDD",
    (): "NNNNNNNNNN",
}
LETTERS = {"R": "runs", "D": "compiled by the driver", "N": "no kernel image"}


def as_the_guide_says(rule):
    return all(rule(architectures, gpu) == LETTERS[letter]
               for architectures, row in TABLE.items() for gpu, letter in zip(GPUS, row, strict=True))


def test_the_rule_is_the_programming_guides():
    assert as_the_guide_says(labkit.compatible)


@pytest.mark.parametrize("old, new", [
    ("minor >= of_minor", "minor <= of_minor"),
    ("minor >= of_minor", "minor == of_minor"),
    ("major == of_major and", "major >= of_major and"),
    ('kind == "sm" or only == "f"', 'kind == "sm"'),
    ('only == "a"', 'only == "b"'),
    (">= (of_major, of_minor)", "> (of_major, of_minor)"),
    (">= (of_major, of_minor)", ">= (of_minor, of_major)"),
    ('fits and kind == "sm"', "fits"),
    ("outcome = BY_DRIVER", "return BY_DRIVER"),
    (r"(\d+)(\d)", r"(\d)(\d+)"),
])
def test_the_table_rejects_another_rule(old, new):
    text = RULE.read_text()
    assert old in text
    changed = {}
    exec(text.replace(old, new), changed)
    assert not as_the_guide_says(changed["compatible"])


@pytest.mark.parametrize("name", ["80", "sm80", "sm_8.0", "sm_80b", "ptx_80"])
def test_a_name_that_is_no_architecture_is_refused(name):
    with pytest.raises(ValueError, match=f"'{name}' is none; write it as in sm_80"):
        labkit.compatible(["sm_75", name], "9.0")


def test_runs_on_shows_the_rule_for_every_gpu(session, monkeypatch, capsys):
    monkeypatch.setenv("LABKIT_BACKEND", "host")
    rows = labkit.runs_on("runs", ["sm_80", "compute_90"])
    assert rows[0] == {"compiled for": "sm_80", "7.5": "no", "8.0": "runs", "8.6": "runs", "8.9": "runs", "9.0": "no",
                       "10.0": "no", "12.0": "no"}
    assert list(rows[1].values())[4:] == ["no"] + ["by driver"] * 3
    assert session().tables["runs"]["exact"] and session().tables["runs"]["rows"] == rows
    said = capsys.readouterr().out
    assert "nothing is recorded" in said and "8.0: A100" in said  # nothing of what a GPU says


@needs_nvcc
@pytest.mark.skipif(machine.find_cuda_tool("cuobjdump") is None, reason="cuobjdump is not installed")
def test_architectures_are_read_from_libraries_and_wheels(session, tmp_path):
    source = tmp_path / "kernel.cu"
    source.write_text("__global__ void kernel() {}\n")
    both, plain, wheel = tmp_path / "both.so", tmp_path / "plain.so", tmp_path / "made.whl"
    command = [machine.find_nvcc(), "-shared", "-nodlink", "-cudart", "static", "-Xcompiler=-fPIC", source]
    subprocess.run([*command, "-gencode=arch=compute_90,code=sm_90", "-gencode=arch=compute_80,code=[sm_80,compute_80]", "-o",
                    both], check=True)
    (tmp_path / "plain.cpp").write_text("int nothing() { return 0; }\n")
    subprocess.run([machine.find_cxx(), "-shared", "-fPIC", tmp_path / "plain.cpp", "-o", plain], check=True)
    with zipfile.ZipFile(wheel, "w") as files:
        files.write(both, "package/_cuda.so")
        files.write(plain, "package/_cpu.so")
    rows = labkit.architectures("held", {"library": both, "no kernel": plain, "wheel": str(wheel)})
    size = both.stat().st_size
    assert [(row["SASS"], row["PTX"]) for row in rows] == [("sm_80, sm_90", "compute_80"), ("none", "none"),
                                                         ("sm_80, sm_90", "compute_80")]
    assert rows[0]["bytes"] == rows[2]["bytes"] == size
    assert session().tables["held"]["rows"] == rows
    with pytest.raises(FileNotFoundError, match="architectures: there is no file .*nothing.so"):
        labkit.architectures("held", {"nothing": tmp_path / "nothing.so"})


def test_without_cuobjdump_the_recorded_table_is_asked_for(session, monkeypatch, capsys):
    session()
    monkeypatch.setattr(machine, "find_cuda_tool", lambda name: None)
    assert labkit.architectures("held", {"library": "any.so"}) == []
    assert "there is no cuobjdump here, and nothing is recorded" in capsys.readouterr().out


@needs_nvcc
@pytest.mark.skipif(machine.gpu() is not None, reason="there is a GPU, and the kernel runs")
def test_a_launch_that_fails_for_another_reason_is_not_taken_for_a_missing_kernel():
    row = binaries._tried("sm_90", "9.0")
    assert row["tried"] == "failed" and row["CUDA says"].startswith(("CUDA driver version", "no CUDA-capable device"))
    row = binaries._tried("sm_35", "9.0")
    assert row["tried"] == "not compiled" and "compute_35" in row["CUDA says"]


@pytest.mark.gpu
def test_the_gpu_does_what_the_rule_says(session):
    known = machine.output(machine.find_nvcc(), "--list-gpu-arch").split()
    chosen = {"compute_75", "compute_80", "compute_90", "compute_120",
              f"compute_{machine.gpu()['capability'].replace('.', '')}"} & set(known)
    archs = [name for virtual in sorted(chosen) for name in (virtual.replace("compute", "sm"), virtual)]
    labkit.runs_on("runs", archs)
    rows = session().tables["runs_tried"]["rows"]
    assert [row["compiled for"] for row in rows] == archs
    assert [row for row in rows if row["tried"] != row["the rule"]] == []
    assert {row["tried"] for row in rows} >= {"runs", "no kernel image"}


@pytest.mark.gpu
@pytest.mark.skipif(machine.find_cuda_tool("cuobjdump") is None, reason="cuobjdump is not installed")
def test_what_load_builds_is_for_this_gpu_alone(session):
    sm = machine.gpu()["capability"].replace(".", "")
    (row,) = labkit.architectures("held", {"gelu": labkit.load("gelu", version=1).library})
    assert (row["SASS"], row["PTX"]) == (f"sm_{sm}", "none")
