"""`launched_apart`: launches on the CPU in a process of their own, so that one that crashes or never ends costs only that."""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import multiprocessing
import signal
import warnings
from typing import Callable, Iterator, Sequence

import torch

LIMIT = 60.0  # seconds for a launch; one that a person waits for takes far less

Launches = Sequence[Callable[[], Sequence[torch.Tensor]]]


def launched_apart(launches: Launches) -> Iterator[list[torch.Tensor]]:
    """Calls each in turn in a copy of this process, and yields the tensors that it returns, dense.

    The copy is forked, so that it costs little; it should run kernels and little else, since locks and threads of this process
    are not its own. Autograd raises there, once this process has used it on a GPU. RuntimeError in place of the first that
    raises anything, ends its process, or does not end within LIMIT seconds.
    """
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_tell, args=(theirs, launches))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12 warns of any fork beside threads
        process.start()
    theirs.close()
    with contextlib.closing(ours):
        try:
            for _ in launches:
                yield [torch.frombuffer(bytearray(data), dtype=dtype).view(shape) if data else torch.empty(shape, dtype=dtype)
                       for data, dtype, shape in _received(ours)]
        except EOFError:
            process.join()
            raise RuntimeError(f"the launch ended its process {_end(process.exitcode)}. This process goes on") from None
        finally:
            process.kill()
            process.join()


def _end(code: int) -> str:
    if code >= 0:
        return f"with {code}"
    outside = (": a thread accessed memory far outside of its arrays; labkit.trace says which thread, and in which line"
               if -code in (signal.SIGSEGV, signal.SIGBUS) else "")
    return f"by {signal.Signals(-code).name}{outside}"


def _received(pipe) -> list[tuple]:
    if not pipe.poll(LIMIT):
        raise RuntimeError(f"the launch did not end within {LIMIT:g} seconds: a thread waits for what never comes. Its process "
                           "was ended, and this one goes on. labkit.trace says who waits")
    error, written = pipe.recv()
    if error:
        raise RuntimeError(error)
    return written


def _tell(pipe, launches: Launches) -> None:
    faulthandler.disable()  # the parent tells of a crash
    gc.disable()  # what the parent holds on a GPU is not to be touched here
    torch.set_num_threads(1)  # the parent's other threads are not here
    try:
        for launch in launches:
            pipe.send(("", [(_bytes(t), t.dtype, t.shape) for t in launch()]))
    except Exception as error:  # of any kind: it is the parent's to raise
        pipe.send((str(error) or type(error).__name__, []))


def _bytes(t: torch.Tensor) -> bytes:
    return t.contiguous().flatten().view(torch.uint8).numpy().tobytes()
