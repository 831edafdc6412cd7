"""One cache of builds for many: processes at the same time, killed ones, other users, other torches and GPUs."""

import contextlib
import io
import json
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import pytest
import torch

import labkit
from labkit import build, build_folder, machine
from labkit.environment import importable

TESTS = Path(__file__).parent
PROCESSES, ROUNDS = 8, int(os.environ.get("LABKIT_TEST_ROUNDS", 2))  # 20 rounds are the whole test: a minute or two


def loaded_anew(version):
    """What a process prints that has loaded nothing before, loads this version of copy and runs it: this one may have it."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["labkit.build"])  # to import torch takes longer than all else here
    with ProcessPoolExecutor(1, context) as pool:
        return pool.submit(load_and_run, version, dict(os.environ)).result()


def load_and_run(version, variables):
    os.environ.clear()  # those of another test, perhaps, in which the server was started
    os.environ.update(variables)
    with contextlib.redirect_stdout(io.StringIO()) as said:
        copy = labkit.load("copy", version, backend="host")
    assert torch.equal(copy(torch.ones(3)), torch.ones(3))
    return said.getvalue()


def test_of_processes_that_load_one_operator_at_once_one_builds_and_the_rest_wait(tmp_path):
    done = subprocess.run([sys.executable, TESTS / "concurrent_loads.py", tmp_path, str(ROUNDS), str(PROCESSES)], text=True,
                          capture_output=True, timeout=60 * ROUNDS, env={**importable(os.environ), "OMP_NUM_THREADS": "1"})
    said = [json.loads(line)[0] for line in done.stdout.splitlines()]
    assert said == [["built"] + ["reused"] * (PROCESSES - 1)] * ROUNDS, done.stderr


# -- locks --------------------------------------------------------------------------------------------------

HOLD = """\
import sys, time
from pathlib import Path
from labkit.build_folder import locked
with locked(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(60)
"""


def holder(made, *prefix):
    process = subprocess.Popen([*prefix, sys.executable, "-c", HOLD, made], stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "held\n"
    return process


def test_a_live_builder_is_waited_for_and_named_and_a_killed_one_is_not(tmp_path, capfd, monkeypatch):
    monkeypatch.setenv("LABKIT_BUILD", str(tmp_path))
    made, entered = tmp_path / "copy" / "host-1", threading.Event()

    def wait():
        with build_folder.locked(made, "copy"):
            entered.set()

    builder = holder(made)
    try:
        assert build_folder.holders() == {made.with_suffix(".lock"): builder.pid}
        waiting = threading.Thread(target=wait, daemon=True)
        waiting.start()
        assert not entered.wait(0.3)
        assert capfd.readouterr().out == f"copy: process {builder.pid} builds it; waiting for that\n"
    finally:
        builder.send_signal(signal.SIGKILL)
    assert entered.wait(5)
    builder.wait()
    waiting.join()
    assert build_folder.holders() == {}


def test_a_process_that_was_forked_while_another_built_keeps_no_lock(tmp_path):
    made = tmp_path / "made"
    with build_folder.locked(made):
        child = os.fork()
        if child == 0:
            time.sleep(60)
            os._exit(0)
    try:
        start = time.monotonic()
        with build_folder.locked(made):
            assert time.monotonic() - start < 5
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def test_a_builder_that_is_killed_leaves_a_compiler_that_does_not_write_into_the_next_build(own_builds, tmp_path, monkeypatch):
    """The compiler of a process that was killed runs on. It writes nonsense here, and only once the next build has begun."""
    real, going, gone = machine.find_cxx(), tmp_path / "going", tmp_path / "gone"
    stub = tmp_path / "c++"
    stub.write_text(f"""#!/bin/sh
case "$*" in *kernel.o*) if mkdir {going} 2>/dev/null; then
  for last; do :; done
  while ! [ -e {gone} ]; do sleep 0.1; done
  echo nonsense > "$last"; exit
