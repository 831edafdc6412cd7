"""`grade`: what is right in a learner's file, what is not, and what to think of; the same with a GPU and without.

The file takes the place of an operator's .cu, in a copy of that operator's folder, and is traced on the CPU. So a missing
barrier, a store too far and a bank conflict are seen every time, whatever the numbers are. It is included there, so that it
needs no list of versions, and its lines count as in the learner's editor.

The inputs are drawn as `labkit.check` draws them. Where the exercise's reference.py has a function `given(mode, inputs)`, what
it returns for them is taken instead: numbers that belong together, or another place in memory.
"""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import io
import math
import os
import pickle
import re
import resource
import tempfile
from functools import partial
from pathlib import Path
from typing import Iterator

import torch

from labkit import launching, machine, results, source_files
from labkit.apart import launched_apart
from labkit.build import BuildError, digest, load, sources_under
from labkit.build_errors import of_this_machine
from labkit.build_folder import build_root, made_once
from labkit.cases import draw_inputs
from labkit.cubin import NoCompiler, compile_cubin
from labkit.exercises import CHECKS, LIMITS, Exercise, Launch, read
from labkit.modes import usual
from labkit.operator import Operator, kernels, kernels_of
from labkit.precision import spacing
from labkit.references import allowed, exact_outputs
from labkit.tracing import traced

# Which check a finding of the trace belongs to; every other kind is one of "bounds".
_OF = {"launch failed": "ends", "barrier not reached by all": "barriers", "shuffle from an absent lane": "barriers",
       "race": "races", "race in a warp": "races", "race between blocks": "races",
       "output left unwritten": "written", "read of what nothing has written yet": "written"}
_COUNTED = "reads", "writes", "accesses", "requests", "conflicts", "wavefronts"
_OLDEST = "sm_75"  # of the GPUs that the book is for
_LINES, _BYTES = 40, 1 << 20  # of what a kernel prints: shown, and kept
IDEAS = {
    "builds": "The compiler's first error is the one to mend; later ones often follow from it.",
    "ends": "A thread waits for what never comes, or the launch asks for more than a block can have.",
    "bounds": "Which threads have no element, and who tells them so?",
    "barriers": "A barrier stands where all threads of the block pass, or none.",
    "races": "One thread needs what another has stored. What makes it wait until that has happened?",
    "written": "Each element needs one thread that owns it. Write down which elements thread 0 and thread 1 of block 1 own.",
    "values": "Take the smallest size that is wrong, and compute its first wrong element by hand.",
    "gradient": "Differentiate the formula on paper, and compare it with the code at 0 and at a large number.",
    "stream": "PyTorch has handed over the stream in which its own work is waiting. Which launch does not name it?",
    "reads": "Which addresses do the 32 lanes of a warp read in one instruction? A sector has 32 bytes.",
    "writes": "Which addresses do the 32 lanes of a warp write in one instruction? A sector has 32 bytes.",
    "accesses": "How often does a thread go to global memory for its element? What it has read already is in a register.",
    "requests": "How often does a warp go to global memory for each element? One read and one write can be enough.",
    "conflicts": "A word's bank is its index modulo 32. Which words do the lanes of a warp ask for at once?",
    "wavefronts": "How often does a warp go to shared memory, and how many of its lanes have something to do there?",
    "nvcc": "A GPU calls only what is marked __device__. And PyTorch has nvcc take no 16-bit number for a float unasked, nor a "
            "float for such a number: to_compute and to_element<T> convert.",
    "time": "What limits it now? `labkit.what_limits` tells.",
}


@dataclasses.dataclass(frozen=True)
class Seen:
    """What came of one check: right (None: not looked at), and in words what was seen."""

    check: str
    right: bool | None
    words: str


