"""What the GPU ran during a call, kernel by kernel, and which of it was an activation's: from torch.profiler's trace.

An activation is told apart by marks that `marked` sets. Its forward pass is a range around the call. Its backward pass
runs later, on a thread of autograd: it begins when the gradient of the output is there and ends when that of the input
is, and a hook on each of the two tensors leaves a mark. In between, autograd runs the activation's nodes alone: of the
nodes that are ready it takes the one that was made last, and the nodes before the activation were made earlier. A mark is
over as soon as it is set, so that an exception in between leaves nothing open.

A kernel belongs to what the host was doing when it launched it, not to what ran beside it: the trace ties each kernel to
its launch by a number, and by another to the operator that launched it, where it has not kept the launch.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import re
import tempfile
from pathlib import Path
from typing import Callable

import torch
from torch.profiler import ProfilerActivity, profile, record_function, schedule

from labkit import machine, results
from labkit.report import keep, show_recorded
from labkit.timing import WARM_UP_CALLS, Gpu, lead_in

FORWARD, BEGINS, ENDS = "activation forward", "activation backward begins", "activation backward ends"
_ON_GPU = ("kernel", "gpu_memcpy", "gpu_memset")
_LAUNCH = ("cuda_runtime", "cuda_driver")
# Where the template arguments of an elementwise kernel of PyTorch say what it computes.
_COMPUTES = re.compile(r"CUDAFunctor(?:OnSelf|OnOther)?_(\w+)|\b(?!Binary|AUnary|BUnary)(\w+?)(?:Math)?Functor\b"
                       r"|(\w+?)_kernel_cuda\b|(\w+?)CUDAKernelImpl\b|\b(?!gpu_)(\w+?)_kernel_impl\b")


@dataclasses.dataclass(frozen=True)
class Kernel:
    """One piece of work on the GPU: a kernel, a copy or a fill. start: in µs from an arbitrary moment. part: "forward",
    "backward" or "rest". operator: the innermost one that launched it, such as "aten::mm"; "" for none.
    """

    name: str
    start: float
    us: float
    part: str
    operator: str = ""


def marked(activation: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[torch.Tensor], torch.Tensor]:
    """The activation, leaving the marks that `attribute` reads. Its input should go nowhere else: what other uses add to
    the input's gradient would count as the activation's. An activation that returns its input itself has no backward pass.

    Raises ValueError for one that changes its input in place, or that has parameters and an input without a gradient.
    """
    def call(x: torch.Tensor) -> torch.Tensor:
        node = x.grad_fn
        with record_function(FORWARD):
            y = activation(x)
        if x.grad_fn is not node:
            raise ValueError("the activation changes its input in place, so that its backward pass cannot be told apart")
        if y is x or not y.requires_grad:
            return y
        if not x.requires_grad:
            raise ValueError("the activation's input needs no gradient, so that the end of its backward pass cannot be seen")
        y.register_hook(lambda grad: _mark(BEGINS))
        x.register_hook(lambda grad: _mark(ENDS))
        return y

    return call


def _mark(name: str) -> None:
    with record_function(name):
        pass


def attribute(trace: dict) -> list[Kernel]:
    """What ran on the GPU, in order of its start, each with the part of the call that launched it.

    trace: what torch.profiler exports (`export_chrome_trace`), read as JSON. Raises ValueError for a kernel of which the
    trace has neither the launch nor the operator, and for marks of a backward pass that do not alternate on a thread.
    """
    events = in_order(trace)
    forward, backward = _ranges(events)
    launches, operators = _by(events, _LAUNCH, "correlation"), _by(events, ("cpu_op",), "External id")
    launched_by = _innermost(events)
    found = []
    for event in (event for event in events if event.get("cat") in _ON_GPU):
        launch = launches.get(event["args"].get("correlation")) or operators.get(event["args"].get("External id"))
        if launch is None:
            raise ValueError(f"the profiler's trace has no launch for the kernel {event['name'][:80]!r}")
        part = "forward" if _inside(launch, forward) else "backward" if _inside(launch, backward) else "rest"
        operator = launch["name"] if launch["cat"] == "cpu_op" else launched_by[launch["args"]["correlation"]]
        found.append(Kernel(event["name"], event["ts"], event["dur"], part, operator))
    return found


def in_order(trace: dict) -> list[dict]:
    """The trace's events that last, in order of their start; what holds another comes before it."""
    lasting = (event for event in trace["traceEvents"] if event.get("ph") == "X")
    return sorted(lasting, key=lambda event: (event["ts"], -event["dur"]))


def _innermost(events: list[dict]) -> dict[int, str]:
    """Of each launch, by its number, the innermost operator that its thread was in; "" for none."""
    within: dict[int, list[dict]] = {}
    found = {}
    for event in (event for event in events if event.get("cat") in ("cpu_op", *_LAUNCH)):
        stack = within.setdefault(event["tid"], [])
        while stack and stack[-1]["ts"] + stack[-1]["dur"] <= event["ts"]:
            stack.pop()
        if event["cat"] == "cpu_op":
            stack.append(event)
        elif "correlation" in event["args"]:
            found[event["args"]["correlation"]] = stack[-1]["name"] if stack else ""
    return found