fi;; esac
exec {real} "$@"
""")
    stub.chmod(0o755)
    monkeypatch.setenv("CXX", str(stub))
    builder = subprocess.Popen([sys.executable, "-c", "import labkit; labkit.load('copy', 3, backend='host')"],
                               start_new_session=True)
    try:
        while not going.exists() and builder.poll() is None:
            time.sleep(0.1)
        builder.kill()
        builder.wait()
        link = build.host.link

        def link_late(*given):
            gone.touch()
            time.sleep(0.5)
            return link(*given)

        monkeypatch.setattr(build.host, "link", link_late)
        assert torch.equal(labkit.load("copy", 3, backend="host")(torch.ones(3)), torch.ones(3))
    finally:
        gone.touch()
    assert not list(own_builds.glob("copy/*.work"))


# -- what nobody uses any more ------------------------------------------------------------------------------

def date(kept, days_ago):
    for path in (*kept.rglob("*"), kept):
        os.utime(path, (time.time() - days_ago * 86400,) * 2)


def made(path, days_ago):
    (path / "library.so" if not path.suffix else path).parent.mkdir(parents=True, exist_ok=True)
    (path / "library.so" if not path.suffix else path).touch()
    path.with_name(f"{path.name}.sizes").touch()
    date(path, days_ago)
    return path


def test_what_was_not_used_for_a_month_goes_and_nothing_else(tmp_path, monkeypatch):
    one, two, three = "0123456789ab", "123456789abc", "23456789abcd"
    old = [made(tmp_path / name, 31) for name in (f"copy/host-{one}", f"copy/cuda-{one}", f"gelu/trace-{one}", f"parsed-{one}",
                                                  f"binding-row_sum-{one}.o", f"tracer-{one}.o")]
    kept = [made(tmp_path / name, 29) for name in (f"copy/host-{two}", f"parsed-{two}", f"binding-copy-{two}.o")]
    kept += [made(tmp_path / name, 400) for name in ("wheels", "copy/mine", f"copy/mine-{one}", f"labs/notes-{one}.o",
                                                     f"copy/host-{one}-of-mine", f"copy/deeper/host-{one}")]
    busy = made(tmp_path / f"copy/host-{three}", 31)
    read = made(tmp_path / f"gelu/host-{three}", 31)  # by one who may not date it
    os.utime(read / "library.so", (time.time(), 0))
    builder = holder(busy)
    with monkeypatch.context() as other:
        other.setattr(os, "geteuid", lambda: os.getuid() + 1)
        build_folder.remove_unused(tmp_path)
    assert all(path.exists() for path in (*old, *kept, busy, read))  # another user's
    try:
        build_folder.remove_unused(tmp_path)
    finally:
        builder.kill()
        builder.wait()
    assert [path for path in old if path.exists()] == [] and all(path.exists() for path in (*kept, busy, read))
    assert not list(tmp_path.glob("**/*.work")) and len(list(tmp_path.glob("**/*.sizes"))) == len([*kept, busy, read])
    build_folder.remove_unused(tmp_path)  # whose builder was killed
    assert not busy.exists()
    build_folder.remove_unused(tmp_path / "nowhere")


def test_a_load_dates_its_build_and_a_later_build_removes_what_none_has_loaded(own_builds):
    loaded_anew(1)
    loaded_anew(2)
    first, second = (path.parent for version in (1, 2) for path in own_builds.glob(
        f"copy/*/copy_{build.fingerprint('copy', 'host', sum(build.flags('host', version), []))}.so"))
    date(first, 31)
    date(second, 31)
    assert "version 1 reused" in loaded_anew(1) and "version 3 built" in loaded_anew(3)
    library, = first.glob("*.so")
    assert library.stat().st_mtime > time.time() - 3600  # a file system may keep no date of reading
    assert first.exists() and not second.exists()
    assert "version 2 built" in loaded_anew(2)


def test_builds_may_go_while_others_load_them(tmp_path):
    done = subprocess.run([sys.executable, TESTS / "concurrent_loads.py", tmp_path, "2", "4", "removed"], text=True,
                          capture_output=True, timeout=240, env={**importable(os.environ), "OMP_NUM_THREADS": "1"})
    said = [set(json.loads(line)[0]) for line in done.stdout.splitlines()]
    assert len(said) == 2 and all("built" in round and round <= {"built", "reused"} for round in said), done.stderr


# -- users, torches, GPUs -----------------------------------------------------------------------------------

LOAD = """\
import os, sys
from labkit import build
for root, version in ((sys.argv[1], 1), (sys.argv[1], 2), (sys.argv[2], 2)):
    os.environ["LABKIT_BUILD"] = root  # in one process, as in a notebook
    try:
        build.load("copy", version, backend="host")
    except build.BuildError as error:
        print(error)
