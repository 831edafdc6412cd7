"""`kills`: operators with one fault each, and which of the checks finds it.

Each has a process of its own, since a faulty kernel may end it, or leave a GPU unusable for the rest of it.
"""

from __future__ import annotations

import dataclasses
import multiprocessing
import os
import traceback
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Callable

import torch

from labkit import build, machine, results
from labkit.arguments import named
from labkit.build_errors import without_folders
from labkit.checking import judge
from labkit.mutants import mutant
from labkit.operator import Operator
from labkit.properties import check_registration
from labkit.report import keep
from labkit.verdict import CHECKS, Verdict

LIMIT = 600  # seconds for a process
TIMES = {"cuda": 50, "host": 1}  # how often the kernels without a fault are checked
PRELOADED = ["labkit.killing", "torch.utils.cpp_extension", "functorch.compile", "torch._dynamo.testing",
             "torch._inductor.compile_fx", "torch.testing._internal.optests"]  # what a build and the checks import
TIMES_OF_A_PROCESS = 10  # at most
OF_A_PROCESS = 2 << 30  # bytes of a GPU's memory, its context included
SIDE, TOLERANCE = 1024, 1e-3  # of `passes_one_allclose`


@dataclasses.dataclass(frozen=True)
class Shipped:
    """A fault that people ship: `new` instead of `old` in an operator, as `mutant` takes them, and what has to find it.

    found_by: a name of labkit.verdict.CHECKS.
    """

    operator: str
    version: int
    old: str
    new: str
    found_by: str
    file: str | None = None


class Survived(AssertionError):
    """A fault was not found by the check that has to find it, or a kernel without a fault did not pass."""


def kills(name: str, faults: dict[str, Shipped], title: str, times: int | None = None) -> list[dict]:
    """Plants each fault on this machine's backend, runs everything that `check` looks at, and shows what found it.

    name: what the table is called in results/. faults: {what is wrong: Shipped}. title: the tables' head. times: how
    often the same kernels are checked as they are, each time with other inputs; by default 50 on a GPU and 1 on the CPU.

    Each fault has processes of its own. They import the script that calls this, if it is one and no notebook; so call it there
    under `if __name__ == "__main__":`.

    Three tables. <name>, a row a fault: whether one comparison passes it, as most tests have it (`passes_one_allclose`); the
    check that has to find it; which others do. <name>_words: the first words of that finding. <name>_checks, a row a
    check: what it looks at, how many faults it finds, and how many that no other finds.

    Returns the rows of the first. Raises Survived where a fault is not found by its `found_by`, or where a kernel as it is
    does not pass every time; ValueError for a `found_by` that there is not; build.BuildError for a fault that does not fit its
    source or does not compile.
    """
    named("kills", "faults", faults, "Shipped", lambda fault: isinstance(fault, Shipped))
    for what, fault in faults.items():
        if fault.found_by not in CHECKS:
            raise ValueError(f"kills: {what!r} is to be found by {fault.found_by!r}; there are {', '.join(CHECKS)}")
    backend = machine.backend()
    times = TIMES[backend] if times is None else times
    sound = [(kernel, range(times)[first:first + TIMES_OF_A_PROCESS])
             for kernel in dict.fromkeys((fault.operator, fault.version) for fault in faults.values())
             for first in range(0, times, TIMES_OF_A_PROCESS)]
    with ThreadPoolExecutor(_at_a_time(backend)) as pool:
        passed = pool.map(lambda job: judged(Shipped(*job[0], "", "", ""), backend, job[1]), sound)
        found = dict(zip(faults, pool.map(lambda fault: judged(fault, backend), faults.values())))
    survived = [f"{what!r} is not found by {fault.found_by!r}; found by {', '.join(found[what]['faults']) or 'none'}"
                for what, fault in faults.items() if fault.found_by not in found[what]["faults"]]
    survived += [f"{operator} v{version} as it is does not pass: {one['faults']}"
                 for ((operator, version), _), one in zip(sound, passed) if one["faults"]]
    rows, words, by_check = _tables(faults, found)
    outcome = f"{len(rows)} of {len(rows)} faults found; the kernels as they are pass {times} of {times} times"
    results.note("check", title, "; ".join(survived) or outcome)
    keep({name: results.table_of(title, rows), f"{name}_words": results.table_of(f"{title}, in words", words),
          f"{name}_checks": results.table_of(f"{title}: what each check finds", by_check)})
    if survived:
        raise Survived("kills: " + "\n".join(survived))
    print(f"{title}: {outcome}.")
    return rows


