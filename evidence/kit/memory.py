"""Peak memory, each size measured in a fresh process."""

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
    """Format megabytes for a table.

    A dash stands for a size that was not measured, and for a call that needed no more memory than
    the process already had.

    Example:
        >>> show_megabytes(12.34, 1), show_megabytes(0.0), show_megabytes(None)
        ('12.3', '–', '–')
    """
    if not value:
        return "–"
    return f"{value:.{digits}f}"


def alone(function: str, **options: Any) -> Any:
    """Call ``module:function`` of this package in a new process and return its result.

    Options and result must be plain data, which travels as JSON.

    Raises:
        RuntimeError: the process failed; the text is the last line of its error output.
    """
    command = [sys.executable, "-m", "evidence.kit.memory", function, json.dumps(options)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        lines = done.stderr.strip().splitlines() or [f"exit {done.returncode}"]
        raise RuntimeError(lines[-1])
    # The function itself may print lines before its result.
    return json.loads(done.stdout.splitlines()[-1])


def operator_step(operator: str, n: int, **options: Any) -> dict[str, float | None]:
    """Measure the peak memory of an operator's forward and backward, MB, in this process."""
    import torch

    from fredholm.domain import Domain
    from fredholm.operators import create_operator

    op = create_operator(operator, 64, 2, **options)

    def step(points: int) -> None:
        u = torch.randn(1, points, 64, requires_grad=True)
        op(u, Domain.line(points)).square().sum().backward()

    # A small step first loads libraries and fills caches.
    step(64)
    return {"n": n, "megabytes": peak_megabytes(lambda: step(n))}


def exponent(rows: list[dict[str, Any]], what: str = "megabytes") -> float | None:
    """Fit the exponent b of ``what`` ~ N^b over the measured lengths; None for fewer than two."""
    known = [row for row in rows if row[what]]
    if len(known) < 2:
        return None
    return slope((row["n"] for row in known), (row[what] for row in known))


def operator_memory(
    operator: str, lengths: tuple[int, ...] = LENGTHS, **options: Any
) -> dict[str, Any]:
    """Measure the peak memory of an operator's training step at each length; fit the exponent."""
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


# The process that `alone` starts.
if __name__ == "__main__":
    module, _, name = sys.argv[1].partition(":")
    function = getattr(importlib.import_module(module), name)
    print(json.dumps(function(**json.loads(sys.argv[2]))))
