"""Peak memory of forward + backward against N, each length in a process of its own."""

from __future__ import annotations

import json
import math
import subprocess
import sys

LENGTHS = (1024, 2048, 4096, 8192)


def peak_kilobytes() -> int:
    """Peak resident memory of this process. Not getrusage's: that one also holds the peak of the
    parent it was forked from.
    """
    with open("/proc/self/status", encoding="utf-8") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmHWM"))


def measure(operator: str, n: int, dim: int = 64, heads: int = 2, **options) -> dict[str, float]:
    """Peak resident memory above that of a tiny step, MB, in this process."""
    import torch

    from fredholm.domain import Domain
    from fredholm.operators import create_operator

    op = create_operator(operator, dim, heads, **options)

    def step(points: int) -> None:
        u = torch.randn(1, points, dim, requires_grad=True)
        op(u, Domain.line(points)).square().sum().backward()

    step(64)
    before = peak_kilobytes()
    step(n)
    return {"n": n, "megabytes": (peak_kilobytes() - before) / 1024}


def exponent(rows: list[dict[str, float]]) -> float:
    """Slope of log memory against log N by least squares."""
    x = [math.log(row["n"]) for row in rows]
    y = [math.log(max(row["megabytes"], 1e-3)) for row in rows]
    mx, my = sum(x) / len(x), sum(y) / len(y)
    return sum((a - mx) * (b - my) for a, b in zip(x, y)) / sum((a - mx) ** 2 for a in x)


def run(operator: str, lengths: tuple[int, ...] = LENGTHS, **options) -> dict[str, object]:
    """Peak memory at each length, and the fitted exponent."""
    rows = []
    for n in lengths:
        command = [sys.executable, "-m", "benchmarks.memory", operator, str(n), json.dumps(options)]
        rows.append(
            json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
        )
    return {
        "case": f"{operator} memory",
        "lengths": rows,
        "exponent": exponent(rows),
        "note": f"B=1 d=64 H=2 {options}",
    }


if __name__ == "__main__":
    name, length, extra = sys.argv[1:]
    print(json.dumps(measure(name, int(length), **json.loads(extra))))
