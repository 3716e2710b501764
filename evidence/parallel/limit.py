"""A whole training that a limit of memory stops in one process, and not in four that have a part of
every sample each.
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

LIMIT = 1792  # MB of address space of each process, beyond what it needs for a few points
FEW, POINTS = 64, 1 << 20
COUNTS = (1, 4)
COMMAND = (
    *("fredholm", "train", "ckcnn-adding"),
    *("model=ckcnn_small", "model.body.widths=[16,16]", "operator.width=16"),
    *("model.body.dropout=0", "model.body.input_dropout=0"),  # draws differ by process
    *("data.options.train=2", "data.options.val=1", "data.batch_size=1"),
    *("training.epochs=1", "schedule.warmup_epochs=0"),
)


def command(points: int, count: int) -> list[str]:
    """What is typed; one process has whole samples."""
    cut = [f"training.devices={count}", f"parallel.domain={count}"] if count > 1 else []
    return [*COMMAND, f"data.options.length={points}", *cut]


def run_limit(options: Options) -> None:
    """Train on long series by one process and by four, with so much address space for each as it
    takes to train on short ones, and LIMIT more.
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
    """How a command ended.

    Attributes:
        code: its exit code.
        line: what it said: the error's line, or the last one before what to do next.
        megabytes: the largest address space of one of its processes.
    """

    code: int
    line: str
    megabytes: int


def run(arguments: list[str], limit: int | None = None) -> Ran:
    """Run a command of ``fredholm``, each process of which may have ``limit`` MB of address
    space.
    """

    def limited() -> None:
        if limit is not None:
            resource.setrlimit(resource.RLIMIT_AS, (limit << 20, limit << 20))

    with tempfile.TemporaryDirectory() as folder:
        typed = [sys.executable, "-m", *arguments, "--runs", folder]
        with (Path(folder) / "said.txt").open("w+", encoding="utf-8") as said:
            pipes: dict[str, Any] = {"stdout": said, "stderr": subprocess.STDOUT}
            process = subprocess.Popen(typed, preexec_fn=limited, **pipes)
            most = 0
            while process.poll() is None:
                most = max([most, *(address_space(pid) for pid in family(process.pid))])
                time.sleep(0.05)
            said.seek(0)
            lines = said.read().splitlines()
    told = [line for line in lines if line.startswith(("error:", f"{arguments[2]}:"))]
    return Ran(process.returncode, told[-1] if told else lines[-1], most)


def family(process: int) -> Iterator[int]:
    """A process and all that it started."""
    yield process
    with suppress(OSError):
        for file in Path(f"/proc/{process}/task").glob("*/children"):
            for child in file.read_text().split():
                yield from family(int(child))


def address_space(process: int) -> int:
    """The largest that a process had, MB; 0 where it has ended."""
    with suppress(OSError):
        for line in Path(f"/proc/{process}/status").read_text().splitlines():
            if line.startswith("VmPeak"):
                return int(line.split()[1]) >> 10
    return 0
