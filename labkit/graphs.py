"""`captured`: an operator's launches one by one, and as one CUDA graph."""

from __future__ import annotations

import statistics
import time
from typing import Callable

import torch

from labkit import machine, results
from labkit.arguments import loaded
from labkit.operator import Operator
from labkit.report import keep, show_recorded

SIZES = (1 << 10, 1 << 14, 1 << 18, 1 << 22)
ROUNDS = 100


class WrongReplay(AssertionError):
    """A replayed graph gave other bits than the same launches one by one."""


def captured(name: str, operator: Operator, sizes: tuple[int, ...] = SIZES, launches: int = 20) -> list[dict]:
    """Times `launches` forward launches of an operator in a row, called one by one and replayed as a CUDA graph.

    name: what the table is called in results/. operator: one with a mode forward_out(x, y, version). sizes: elements, bfloat16.

    A row a size: microseconds a launch both ways (median of 100 rounds, taken in turn, from the first call until the GPU is
    done) with their 10th and 90th percentiles, and the ratio. Before that, a replay on new numbers has to give the very bits of
    the launches one by one; WrongReplay where it does not. Without a GPU the recorded table is shown, and [] returned.
    """
    loaded("captured", "operator", operator)
    if machine.backend() != "cuda":
        return show_recorded([name], "Launches one by one, and as a CUDA graph")
    rows = [_row(operator, n, launches) for n in sizes]
    results.note("measured", f"{operator.name} as a CUDA graph", f"{len(rows)} sizes, {launches} launches each")
    keep({name: results.table_of(f"{launches} launches of {operator.name}, one by one and as a CUDA graph", rows)})
    return rows


def _row(operator: Operator, n: int, launches: int) -> dict:
    x = torch.randn(n, device=operator.device).to(torch.bfloat16)
    y = torch.empty_like(x)

    def one_by_one() -> None:
        for _ in range(launches):
            operator.ops.forward_out(x, y, operator.latest)

    one_by_one()  # what a first launch does must not be captured
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        one_by_one()
    _check(operator, graph, x, y)
    eager, replayed = _in_turn([one_by_one, graph.replay], launches)
    return {"elements": n, "one by one, µs": _median(eager), "spread": _spread(eager), "graph, µs": _median(replayed),
            "spread of the graph": _spread(replayed),
            "times as fast": round(statistics.median(eager) / statistics.median(replayed), 2)}


def _check(operator: Operator, graph: torch.cuda.CUDAGraph, x: torch.Tensor, y: torch.Tensor) -> None:
    x.copy_(torch.randn(x.numel(), device=x.device))
    y.fill_(float("nan"))
    graph.replay()
    torch.cuda.synchronize()
    exact = operator.ops.forward(x, operator.latest)
    if not torch.equal(y.view(torch.int16), exact.view(torch.int16)):
        raise WrongReplay(f"{operator.name}: a replay on {x.numel()} new elements differs from the launches one by one")


def _in_turn(ways: list[Callable[[], None]], launches: int) -> list[list[float]]:
    """Microseconds a launch of each way, ROUNDS of them, after as many unmeasured."""
    times: list[list[float]] = [[] for _ in ways]
    for round_ in range(2 * ROUNDS):
        for way, found in zip(ways, times):
            torch.cuda.synchronize()
            begun = time.perf_counter()
            way()
            torch.cuda.synchronize()
            if round_ >= ROUNDS:
                found.append(1e6 * (time.perf_counter() - begun) / launches)
    return times


def _median(times: list[float]) -> float:
    return round(statistics.median(times), 2)


def _spread(times: list[float]) -> str:
    tenths = statistics.quantiles(times, n=10)
    return f"{tenths[0]:.2f}–{tenths[-1]:.2f}"
