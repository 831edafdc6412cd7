"""`agreement`: the counts of `trace` beside those of the GPU's own counters, kernel by kernel.

Nsight Compute runs this module as a program of its own (`python -m labkit.gpu_counts CASES`), which launches each case
once, between cudaProfilerStart and cudaProfilerStop.
"""

from __future__ import annotations

import contextlib
import dataclasses
import io
import json
import math
import sys
from typing import Callable, Sequence

import torch

from labkit import machine, results, source_files
from labkit.build import load
from labkit.launching import launch_of
from labkit.operator import check_listed, listed_versions, python_part, source_path
from labkit.profiling import NotCounted, profile
from labkit.references import dtype_of, exact_outputs, shape_of
from labkit.report import NO_GPU, keep, show_recorded
from labkit.tracing import Trace, trace

# {what: (Nsight Compute's metrics, which add up to it; the same from a trace)}. The sums over all of shared memory hold
# more than loads and stores: barriers, and something for each warp's start.
_QUANTITIES = {
    "load requests": (["l1tex__t_requests_pipe_lsu_mem_global_op_ld.sum"], lambda t: t.total("reads").requests),
    "load sectors": (["l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum"], lambda t: t.total("reads").sectors),
    "store requests": (["l1tex__t_requests_pipe_lsu_mem_global_op_st.sum"], lambda t: t.total("writes").requests),
    "store sectors": (["l1tex__t_sectors_pipe_lsu_mem_global_op_st.sum"], lambda t: t.total("writes").sectors),
    "shared wavefronts": (["l1tex__data_pipe_lsu_wavefronts_mem_shared_op_ld.sum",
                           "l1tex__data_pipe_lsu_wavefronts_mem_shared_op_st.sum"],
                          lambda t: t.total("reads", True).wavefronts + t.total("writes", True).wavefronts),
    "bank conflicts": (["l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_ld.sum",
                        "l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_st.sum"],
                       lambda t: t.total("reads", True).conflicts + t.total("writes", True).conflicts),
}
_METRICS = {metric: metric for names, _ in _QUANTITIES.values() for metric in names}


class _Call:
    """What the cases share: a mode of an operator, and inputs for it."""

    @property
    def label(self) -> str:
        mode = "" if self.mode == "forward" else f" {self.mode}"
        return f"{self.operator} {self._what}{mode}{f', {self.note}' if self.note else ''}"

    @property
    def size(self) -> str:
        """Shape and dtype, such as "512 × 512 float32"."""
        return f"{' × '.join(f'{n:,}' for n in self.shape)} {self.dtype}"

    def inputs(self, device: torch.device | str = "cpu") -> list[torch.Tensor]:
        """The inputs of the mode: the same numbers on every device."""
        reference = python_part(self.operator, "reference")
        generator, inputs = torch.Generator().manual_seed(0), []
        for name in reference.MODES[self.mode][0]:
            shape = torch.Size(shape_of(reference, name, self.shape))
            flat = torch.randn(shape.numel() + self.offset, generator=generator)
            flat = flat.to(dtype_of(reference, name, getattr(torch, self.dtype))).to(device)
            inputs.append(flat[self.offset:].view(shape))
        return inputs

    @property
    def elements(self) -> int:
        """How many elements an input of the case's own shape has."""
        return math.prod(self.shape)

    @property
    def must_move(self) -> int:
        """The bytes of all inputs and outputs of the mode, each moved once."""
        reference = python_part(self.operator, "reference")
        names, out_names, _ = reference.MODES[self.mode]
        dtype = getattr(torch, self.dtype)
        inputs = [torch.empty(shape_of(reference, name, self.shape), dtype=dtype, device="meta") for name in names]
        tensors = (*inputs, *exact_outputs(reference, self.mode, inputs))
        return sum(t.numel() * dtype_of(reference, name, dtype).itemsize
                   for name, t in zip((*names, *out_names), tensors, strict=True))


@dataclasses.dataclass(frozen=True)
class Case(_Call):
    """One launch: a version of an operator, on inputs of `shape` that begin `offset` elements after an aligned address.

    note: what sets it apart from another case of the same version and mode.
    """

    operator: str
    version: int
    shape: tuple[int, ...]
    dtype: str = "float32"
    mode: str = "forward"
    offset: int = 0
    note: str = ""

    @property
    def _what(self) -> str:
        return f"v{self.version}"


@dataclasses.dataclass(frozen=True)
class Rival(_Call):
    """One call of a function of kernels/<operator>/rivals.py, such as "native", with the inputs of a mode; see `Case`."""

    operator: str
    function: str
    shape: tuple[int, ...]
    dtype: str = "float32"
    mode: str = "forward"
    offset: int = 0
    note: str = ""

    @property
    def _what(self) -> str:
        return self.function


def named(case: Case | Rival) -> str:
    """A case as a line of JSON, in ASCII, which `case_of` reads."""
    return json.dumps(dataclasses.asdict(case))


def case_of(line: str) -> Case | Rival:
    """The case of a line that `named` wrote; ValueError for another."""
    try:
        given = json.loads(line)
        return (Rival if "function" in given else Case)(**{**given, "shape": tuple(given["shape"])})
    except (TypeError, KeyError) as error:
        raise ValueError(f"{line!r} names no case: {error}") from None


def count(metrics: dict[str, str], cases: Sequence[Case]) -> list[dict]:
    """Launches each case once under Nsight Compute: of each {key: count}. metrics and errors: see `profiling.profile`."""
    return profile(metrics, program(cases), len(cases))


def program(cases: Sequence[Case | Rival]) -> list[str]:
    """What Python is given to launch each case once between cudaProfilerStart and cudaProfilerStop, in a range of its name."""
    return ["-m", "labkit.gpu_counts", *map(named, cases)]


