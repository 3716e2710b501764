"""ITNet's evaluation modes against the number of points, beside softmax attention in the same
block: time and peak memory.

Every mode, length and direction runs in a process of its own. Before a mode is timed its answer at
64 points is compared with its dense definition. A length whose time, extrapolated from the lengths
before, exceeds the limit is left out and said to be.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from fredholm.domain import Domain
from fredholm.kernels import add_proposal, auxiliary_loss
from fredholm.models.depth import ResidualBlock
from fredholm.operators import MonteCarlo, create_operator

from ..kit.clock import difference, in_turn, median_and_spread, require
from ..kit.machine import describe
from ..kit.memory import alone, peak_megabytes, show_megabytes
from ..kit.memory import exponent as slope_of
from ..kit.page import PAGES, load, save
from ..kit.subject import Options

LENGTHS = (196, 512, 1024, 4096, 16384)
SAMPLES, RANK, CHECKED = 128, 64, 64
MODES = ("exact", "MC-128", "MC-128 anchors", "LR-64", "SDPA")
DIRECTIONS = ("forward", "forward+backward")
FILE = "itnet-modes.json"


@dataclass(frozen=True)
class Setting:
    """The block that is measured, and ``limit``: seconds that one step, and the repeats of one
    step, may take.
    """

    dim: int = 128
    heads: int = 2
    width: int = 64
    repeats: int = 5
    threads: int = 2
    device: str = "cpu"
    limit: float = 60.0


def block(mode: str, options: Setting, samples: int = SAMPLES) -> ResidualBlock:
    """A pre-norm block around the operator of one mode, in the mode's own training state."""
    torch.manual_seed(0)
    if mode == "SDPA":
        operator = create_operator("softmax", options.dim, options.heads)
    elif mode == "LR-64":
        rank = math.ceil(RANK / options.heads)
        operator = create_operator(
            "itnet_low_rank", options.dim, options.heads, rank=rank, width=options.width
        )
    else:
        strategy = (
            "exact"
            if mode == "exact"
            else MonteCarlo(samples=samples, anchors=mode == "MC-128 anchors")
        )
        operator = create_operator(
            "itnet", options.dim, options.heads, width=options.width, strategy=strategy
        )
        if mode == "MC-128":
            add_proposal(operator)
    return ResidualBlock(operator, options.dim).to(options.device).train(mode == "MC-128")


def check(mode: str, options: Setting) -> float:
    """Difference from the dense definition at few points, or WrongAnswer; the sampled mode's
    definition is its mean.
    """
    draws = 512 if mode == "MC-128" else 1
    operator = block(mode, options, samples=CHECKED).operator
    u = torch.randn(1, CHECKED, options.dim, device=options.device)
    domain = Domain.line(CHECKED, device=options.device)
    with torch.no_grad():
        found = operator(u.expand(draws, -1, -1), domain)
        error = difference(found.mean(0, keepdim=True), operator.dense(u, domain))
        allowed = (
            1e-4 if draws == 1 else 6 * float((found.std(0) / draws**0.5).max() / found.abs().max())
        )
    return require(mode, error, allowed)


def measure(mode: str, n: int, direction: str, **setting: Any) -> dict[str, Any]:
    """Median time of one mode and its peak memory, in this process, which must have done nothing
    else.
    """
    options = Setting(**setting)
    torch.set_num_threads(options.threads)
    module = block(mode, options)
    parameters = list(module.parameters())

    def step(points: int) -> None:
        u = torch.randn(1, points, options.dim, device=options.device)
        domain = Domain.line(points, device=options.device)
        if direction == "forward":
            with torch.no_grad():
                module(u, domain)
        else:
            loss, extra = module(u.requires_grad_(), domain).square().sum(), auxiliary_loss(module)
            total = loss if extra is None else loss + extra
            torch.autograd.grad(total, [u, *parameters], allow_unused=True)
        if options.device == "cuda":
            torch.cuda.synchronize()

    step(SAMPLES)
    peak = _cuda_peak if options.device == "cuda" else peak_megabytes
    megabytes = peak(lambda: step(n))
    times = in_turn({"": lambda: step(n)}, options.repeats, options.limit, warm=False)[""]
    median, spread = median_and_spread(times)
    return {"n": n, "milliseconds": 1e3 * median, "spread": 1e3 * spread, "megabytes": megabytes}


