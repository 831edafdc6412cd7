"""`against_nvbench`: the times of `labkit.bench` beside those of NVBench, NVIDIA's own, for the same kernels.

    python -m labkit.nvbench_agreement FILE    times KERNELS by NVBench, which writes FILE

NVBench (PyPI: cuda-bench) has a process of its own: it takes the GPU's default stream and its clocks for itself.
"""

from __future__ import annotations

import importlib
import json
import os
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Callable, NamedTuple

import torch

from labkit import machine, results
from labkit.build import load
from labkit.cases import draw_inputs
from labkit.environment import in_a_new_process
from labkit.report import NO_GPU, here, keep, show_recorded
from labkit.timing import Gpu, measure

LIMIT = 300  # seconds for NVBench
ROUNDS = 50


class Timed(NamedTuple):
    """A kernel to time: an operator's version and mode, on inputs of this shape and type."""

    operator: str
    version: int
    mode: str
    shape: tuple[int, ...]
    dtype: torch.dtype = torch.float32

    def prepared(self) -> tuple[Callable, list[torch.Tensor]]:
        """(function of the inputs, the inputs)."""
        operator = load(self.operator, self.version, launch=False)
        inputs = draw_inputs(operator.reference, self.mode, self.dtype, operator.device, {"shape": self.shape}, seed=0)
        call = getattr(operator.ops, self.mode)
        return lambda *tensors: call(*tensors, self.version), inputs


# Each takes a tenth of a millisecond or more on a large GPU, so that the events around it do not count, and fits into 4 GB.
KERNELS = {
    "copy v5, float32": Timed("copy", 5, "forward", (1 << 27,)),
    "gelu v7, bfloat16": Timed("gelu", 7, "forward", (1 << 28,), torch.bfloat16),
    "gelu v7 backward, bfloat16": Timed("gelu", 7, "backward", (1 << 27,), torch.bfloat16),
    "gelu v3, bfloat16": Timed("gelu", 3, "forward", (1 << 28,), torch.bfloat16),
    "row_sum v4, float32": Timed("row_sum", 4, "forward", (1 << 14, 1 << 13)),
    "transpose v4, float32": Timed("transpose", 4, "forward", (1 << 14, 1 << 13)),
    "transpose v1, float32": Timed("transpose", 1, "forward", (1 << 14, 1 << 13)),
    "stencil v3, float32": Timed("stencil", 3, "forward", (1 << 14, 1 << 13)),
}


def against_nvbench(name: str) -> list[dict]:
    """Times KERNELS by `bench`'s way and by NVBench, both with a cold L2 cache; shows and keeps the table.

    name: what the table is called in results/.

    A row a kernel: the median by `bench`, by NVBench, and the difference in per cent of the latter. Without a GPU, or where
    cuda-bench is not installed, the recorded table is shown and [] returned. Raises RuntimeError, with NVBench's words, where
    that fails.
    """
    title = "labkit.bench and NVBench"
    if machine.backend() != "cuda":
        return show_recorded([name], title, NO_GPU)
    try:
        importlib.import_module("cuda.bench")
    except ImportError as error:
        return show_recorded([name], title, f'cuda-bench is not ready ({error}); python -m pip install "cuda-bench>=0.3"')
    with tempfile.TemporaryDirectory() as folder:
        theirs = in_a_new_process("labkit.nvbench_agreement", str(Path(folder) / "found.json"), timeout=LIMIT)
    ours = {label: _by_bench(kernel) for label, kernel in KERNELS.items()}
    rows = [{"kernel": label, "bench, µs": round(ours[label], 2), "NVBench, µs": round(theirs[label], 2),
             "difference, %": round(100 * (ours[label] / theirs[label] - 1), 2)} for label in KERNELS]
    results.note("check", title, f"within {max(abs(row['difference, %']) for row in rows)}% for {len(rows)} kernels")
    keep({name: results.table_of(title, rows)}, f"On {here()}")
    return rows


def _by_bench(kernel: Timed) -> float:
    call, inputs = kernel.prepared()
    samples = measure({"call": call}, [tuple(inputs), tuple(t.clone() for t in inputs)], Gpu(), ROUNDS)
    torch.cuda.empty_cache()
    return statistics.median(samples["call"].microseconds)


# -- the child ----------------------------------------------------------------------------------------------

def _by_nvbench(file: str) -> dict[str, float]:
    """{label: median in microseconds}."""
    from cuda import bench
    from cuda.bench.results import BenchmarkResult

    def timed(state: bench.State) -> None:
        call, inputs = KERNELS[state.get_string("kernel")].prepared()
        call(*inputs)
        torch.cuda.synchronize()

        def launch(launched: bench.Launch) -> None:
            with torch.cuda.stream(torch.cuda.ExternalStream(launched.get_stream().addressof())):
                call(*inputs)

        state.exec(launch, batched=False)
        torch.cuda.empty_cache()

    bench.register(timed).add_string_axis("kernel", list(KERNELS))
    bench.run_all_benchmarks([sys.argv[0], "--jsonbin", file])
    return {state.point["kernel"]: 1e6 * state.center(statistics.median) for state in BenchmarkResult.from_json(file)["timed"]}


if __name__ == "__main__":
    # NVBench prints its tables to the process's own standard output, which is for the answer.
    answer = os.dup(1)
    os.dup2(2, 1)
    found = _by_nvbench(sys.argv[1])
    sys.stdout.flush()
    os.dup2(answer, 1)
    print(json.dumps(found))
