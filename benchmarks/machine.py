"""What the numbers were measured on."""

from __future__ import annotations

import platform
import statistics
import time

import torch


def describe() -> dict[str, object]:
    """Processor, cores, threads and versions."""
    processor = platform.processor() or platform.machine()
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            processor = next(
                line.split(":", 1)[1].strip() for line in file if line.startswith("model name")
            )
    except (OSError, StopIteration):
        pass
    return {
        "processor": processor,
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "system": platform.system(),
    }


def matrix_rate(n: int = 1024, repeats: int = 5) -> float:
    """FLOP/s of a float32 matrix product of side n: the best of a few, measured now."""
    a, b, out = torch.randn(n, n), torch.randn(n, n), torch.empty(n, n)
    times = []
    for _ in range(repeats + 1):
        start = time.perf_counter()
        torch.mm(a, b, out=out)
        times.append(time.perf_counter() - start)
    return 2 * n**3 / min(times[1:])


def median_and_spread(times: list[float]) -> tuple[float, float]:
    """Median and half the distance between the quartiles, seconds."""
    quartiles = statistics.quantiles(times, n=4) if len(times) > 1 else [times[0]] * 3
    return statistics.median(times), (quartiles[2] - quartiles[0]) / 2