def _by(events: list[dict], categories: tuple[str, ...], key: str) -> dict[int, dict]:
    return {event["args"][key]: event for event in events if event.get("cat") in categories and key in event.get("args", {})}


def _ranges(events: list[dict]) -> tuple[list[tuple], list[tuple]]:
    """(thread, begin, end) of each forward and each backward pass of the activation."""
    marks = [event for event in events if event.get("cat") == "user_annotation"]
    forward = [(event["tid"], event["ts"], event["ts"] + event["dur"]) for event in marks if event["name"] == FORWARD]
    backward, open_since = [], {}
    for event in marks:
        thread, begun = event["tid"], open_since.get(event["tid"])
        if event["name"] in (BEGINS, ENDS) and (event["name"] == ENDS) != (begun is not None):
            raise ValueError(f"the trace has {event['name']!r} where another mark was due")
        if event["name"] == BEGINS:
            open_since[thread] = event["ts"]
        elif event["name"] == ENDS:
            backward.append((thread, open_since.pop(thread), event["ts"]))
    if open_since:
        raise ValueError(f"the trace has {BEGINS!r} and no end of it")
    return forward, backward


def _inside(launch: dict, ranges: list[tuple]) -> bool:
    return any(launch["tid"] == thread and begin <= launch["ts"] < end for thread, begin, end in ranges)


def traced(call: Callable[[], object]) -> dict:
    """Runs `call` twice and returns torch.profiler's trace of the second time; the first starts the profiler up."""
    on_gpu = [ProfilerActivity.CUDA] if torch.cuda.is_available() else []
    wait = torch.cuda.synchronize if on_gpu else lambda: None
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        # There is one cycle: to keep the events of all changes nothing, but the warning that those of earlier ones go.
        with profile(activities=[ProfilerActivity.CPU, *on_gpu], schedule=schedule(wait=0, warmup=1, active=1, repeat=1),
                     acc_events=True, on_trace_ready=lambda ready: ready.export_chrome_trace(str(path))) as profiler:
            for _ in range(2):
                call()
                wait()
                profiler.step()
        return json.loads(path.read_text(encoding="utf-8"))


def short(name: str) -> str:
    """A kernel's name as a reader wants it: what PyTorch's elementwise kernels compute, or else the bare function."""
    inner = _COMPUTES.search(name)
    if inner:
        word = next(filter(None, inner.groups()))
        return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", word).lower()
    bare = re.sub(r"^void |\(anonymous namespace\)::", "", name)
    *spaces, last = re.split(r"[<(]", bare)[0].strip().split("::")
    return "::".join([*spaces[-1:], last] if last == "kernel" else [last])[:48] or name[:48]  # as in v7::kernel


def kernels(name: str, functions: dict[str, Callable[[torch.Tensor], torch.Tensor]], x: torch.Tensor, title: str) -> list[dict]:
    """Profiles one forward call of each function on the GPU: its kernels one after another, and the gaps between them.

    name: what the table is called in results/; <name>_timeline has the kernels as a "timeline" record. functions:
    {label: function of one tensor}. x: on the GPU, and large enough that its kernels outlast their launches. title: the
    tables' head.

    Returns the rows: variant, kernels, the µs that they ran, the µs from the first start to the last end, and the µs
    between in which nothing ran. Without a GPU it shows the recorded table and returns [].
    """
    if machine.backend() != "cuda":
        return show_recorded([name, f"{name}_timeline"], title)
    gpu, rows, lanes = Gpu(), [], []
    for label, function in functions.items():
        def behind_other_work(function: Callable = function) -> None:
            lead_in(gpu)  # the host's head start, so that the gaps are the GPU's own
            with torch.no_grad():
                marked(function)(x)

        for _ in range(WARM_UP_CALLS):
            behind_other_work()
        ran = [kernel for kernel in attribute(traced(behind_other_work)) if kernel.part == "forward"]
        if not ran:
            raise ValueError(f"kernels: {label} launched nothing on the GPU; x is on {x.device}")
        begin, end = ran[0].start, max(kernel.start + kernel.us for kernel in ran)
        rows.append({"variant": label, "kernels": len(ran), "in kernels, µs": round(sum(kernel.us for kernel in ran), 2),
                     "first start to last end, µs": round(end - begin, 2), "idle between, µs": round(idle(ran), 2)})
        lanes.append({"name": label, "spans": [{"label": short(kernel.name), "start": round(kernel.start - begin, 3),
                                                "end": round(kernel.start - begin + kernel.us, 3)} for kernel in ran]})
    results.note("measured", title, ", ".join(f"{row['variant']}: {row['kernels']}" for row in rows) + " kernels")
    keep({name: results.table_of(title, rows),
          f"{name}_timeline": {"kind": "timeline", "title": title, "unit": "µs", "lanes": lanes}})
    return rows


def idle(ran: list[Kernel]) -> float:
    """The µs between the first start and the last end in which no kernel ran; `ran` in order of start."""
    ends = itertools.accumulate((kernel.start + kernel.us for kernel in ran), max)
    return sum(max(0.0, kernel.start - end) for kernel, end in zip(ran[1:], ends))
