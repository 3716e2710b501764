"""Peak memory, each size in a process of its own."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from typing import Any

from fredholm.lab.training.machine import peak_megabytes, process_megabytes

from .statistics import slope

__all__ = ["alone", "exponent", "operator_memory", "peak_megabytes", "process_megabytes"]

LENGTHS = (1024, 2048, 4096, 8192)


def show_megabytes(value: float | None, digits: int = 0) -> str:
    """Megabytes in a table; a dash where they were not measured, or where a call fits into memory
    that the process held already.

    Example:
        >>> show_megabytes(12.34, 1), show_megabytes(0.0), show_megabytes(None)
        ('12.3', '–', '–')
    """
    return f"{value:.{digits}f}" if value else "–"


def alone(function: str, **options: Any) -> Any:
    """What ``module:function`` of this package returns, called in a new process.

    Raises:
        RuntimeError: it fails; with the last line of what it said.
    """
    command = [sys.executable, "-m", "evidence.kit.memory", function, json.dumps(options)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        said = done.stderr.strip().splitlines() or [f"exit {done.returncode}"]
        raise RuntimeError(said[-1])
    return json.loads(done.stdout.splitlines()[-1])


def operator_step(operator: str, n: int, **options: Any) -> dict[str, float | None]:
    """Peak memory of a forward and backward of one operator, MB, in this process."""
    import torch

    from fredholm.domain import Domain
    from fredholm.operators import create_operator

    op = create_operator(operator, 64, 2, **options)

    def step(points: int) -> None:
        u = torch.randn(1, points, 64, requires_grad=True)
        op(u, Domain.line(points)).square().sum().backward()

    step(64)
    return {"n": n, "megabytes": peak_megabytes(lambda: step(n))}


def exponent(rows: list[dict[str, Any]], what: str = "megabytes") -> float | None:
    """Slope against N in logarithms, over the lengths that were measured; None of fewer than two."""
    known = [row for row in rows if row[what]]
    if len(known) < 2:
        return None
    return slope((row["n"] for row in known), (row[what] for row in known))


def operator_memory(
    operator: str, lengths: tuple[int, ...] = LENGTHS, **options: Any
) -> dict[str, Any]:
    """Peak memory of an operator's training step at each length, and the fitted exponent."""
    call = "evidence.kit.memory:operator_step"
    rows = [alone(call, operator=operator, n=n, **options) for n in lengths]
    found = {
        "case": f"{operator} memory",
        "lengths": rows,
        "exponent": exponent(rows),
        "note": f"B=1 d=64 H=2 {options}",
    }
    sizes = ", ".join(f"{row['n']}: {show_megabytes(row['megabytes'], 1)} MB" for row in rows)
    print(f"{found['case']}: exponent {found['exponent']}, {sizes}", flush=True)
    return found


if __name__ == "__main__":  # one measurement of `alone`
    module, _, name = sys.argv[1].partition(":")
    print(json.dumps(getattr(importlib.import_module(module), name)(**json.loads(sys.argv[2]))))