def agreement(name: str, cases: Sequence[Case], title: str) -> list[dict]:
    """Traces each case on the CPU, counts it on the GPU, and shows both; keeps the tables.

    name: what the table of global memory is called in results/; <name>_shared has the kernels that use shared memory,
    <name>_summary says for each count in how many kernels the two agree. cases: what to launch; their labels must
    differ. title: the tables' head.

    A cell holds one number where trace and GPU agree, and "trace / GPU" where they do not. Returns the summary's rows.
    Without a GPU, or where Nsight Compute cannot count, it says so, shows the recorded tables and returns [].
    """
    validate("agreement", cases)
    why = NO_GPU
    if machine.backend() == "cuda":
        try:
            counted = count(_METRICS, cases)
        except NotCounted as error:
            why = str(error)
        else:
            compared = [_compare(case, traced(case), gpu) for case, gpu in zip(cases, counted, strict=True)]
            tables = _tables(name, title, compared)
            keep(tables)
            summary = tables[f"{name}_summary"]["rows"]
            for row in summary:
                results.note("measured", f"{row['count']}, trace and GPU",
                             f"the same in {row['the same in']} of {row['of']} kernels")
            return summary
    return show_recorded([name, f"{name}_shared", f"{name}_summary"], title, why)


def validate(what: str, cases: Sequence[Case | Rival], kinds: tuple[type, ...] = (Case,)) -> None:
    """Raises ValueError, beginning with `what`, for cases of other kinds, with equal labels, or that no operator has."""
    labels = [case.label for case in cases if isinstance(case, kinds)] if isinstance(cases, (list, tuple)) else []
    if not labels or len(labels) != len(cases) or len(set(labels)) != len(labels):
        raise ValueError(f"{what}: cases has to be a list of {' or '.join(f'labkit.{kind.__name__}' for kind in kinds)} with "
                         f"different labels (a note tells two apart); it is {cases!r}")
    for case in cases:
        source = source_path(case.operator)
        versions = listed_versions(source_files.text(source))
        check_listed(case.operator, source.name, versions)
        reference = python_part(case.operator, "reference")
        known = (hasattr(python_part(case.operator, "rivals"), case.function) if isinstance(case, Rival)
                 else case.version in versions)
        if not known or case.mode not in reference.MODES or getattr(torch, case.dtype, None) not in reference.DTYPES:
            raise ValueError(f"{what}: {case!r}; {case.operator} has the versions {', '.join(map(str, versions))}, the modes "
                             f"{', '.join(reference.MODES)} and {', '.join(map(str, reference.DTYPES))}, and its rivals.py the "
                             "functions that a Rival names")


def traced(case: Case) -> Trace:
    """The trace of a case, without a word."""
    with contextlib.redirect_stdout(io.StringIO()):  # what it builds
        return trace(case.operator, case.version, case.mode, inputs=case.inputs(), show=False)


def _compare(case: Case, traced: Trace, gpu: dict) -> dict:
    """A row: the kernel, its input, and for each quantity (the trace's count, the GPU's)."""
    row = {"kernel": case.label, "input": case.size}
    for key, (metrics, of_trace) in _QUANTITIES.items():
        row[key] = (of_trace(traced), int(sum(gpu[metric] for metric in metrics)))
    return row


def _tables(name: str, title: str, compared: Sequence[dict]) -> dict[str, dict]:
    shared = [key for key in _QUANTITIES if key in ("shared wavefronts", "bank conflicts")]
    tables, summary = {}, []
    for suffix, what, keys in (("", "global memory", [key for key in _QUANTITIES if key not in shared]),
                               ("_shared", "shared memory", shared)):
        rows = [row for row in compared if any(row[keys[0]])]
        shown = [{"kernel": row["kernel"], "input": row["input"],
                  **{key: f"{row[key][0]:,}" if row[key][0] == row[key][1] else f"{row[key][0]:,} / {row[key][1]:,}"
                     for key in keys}}
                 for row in rows]
        if shown:
            tables[name + suffix] = results.table_of(f"{title}: {what}", shown)
        summary += [{"count": key, "the same in": sum(row[key][0] == row[key][1] for row in rows), "of": len(rows)}
                    for key in keys]
    tables[f"{name}_summary"] = results.table_of(f"{title}: in how many kernels they agree", summary)
    return tables


def call_of(case: Case | Rival, inputs: Sequence[torch.Tensor]) -> Callable[[], object]:
    """A function that runs the case once with these inputs; what it needs beside them is there already."""
    if isinstance(case, Rival):
        function = getattr(python_part(case.operator, "rivals"), case.function)
        function(*inputs)  # a first call may compile, or choose an algorithm
        return lambda: function(*inputs)
    launch = launch_of(load(case.operator), case.mode, case.version, inputs)
    outputs = launch.new_outputs()
    return lambda: launch(launch.inputs, outputs)


def _launch(cases: Sequence[Case | Rival]) -> None:
    key, inputs = None, []
    for case in cases:
        if key != (drawn := (case.operator, case.mode, case.shape, case.dtype, case.offset)):  # versions share their inputs
            key, inputs = drawn, case.inputs(machine.device())
        call = call_of(case, inputs)
        torch.cuda.synchronize()
        torch.cuda.profiler.start()
        torch.cuda.nvtx.range_push(named(case))  # its context manager would take the braces for fields to fill in
        call()
        torch.cuda.nvtx.range_pop()
        torch.cuda.synchronize()
        torch.cuda.profiler.stop()


if __name__ == "__main__":
    _launch(list(map(case_of, sys.argv[1:])))
