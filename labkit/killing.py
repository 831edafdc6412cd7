"""`kills`: operators with one fault each, and which of the checks finds it.

Each has a process of its own, since a faulty kernel may end it, or leave a GPU unusable for the rest of it.
"""

from __future__ import annotations

import dataclasses
import multiprocessing
import os
import re
import traceback
from concurrent.futures import ThreadPoolExecutor

import torch

from labkit import build, machine, results
from labkit.checking import judge
from labkit.mutants import mutant
from labkit.operator import Operator
from labkit.properties import check_registration
from labkit.report import keep
from labkit.verdict import CHECKS, Verdict

LIMIT = 300  # seconds for a process, and a tenth of it more for each time
TIMES = {"cuda": 50, "host": 1}  # how often the kernels without a fault are checked
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

    Three tables. <name>, a row a fault: whether one comparison passes it, as most tests have it (`passes_one_allclose`); the
    check that has to find it; which others do. <name>_words: the first words of that finding. <name>_checks, a row a
    check: what it looks at, how many faults it finds, and how many that no other finds.

    Returns the rows of the first. Raises Survived where a fault is not found by its `found_by`, or where a kernel as it is
    does not pass every time; ValueError for a `found_by` that there is not; build.BuildError for a fault that does not fit its
    source or does not compile.
    """
    for what, fault in faults.items():
        if fault.found_by not in CHECKS:
            raise ValueError(f"kills: {what!r} is to be found by {fault.found_by!r}; there are {', '.join(CHECKS)}")
    backend = machine.backend()
    times = TIMES[backend] if times is None else times
    sound = {(fault.operator, fault.version): None for fault in faults.values()}
    with ThreadPoolExecutor(max(2, min(8, (os.cpu_count() or 2) // 2))) as pool:
        passed = pool.map(lambda key: judged(Shipped(*key, "", "", ""), backend, times), sound)
        found = dict(zip(faults, pool.map(lambda fault: judged(fault, backend, 1), faults.values())))
    survived = [f"{what!r} is not found by {fault.found_by!r}; found by {', '.join(found[what]['faults']) or 'none'}"
                for what, fault in faults.items() if fault.found_by not in found[what]["faults"]]
    survived += [f"{operator} v{version} as it is does not pass: {one['faults']}"
                 for (operator, version), one in zip(sound, passed) if one["faults"]]
    rows, words, by_check = _tables(faults, found)
    outcome = f"{len(rows)} of {len(rows)} faults found; the kernels as they are pass {times} of {times} times"
    results.note("check", title, "; ".join(survived) or outcome)
    keep({name: results.table_of(title, rows), f"{name}_words": results.table_of(f"{title}, in words", words),
          f"{name}_checks": results.table_of(f"{title}: what each check finds", by_check)})
    if survived:
        raise Survived("kills: " + "\n".join(survived))
    print(f"{title}: {outcome}.")
    return rows


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


def judged(fault: Shipped, backend: str, times: int) -> dict:
    """What a process of its own found: {"faults": {check: words}, "one allclose": "passes", "fails" or "not run"}.

    The fault may be none: `old` empty. Raises BuildError for one that does not compile, RuntimeError where the process failed
    otherwise than by a signal or an error of CUDA, which are findings.
    """
    # A process that is forked from one that has all imported is ready at once; but CUDA does not survive a fork.
    context = multiprocessing.get_context("spawn" if backend == "cuda" else "forkserver")
    if backend != "cuda":
        context.set_forkserver_preload(["labkit.killing", "torch.utils.cpp_extension", "functorch.compile",
                                        "torch._dynamo.testing", "torch.testing._internal.optests"])
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_tell, args=(theirs, fault, backend, times))
    process.start()
    theirs.close()
    try:
        if not ours.poll(limit := LIMIT * (1 + times / 10)):
            return _ended(f"no end after {limit:.0f} s")
        found = ours.recv()
    except EOFError:
        process.join()
        if process.exitcode >= 0:
            raise RuntimeError(f"kills: the process of {fault} ended with {process.exitcode} and said nothing") from None
        return _ended(f"it ended the process by signal {-process.exitcode}")
    finally:
        process.kill()
        process.join()
    if "error" in found:
        raise {"BuildError": build.BuildError}.get(found["kind"], RuntimeError)(f"kills: {fault}: {found['error']}")
    return found


def _ended(how: str) -> dict:
    return {"faults": {"launch": how}, "one allclose": "not run"}


# -- the child ----------------------------------------------------------------------------------------------

def _tell(pipe, fault: Shipped, backend: str, times: int) -> None:
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (1, 2):  # what it builds, and what PyTorch warns of
        os.dup2(nowhere, stream)
    torch.set_num_threads(1)  # several of these run at a time
    try:
        pipe.send(_found(fault, backend, times))
    except Exception as error:  # of any kind: it is the parent's to raise
        pipe.send({"kind": type(error).__name__, "error": "".join(traceback.format_exception(error))})


def _found(fault: Shipped, backend: str, times: int) -> dict:
    if fault.old:
        operator = mutant(fault.operator, fault.version, fault.old, fault.new, backend, file=fault.file)
    else:
        operator = build.load(fault.operator, fault.version, backend=backend)
    verdict, passes = Verdict(), "not run"
    modes, dtypes = list(operator.reference.MODES), list(operator.reference.DTYPES)
    try:
        passes = "passes" if passes_one_allclose(operator, fault.version) else "fails"
        for seed in range(times):
            judge(operator, [fault.version], modes, dtypes, seed, verdict)
        if "outside" not in verdict.faults:
            check_registration(operator, fault.version, modes, dtypes, verdict)
    except RuntimeError as error:
        if backend != "cuda" or "CUDA error" not in str(error):  # which comes at some later call
            raise
        verdict.fault("launch", str(error))
    return {"faults": {check: _first_words(str(failed)) for check, failed in verdict.faults.items()}, "one allclose": passes}


def _first_words(message: str) -> str:
    """The first line, and the next where that only announces it, without this machine's paths."""
    lines = re.sub(r"/\S*/(?=[\w.]+)", "", message.strip()).splitlines()
    return " ".join(line.strip() for line in lines[:2 if lines[0].endswith((",", ":")) else 1])
