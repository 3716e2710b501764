"""Time this tree beside an earlier checkout: ``python -m evidence.house.speed CHECKOUT``.

Each tree runs in a process of its own with one thread. For each operator, size and direction both
answer first, and the answers are compared. Then they are timed in turn, in processor seconds, and
each round gives one ratio: this tree's seconds over the other's. The command prints the median
ratio of each case, and exits with 1 where one is above 1.10.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from fredholm.errors import ShapeError

from ..kit.page import table

ROOT = Path(__file__).parents[2]
ROUNDS = 7
SECONDS = 0.05
"""Duration of the calls in a row that one measurement times."""
SLOWER = 1.10
"""Largest ratio of a case that does not count as slower."""
TOLERANCE = 1e-4
"""Largest difference of the answers' sums, relative to the sum of absolute values."""

# One thread, and no memory returned to the system. Otherwise glibc gives pages back depending on
# earlier computations, and some calls would pay for new ones.
ALIKE = {
    "OMP_NUM_THREADS": "1",
    "MALLOC_MMAP_THRESHOLD_": str(1 << 30),
    "MALLOC_TRIM_THRESHOLD_": str(1 << 34),
}

# Options and numbers of points. Quadratic operators end at fewer points.
OPERATORS: dict[str, tuple[dict[str, Any], tuple[int, ...]]] = {
    "softmax": ({}, (8, 64, 512, 2048)),
    "linear_attention": ({}, (8, 64, 512, 4096)),
    "luna": ({}, (8, 64, 512, 4096)),
    "infsa": ({}, (8, 64, 512)),
    "linear_infsa": ({}, (8, 64, 512, 4096)),
    "ckconv": ({}, (8, 64, 512, 4096)),
    "itnet": ({"width": 16}, (8, 64, 512)),
    "itnet_low_rank": ({"width": 16}, (8, 64, 512, 4096)),
}
ALL_TO_ALL = ("forward", "both")
CAUSAL = ("forward", "both", "step")


class Row(NamedTuple):
    """One case, timed in both trees.

    Attributes:
        name: operator, order, number of points, direction.
        before, now: median processor seconds per call of the checkout and of this tree.
        ratios: now over before, one per round.
    """

    name: str
    before: float
    now: float
    ratios: list[float]

    @property
    def ratio(self) -> float:
        """The median of the ratios."""
        return statistics.median(self.ratios)


class Tree:
    """A process that answers and times with the package of one checkout."""

    def __init__(self, root: Path):
        source = root / "src"
        if not (source / "fredholm" / "__init__.py").is_file():
            raise SystemExit(
                f"{root}: expected a checkout with src/fredholm, got none; check it out"
            )
        self.process = subprocess.Popen(
            # -P: the worker's folder is not on the path.
            [sys.executable, "-P", str(Path(__file__).with_name("timed.py"))],
            env={**os.environ, **ALIKE, "PYTHONPATH": str(source)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def ask(self, **request: Any) -> dict[str, float]:
        """Return the answer to one request."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        print(json.dumps(request), file=self.process.stdin, flush=True)
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"the process ended with {self.process.wait()} on {request}")
        return json.loads(line)

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()


def cases(only: list[str], *, small: bool = False) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the name and the description of every case, or of those whose operator is named."""
    for operator, (options, sizes) in OPERATORS.items():
        if only and operator not in only:
            continue
        for points in sizes[:1] if small else sizes:
            for causal, directions in ((False, ALL_TO_ALL), (True, CAUSAL)):
                for direction in directions:
                    # The kernel of CKConv must span all points.
                    spanning = options
                    if operator == "ckconv":
                        spanning = options | {"length": points}
                    case = {
                        "operator": operator,
                        "options": spanning,
                        "points": points,
                        "causal": causal,
                        "direction": direction,
                        "batch": 4,
                        "dim": 64,
                        "heads": 4,
                    }
                    order = "causal" if causal else "all to all"
                    yield f"{operator}, {order}, N {points:,}, {direction}", case


def timed(name: str, case: dict[str, Any], before: Tree, now: Tree, rounds: int) -> Row:
    """Compare both trees' answers to a case, then time them in turn.

    Raises:
        ShapeError: answers that differ.
    """
    first, second = before.ask(case=case), now.ask(case=case)
    difference = abs(first["sum"] - second["sum"])
    if not difference <= TOLERANCE * max(first["size"], 1e-12):
        raise ShapeError(
            f"{name}: expected the checkout's answer, whose sum is {first['sum']:.6g}, got "
            f"{second['sum']:.6g}; look for a change of the operator or of its random draws"
        )

    once = max(tree.ask(count=1)["seconds"] for tree in (before, now))
    count = max(1, math.ceil(SECONDS / max(once, 1e-9)))
    seconds: dict[Tree, list[float]] = {before: [], now: []}
    for number in range(rounds):
        # Every other round begins with the other tree.
        for tree in (before, now) if number % 2 == 0 else (now, before):
            seconds[tree].append(tree.ask(count=count)["seconds"])
    ratios = [b / a for a, b in zip(seconds[before], seconds[now])]
    return Row(name, *(statistics.median(seconds[tree]) for tree in (before, now)), ratios)


def report(rows: list[Row]) -> str:
    """Return a Markdown table with one row per case, and the cases that became slower."""
    heads = ["case", "before, µs", "now, µs", "now / before", "lowest", "highest"]
    lines = [
        (
            row.name,
            f"{1e6 * row.before:,.0f}",
            f"{1e6 * row.now:,.0f}",
            f"{row.ratio:.2f}",
            f"{min(row.ratios):.2f}",
            f"{max(row.ratios):.2f}",
        )
        for row in rows
    ]
    overall = math.exp(statistics.fmean(math.log(row.ratio) for row in rows))
    text = table(heads, lines)
    text += f"\n\nGeometric mean over {len(rows)} cases: {overall:.2f}."
    slower = [row.name for row in rows if row.ratio > SLOWER]
    if slower:
        text += f"\nSlower by more than {SLOWER - 1:.0%}: {'; '.join(slower)}."
    return text


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m evidence.house.speed",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("checkout", type=Path, help="the root of the other tree")
    parser.add_argument("--only", nargs="+", default=[], choices=OPERATORS, metavar="OPERATOR")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help=f"default: {ROUNDS}")
    parser.add_argument("--small", action="store_true", help="few points, to see that it runs")
    args = parser.parse_args(arguments)

    before, now = Tree(args.checkout), Tree(ROOT)
    rows = []
    try:
        for name, case in cases(args.only, small=args.small):
            rows.append(timed(name, case, before, now, args.rounds))
            print(f"{rows[-1].ratio:6.2f}  {name}", file=sys.stderr, flush=True)
    finally:
        before.close()
        now.close()
    print(report(rows))
    return int(any(row.ratio > SLOWER for row in rows))


if __name__ == "__main__":
    sys.exit(main())