@dataclasses.dataclass(frozen=True)
class Grade:
    """What `grade` returns: passed, and what each check saw. `failed` is the first that is not right, or None. printed: what
    came of the kernel's printf.
    """

    name: str
    seen: tuple[Seen, ...]
    idea: str | None
    printed: str = ""

    @property
    def failed(self) -> Seen | None:
        return next((each for each in self.seen if each.right is False), None)

    @property
    def passed(self) -> bool:
        return self.failed is None


@usual
def grade(name: str, file: Path | str | None = None, show: bool = True) -> Grade:
    """Says which checks the learner's file passes, and for the first that it does not, what idea is missing.

    name: an exercise. file: another file than the learner's own. show: whether it is printed.

    Checks come in the order of exercises.CHECKS, and what follows the first that fails is not looked at. The file is compiled
    for the CPU and traced in a process apart, so one that crashes or never ends costs nothing else. Where there is nvcc, that
    has to compile it as well; where there is a GPU, and the exercise asks for it, it is then timed there beside a copy.
    Raises LookupError for no such exercise, FileNotFoundError where there is no file yet, BuildError where a compiler, disk
    or memory is missing, which is no fault of the file.
    """
    asked = read(name)
    path = Path(file) if file else asked.file
    if not path.is_file():
        raise FileNotFoundError(f'grade: there is no {path}; labkit.exercise("{name}") makes it')
    with tempfile.NamedTemporaryFile() as printed:
        seen = tuple(_seen(asked, path.read_text(encoding="utf-8-sig", errors="replace"), Path(printed.name)))
        said = Path(printed.name).read_text(encoding="utf-8", errors="replace")
    failed = next((each for each in seen if each.right is False), None)
    found = Grade(name, seen, failed and asked.ideas.get(failed.check, IDEAS[failed.check]), said)
    if show:
        _show(asked, found)
        results.note("check", f"exercise {name}", "passed" if found.passed else f"not yet: {failed.check}")
    return found


def _seen(asked: Exercise, text: str, printed: Path) -> Iterator[Seen]:
    """Each check in turn; after the first that fails, the others as not looked at."""
    folder, failed = _folder(asked, text), None
    for check, right, words in _checks(asked, folder, text, printed):
        yield Seen(check, right, words.replace(f"{folder / asked.operator}/", "").replace(f"{folder}/", ""))
        if right is False:
            failed = check
            break
    if failed:
        for check in CHECKS[CHECKS.index(failed) + 1:]:
            if check in _asked_for(asked):
                yield Seen(check, None, "not looked at yet")


def _asked_for(asked: Exercise) -> list[str]:
    backward = {launch.mode.startswith("backward") for launch in asked.launches}
    absent = {"values": False not in backward, "gradient": True not in backward}
    return [check for check in CHECKS if (check in asked.limits if check in LIMITS else not absent.get(check))]


def _checks(asked: Exercise, folder: Path, text: str, printed: Path) -> Iterator[tuple[str, bool | None, str]]:
    with kernels_of(folder):
        try:
            with contextlib.redirect_stdout(io.StringIO()):  # what it builds
                operator = load(asked.operator, version=1, backend="trace", launch=False)
        except BuildError as error:
            if of_this_machine(str(error)):
                raise
            yield "builds", False, _of_a_build(str(error))
            return
        yield "builds", True, "compiled for the CPU, with every access traced"
        traced = _traced(operator, asked, printed)
        for check in ("ends", "bounds", "barriers", "races", "written"):
            found = _of_the_trace(check, traced)
            yield (_of_the_text(check, asked, text) or found) if found[1] else found
        for check, backward in ("values", False), ("gradient", True):
            if those := [each for each in traced if each[0].mode.startswith("backward") == backward]:
                yield _values(check, operator, asked, those)
        yield "stream", *_in_its_stream(traced)
        launch, totals = traced[-1][0], traced[-1][1]["totals"]
        for check in _COUNTED:
            if check in asked.limits:
                yield check, *_counted(check, totals, asked.limits[check], _title(launch))
        yield "nvcc", *_for_a_gpu(asked)
        if "time" in asked.limits:
            yield "time", *_timed(asked)


