"""The doctor on made-up machines: whatever is wrong is named, with one thing to do about it."""

import builtins
import importlib
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import time

import pytest

from labkit import REPOSITORY, importing, machine, requirements
from labkit import diagnosis as doctor


@pytest.fixture
def pretend(monkeypatch):
    """Pretend that this machine has a GPU, a driver, an nvcc and a torch for the CUDA versions named."""

    def machine_with(gpu=False, driver=None, cuda=None, nvcc=None):
        seen = {"name": "NVIDIA T4", "capability": "7.5", "sms": 40, "memory_gib": 14.6, "l2_mib": 4.0}
        monkeypatch.setattr(machine, "gpu", lambda: seen if gpu else None)
        monkeypatch.setattr(machine, "driver", lambda: driver)
        monkeypatch.setattr(machine, "versions", lambda: {"cuda": cuda})
        monkeypatch.setattr(machine, "find_nvcc", lambda: nvcc and "/opt/nvcc")
        monkeypatch.setattr(machine, "nvcc_version", lambda: nvcc if nvcc != "broken" else None)
        monkeypatch.setattr(doctor, "_refusal", lambda *asked: None)
        monkeypatch.delenv("CUDA_HOME", raising=False)
        monkeypatch.delenv("CUDA_PATH", raising=False)

    return machine_with


def stub(folder, name, script):
    path = folder / name
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return str(path)


def states(findings):
    return {finding.what: finding.state for finding in findings}


def test_this_machine_is_looked_over_in_a_few_seconds(capsys):
    begun = time.monotonic()
    findings = doctor.doctor()
    assert time.monotonic() - begun < 5
    said = capsys.readouterr().out
    for finding in findings:
        assert finding.what in said and finding.state in ("ok", "warn", "fail")
        assert bool(finding.advice) == (finding.state != "ok"), finding


def test_without_rich_the_same_is_printed_plainly(monkeypatch, capsys):
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "rich" else find(name))
    doctor.show([doctor.Finding("ninja", "fail", "not on PATH", "install it")])
    assert capsys.readouterr().out == "fail  ninja: not on PATH\n      do: install it\n"


def test_a_machine_without_a_gpu_has_nothing_wrong_with_it(pretend, monkeypatch, tmp_path):
    pretend()
    monkeypatch.setenv("PATH", str(tmp_path))
    for look in (doctor.gpu, doctor.nvcc, doctor.nsight_compute):
        assert look().state == "ok", look()
    assert "host backend" in doctor.gpu().seen


@pytest.mark.parametrize("script, state, seen", [
    ("echo 'c++ 99'", "ok", "c++ 99"),
    ("case $1 in --version) echo 'c++ 4.8';; *) exit 1;; esac", "fail", "does not compile C++20"),
    ("[ $1 != --version ] || echo 'true 9'", "fail", "; it reports success and makes nothing"),
    ("exit 1", "fail", "does not compile C++20"), (r"printf 'erreur: \351\n' >&2; exit 1", "fail", "does not compile C++20")])
def test_the_compiler_is_tried(monkeypatch, tmp_path, script, state, seen):
    monkeypatch.setenv("CXX", stub(tmp_path, "cxx", script))
    finding = doctor.compiler()
    assert finding.state == state and seen in finding.seen


def test_a_compiler_that_failed_is_tried_again_and_one_that_worked_is_not(monkeypatch, tmp_path):
    tried = tmp_path / "tried"
    for works, outcome, times in (("false", "fail", 1), ("false", "fail", 2), ("echo .file", "ok", 3), ("echo .file", "ok", 3)):
        script = f"[ $1 = --version ] && echo 'c++ 99' && exit; echo >> {tried}; {works}"
        monkeypatch.setenv("CXX", stub(tmp_path, "cxx", script))
        assert doctor.compiler().state == outcome and len(tried.read_text().splitlines()) == times


