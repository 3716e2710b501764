"""Ways of computing one thing on few neighbours, in processor seconds of one thread."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor

from fredholm.lab.training.machine import peak_megabytes

from ..kit import clock
from ..kit.machine import with_rate
from ..kit.memory import alone
from ..kit.page import load, save
from ..kit.subject import Options
from . import FILE, layers

ROUNDS = 7

# Name, ways, and the goals of forward, both, and memory: how many times faster or smaller.
Goal = tuple[float | None, float | None, float | None]
CASES: dict[str, tuple[Callable[[], layers.Ways], Goal]] = {
    "d × d network on edges, N 1,000, E 16,000, d 64": (
        partial(layers.network_per_edge, 1000, 16_000, 64, 64),
        (None, 12.0, 40.0),
    ),
    "kernel integral, N 10,000, k 32, d 64": (
        partial(layers.kernel_integral, 10_000, 32, 64, 64, loop=False),
        (2.0, 2.5, 10.0),
    ),
    "kernel integral by the loop of a plain pip, N 10,000, k 32, d 64": (
        partial(layers.kernel_integral, 10_000, 32, 64, 64, loop=True),
        (None, 30.0, None),
    ),
    "GATv2Conv, N 12,500, E 200,000, d 64, H 4": (
        partial(layers.dynamic_attention, 12_500, 200_000, 64, 4),
        (None, 2.5, None),
    ),
    "TransformerConv, N 12,500, E 200,000, d 64, H 4": (
        partial(layers.graph_transformer, 12_500, 200_000, 64, 4),
        (None, 1.4, None),
    ),
    "window 64, N 16,384, d 64, H 4": (
        partial(layers.window, 16_384, 64, 64, 4),
        (None, 2.0, None),
    ),
    "window 64, N 16,384, d 64, H 4, forward": (
        partial(layers.compiled_window, 16_384, 64, 64, 4),
        (1.0, None, None),
    ),
}
FORWARD_ALONE = ("window 64, N 16,384, d 64, H 4, forward", "window, compiled")
SMALL: dict[str, Callable[[], layers.Ways]] = {
    "network": partial(layers.network_per_edge, 40, 200, 8, 4),
    "integral": partial(layers.kernel_integral, 60, 4, 8, 4, loop=False),
    "integral by a loop": partial(layers.kernel_integral, 60, 4, 8, 4, loop=True),
    "dynamic": partial(layers.dynamic_attention, 40, 200, 8, 2),
    "transformer": partial(layers.graph_transformer, 40, 200, 8, 2),
    "window": partial(layers.window, 64, 8, 8, 2),
    "window, compiled": partial(layers.compiled_window, 256, 8, 32, 2),
}


def time_cases(options: Options) -> None:
    """Time every case of ``--only``, or all; the others stay as they were."""
    # Waiting threads would count as processor seconds.
    torch.set_num_threads(1)
    before: dict[str, Any] = load(FILE, options.results) or {"cases": []}
    known = dict.fromkeys(SMALL) if options.small else dict.fromkeys(CASES)
    for name in options.chosen(known):
        make, goal = (SMALL[name], (None, None, None)) if options.small else CASES[name]
        rows = list(measured(name, make(), goal, memory=not options.small))
        before["cases"] = [row for row in before["cases"] if row["case"] != name] + rows
        before["machine"] = with_rate()
        save(before, FILE, options.results)


def measured(name: str, ways: layers.Ways, goal: Goal, *, memory: bool) -> Iterator[dict[str, Any]]:
    """One row for each direction: the peer's seconds over ours, round by round."""
    for direction, wanted in zip(("forward", "both"), goal):
        if direction == "both" and name in FORWARD_ALONE:
            continue
        runs = {way: step(call, inputs, direction) for way, (call, inputs) in ways.items()}
        case = clock.Case(
            f"{name} {direction}",
            runs["fredholm"],
            {way: clock.Entry(run) for way, run in runs.items()},
            tolerance=2e-3,
        )
        differences = clock.check(case)
        seconds = alternated(runs)
        for way in runs:
            if way == "fredholm":
                continue
            ratios = [theirs / ours for theirs, ours in zip(seconds[way], seconds["fredholm"])]
            row = {
                "case": name,
                "direction": direction,
                "peer": way,
                "ours": statistics.median(seconds["fredholm"]),
                "theirs": statistics.median(seconds[way]),
                "times": statistics.median(ratios),
                "lowest": min(ratios),
                "goal": wanted,
                "difference": differences[way],
            }
            if memory and direction == "both":
                row |= memory_of(name, way) | {"memory_goal": goal[2]}
            print(f"{name:66} {direction:8} {way:30} {row['times']:6.2f}", flush=True)
            yield row


def step(call: layers.Way, inputs: list[Tensor], direction: str) -> layers.Way:
    """Values alone, or values and the signal's gradient after a whole backward pass."""
    if direction == "forward":
        return torch.no_grad()(call)

    def both() -> Tensor:
        output = call()
        found = torch.autograd.grad(output.square().sum(), inputs, allow_unused=True)
        return torch.cat([output.detach().flatten(), found[0].flatten()])

    return both


def alternated(runs: dict[str, layers.Way]) -> dict[str, list[float]]:
    """Processor seconds of each way in turn, after a round that does not count."""
    seconds: dict[str, list[float]] = {way: [] for way in runs}
    for run in runs.values():
        run()
    for _ in range(ROUNDS):
        for way, run in runs.items():
            begin = time.process_time()
            run()
            seconds[way].append(time.process_time() - begin)
    return seconds


def memory_of(name: str, peer: str) -> dict[str, float | None]:
    """Peak megabytes of a forward and backward of both, each in a process of its own."""
    ours, theirs = (
        alone("evidence.sparse.speed:step_megabytes", case=name, way=way)
        for way in ("fredholm", peer)
    )
    return {"megabytes": ours, "peer_megabytes": theirs}


def step_megabytes(case: str, way: str) -> float | None:
    """Peak megabytes of one step, after a small one has loaded what every step needs."""
    torch.set_num_threads(1)
    small = list(SMALL.values())[list(CASES).index(case)]
    for ways in (small(), CASES[case][0]()):
        call, inputs = ways[way]
        megabytes = peak_megabytes(step(call, inputs, "both"))
    return megabytes
