"""Description of the machine that numbers were measured on."""

from __future__ import annotations

from typing import Any

import torch

from fredholm.lab.training.machine import describe_machine as describe
from fredholm.lab.training.machine import seconds_of

__all__ = ["describe", "machine_line", "matrix_rate", "with_rate"]


def matrix_rate(n: int = 1024, repeats: int = 5) -> float:
    """Measure the FLOP/s of a float32 matrix product of side n, the best of ``repeats``."""
    a, b, out = torch.randn(n, n), torch.randn(n, n), torch.empty(n, n)
    times = [seconds_of(lambda: torch.mm(a, b, out=out)) for _ in range(repeats + 1)]
    # The first product warms up.
    return 2 * n**3 / min(times[1:])


def with_rate() -> dict[str, Any]:
    """Describe the machine and the rate of its matrix product."""
    return describe() | {"sgemm_gflops": matrix_rate() / 1e9}


def machine_line(machine: dict[str, Any]) -> str:
    """Format one line about the machine.

    Example:
        >>> machine_line({"processor": "a CPU", "threads": 2, "torch": "2.13"})
        'a CPU, 2 threads, torch 2.13.'
    """
    line = f"{machine['processor']}, {machine['threads']} threads, torch {machine['torch']}"
    rate = machine.get("sgemm_gflops")
    if rate is None:
        return f"{line}."
    return f"{line}, sgemm {rate:.0f} GFLOP/s at the start."