def test_a_missing_compiler_is_a_failure_with_the_package_to_install(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    assert doctor.compiler().state == "fail" and "apt install g++" in doctor.compiler().advice
    monkeypatch.setenv("CXX", "g++-99")
    assert "CXX=g++-99 is not there" in doctor.compiler().seen


@pytest.mark.parametrize("cuda, seen, advice", [
    (None, "torch is a build without CUDA", "CUDA build of torch"),
    ("13.0", "torch (CUDA 13.0) does not see a GPU: CUDA 13.0 needs driver 580", "update the driver to 580")])
def test_a_gpu_that_torch_does_not_see_is_a_warning(pretend, cuda, seen, advice):
    pretend(driver="570.10", cuda=cuda)
    finding = doctor.gpu()
    assert finding.state == "warn" and seen in finding.seen and advice in finding.advice


@pytest.mark.parametrize("gpu, cuda, nvcc, state", [
    (True, "13.0", "13.2.10", "ok"), (True, "13.0", "12.8.93", "fail"), (False, "13.0", "12.8.93", "ok"),
    (True, "13.0", None, "warn"), (True, "13.0", "broken", "fail"), (False, "13.0", "broken", "warn"),
    (False, None, None, "ok"), (False, None, "13.0.88", "ok")])
def test_nvcc_that_kernels_run_by_is_of_the_major_version_of_torchs_cuda(pretend, gpu, cuda, nvcc, state):
    pretend(gpu=gpu, driver="580.1", cuda=cuda, nvcc=nvcc)
    assert doctor.nvcc().state == state


def test_ninja_that_is_missing_or_broken_is_a_failure(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(doctor.sys, "executable", str(tmp_path / "elsewhere" / "python"))
    assert doctor.ninja().state == "fail"
    stub(tmp_path, "ninja", "exit 1")
    assert doctor.ninja().state == "fail"
    stub(tmp_path, "ninja", "echo 1.13.0")
    assert doctor.ninja() == doctor.Finding("ninja", "ok", f"1.13.0 at {tmp_path / 'ninja'}")


@pytest.mark.parametrize("free, state", [(100, "ok"), (2, "warn"), (0.1, "fail")])
def test_disk_space(monkeypatch, free, state):
    usage = shutil.disk_usage("/")._replace(free=int(free * 2**30))
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    assert doctor.disk().state == state


def test_a_build_folder_that_cannot_be_written_is_a_failure(monkeypatch, tmp_path):
    (tmp_path / "build").touch()  # a file in its place; permissions would not stop root
    monkeypatch.setenv("LABKIT_BUILD", str(tmp_path / "build"))
    assert doctor.build_folder().state == "fail"
    (tmp_path / "build").unlink()
    assert doctor.build_folder().state == "ok"


@pytest.mark.parametrize("parameters, user, state", [
    ("RmProfilingAdminOnly: 1\n", 1000, "warn"), ("RmProfilingAdminOnly: 0\n", 1000, "ok"),
    ("RmProfilingAdminOnly: 1\n", 0, "ok"), (None, 1000, "ok")])
def test_counters_that_only_administrators_may_read(pretend, monkeypatch, tmp_path, parameters, user, state):
    pretend(gpu=True, driver="580.1", cuda="13.0")
    stub(tmp_path, "ncu", "exit 0")
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(os, "geteuid", lambda: user)
    monkeypatch.setattr(doctor, "DRIVER_PARAMETERS", tmp_path / "params")
    if parameters:
        (tmp_path / "params").write_text(f"EnableMSI: 1\n{parameters}")
    assert doctor.nsight_compute().state == state


def test_packages_outside_the_ranges_of_the_requirements_are_named(monkeypatch, tmp_path):
    monkeypatch.setattr(requirements, "REPOSITORY", tmp_path)
    (tmp_path / "requirements.txt").write_text("# why\ntorch>=2\nrich>=999  # new\nnot-a-package\n"
                                               "also-not; sys_platform == 'plan9'\n")
    finding = doctor.packages()
    assert finding.state == "warn" and "rich " in finding.seen and "not-a-package missing" in finding.seen
    assert "also-not" not in finding.seen and "torch 2" in finding.seen


def test_a_python_without_torch_is_a_failure_and_nothing_imports_it(monkeypatch):
    monkeypatch.setattr(doctor, "_version", lambda package: None)
    real = builtins.__import__

    def refuse(name, *arguments, **keywords):
        assert name.split(".")[0] not in ("torch", "packaging"), name
        return real(name, *arguments, **keywords)

    monkeypatch.setattr(builtins, "__import__", refuse)
    assert doctor.packages().state == "fail"


@pytest.mark.parametrize("missing, state", [("nbclient", "fail"), ("jupyter_book", "warn")])
def test_what_runs_the_labs_is_needed_and_the_book_is_not(monkeypatch, missing, state):
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == missing else find(name))
    assert doctor.jupyter().state == state


@pytest.fixture
def as_nobody():
    """This process may do what nobody in particular may, if it is root's; else what its user may."""
    root = os.geteuid() == 0
    if root:
        os.seteuid(65534)
    yield
    if root:
        os.seteuid(0)


def test_folders_that_may_not_be_entered_are_told_and_stop_no_look(monkeypatch, tmp_path, as_nobody):
    closed = tmp_path / "closed"
    if os.geteuid() != 65534:  # else all of tmp_path is closed
        closed.mkdir(mode=0)
    for name in ("HOME", "LABKIT_BUILD", "TORCH_EXTENSIONS_DIR", "XDG_CACHE_HOME"):
        monkeypatch.setenv(name, str(closed / "in"))
    found = {look: look() for look in (doctor.disk, doctor.builds, doctor.home, doctor.build_folder)}
    assert found[doctor.disk].state in ("ok", "warn") and "GiB free" in found[doctor.disk].seen
    assert found[doctor.builds].state == "ok"
    assert found[doctor.home].state == "warn" and found[doctor.home].seen == f"{closed / 'in'}: Permission denied"
    assert found[doctor.build_folder].seen == f"{closed / 'in'}: Permission denied"


def test_a_look_that_ends_in_an_error_is_a_line_and_the_others_are_there(monkeypatch, capsys):
    def disk():
        raise RuntimeError("nobody\nthought of it")

    monkeypatch.setattr(doctor, "disk", disk)
    findings = doctor.doctor()
    assert [finding for finding in findings if finding.what == "disk"] == [
        doctor.Finding("disk", "fail", "RuntimeError: nobody thought of it", "mend what this names, and look again")]
    said = capsys.readouterr().out
    assert len(findings) == 14 and all(finding.what in said for finding in findings)


BROKEN_TORCH = """
import sys
from labkit import diagnosis as doctor
doctor.machine.driver = lambda: next(iter(sys.argv[1:]), None)
for look in (doctor.packages, doctor.gpu, doctor.nvcc):
    found = look()
    print(found.state, "cannot be imported: ImportError: no libcudart, anywhere" in found.seen, found.advice, sep="|")
"""


@pytest.mark.parametrize("driver", [[], ["580.1"]])
def test_a_torch_that_cannot_be_imported_is_told_with_its_words_and_a_remedy(tmp_path, driver):
    (tmp_path / "torch.py").write_text('raise ImportError("no libcudart,\\nanywhere")')
    done = subprocess.run([sys.executable, "-c", BROKEN_TORCH, *driver], capture_output=True, text=True, check=True,
                          env={**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), str(REPOSITORY)])})
    packages, gpu, nvcc = done.stdout.splitlines()
    assert packages == "fail|True|unset PYTHONPATH, which brings this torch"
    assert gpu == (packages.replace("fail", "warn") if driver else "ok|False|")
    assert nvcc.startswith(("ok|False", "warn|False"))


def test_a_torch_that_is_broken_is_installed_anew_where_it_is(monkeypatch):
    monkeypatch.delenv("PYTHONPATH", raising=False)
    monkeypatch.setattr(sys, "prefix", str(REPOSITORY / ".venv"))
    assert importing.torch_again() == "set up anew: python3 -m labkit clean --all, then python3 -m labkit setup"
    monkeypatch.setattr(sys, "prefix", "/usr")
    assert re.search(r" -m pip install --force-reinstall torch==2[\d.]+$", importing.torch_again())
