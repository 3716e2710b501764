"""ITNet's evaluation modes against the number of points, beside softmax attention in the same
block: time and peak memory.

``python -m benchmarks.itnet_modes [--lengths 196 512 ...] [--dim 128] [--heads 2] [--width 64]
[--device cpu] [--limit SECONDS] [--out FOLDER]`` runs every mode, length and direction in a process
of its own, and writes ``itnet-modes.json`` and a plot with the exponents fitted to the lengths from
1,024 on. Before a mode is timed its answer at 64 points is held to its dense definition. A length
whose time, extrapolated from the lengths before, exceeds the limit is left out and said to be.
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
import time
from pathlib import Path

import torch

from fredholm.depth import ResidualBlock
from fredholm.domain import Domain
from fredholm.kernels import add_proposal, auxiliary_loss
from fredholm.operators import MonteCarlo, create_operator

from .machine import describe, median_and_spread
from .memory import peak_kilobytes
from .runner import WrongAnswer, difference

LENGTHS = (196, 512, 1024, 4096, 16384)
SAMPLES, RANK, CHECKED = 128, 64, 64
MODES = ("exact", "MC-128", "MC-128 anchors", "LR-64", "SDPA")
DIRECTIONS = ("forward", "forward+backward")
OUT = Path(__file__).parents[1] / "docs" / "results"


def block(mode: str, options: argparse.Namespace, samples: int = SAMPLES) -> ResidualBlock:
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


def check(mode: str, options: argparse.Namespace) -> float:
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
    if error > allowed:
        raise WrongAnswer(
            f"{mode}: {error:.1e} from the definition, allowed {allowed:.0e}; refusing to time it"
        )
    return error


def measure(mode: str, n: int, direction: str, options: argparse.Namespace) -> dict[str, float]:
    """Median time of one mode and its peak memory above a small step's, in this process, which must
    have done nothing else.
    """
    module, cuda = block(mode, options), options.device == "cuda"
    parameters = list(module.parameters())

    def step(points: int) -> None:
        u, domain = (
            torch.randn(1, points, options.dim, device=options.device),
            Domain.line(points, device=options.device),
        )
        if direction == "forward":
            with torch.no_grad():
                module(u, domain)
        else:
            loss, extra = module(u.requires_grad_(), domain).square().sum(), auxiliary_loss(module)
            torch.autograd.grad(
                loss if extra is None else loss + extra, [u, *parameters], allow_unused=True
            )
        if cuda:
            torch.cuda.synchronize()

    step(SAMPLES)
    before = torch.cuda.memory_allocated() / 1024 if cuda else peak_kilobytes()
    if cuda:
        torch.cuda.reset_peak_memory_stats()
    times, begun = [], time.perf_counter()
    while len(times) < 2 or (
        len(times) < options.repeats and time.perf_counter() - begun < options.limit
    ):
        start = time.perf_counter()
        step(n)
        times.append(time.perf_counter() - start)
        if times[0] > options.limit:
            break
    median, spread = median_and_spread(times[1:] or times)  # the first also pays for memory
    after = torch.cuda.max_memory_allocated() / 1024 if cuda else peak_kilobytes()
    return {
        "n": n,
        "milliseconds": median * 1e3,
        "spread": spread * 1e3,
        "megabytes": (after - before) / 1024,
    }


def exponent(rows: list[dict[str, float]], what: str) -> float | None:
    """Slope against N in logarithms, by least squares over the lengths from 1,024 on (all, where
    there are fewer than two).
    """
    long = [row for row in rows if row["n"] >= 1024]
    used = long if len(long) > 1 else rows
    if len(used) < 2:
        return None
    x, y = ([math.log(max(row[key], 1e-3)) for row in used] for key in ("n", what))
    mean = sum(x) / len(x)
    return sum((a - mean) * b for a, b in zip(x, y)) / sum((a - mean) ** 2 for a in x)


def series(mode: str, direction: str, options: argparse.Namespace) -> dict[str, object]:
    """One curve."""
    error = check(mode, options)
    rows: list[dict[str, float]] = []
    left_out = []
    for n in options.lengths:
        if mode.startswith("MC") and n < SAMPLES:
            left_out.append(n)
            continue
        growth = 2 if mode in ("exact", "SDPA") else 1
        if rows and rows[-1]["milliseconds"] / 1e3 * (n / rows[-1]["n"]) ** growth > options.limit:
            left_out.append(n)
            continue
        command = [sys.executable, "-m", "benchmarks.itnet_modes", "--one", mode, str(n), direction]
        for name in ("dim", "heads", "width", "device", "limit", "repeats", "threads"):
            command += [f"--{name}", str(getattr(options, name))]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        rows.append(json.loads(done.stdout.splitlines()[-1]))
        row = rows[-1]
        print(
            f"{mode:15} {direction:17} N={n:6} {row['milliseconds']:10.1f} ms "
            f"{row['megabytes']:9.1f} MB",
            flush=True,
        )
    slopes = {what: exponent(rows, what) for what in ("milliseconds", "megabytes")}
    return {
        "mode": mode,
        "direction": direction,
        "rows": rows,
        "left_out": left_out,
        "exponent": slopes,
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
                values = [max(row[what], 0.1) for row in curve["rows"]]
                axis.loglog(
                    [row["n"] for row in curve["rows"]],
                    values,
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


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.itnet_modes", description=__doc__)
    parser.add_argument("--lengths", type=int, nargs="+", default=list(LENGTHS))
    parser.add_argument("--modes", nargs="+", default=list(MODES), choices=MODES)
    for name, value in (
        ("dim", 128),
        ("heads", 2),
        ("width", 64),
        ("repeats", 5),
        ("threads", torch.get_num_threads()),
    ):
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument(
        "--limit",
        type=float,
        default=60.0,
        help="seconds one step, and the repeats of one step, may take",
    )
    parser.add_argument(
        "--one", nargs=3, metavar=("MODE", "N", "DIRECTION"), help=argparse.SUPPRESS
    )
    parser.add_argument(
        "--out", type=Path, default=OUT, help="folder of itnet-modes.json and itnet-modes.png"
    )
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    if options.one:
        mode, n, direction = options.one
        print(json.dumps(measure(mode, int(n), direction, options)))
        return
    curves = [
        series(mode, direction, options)
        for direction in DIRECTIONS
        for mode in options.modes
        if (mode, direction) != ("MC-128 anchors", "forward+backward")  # training draws
    ]
    machine = describe() | {"device": options.device}
    if options.device == "cuda":
        machine["device"] = torch.cuda.get_device_name()
    options.out.mkdir(parents=True, exist_ok=True)
    setting = {
        name: getattr(options, name) for name in ("dim", "heads", "width", "limit", "threads")
    }
    text = json.dumps({"machine": machine, "setting": setting, "curves": curves}, indent=1)
    (options.out / "itnet-modes.json").write_text(text + "\n", encoding="utf-8")
    draw(curves, options.out / "itnet-modes.png")
    print(f"written to {options.out}")


if __name__ == "__main__":
    main()