def _folder(asked: Exercise, text: str) -> Path:
    """A copy of the operator's folder, and of include/, with the learner's text for its .cu and the exercise's reference."""
    base, reference = kernels() / asked.operator, asked.folder / "reference.py"
    own = reference.read_text(encoding="utf-8") if reference.exists() else None
    around = f'//   v1  a learner\'s\n#include "{asked.name}.cu"\n'

    def write(work: Path) -> None:
        source_files.copy(base, work / asked.operator)
        source_files.copy(kernels() / "include", work / "include")
        (work / asked.operator / f"{asked.operator}.cu").write_text(around, encoding="utf-8")
        (work / asked.operator / f"{asked.name}.cu").write_text(text, encoding="utf-8")
        if own:
            (work / asked.operator / "reference.py").write_text(own, encoding="utf-8")

    key = digest(sources_under(base, kernels() / "include"), around, text, own or "")
    return made_once(build_root() / "exercises" / key, write)


def _traced(operator: Operator, asked: Exercise, printed: Path) -> list[tuple[Launch, dict]]:
    """What the trace saw in each launch: findings, outputs, totals, streamless (launches that name no stream); {"error": words}
    for one that ended its process. The first that fails is the last: a person waits. What they print goes to `printed`.
    """
    streamless = ctypes.CDLL(str(operator.library)).cuda_host_launches_without_a_stream
    streamless.restype = ctypes.c_ulonglong

    def told(prepared: launching.Launch) -> list[torch.Tensor]:
        _print_to(printed)
        try:
            found = traced(prepared)
        except RuntimeError as error:
            found = {"error": str(error)}
        else:
            found = {"findings": found.findings, "outputs": found.outputs, "streamless": streamless(), "totals": {
                (does, shared): found.total(does, shared) for does in ("reads", "writes", "updates")
                for shared in (False, True)}}
        return [torch.frombuffer(bytearray(pickle.dumps(found)), dtype=torch.uint8)]

    seen = []
    # Before they run apart, where nothing is differentiated.
    prepared = [launching.prepare(operator, "trace", None, launch.mode, None, None, _inputs(operator, asked, launch))
                for launch in asked.launches]
    try:  # all in one process, since to make one takes longer than most launches
        for (packed,) in launched_apart([partial(told, each) for each in prepared]):
            seen.append((asked.launches[len(seen)], pickle.loads(packed.numpy().tobytes())))
            if not _of_the_trace("ends", seen)[1]:
                break
    except RuntimeError as error:
        seen.append((asked.launches[len(seen)], {"error": str(error)}))
    return seen


def _print_to(file: Path) -> None:
    """What this process prints goes to the end of a file from here on, and is lost once that is full."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (_BYTES, _BYTES))
    to = os.open(file, os.O_WRONLY | os.O_APPEND)
    os.dup2(to, 1)
    os.dup2(to, 2)


def _without_advice(words: str) -> str:
    """What `trace` and `launched_apart` say of a launch, without what is for those who call them."""
    words = re.sub(r"(; labkit\.trace says|\. (This|Its) process).*", "", words)
    return words.replace("Trace a smaller size; or its loop", "A loop")


def _of_a_build(words: str) -> str:
    """A BuildError's words; where the loader misses a function, its name and what to do."""
    missing = re.search(r"undefined symbol: _Z(\d+)(\w+)", words)
    return (f"the operator calls {missing[2][:int(missing[1])]}, and your file has none with the starter's parameters"
            if missing else words)


def _of_the_text(check: str, asked: Exercise, text: str) -> tuple[str, bool, str] | None:
    """Where the exercise needs for this check what no trace shows, and the text, without its comments, does not have it."""
    code = re.sub(r"/\*.*?\*/|//[^\n]*", "", text, flags=re.DOTALL)
    needed = asked.needs.get(check)
    return (check, False, needed["words"]) if needed and not re.search(needed["code"], code) else None


