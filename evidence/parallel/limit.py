"""A training under a limit of memory, which stops one process but not four with a part of every
sample each.
"""

from __future__ import annotations

import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..kit.page import load, save
from ..kit.subject import Options
from .memory import FILE

LIMIT = 1792
"""Address space of each process, in MB, beyond its need for a few points."""
FEW, POINTS = 64, 1 << 20
COUNTS = (1, 4)
# Dropout is off because its draws differ between processes.
COMMAND = (
    *("fredholm", "train", "ckcnn-adding"),
    *("model=ckcnn_small", "model.body.widths=[16,16]", "operator.width=16"),
    *("model.body.dropout=0", "model.body.input_dropout=0"),
    *("data.options.train=2", "data.options.val=1", "data.batch_size=1"),
    *("training.epochs=1", "schedule.warmup_epochs=0"),
)


def command(points: int, count: int) -> list[str]:
    """Return the command of a training; several processes divide every sample."""
    words = [*COMMAND, f"data.options.length={points}"]
    if count > 1:
        words += [f"training.devices={count}", f"parallel.domain={count}"]
    return words


def run_limit(options: Options) -> None:
    """Train on long series with one process and with four.

    Each process has the address space of a training on short series, and LIMIT MB more.
    """
    points, more = (2048, 8) if options.small else (POINTS, LIMIT)
    footing = max(run(command(FEW, count)).megabytes for count in COUNTS)
    rows = []
    for count in COUNTS:
        ran = run(command(points, count), footing + more)
        row = {"command": " ".join(command(points, count)), "processes": count}
        rows.append({**row, "failed": ran.code != 0, "said": ran.line, "megabytes": ran.megabytes})
        print(rows[-1], flush=True)
    found = load(FILE, options.results) or {}
    limit = {"points": points, "footing": footing, "beyond": more, "rows": rows}
    save({**found, "limit": limit}, FILE, options.results)


@dataclass
class Ran:
    """The result of a command.

    Attributes:
        code: its exit code.
        line: the line of its error or its result, or the last line.
        megabytes: the largest address space of one of its processes.
    """

    code: int
    line: str
    megabytes: int


def run(arguments: list[str], limit: int | None = None) -> Ran:
    """Run a command of ``fredholm`` with at most ``limit`` MB of address space per process."""

    def limited() -> None:
        if limit is not None:
            resource.setrlimit(resource.RLIMIT_AS, (limit << 20, limit << 20))

    with tempfile.TemporaryDirectory() as folder:
        words = [sys.executable, "-m", *arguments, "--runs", folder]
        with (Path(folder) / "output.txt").open("w+", encoding="utf-8") as output:
            pipes: dict[str, Any] = {"stdout": output, "stderr": subprocess.STDOUT}
            process = subprocess.Popen(words, preexec_fn=limited, **pipes)
            most = 0
            while process.poll() is None:
                most = max([most, *(address_space(pid) for pid in family(process.pid))])
                time.sleep(0.05)
            output.seek(0)
            lines = output.read().splitlines()
    results = [line for line in lines if line.startswith(("error:", f"{arguments[2]}:"))]
    line = results[-1] if results else lines[-1]
    return Ran(process.returncode, line, most)


def family(process: int) -> Iterator[int]:
    """Yield a process and all its descendants."""
    yield process
    with suppress(OSError):
        for file in Path(f"/proc/{process}/task").glob("*/children"):
            for child in file.read_text().split():
                yield from family(int(child))


def address_space(process: int) -> int:
    """Return the largest address space that a process had, MB; 0 if it has ended."""
    with suppress(OSError):
        for line in Path(f"/proc/{process}/status").read_text().splitlines():
            if line.startswith("VmPeak"):
                return int(line.split()[1]) >> 10
    return 0