def _at_a_time(backend: str) -> int:
    """How many processes the cores, and the memory of a GPU, have room for."""
    processes = max(2, (os.cpu_count() or 2) - 1)
    return processes if backend != "cuda" else max(1, min(processes, torch.cuda.mem_get_info()[0] // OF_A_PROCESS))


def _tables(faults: dict[str, Shipped], found: dict[str, dict]) -> tuple[list[dict], list[dict], list[dict]]:
    rows, words = [], []
    for what, fault in faults.items():
        by = found[what]["faults"]
        rows.append({"fault": what, "in": f"{fault.operator} v{fault.version}", "one allclose": found[what]["one allclose"],
                     "found by": fault.found_by if fault.found_by in by else "not found",
                     "and by": ", ".join(other for other in CHECKS if other in by and other != fault.found_by)})
        words.append({"fault": what, "check": fault.found_by, "in words": by.get(fault.found_by, "nothing")})
    finders = [set(found[what]["faults"]) for what in faults]
    by_check = [{"check": check, "what it looks at": sentence, "finds": sum(check in each for each in finders),
                 "alone": sum(each == {check} for each in finders)} for check, sentence in CHECKS.items()]
    return rows, words, by_check


def passes_one_allclose(operator: Operator, version: int) -> bool:
    """A test as many projects have it: one float32 matrix with many zeros in its sizes, result and gradient, torch.allclose."""
    reference = next(iter(operator.reference.MODES.values()))[2]
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(SIDE, SIDE, generator=generator).to(operator.device).requires_grad_()
    exact = x.detach().double().requires_grad_()
    y, right = operator(x, version=version), reference(exact)[0]
    y.sum().backward()
    right.sum().backward()
    return all(torch.allclose(got.double(), want, rtol=TOLERANCE, atol=TOLERANCE)
               for got, want in ((y, right), (x.grad, exact.grad)))


def judged(fault: Shipped, backend: str, seeds: range = range(1)) -> dict:
    """What processes of their own found: {"faults": {check: words}, "one allclose": "passes" or "fails"}.

    The fault may be none: `old` empty; then "one allclose" is not asked for. It is checked once for each seed. Raises
    BuildError for one that does not compile, RuntimeError where a process failed otherwise than by a signal or an error of
    CUDA, which are findings.
    """
    # Apart, since a fault that leaves a GPU unusable would decide both.
    passes = {"one allclose": _asked(_one_allclose, fault, backend)} if fault.old else {}
    faults = _asked(_faults, fault, backend, seeds)
    ended = isinstance(faults, str)
    return {"faults": {"launch": faults} if ended else faults,
            **{name: one if one == "passes" else "fails" for name, one in passes.items()}}


def _asked(question: Callable, fault: Shipped, backend: str, *more: Any) -> Any:
    """What a function of the operator answers in a process of its own, or in words how that ended without an answer."""
    # A process that is forked from one that has all imported is ready at once. But where torch sees a GPU the imports ask for
    # it, and after that no fork may use CUDA, as torch.library.opcheck does on the host backend too.
    forked = not torch.cuda.is_available()
    context = multiprocessing.get_context("forkserver" if forked else "spawn")
    if forked:
        context.set_forkserver_preload(PRELOADED)
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_tell, args=(theirs, question, fault, backend, *more))
    process.start()
    theirs.close()
    try:
        if not ours.poll(LIMIT):
            return f"no end after {LIMIT} s"
        kind, answer = ours.recv()
    except EOFError:
        process.join()
        if process.exitcode >= 0:
            raise RuntimeError(f"kills: the process of {fault} ended with {process.exitcode} and said nothing") from None
        return f"it ended the process by signal {-process.exitcode}"
    finally:
        process.kill()
        process.join()
    if kind:
        raise {"BuildError": build.BuildError}.get(kind, RuntimeError)(f"kills: {fault}: {answer}")
    return answer


# -- the child ----------------------------------------------------------------------------------------------

def _tell(pipe, question: Callable, fault: Shipped, backend: str, *more: Any) -> None:
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (1, 2):  # what it builds, and what PyTorch warns of
        os.dup2(nowhere, stream)
    torch.set_num_threads(1)  # several of these run at a time
    try:
        if fault.old:
            operator = mutant(fault.operator, fault.version, fault.old, fault.new, backend, file=fault.file)
        else:
            operator = build.load(fault.operator, fault.version, backend=backend)
        pipe.send(("", question(operator, fault.version, *more)))
    except Exception as error:  # of any kind: it is the parent's to raise
        pipe.send((type(error).__name__, "".join(traceback.format_exception(error))))


def _one_allclose(operator: Operator, version: int) -> str:
    try:
        return "passes" if passes_one_allclose(operator, version) else "fails"
    except RuntimeError as error:
        if not _is_of_cuda(error, operator):
            raise
        return "fails"


def _faults(operator: Operator, version: int, seeds: range) -> dict[str, str]:
    verdict = Verdict()
    modes, dtypes = list(operator.reference.MODES), list(operator.reference.DTYPES)
    try:
        for seed in seeds:
            judge(operator, [version], modes, dtypes, seed, verdict)
        if "outside" not in verdict.faults:
            check_registration(operator, version, modes, dtypes, verdict)
    except RuntimeError as error:
        if not _is_of_cuda(error, operator):
            raise
        verdict.fault("launch", str(error))
    return {check: _first_words(str(failed)) for check, failed in verdict.faults.items()}


def _is_of_cuda(error: RuntimeError, operator: Operator) -> bool:
    """Whether a kernel's failure is told, as it is at some later call."""
    return operator.device.type == "cuda" and "CUDA error" in str(error)


def _first_words(message: str) -> str:
    """The first line, and the next where that only announces it, without this machine's paths."""
    lines = without_folders(message.strip()).splitlines()
    return " ".join(line.strip() for line in lines[:2 if lines[0].endswith((",", ":")) else 1])
