"""`labkit.wheel` and the package that it builds: what is in it, where it runs, and what it says where it does not."""

import json
import os
import re
import shutil
import subprocess
import sys
import zipfile

import pytest
import torch
from filelock import FileLock
from packaging.utils import parse_wheel_filename

import labkit
from labkit import build, machine, wheels

needs_nvcc = pytest.mark.skipif(machine.find_nvcc() is None, reason="nvcc is not installed")


def target():
    """One architecture: that of the GPU here, or an H100's."""
    return (machine.gpu() or {"capability": "9.0"})["capability"]


@pytest.fixture(scope="module")
def built(tmp_path_factory, torch_in_an_odd_folder):
    """A wheel for one architecture and its PTX, one for all workers of pytest-xdist, built with torch in an odd folder."""
    place = tmp_path_factory.getbasetemp()
    place = (place.parent if "PYTEST_XDIST_WORKER" in os.environ else place) / "built"
    place.mkdir(exist_ok=True)
    with FileLock(place / "lock"), pytest.MonkeyPatch.context() as patch:
        patch.setenv("LABKIT_BUILD", str(place))
        patch.setenv("PYTHONPATH", torch_in_an_odd_folder)
        made = list(wheels.folder().glob("*.whl"))
        return made[0] if made else wheels.wheel("gelu", arch=f"{target()}+PTX")


@pytest.fixture(scope="module")
def package(built, tmp_path_factory):
    """The wheel unpacked; the folder that gelu_op lies in."""
    folder = tmp_path_factory.mktemp("unpacked")
    zipfile.ZipFile(built).extractall(folder)
    return folder


def imported(folder, after):
    """Imports gelu_op from `folder` in a fresh process, before other lines of Python."""
    return subprocess.run([sys.executable, "-c", f"import torch, gelu_op\n{after}"], cwd=folder,
                          env={**os.environ, "PYTHONPATH": ""}, capture_output=True, text=True)


def pretend_gpu(major, minor, driver=99):
    """Lines after which torch seems to see a GPU, with a driver for that release of CUDA."""
    return f"""
import ctypes
class Driver:
    def cuDriverGetVersion(version):
        version._obj.value = {1000 * driver}
found = ctypes.CDLL
ctypes.CDLL = lambda name, *options: Driver if name == "libcuda.so.1" else found(name, *options)
torch.version.cuda = "13.0"
torch.cuda.is_available = lambda: True
torch.cuda.get_device_capability = lambda *device: ({major}, {minor})
"""


# Imports gelu_op after the lines of each argument, in a copy of this process each, and ends what each writes with a zero.
IN_COPIES = """
import os, sys, torch
for lines in sys.argv[1:]:
    if os.fork() == 0:
        exec(lines)
        import gelu_op
        os._exit(0)
    os.wait()
    sys.stderr.write(chr(0))
"""


@pytest.fixture(scope="module")
def told(package):
    """{situation: the last line that an import of the package writes in it; "" where it says nothing}."""
    toolkit = int((machine.nvcc_version() or "13").split(".")[0])
    situations = {"torch 2.10": "torch.__version__ = '2.10.1+cu126'", "torch 2.8": "torch.__version__ = '2.8.0+cu126'",
                  "another GPU": pretend_gpu(7, 0), "this GPU": pretend_gpu(*map(int, target().split("."))),
                  "an old driver": pretend_gpu(9, 0, driver=toolkit - 1)}
    done = subprocess.run([sys.executable, "-c", IN_COPIES, *situations.values()], cwd=package,
                          env={**os.environ, "PYTHONPATH": ""}, stderr=subprocess.PIPE, text=True, check=True)
    *errors, rest = done.stderr.split(chr(0))
    assert rest == ""
    return {situation: error.strip().rpartition("\n")[2] for situation, error in zip(situations, errors, strict=True)}


def test_the_name_is_of_a_platform_and_of_no_python_and_says_what_it_was_built_with(built):
    name, version, _, tags = parse_wheel_filename(built.name)
    assert name == "gelu-op" and str(version.public) == "0.1"
    (tag,) = tags
    assert (tag.interpreter, tag.abi) == ("py3", "none") and tag.platform != "any"
    assert version.local.startswith(f"torch{torch.__version__.split('+')[0]}.")
    assert re.search(r"\.h[0-9a-f]{8}$", version.local)