def _in_its_stream(traced: list[tuple[Launch, dict]]) -> tuple[bool, str]:
    at = next((launch for launch, found in traced if found["streamless"]), None)
    if at:
        return False, f"{_title(at)}: a launch names no stream; on a GPU it would not wait for the work of PyTorch's own stream"
    return True, "every launch is in the stream that PyTorch has handed over"


def _inputs(operator: Operator, asked: Exercise, launch: Launch) -> list[torch.Tensor]:
    inputs = draw_inputs(operator.reference, launch.mode, launch.dtype, torch.device("cpu"), {"shape": launch.size}, seed=0)
    for name, values in zip(operator.reference.MODES[launch.mode][0], inputs, strict=True):
        if not name.startswith("grad"):
            given = asked.numbers[:values.numel()]
            values.view(-1)[:len(given)] = torch.tensor(given, dtype=values.dtype)
    change = getattr(operator.reference, "given", None)
    return change(launch.mode, inputs) if change else inputs


def _title(launch: Launch) -> str:
    return f"{launch.mode}, {' × '.join(map(str, launch.size))} {str(launch.dtype).removeprefix('torch.')}"


def _of_the_trace(check: str, traced: list[tuple[Launch, dict]]) -> tuple[str, bool, str]:
    for launch, found in traced:
        if check == "ends" and "error" in found:
            return check, False, f"{_title(launch)}: {_without_advice(found['error'])}"
        for finding in found.get("findings", ()):
            if _OF.get(finding.kind, "bounds") == check:
                return check, False, f"{_title(launch)}: {_without_advice(str(finding))}"
    return check, True, {"ends": "every launch came to its end", "bounds": "no access outside of an array",
                         "barriers": "every barrier is reached by all threads of its block",
                         "races": "no two threads use an element without an order",
                         "written": "every element of the outputs is written, and none is read before"}[check]


def _values(check: str, operator: Operator, asked: Exercise, traced: list[tuple[Launch, dict]]) -> tuple[str, bool, str]:
    """Each output against float64, within what the reference allows; the first element that is off."""
    for launch, found in traced:
        inputs, names = _inputs(operator, asked, launch), operator.reference.MODES[launch.mode][1]
        wanted = exact_outputs(operator.reference, launch.mode, inputs)
        most = allowed(operator.reference, launch.mode, launch.dtype, operator.latest, launch.size)
        for name, got, want, (ulps, absolute) in zip(names, found["outputs"], wanted, most, strict=True):
            near = (got.double() - want).abs() <= ulps * spacing(want, got.dtype) + absolute  # nothing infinite is, nor NaN
            near |= (got.double() == want) | (got.isnan() & want.isnan())
            if not near.all():
                index = tuple((~near).nonzero()[0].tolist())
                return check, False, (f"{_title(launch)}: {name}[{', '.join(map(str, index))}] is "
                                      f"{_told_apart(got[index].item(), want[index].item())}"
                                      f"{_where(operator, launch, inputs, got, index)}; {int((~near).sum()):,} of "
                                      f"{near.numel():,} are off")
    return check, True, f"{len(traced)} launches agree with float64"


def _where(operator: Operator, launch: Launch, inputs: list[torch.Tensor], output: torch.Tensor, index: tuple[int, ...]) -> str:
    """", where x is 2" of each input that has an element for each of the output."""
    names = operator.reference.MODES[launch.mode][0]
    found = [f"{name} is {t[index].item():.6g}" for name, t in zip(names, inputs) if t.shape == output.shape]
    return f", where {' and '.join(found)}" if found else ""


def _told_apart(got: float, wanted: float) -> str:
    """Both numbers, in so many digits that one sees them differ."""
    digits = 6 if f"{got:.6g}" != f"{wanted:.6g}" else 17
    return f"{got:.{digits}g}, and has to be {wanted:.{digits}g}"


