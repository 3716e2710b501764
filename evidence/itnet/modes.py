"""Time and peak memory of ITNet's evaluation modes against the number of points, beside softmax
attention in the same block.

Every mode, length and direction runs in a fresh process. Before a mode is timed, its answer at 64
points is compared with its dense definition. A length whose extrapolated time exceeds the limit is
skipped and listed as left out.
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
SAMPLES = 128
RANK = 64
"""Rank of the low-rank mode, over all heads."""
CHECKED = 64
"""Number of points at which answers are checked."""
MODES = ("exact", "MC-128", "MC-128 anchors", "LR-64", "SDPA")
DIRECTIONS = ("forward", "forward+backward")
FILE = "itnet-modes.json"


@dataclass(frozen=True)
class Setting:
    """The block that is measured.

    Attributes:
        dim, heads, width: of the operator.
        repeats: timed steps.
        threads, device: of PyTorch.
        limit: seconds that one step, and all repeats together, may take.
    """

    dim: int = 128
    heads: int = 2
    width: int = 64
    repeats: int = 5
    threads: int = 2
    device: str = "cpu"
    limit: float = 60.0


def block(mode: str, options: Setting, samples: int = SAMPLES) -> ResidualBlock:
    """Return a pre-norm block around the operator of one mode.

    The sampled mode is in training, since evaluation would not draw keys.
    """
    torch.manual_seed(0)
    operator = _operator(mode, options, samples)
    return ResidualBlock(operator, options.dim).to(options.device).train(mode == "MC-128")


def _operator(mode: str, options: Setting, samples: int) -> Any:
    """Make the operator of one mode."""
    size = options.dim, options.heads
    if mode == "SDPA":
        return create_operator("softmax", *size)
    if mode == "LR-64":
        rank = math.ceil(RANK / options.heads)
        return create_operator("itnet_low_rank", *size, rank=rank, width=options.width)
    if mode == "exact":
        return create_operator("itnet", *size, width=options.width, strategy="exact")

    strategy = MonteCarlo(samples=samples, anchors=mode == "MC-128 anchors")
    operator = create_operator("itnet", *size, width=options.width, strategy=strategy)
    if mode == "MC-128":
        add_proposal(operator)
    return operator


def check(mode: str, options: Setting) -> float:
    """Return the difference from the dense definition at few points.

    The sampled mode is random; the mean over 512 draws is compared, within six standard errors.

    Raises:
        WrongAnswer: the difference is too large.
    """
    draws = 512 if mode == "MC-128" else 1
    operator = block(mode, options, samples=CHECKED).operator
    u = torch.randn(1, CHECKED, options.dim, device=options.device)
    domain = Domain.line(CHECKED, device=options.device)
    with torch.no_grad():
        found = operator(u.expand(draws, -1, -1), domain)
        error = difference(found.mean(0, keepdim=True), operator.dense(u, domain))
        allowed = 1e-4
        if draws > 1:
            standard_error = (found.std(0) / draws**0.5).max()
            allowed = 6 * float(standard_error / found.abs().max())
    return require(mode, error, allowed)


def measure(mode: str, n: int, direction: str, **setting: Any) -> dict[str, Any]:
    """Measure the median time and the peak memory of one mode, in this fresh process."""
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
            loss = module(u.requires_grad_(), domain).square().sum()
            extra = auxiliary_loss(module)
            if extra is not None:
                loss = loss + extra
            torch.autograd.grad(loss, [u, *parameters], allow_unused=True)
        if options.device == "cuda":
            torch.cuda.synchronize()

    step(SAMPLES)
    peak = _cuda_peak if options.device == "cuda" else peak_megabytes
    megabytes = peak(lambda: step(n))
    times = in_turn({"": lambda: step(n)}, options.repeats, options.limit, warm=False)[""]
    median, spread = median_and_spread(times)
    return {"n": n, "milliseconds": 1e3 * median, "spread": 1e3 * spread, "megabytes": megabytes}


def _cuda_peak(call: Any) -> float:
    """Return by how many MB a call raises the allocated memory of the GPU."""
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    call()
    return (torch.cuda.max_memory_allocated() - before) / 2**20


def exponent(rows: list[dict[str, Any]], what: str) -> float | None:
    """Fit the exponent of growth over the lengths from 1,024 on, or over all if those are fewer
    than two.
    """
    long = [row for row in rows if row["n"] >= 1024]
    return slope_of(long if len(long) > 1 else rows, what)


def series(
    mode: str, direction: str, options: Setting, lengths: tuple[int, ...]
) -> dict[str, object]:
    """Check a mode and measure its curve against N."""
    error = check(mode, options)
    rows: list[dict[str, Any]] = []
    left_out = []
    growth = 2 if mode in ("exact", "SDPA") else 1
    for n in lengths:
        expected = 0.0
        if rows:
            before = rows[-1]
            expected = before["milliseconds"] / 1e3 * (n / before["n"]) ** growth
        # Fewer points than samples would not be a sampled mode.
        too_few = mode.startswith("MC") and n < SAMPLES
        if expected > options.limit or too_few:
            left_out.append(n)
            continue
        arguments = {"mode": mode, "n": n, "direction": direction, **asdict(options)}
        row = alone(f"{__name__}:measure", **arguments)
        rows.append(row)
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
    """Draw time and memory against N in logarithms, for both directions."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(2, 2, figsize=(10, 7.5), sharex=True)
    for column, direction in enumerate(DIRECTIONS):
        for line, (what, label) in enumerate((("milliseconds", "ms"), ("megabytes", "peak MB"))):
            axis = axes[line][column]
            for curve in curves:
                if curve["direction"] == direction and curve["rows"]:
                    _draw_curve(axis, curve, what)
            title, xlabel = (direction, "") if line == 0 else ("", "points N")
            axis.set(ylabel=label, title=title, xlabel=xlabel)
            axis.legend(fontsize=8, frameon=False)
            axis.grid(alpha=0.3)
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


def _draw_curve(axis: Any, curve: dict[str, Any], what: str) -> None:
    """Draw one curve, with its exponent in the legend."""
    slope = curve["exponent"][what]
    label = curve["mode"]
    if slope is not None:
        label += f": $N^{{{slope:.2f}}}$"
    # Zero, which has no logarithm, stands for memory that could not be measured.
    rows = [row for row in curve["rows"] if row[what]]
    lengths, values = [row["n"] for row in rows], [row[what] for row in rows]
    axis.loglog(lengths, values, marker="o", markersize=4, label=label)


def time(options: Options) -> None:
    """Measure the modes of ``--only``, or all."""
    setting, lengths = Setting(threads=options.threads), LENGTHS
    if options.small:
        setting = Setting(dim=8, heads=2, width=4, repeats=1, threads=1)
        lengths = (128, 160)
    curves = []
    for direction in DIRECTIONS:
        for mode in options.chosen(MODES):
            # Anchors are for evaluation; training draws keys.
            if (mode, direction) != ("MC-128 anchors", "forward+backward"):
                curves.append(series(mode, direction, setting, lengths))
    machine = describe() | {"device": setting.device}
    found = {"machine": machine, "setting": asdict(setting), "curves": curves}
    save(found, FILE, options.results)


def draw_committed() -> None:
    """Draw docs/results/itnet-modes.png from the committed numbers."""
    draw(load(FILE)["curves"], PAGES / "itnet-modes.png")