def test_it_holds_the_operators_own_python_part_and_the_latest_version(built, package):
    names = {name for name in zipfile.ZipFile(built).namelist() if name.startswith("gelu_op/")}
    cuda = {"gelu_op/_cuda.so"} if machine.find_nvcc() else set()
    assert names == cuda | {f"gelu_op/{name}" for name in ("__init__.py", "compatibility.py", "op.py", "_cpu.so", "built.json")}
    assert (package / "gelu_op" / "op.py").read_bytes() == (labkit.REPOSITORY / "kernels" / "gelu" / "op.py").read_bytes()
    header = re.findall(r"^//\s+v(\d+)", (labkit.REPOSITORY / "kernels" / "gelu" / "gelu.cu").read_text(), re.MULTILINE)
    assert json.loads((package / "gelu_op" / "built.json").read_text())["version"] == max(map(int, header))


def test_nothing_in_it_needs_or_names_the_machine_that_built_it(package):
    home = machine.cuda_home()
    places = [str(labkit.REPOSITORY), os.path.dirname(torch.__path__[0]), *([str(home.resolve())] if home else [])]
    for path in (package / "gelu_op").iterdir():
        for place in places:
            assert place.encode() not in path.read_bytes(), (path.name, place)
    for path in (package / "gelu_op").glob("*.py"):
        assert not re.search(r"^\s*(import|from) labkit", path.read_text(), re.MULTILINE)


@pytest.mark.skipif(not shutil.which("readelf"), reason="readelf is not installed")
def test_its_libraries_ask_for_torch_by_name_and_for_no_cuda_runtime_and_no_path(package):
    for library in (package / "gelu_op").glob("*.so"):
        dynamic = subprocess.run(["readelf", "-d", library], capture_output=True, text=True, check=True).stdout
        needed = re.findall(r"\(NEEDED\).*\[(.+)\]", dynamic)
        assert "libtorch.so" in needed
        assert [name for name in needed if name.startswith(("libcuda", "libc10", "libtorch_", "libpython"))] == []
        assert "RPATH" not in dynamic and "RUNPATH" not in dynamic
        # The stable ABI: of torch's C++ symbols, whose names change from release to release, not one.
        symbols = subprocess.run(["readelf", "-W", "--dyn-syms", library], capture_output=True, text=True, check=True).stdout
        taken = re.findall(r"\bUND (\S+)", symbols)
        assert any(name.startswith("aoti_torch_") for name in taken)
        assert [name for name in taken if re.match(r"_ZNK?\d*(2at|3c10|5torch)", name)] == []


def test_it_runs_where_there_is_neither_compiler_nor_repository(built, session, capsys):
    session()
    others = os.environ.get("LABKIT_PYTHONS", "").count(os.pathsep) + bool(os.environ.get("LABKIT_PYTHONS"))
    rows = labkit.try_wheels("tried", [built])
    assert len(rows) == 1 + others
    assert [row["outcome"] for row in rows] == ["right"] * len(rows)
    # The best that bfloat16 can do is half a unit; no error at all would mean that nothing was compared.
    assert all(0.45 < row["largest error, ULP"] <= wheels.ALLOWED for row in rows)
    assert session().tables["tried"]["rows"] == rows and rows[0]["outcome"] in capsys.readouterr().out


def wheel_with(tmp_path, built, replace):
    """A copy of the wheel in which some files have another content."""
    copy = tmp_path / built.name
    with zipfile.ZipFile(built) as old, zipfile.ZipFile(copy, "w") as new:
        for name in old.namelist():
            new.writestr(name, replace(name, old.read(name)))
    return copy


# It takes longest, and is not what has to find these faults.
WITHOUT_OPCHECK = b"\nimport torch.library\ntorch.library.opcheck = lambda *given: None\n"


@pytest.mark.parametrize("old, new, said", [
    ("    return gelu\n", "    return lambda x: gelu(x) * 1.01\n", "wrong: an error of more than 0.6 ULP"),
    ("return backward(grad, x, ctx.version), None", "return 2 * grad, None", "wrong: an error of more than 0.6 ULP"),
    ("import math\n", "import math\nimport labkit\n", "ModuleNotFoundError: import of labkit halted"),
    ("import math\n", "import math, os\nos.abort()\n", "ended by signal 6"),
])
def test_a_package_with_a_fault_is_not_called_right(built, session, tmp_path, monkeypatch, old, new, said):
    monkeypatch.delenv("LABKIT_PYTHONS", raising=False)

    def edit(name, content):
        assert name != "gelu_op/op.py" or old.encode() in content
        return content.replace(old.encode(), new.encode(), 1) + WITHOUT_OPCHECK if name == "gelu_op/op.py" else content

    (row,) = labkit.try_wheels("tried", [wheel_with(tmp_path, built, edit)])
    assert row["outcome"].startswith(said)


