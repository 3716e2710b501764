"""Every operator at several lengths against the rates of this machine: matrix products,
exponentials and memory.

Each operator is checked against its dense definition at 48 points before it is timed.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import torch

from fredholm.domain import Domain
from fredholm.lab.training.machine import seconds_of
from fredholm.operators import create_operator

from ..kit.clock import difference, median_and_spread, require
from ..kit.machine import describe, matrix_rate
from ..kit.page import IMAGES, load, save
from ..kit.subject import Options
from .costs import COSTS

FILE = "roofline.json"
LENGTHS, DIM, HEADS = (256, 1024, 4096), 128, 4
OPTIONS: dict[str, dict[str, Any]] = {
    "itnet": {"width": 32},
    "itnet_low_rank": {"width": 32, "rank": 8},
    "ckconv": {"width": 32, "origin": "centre"},
}
# A longer length is left out where one evaluation would take more than this many seconds.
LIMIT = 4.0


def rates() -> dict[str, float]:
    """Measure this machine: FLOP/s of a matrix product, exponentials and copied bytes per second.

    Each is the best of several repeats.
    """
    small, big = torch.randn(1 << 16), torch.randn(1 << 24)
    target, copied = torch.empty_like(small), torch.empty_like(big)

    def best(run: Any, repeats: int) -> float:
        return min(seconds_of(run) for _ in range(repeats + 1))

    return {
        "matrix_flops": matrix_rate(),
        "functions": len(small) / best(lambda: torch.exp(small, out=target), 30),
        "bytes": 2 * 4 * len(big) / best(lambda: copied.copy_(big), 5),
    }


@torch.no_grad()
def check(name: str) -> float:
    """Return the difference of an operator from its dense definition at 48 points.

    Raises:
        WrongAnswer: the difference is above 1e-4.
    """
    torch.manual_seed(0)
    operator, domain, u = _make(name), Domain.line(48), torch.randn(1, 48, DIM)
    return require(name, difference(operator(u, domain), operator.dense(u, domain)), 1e-4)


def _make(name: str, n: int = 48) -> Any:
    options = OPTIONS.get(name, {})
    if name == "ckconv":
        return create_operator(name, DIM, 1, **options, length=n)
    return create_operator(name, DIM, HEADS, **options)


@torch.no_grad()
def measure(lengths: tuple[int, ...], repeats: int) -> list[dict[str, Any]]:
    """Return one row per operator and length, with predicted cost and measured time."""
    rows: list[dict[str, Any]] = []
    for name in sorted(COSTS):
        error, seconds, before = check(name), 0.0, 0
        options = dict(OPTIONS.get(name, {}))
        # The cost model has no origin: both ways cost the same.
        options.pop("origin", None)
        for n in lengths:
            if before and seconds * (n / before) ** 2 > LIMIT:
                continue
            operator, u, domain = _make(name, n), torch.randn(1, n, DIM), Domain.line(n)
            heads = 1 if name == "ckconv" else HEADS
            cost = COSTS[name](n, DIM, heads, **options)
            once = partial(operator, u, domain)
            once()
            seconds, spread = median_and_spread([seconds_of(once) for _ in range(repeats)])
            before = n
            found = {
                "operator": name,
                "n": n,
                "flops": cost.flops,
                "functions": cost.functions,
                "bytes": cost.bytes,
            }
            rows.append(found | {"seconds": seconds, "spread": spread, "difference": error})
    return rows


def share(row: dict[str, Any], rate: dict[str, float]) -> float:
    """Return the least time that the cost model allows on this machine over the measured time."""
    products = row["flops"] / rate["matrix_flops"] + row["functions"] / rate["functions"]
    return max(products, row["bytes"] / rate["bytes"]) / row["seconds"]


def draw(result: dict[str, Any], path: Path) -> None:
    """Draw FLOP/s against FLOPs per byte, with the two roofs."""
    import matplotlib

    matplotlib.use("svg")
    from matplotlib import pyplot

    rate = result["rates"]
    with pyplot.rc_context({"svg.hashsalt": "roofline", "svg.fonttype": "none"}):
        figure, axes = pyplot.subplots(figsize=(8, 4.8), layout="constrained")
        names = list(dict.fromkeys(row["operator"] for row in result["rows"]))
        for index, name in enumerate(names):
            rows = [row for row in result["rows"] if row["operator"] == name]
            x = [row["flops"] / row["bytes"] for row in rows]
            y = [row["flops"] / row["seconds"] / 1e9 for row in rows]
            axes.plot(x, y, marker="osD^vP*X"[index % 8], markersize=6, linewidth=0.8, label=name)
        low, high = axes.get_xlim()
        corner = rate["matrix_flops"] / rate["bytes"]
        left = min(low, 1.0) if low > 0 else 1.0
        xs = [max(left, 0.5), corner, max(high, 4 * corner)]
        roof = [min(rate["matrix_flops"], rate["bytes"] * x) / 1e9 for x in xs]
        axes.plot(xs, roof, color="black", linewidth=1.2, label="matrix products, memory")
        axes.set(
            xscale="log",
            yscale="log",
            xlabel="FLOPs per byte (predicted)",
            ylabel="GFLOP/s (measured time)",
        )
        axes.legend(fontsize=8, frameon=False, loc="center left", bbox_to_anchor=(1, 0.5))
        axes.grid(alpha=0.3)
        figure.savefig(path, metadata={"Date": None})
        pyplot.close(figure)


def time(options: Options) -> None:
    """Measure and save every operator; this takes a minute on a quiet machine."""
    result: dict[str, Any] = {
        "machine": describe(),
        "rates": rates(),
        "dim": DIM,
        "heads": HEADS,
        "options": OPTIONS,
    }
    result["rows"] = measure((64, 128) if options.small else LENGTHS, 2 if options.small else 7)
    save(result, FILE, options.results)


def draw_committed() -> None:
    """Draw docs/images/roofline.svg from the committed result."""
    draw(load(FILE), IMAGES / "roofline.svg")
