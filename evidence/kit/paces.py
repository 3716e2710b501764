"""Equal time: how long a training step of each model takes, and how many steps that allows."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping
from itertools import product

Train = Callable[[int], float]
"""Trains a model for a number of steps and returns the CPU seconds that it took."""


def step_seconds(models: Mapping[str, Train], rounds: int, steps: int) -> dict[str, float]:
    """Return the CPU seconds of each model's training step, medians over rounds.

    The rounds alternate between the models, since other work on the machine slows some of them.

    Args:
        models: a model's name to its function that trains it.
        rounds: number of rounds.
        steps: training steps of every model in a round.

    Example:
        >>> step_seconds({"slow": lambda steps: 3.0 * steps, "fast": lambda steps: 1.0 * steps}, 3, 2)
        {'slow': 3.0, 'fast': 1.0}
    """
    seconds: dict[str, list[float]] = {name: [] for name in models}
    for _, (name, train) in product(range(rounds), models.items()):
        seconds[name].append(train(steps) / steps)
    return {name: statistics.median(values) for name, values in seconds.items()}


def equal_time_steps(seconds: Mapping[str, float], steps: int) -> dict[str, int]:
    """Return each model's steps in the time that the fastest model needs for ``steps`` of its own.

    Args:
        seconds: of each model's training step.
        steps: of the fastest model.

    Example:
        >>> equal_time_steps({"slow": 3.0, "fast": 1.0, "stuck": 1_000.0}, 30)
        {'slow': 10, 'fast': 30, 'stuck': 1}
    """
    fastest = min(seconds.values())
    return {name: max(1, round(steps * fastest / pace)) for name, pace in seconds.items()}