def test_a_python_that_does_not_take_the_wheel_is_told_by_pip(built, session, tmp_path):
    other = tmp_path / built.name.replace("py3-none", "cp38-cp38")
    shutil.copy(built, other)
    (row,) = labkit.try_wheels("tried", [other])[:1]
    assert row["outcome"].startswith("ERROR:") and row["largest error, ULP"] is None


def test_what_cannot_be_tried_is_named(built, tmp_path, monkeypatch):
    monkeypatch.setenv("LABKIT_BUILD", str(tmp_path))
    with pytest.raises(FileNotFoundError, match=r'no wheel of gelu_op in .*; make one with labkit.wheel\("gelu"\)'):
        labkit.try_wheels("tried")
    with pytest.raises(FileNotFoundError, match="no Python at .*nowhere"):
        labkit.try_wheels("tried", [built], pythons=[tmp_path / "nowhere"])
    strange = wheel_with(tmp_path, built, lambda name, content: content).rename(tmp_path / "strange.whl")
    with zipfile.ZipFile(strange, "w") as empty:
        empty.writestr("other/built.json", "{}")
    with pytest.raises(ValueError, match="strange.whl holds no gelu_op/built.json"):
        labkit.try_wheels("tried", [strange])
    os.truncate(strange, 40)
    with pytest.raises(ValueError, match="strange.whl is damaged, or no wheel; make it anew with labkit.wheel"):
        labkit.try_wheels("tried", [strange])


def test_without_nvcc_the_package_holds_the_cpus_library_alone(session, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("LABKIT_BUILD", str(tmp_path))
    for name in ("CUDA_HOME", "CUDA_PATH"):
        monkeypatch.delenv(name, raising=False)
    # find_nvcc also looks at a fixed place, so in the build it is told that there is none.
    (tmp_path / "sitecustomize.py").write_text("import labkit.machine\nlabkit.machine.find_nvcc = lambda: None\n")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), str(labkit.REPOSITORY)]))
    carried = tmp_path / "wheels" / "gelu_op-0.1+torch2.9.0.cuda12.6.hdeadbeef-py3-none-linux_x86_64.whl"
    carried.parent.mkdir()
    carried.write_bytes(b"from another machine")
    made = wheels.wheel("gelu")
    assert "the CPU alone, since there is no nvcc here" in capsys.readouterr().out
    assert wheels.built_with(made)["cuda"] is None and ".cpu." in made.name
    assert "gelu_op/_cuda.so" not in zipfile.ZipFile(made).namelist()
    assert carried.read_bytes() == b"from another machine" and sorted(carried.parent.iterdir()) == sorted([carried, made])
    if machine.gpu() is None:
        zipfile.ZipFile(made).extractall(tmp_path / "unpacked")
        done = imported(tmp_path / "unpacked", after="print(gelu_op.gelu(torch.ones(5))[0].item())")
        assert float(done.stdout) == pytest.approx(0.841192, abs=1e-6)


def test_what_cannot_be_built_is_said_in_one_line(tmp_path, monkeypatch):
    monkeypatch.setenv("LABKIT_BUILD", str(tmp_path))
    with pytest.raises(FileNotFoundError, match="no recipe for 'relu' .there is one for: gelu."):
        labkit.wheel("relu")
    kernels = tmp_path / "kernels"
    shutil.copytree(labkit.REPOSITORY / "kernels", kernels)
    (kernels / "gelu" / "binding.cpp").write_text("this_is_no_type broken;")
    monkeypatch.setenv("LABKIT_KERNELS", str(kernels))
    with pytest.raises(build.BuildError, match=r"\Agelu_op: .*binding.cpp:1.*this_is_no_type"):
        labkit.wheel("gelu", arch=target())


