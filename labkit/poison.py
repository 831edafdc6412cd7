"""A CUDA fault poisons its process: from then on every call of CUDA fails there with that fault's words, whoever makes it.

So that the next operator is not blamed for it: `labkit.bench`, `labkit.check` and the first launch of a load look before they
begin, and in a notebook the cell that made the fault says so at its own end, though a launch reports nothing itself.
"""

from __future__ import annotations

import functools
import re
import sys
from typing import Any, Callable

# The errors after which CUDA's documentation says that the process must end (cudaErrorIllegalAddress and its like).
_FAULTS = re.compile(
    r"an illegal memory access was encountered|unspecified launch failure|misaligned address|an illegal instruction was "
    r"encountered|invalid program counter|operation not supported on global/shared address space|device-side assert "
    r"triggered|hardware stack error|the launch timed out and was terminated|uncorrectable (?:ECC|NVLink) error|"
    r"the MPS client has been terminated by the server|tensor memory not completely freed|Invalid access of peer GPU memory|"
    r"an async error has occur+ed in external entity outside of CUDA")


class Poisoned(RuntimeError):
    """An earlier CUDA fault has ended what this process can do on a GPU."""


def fault_in(said: str) -> str | None:
    """The fault of CUDA that an error's text tells of, of those that poison a process; None for any other text."""
    found = _FAULTS.search(said)
    return found[0] if found else None


def fault() -> str | None:
    """The fault that has poisoned this process, once its GPU has done what it was given; None where none has."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return None
    try:
        torch.cuda.synchronize()
    except RuntimeError as error:
        return fault_in(str(error))
    return None


def advice(fault: str) -> str:
    """What to do after a fault."""
    return (f"Restart the kernel (a program: start it anew): a CUDA fault ({fault}) has poisoned this process's context, and "
            "nothing runs on the GPU in it any more")


def told(function: Callable) -> Callable:
    """The function, which raises Poisoned where the process was poisoned before the call; an error of a call that poisons it
    ends in what to do.
    """
    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        if earlier := fault():
            raise Poisoned(f"Not begun. {advice(earlier)}")
        try:
            return function(*args, **kwargs)
        except Exception as error:
            if (made := fault()) and advice(made) not in str(error):
                error.args = (f"{error}\n{advice(made)}", *error.args[1:])
            raise
    return call


def watch() -> None:
    """In a notebook, from now on, each cell after which the process is poisoned ends in what to do."""
    if "IPython" in sys.modules and (shell := sys.modules["IPython"].get_ipython()) is not None:
        shell.events.register("post_run_cell", _after_a_cell)


def _after_a_cell(result: Any) -> None:
    if made := fault():
        print(f"{advice(made)}.", file=sys.stderr)