def _counted(check: str, totals: dict, limit: float, title: str) -> tuple[bool, str]:
    if check in ("conflicts", "wavefronts"):
        found = sum(getattr(totals[does, True], check) for does in ("reads", "writes"))
        found += totals["updates", True].lanes if check == "wavefronts" else 0  # atomics on one word go one by one
        what = {"conflicts": "bank conflicts", "wavefronts": "wavefronts of shared memory"}[check]
        return found <= limit, f"{title}: {found:,} {what}; at most {limit:,}"
    if check == "requests":
        found = sum(totals[does, False].requests for does in ("reads", "writes", "updates"))
        return found <= limit, f"{title}: {found:,} requests of global memory; at most {limit:,}"
    if check == "accesses":
        found = sum(totals[does, False].lanes for does in ("reads", "writes", "updates"))
        return found <= limit, f"{title}: its threads access global memory {found:,} times; at most {limit:,}"
    total = totals[check, False]
    found = total.sectors / total.requests if total.requests else math.inf
    return found <= limit, f"{title}: {found:.3g} sectors a request; at most {limit:g}"


def _for_a_gpu(asked: Exercise) -> tuple[bool | None, str]:
    """Whether nvcc takes it, too: the compiler for the CPU knows no __device__, and converts 16-bit numbers unasked."""
    try:
        compile_cubin(asked.operator, arch=_OLDEST, without=["-lineinfo"])
    except NoCompiler as error:
        return None, str(error)
    except BuildError as error:
        if of_this_machine(str(error)):
            raise
        return False, f"nvcc refuses what the compiler for the CPU took: {error}"
    return True, f"nvcc compiles it for {_OLDEST}"


def _timed(asked: Exercise) -> tuple[bool | None, str]:
    """Its first mode on the GPU beside a copy of the same bytes."""
    if machine.backend() != "cuda":
        return None, "there is no GPU here"
    from labkit.room import neighbours
    from labkit.timing import timed

    others = neighbours()  # while this process does nothing there
    with contextlib.redirect_stdout(io.StringIO()):
        operator = load(asked.operator, version=1, backend="cuda", launch=False)
    launch = dataclasses.replace(asked.launches[0], size=asked.timed)
    inputs = [t.to(operator.device) for t in _inputs(operator, asked, launch)]
    call = getattr(operator.ops, launch.mode)
    made = call(*inputs, operator.latest)
    moved = sum(t.nbytes for t in [*inputs, *([made] if torch.is_tensor(made) else made)])
    plain = torch.empty(moved // 2, dtype=torch.uint8, device=operator.device)
    rows = timed({"copy": lambda *given: plain.clone(), "yours": lambda *given: call(*given, operator.latest)}, lambda: inputs,
                 moved, "copy", None, None, 20, asked.title)["rows"]
    share = next(row["of_limit"] for row in rows if row["name"] == "yours")
    return _fast_enough(share, asked.limits["time"], _title(launch), others)


def _fast_enough(share: float, least: float, title: str, others: str | None) -> tuple[bool | None, str]:
    """others: what other processes do on the GPU, in words; beside them a right answer may be slow, and is not judged."""
    words = f"{title}: {share:.0%} of the speed of a copy; at least {least:.0%}"
    return (None, f"{words}; not judged: {others}") if others and share < least else (share >= least, words)


def _show(asked: Exercise, found: Grade) -> None:
    marks = {True: "✓", False: "✗", None: "·"}
    print(f"{asked.title}: {'passed' if found.passed else 'not yet'}")
    for each in found.seen:
        print(f"  {marks[each.right]} {each.check:<10} {each.words}")
    if found.printed:
        lines = found.printed.splitlines()
        print("Your kernel printed:", *lines[:_LINES], sep="\n  ")
        if len(lines) > _LINES:
            print(f"  and {len(lines) - _LINES:,} lines more")
    if found.idea:
        print(f"Think of this: {found.idea}")