def test_a_setuptools_that_is_too_old_is_named_with_what_to_do(tmp_path, monkeypatch):
    monkeypatch.setenv("LABKIT_BUILD", str(tmp_path))
    told = tmp_path / "setuptools-65.5.0.dist-info" / "METADATA"
    told.parent.mkdir()
    told.write_text("Metadata-Version: 2.1\nName: setuptools\nVersion: 65.5.0\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))  # where pip finds this one first
    with pytest.raises(build.BuildError, match=r"\Agelu_op: Some build dependencies .*setuptools==65.5.0 is incompatible with "
                       r"setuptools>=77. Install them: .* -m pip install -r requirements.txt\Z"):
        labkit.wheel("gelu")


@needs_nvcc
def test_a_variable_that_says_for_which_gpus_a_wheel_is_made_is_named(built, session, tmp_path, monkeypatch, capsys):
    """Images of Docker set it."""
    def pip(*command):
        shutil.copy(built, command[-1])
        return subprocess.CompletedProcess(command, 0)

    monkeypatch.setattr(wheels, "_run", pip)
    monkeypatch.setenv("LABKIT_BUILD", str(tmp_path))
    monkeypatch.setenv("TORCH_CUDA_ARCH_LIST", "9.0a")
    labkit.wheel("gelu")
    assert "the CPU, as TORCH_CUDA_ARCH_LIST=9.0a asks; " in capsys.readouterr().out
    labkit.wheel("gelu", arch="9.0a")
    assert "TORCH_CUDA_ARCH_LIST" not in capsys.readouterr().out


@needs_nvcc
def test_an_architecture_that_does_not_exist_is_named(tmp_path, monkeypatch):
    monkeypatch.setenv("LABKIT_BUILD", str(tmp_path))
    with pytest.raises(build.BuildError, match=r"Unknown CUDA arch \(4.2\)"):  # torch knows none
        labkit.wheel("gelu", arch="4.2")
    with pytest.raises(build.BuildError, match="Unsupported gpu architecture 'compute_35'"):  # nvcc no longer does
        labkit.wheel("gelu", arch="3.5")


@needs_nvcc
def test_a_gpu_that_is_not_covered_is_named_with_what_to_do(told):
    sm = target().replace(".", "")
    assert told["another GPU"] == (
        f"ImportError: gelu_op holds code for sm_{sm}, compute_{sm}, and this GPU is sm_70: it can run none of that. Build "
        'the wheel again with TORCH_CUDA_ARCH_LIST="7.0", or a list that has it.')


@needs_nvcc
@pytest.mark.skipif(machine.gpu() is not None, reason="the library does load where there is a GPU")
def test_on_a_gpu_that_is_covered_it_is_cudas_library_that_is_loaded(told):
    assert "_cuda.so" in told["this GPU"] and "_cpu.so" not in told["this GPU"]  # this torch, without CUDA, cannot load it


def test_a_torch_that_is_too_old_is_named(told):
    assert told["torch 2.10"] == ""
    assert told["torch 2.8"] == "ImportError: gelu_op needs torch 2.9 or newer, and this is 2.8.0+cu126. Install a newer torch."


@needs_nvcc
def test_a_driver_older_than_the_toolkit_is_told(told):
    toolkit = machine.nvcc_version()
    assert told["an old driver"].startswith(
        f"ImportError: gelu_op was built with CUDA {toolkit}, and this driver is for CUDA "
        f"{int(toolkit.split('.')[0]) - 1}. Update")


@pytest.mark.gpu
def test_on_a_gpu_the_package_computes_there(package):
    done = imported(package, after="x = torch.ones(5, device='cuda', requires_grad=True); y = gelu_op.gelu(x); "
                                   "y.sum().backward(); print(y.device.type, x.grad.device.type, y[0].item())")
    device, of_gradient, value = done.stdout.split()
    assert (device, of_gradient) == ("cuda", "cuda") and float(value) == pytest.approx(0.841192, abs=1e-6)


@pytest.mark.gpu
def test_on_a_gpu_a_package_for_another_one_says_so(tmp_path, session, monkeypatch):
    if target() == "7.5":
        pytest.skip("this GPU is of the one architecture that it is built for")
    monkeypatch.setenv("LABKIT_BUILD", str(tmp_path))
    (row,) = labkit.try_wheels("tried", [labkit.wheel("gelu", arch="7.5")])[:1]
    assert row["outcome"].startswith("ImportError: gelu_op holds code for sm_75, and this GPU is sm_")


@pytest.mark.gpu
def test_a_library_for_another_gpu_is_refused_with_what_to_do(tmp_path, monkeypatch):
    if target() == "7.5":
        pytest.skip("this GPU is of the one architecture that it is built for")
    monkeypatch.setenv("LABKIT_BUILD", str(tmp_path))
    with zipfile.ZipFile(labkit.wheel("gelu", arch="7.5")) as files:
        library = files.extract("gelu_op/_cuda.so", tmp_path)
    call = f"import torch; torch.ops.load_library({library!r}); torch.ops.gelu_op.forward(torch.ones(3, device='cuda'), 7)"
    done = subprocess.run([sys.executable, "-c", call], capture_output=True, text=True)
    assert done.stderr.splitlines()[-1].startswith(
        "RuntimeError: gelu: the launch failed: no kernel image is available for execution on the device. The library holds no "
        "code for this GPU. Build it here, or for this GPU (TORCH_CUDA_ARCH_LIST).")
