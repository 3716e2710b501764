"""Times of our layers and those of other packages, in processor seconds of one thread."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

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


class Goal(NamedTuple):
    """Goals, as multiples: of the speed of forward and training step, and of the saved memory."""

    forward: float | None = None
    both: float | None = None
    memory: float | None = None


CASES: dict[str, tuple[Callable[[], layers.Ways], Goal]] = {
    "d × d network on edges, N 1,000, E 16,000, d 64": (
        partial(layers.network_per_edge, 1000, 16_000, 64, 64),
        Goal(both=12.0, memory=40.0),
    ),
    "kernel integral, N 10,000, k 32, d 64": (
        partial(layers.kernel_integral, 10_000, 32, 64, 64, loop=False),
        Goal(forward=2.0, both=2.5, memory=10.0),
    ),
    "kernel integral by the loop of a plain pip, N 10,000, k 32, d 64": (
        partial(layers.kernel_integral, 10_000, 32, 64, 64, loop=True),
        Goal(both=30.0),
    ),
    "GATv2Conv, N 12,500, E 200,000, d 64, H 4": (
        partial(layers.dynamic_attention, 12_500, 200_000, 64, 4),
        Goal(both=2.5),
    ),
    "TransformerConv, N 12,500, E 200,000, d 64, H 4": (
        partial(layers.graph_transformer, 12_500, 200_000, 64, 4),
        Goal(both=1.4),
    ),
    "window 64, N 16,384, d 64, H 4": (
        partial(layers.window, 16_384, 64, 64, 4),
        Goal(both=2.0),
    ),
    "window 64, N 16,384, d 64, H 4, forward": (
        partial(layers.compiled_window, 16_384, 64, 64, 4),
        Goal(forward=1.0),
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
    """Time the cases of ``--only``, or all, and replace their rows in the file."""
    # Waiting threads would count as processor seconds.
    torch.set_num_threads(1)
    before: dict[str, Any] = load(FILE, options.results) or {"cases": []}
    cases = {name: (make, Goal()) for name, make in SMALL.items()} if options.small else CASES
    for name in options.chosen(cases):
        make, goal = cases[name]
        rows = list(measured(name, make(), goal, memory=not options.small))
        before["cases"] = [row for row in before["cases"] if row["case"] != name] + rows
        before["machine"] = with_rate()
        save(before, FILE, options.results)


def measured(name: str, ways: layers.Ways, goal: Goal, *, memory: bool) -> Iterator[dict[str, Any]]:
    """Check and time a case; yield one row per direction and peer."""
    for direction, wanted in (("forward", goal.forward), ("both", goal.both)):
        if direction == "both" and name in FORWARD_ALONE:
            continue
        runs = {way: step(one.call, one.inputs, direction) for way, one in ways.items()}
        entries = {way: clock.Entry(run) for way, run in runs.items()}
        title = f"{name} {direction}"
        case = clock.Case(title, runs["fredholm"], entries, tolerance=2e-3)
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
                row |= memory_of(name, way) | {"memory_goal": goal.memory}
            print(f"{name:66} {direction:8} {way:30} {row['times']:6.2f}", flush=True)
            yield row


def step(call: layers.Call, inputs: list[Tensor], direction: str) -> layers.Call:
    """Return a call that computes values, or values and the signal's gradient.

    The backward pass computes the gradients of all inputs.
    """
    if direction == "forward":
        return torch.no_grad()(call)

    def both() -> Tensor:
        output = call()
        found = torch.autograd.grad(output.square().sum(), inputs, allow_unused=True)
        return torch.cat([output.detach().flatten(), found[0].flatten()])

    return both


def alternated(runs: dict[str, layers.Call]) -> dict[str, list[float]]:
    """Measure the processor seconds of each way in alternation, after a warm-up round."""
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
    """Measure the peak megabytes of both ways' forward and backward, each in a fresh process."""
    function = "evidence.sparse.speed:step_megabytes"
    ours = alone(function, case=name, way="fredholm")
    theirs = alone(function, case=name, way=peer)
    return {"megabytes": ours, "peer_megabytes": theirs}


def step_megabytes(case: str, way: str) -> float | None:
    """Measure the peak megabytes of one step in this process."""
    torch.set_num_threads(1)
    # SMALL has the same order as CASES. Its step first loads libraries and fills caches.
    small = list(SMALL.values())[list(CASES).index(case)]
    full, _ = CASES[case]
    for make in (small, full):
        one = make()[way]
        megabytes = peak_megabytes(step(one.call, one.inputs, "both"))
    return megabytes