"""
# Root may write anywhere, unless it gives that right up.
AS_A_USER = ["setpriv", "--bounding-set=-dac_override", "--inh-caps=-dac_override"] if os.geteuid() == 0 else []


@pytest.mark.skipif(bool(AS_A_USER) and not shutil.which("setpriv"), reason="root, and no setpriv to be less")
def test_builds_that_may_only_be_read_are_used_and_for_others_the_remedy_is_told_and_works(own_builds, tmp_path):
    loaded_anew(1)
    for lock in own_builds.glob("**/*.lock"):  # as in a copy, which nobody needs a lock for
        lock.unlink()
    for folder, _, _ in os.walk(own_builds):
        os.chmod(folder, 0o555)
    try:
        done = subprocess.run([*AS_A_USER, sys.executable, "-c", LOAD, own_builds, tmp_path / "own"], capture_output=True,
                              text=True)
    finally:
        for folder, _, _ in os.walk(own_builds):
            os.chmod(folder, 0o755)
    assert done.stdout.count("\n") == 4, done.stdout + done.stderr
    reused, refused, remedy, built = done.stdout.splitlines()
    assert "copy: version 1 reused, built for the CPU" in reused
    assert refused.startswith("copy: [Errno 13] Permission denied: ")
    assert remedy.startswith("To mend it: name a folder that is yours in LABKIT_BUILD")
    assert "copy: version 2 built for the CPU" in built and str(tmp_path / "own") in built


@pytest.mark.skipif(bool(AS_A_USER) and not shutil.which("setpriv"), reason="root, and no setpriv to be less")
def test_a_lock_file_of_another_user_locks_as_well(tmp_path):
    lock = tmp_path / "made.lock"
    lock.touch(0o444)
    lock.chmod(0o444)
    other = holder(tmp_path / "made", *AS_A_USER)
    try:
        with pytest.raises(BlockingIOError), build_folder.locked(tmp_path / "made", wait=False):
            pass
    finally:
        other.kill()
        other.wait()
    with build_folder.locked(tmp_path / "made", wait=False):
        pass


def _key(backend="host"):
    return build.fingerprint("copy", backend, [])


@pytest.mark.parametrize("change", [
    lambda patch: patch.setattr(torch, "__version__", "99.0"), lambda patch: patch.setenv("CC", "another"),
    lambda patch: patch.setattr(build.platform, "machine", lambda: "vax"),
    lambda patch: patch.setattr(build, "_cxx_version", lambda: "another")])
def test_another_torch_processor_or_compiler_has_builds_and_objects_of_its_own(change, monkeypatch):
    before = _key()
    with monkeypatch.context() as patch:
        change(patch)
        assert _key() != before
    assert _key() == before


def test_gpus_of_two_architectures_have_builds_of_their_own(monkeypatch):
    keys = set()
    for arch in ("sm_80", "sm_90"):
        monkeypatch.setattr(machine, "arch", lambda arch=arch: arch)
        keys.add(build.fingerprint("copy", "cuda", sum(build.flags("cuda"), [])))
    assert len(keys) == 2


def test_a_build_that_is_broken_is_made_again(own_builds):
    """As after a crash of the machine, or where a cache was copied from one of another kind."""
    key = build.fingerprint("copy", "host", sum(build.flags("host", 4), []))
    broken = own_builds / "copy" / f"host-{key}" / f"copy_{key}.so"
    broken.parent.mkdir(parents=True)
    broken.write_bytes(b"half a library")
    assert "copy: version 4 built for the CPU" in loaded_anew(4)


@pytest.mark.parametrize("left", [0.03, 0.3, 0.65, 0.999, 1])
def test_a_library_of_which_a_part_is_left_is_built_again_and_ends_no_process(own_builds, left):
    loaded_anew(4)
    library, = own_builds.glob("copy/host-*/copy_*.so")
    whole = library.stat().st_size
    os.truncate(library, int(left * whole))
    assert ("reused" if left == 1 else "built for") in loaded_anew(4)
    assert library.stat().st_size == whole


# -- what is kept, and damaged --------------------------------------------------------------------------------

DAMAGES = {
    "a file is shorter": lambda made: os.truncate(made / "in" / "one.o", 3),
    "a file is empty": lambda made: os.truncate(made / "two.o", 0),
    "a file is longer": lambda made: (made / "two.o").write_bytes(b"123456789"),
    "a file is not there": lambda made: (made / "two.o").unlink(),
    "nothing is there": shutil.rmtree,
    "nothing tells its lengths": lambda made: made.with_name("made.sizes").unlink(),
    "what told its lengths is damaged": lambda made: os.truncate(made.with_name("made.sizes"), 9),
    "what told its lengths is zeros": lambda made: made.with_name("made.sizes").write_bytes(bytes(30)),
}


@pytest.mark.parametrize("damage", [None, *DAMAGES])
def test_what_is_kept_is_made_again_where_it_is_damaged_and_only_there(tmp_path, damage):
    def make(work):
        times.append(work)
        (work / "in").mkdir(parents=True)
        (work / "in" / "one.o").write_bytes(b"12345")
        (work / "two.o").write_bytes(b"12345678")

    times = []
    kept = build_folder.made_once(tmp_path / "made", make)
    (kept / "__pycache__").mkdir()  # what comes later is no damage
    if damage:
        DAMAGES[damage](kept)
    assert build_folder.made_once(kept, make) == kept and len(times) == (2 if damage else 1)
    assert (kept / "in" / "one.o").read_bytes() == b"12345" and (kept / "two.o").read_bytes() == b"12345678"
    assert build_folder.is_whole(kept)


def test_a_file_that_is_kept_is_made_again_where_it_is_damaged(tmp_path):
    for text in ("whole", "whole", "whole again"):
        made = build_folder.made_once(tmp_path / "made.o", lambda work: work.write_text(text))
        assert made.read_text() == text
        if text == "whole":
            made.write_text("who")


def test_nobody_takes_for_whole_what_is_being_made_or_was_not_finished(tmp_path):
    with pytest.raises(OSError, match="the disk is full"), build_folder.whole_or_not_at_all(tmp_path / "made") as work:
        work.write_text("half")
        assert not build_folder.is_whole(tmp_path / "made")
        raise OSError("the disk is full")
    assert not build_folder.is_whole(tmp_path / "made") and not list(tmp_path.iterdir())


def test_to_see_that_a_build_is_whole_takes_no_time_that_a_reader_feels(own_builds):
    loaded_anew(4)
    folder = next(own_builds.glob("copy/host-*/"))
    taken = []
    for _ in range(50):
        start = time.perf_counter()
        assert build_folder.is_whole(folder)
        taken.append(time.perf_counter() - start)
    assert min(taken) < 1e-3