def _cuda_peak(call: Any) -> float:
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    call()
    return (torch.cuda.max_memory_allocated() - before) / 2**20


def exponent(rows: list[dict[str, Any]], what: str) -> float | None:
    """Slope against N in logarithms, over the lengths from 1,024 on (all, where there are fewer
    than two).
    """
    long = [row for row in rows if row["n"] >= 1024]
    return slope_of(long if len(long) > 1 else rows, what)


def series(
    mode: str, direction: str, options: Setting, lengths: tuple[int, ...]
) -> dict[str, object]:
    """One curve."""
    error = check(mode, options)
    rows: list[dict[str, Any]] = []
    left_out = []
    growth = 2 if mode in ("exact", "SDPA") else 1
    for n in lengths:
        before = rows[-1] if rows else {"milliseconds": 0.0, "n": n}
        expected = before["milliseconds"] / 1e3 * (n / before["n"]) ** growth
        if expected > options.limit or (mode.startswith("MC") and n < SAMPLES):
            left_out.append(n)
            continue
        given = {"mode": mode, "n": n, "direction": direction, **asdict(options)}
        rows.append(row := alone(f"{__name__}:measure", **given))
        figures = f"{row['milliseconds']:10.1f} ms {show_megabytes(row['megabytes'], 1):>9} MB"
        print(f"{mode:15} {direction:17} N={n:6} {figures}", flush=True)
    return {
        "mode": mode,
        "direction": direction,
        "rows": rows,
        "left_out": left_out,
        "exponent": {what: exponent(rows, what) for what in ("milliseconds", "megabytes")},
        "difference": error,
    }


def draw(curves: list[dict], path: Path) -> None:
    """Time and memory, forward and both, logarithmic."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(2, 2, figsize=(10, 7.5), sharex=True)
    for column, direction in enumerate(DIRECTIONS):
        for line, (what, label) in enumerate((("milliseconds", "ms"), ("megabytes", "peak MB"))):
            axis = axes[line][column]
            for curve in (c for c in curves if c["direction"] == direction and c["rows"]):
                slope = curve["exponent"][what]
                name = curve["mode"] if slope is None else f"{curve['mode']}: $N^{{{slope:.2f}}}$"
                rows = [row for row in curve["rows"] if row[what]]
                axis.loglog(
                    [row["n"] for row in rows],
                    [row[what] for row in rows],
                    marker="o",
                    markersize=4,
                    label=name,
                )
            axis.set(
                ylabel=label,
                title=direction if line == 0 else "",
                xlabel="points N" if line else "",
            )
            axis.legend(fontsize=8, frameon=False)
            axis.grid(alpha=0.3)
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


def time(options: Options) -> None:
    """The modes of ``--only``, or all."""
    setting, lengths = Setting(threads=options.threads), LENGTHS
    if options.small:
        setting = Setting(dim=8, heads=2, width=4, repeats=1, threads=1)
        lengths = (128, 160)
    curves = [
        series(mode, direction, setting, lengths)
        for direction in DIRECTIONS
        for mode in options.chosen(MODES)
        if (mode, direction) != ("MC-128 anchors", "forward+backward")  # training draws
    ]
    machine = describe() | {"device": setting.device}
    found = {"machine": machine, "setting": asdict(setting), "curves": curves}
    save(found, FILE, options.results)


def draw_committed() -> None:
    """docs/results/itnet-modes.png."""
    draw(load(FILE)["curves"], PAGES / "itnet-modes.png")
