"""What `check` looks at, by name, and a verdict that gathers what it finds."""

from __future__ import annotations

import contextlib
from typing import Any, Callable, Iterator

import torch

CHECKS = {
    "launch": "every call is accepted",
    "unwritten": "every element of an output is written",
    "values": "every element is as near to the float64 reference as the type allows",
    "outside": "nothing around an output is written",
    "inputs": "no input is changed",
    "layout": "a result has the shape and the strides that PyTorch expects",
    "special": "large inputs give finite results, and NaN gives NaN",
    "again": "a call owes nothing to an earlier one, and leaves its result alone",
    "order": "other orders of threads, and repetitions, give the same bits",
    "stream": "it runs on torch's current stream, in turn with what is there",
    "gradient": "autograd's gradients agree with finite differences",
    "registration": "what it tells PyTorch of itself is true (torch.library.opcheck, and what autograd is told)",
}


class CheckFailed(AssertionError):
    """An operator has a fault. `check` is the name of what found it, of CHECKS; the message says where and what."""

    def __init__(self, name: str, message: str):
        super().__init__(message)
        self.check = name


class Verdict:
    """Gathers faults: `faults` is {name of CHECKS: the first that it found}. Or ends at the first, by raising it."""

    def __init__(self, ends_at_the_first: bool = False):
        self.ends_at_the_first = ends_at_the_first
        self.faults: dict[str, CheckFailed] = {}

    def fault(self, check: str, message: str) -> None:
        """Tells of one; CheckFailed where the first is to end it."""
        failed = CheckFailed(check, message)
        if self.ends_at_the_first:
            raise failed
        self.faults.setdefault(check, failed)

    @contextlib.contextmanager
    def of_a_call(self, where: str) -> Iterator[None]:
        """Within, that an operator refuses a call is a fault of "launch", and the rest is left out."""
        try:
            yield
        except Refused as refused:
            self.fault("launch", f"{where}: {refused}")


class Refused(Exception):
    """An operator raised an error where it should have computed."""


def called(function: Callable, *arguments: Any) -> Any:
    """What the function returns, once a GPU has done it; Refused where it raises a RuntimeError, as operators do."""
    try:
        returned = function(*arguments)
        if torch.cuda.is_initialized():
            torch.cuda.synchronize()  # an error of a kernel would come at some later call, and not be the operator's
        return returned
    except RuntimeError as error:
        raise Refused(str(error)) from error
