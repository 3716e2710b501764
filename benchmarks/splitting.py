"""``python -m benchmarks.splitting [--only orders|speed] [--quick]``: orders of the splitting
schemes and what they cost.

Writes splitting.json and splitting.svg. Keep the machine quiet for the timings of encoders.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from fredholm.convert.encoder import from_encoder
from fredholm.domain import Domain
from fredholm.families.continuous.splitting import (
    Evolution,
    FeedForwardTerm,
    Hybrid,
    LinearTerm,
    MomentConstraint,
    OperatorTerm,
    convergence,
    encoder_terms,
)

from .machine import describe
from .registry import Case, Entry, register
from .runner import run

FOLDER = Path(__file__).parents[1] / "docs" / "results"
SCHEMES = {
    "Lie": "lie",
    "Strang": "strang",
    "parallel": "parallel",
    "hybrid": Hybrid(((0, 2), (1, 3))),
}


def smooth_evolution(dim: int = 16, knots: int = 4, *, substep: str = "auto") -> Evolution:
    """Attention, network, linear term and soft constraint with controls linear in time: a smooth
    equation on [0, 1].
    """
    torch.manual_seed(0)
    groups = [
        [
            OperatorTerm.of("softmax", dim, 2, substep=substep),
            FeedForwardTerm(dim, 2 * dim, activation="tanh", substep=substep),
            LinearTerm(dim, substep=substep),
            MomentConstraint(dim, affine="none", penalty=1.0, substep=substep),
        ]
        for _ in range(knots)
    ]
    evolution = Evolution(groups, controls="linear", horizon=1.0).double()
    for parameter in evolution.parameters():
        nn.init.normal_(parameter, std=0.25)
    return evolution


@torch.no_grad()
def orders(steps: tuple[int, ...] = (8, 16, 32, 64, 128, 256)) -> list[dict[str, Any]]:
    """Errors and order of every scheme against the unsplit equation by a Runge-Kutta method of
    order 4 with twice the most steps.
    """
    evolution = smooth_evolution()
    u, domain = torch.randn(2, 12, 16, dtype=torch.float64), Domain.grid(12, dtype=torch.float64)
    reference = evolution.integrate(u, domain, steps=2 * steps[-1])
    rows = []
    for name, scheme in SCHEMES.items():
        rows.append(
            {"scheme": name}
            | asdict(
                convergence(evolution, u, domain, scheme=scheme, steps=steps, reference=reference)
            )
        )
    euler = smooth_evolution(substep="euler")
    found = convergence(euler, u, domain, scheme="strang", steps=steps, reference=reference)
    return [*rows, {"scheme": "Strang, Euler substeps"} | asdict(found)]


def draw(rows: list[dict[str, Any]], path: Path) -> None:
    """Error against the number of steps, with the measured orders."""
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = "splitting"  # the same file for the same numbers
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(6.4, 4.4), layout="constrained")
    for row, marker in zip(rows, "osD^v"):
        axes.loglog(
            row["steps"],
            row["errors"],
            marker=marker,
            label=f"{row['scheme']}: order {row['order']:.2f}",
        )
    ticks = rows[0]["steps"]
    axes.set(
        xlabel="steps on [0, 1]", ylabel="relative error of u(1)", xticks=ticks, xticklabels=ticks
    )
    axes.minorticks_off()
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(path, metadata={"Date": None})
    pyplot.close(figure)


# --- speed ----------------------------------------------------------------------------------------


@register("splitting")
def recovery(
    lengths: tuple[int, ...] = (64, 196, 512),
    dim: int = 256,
    heads: int = 8,
    layers: int = 6,
    batch: int = 4,
    repeats: int = 15,
) -> Iterator[Case]:
    """A step of 1 against ``torch.nn.TransformerEncoder`` with the same weights, forward and
    backward.
    """
    for n in lengths:
        encoder = _encoder(dim, heads, layers)
        u, domain = torch.randn(batch, n, dim, requires_grad=True), Domain.line(n)
        entries = {"nn.TransformerEncoder": _training_step(encoder, u)}
        for scheme in ("lie", "relaxed"):
            entries[scheme] = _training_step(from_encoder(encoder, scheme=scheme), u, domain)
        note = f"B={batch} d={dim} H={heads} {layers} layers"
        yield Case(
            f"encoder N={n}", entries["nn.TransformerEncoder"].run, entries, 1e-3, note, repeats
        )


@register("strang")
def strang(
    n: int = 196, dim: int = 256, heads: int = 8, layers: int = 6, batch: int = 4, repeats: int = 7
) -> Iterator[Case]:
    """Strang's steps beside Lie's, same weights, forward and backward; each is checked against a
    composition written out here.
    """
    for norm in ("post", "pre"):
        torch.manual_seed(0)
        evolution = Evolution(
            [
                encoder_terms(dim, heads, 4 * dim, norm=norm, activation="gelu")
                for _ in range(layers)
            ]
        )
        u, domain = torch.randn(batch, n, dim, requires_grad=True), Domain.line(n)
        note = f"B={batch} N={n} d={dim} H={heads} {layers} steps"
        for scheme, reference in (("lie", _lie), ("strang", _strang)):
            module = Evolution([list(knot) for knot in evolution.knots], scheme=scheme)
            expected = _training_step(
                module, u, domain, forward=lambda v, d, r=reference, m=module: r(m, v, d)
            )
            entry = _training_step(module, u, domain)
            yield Case(f"{norm}-norm {scheme}", expected.run, {scheme: entry}, 1e-3, note, repeats)


def _encoder(dim: int, heads: int, layers: int) -> nn.TransformerEncoder:
    torch.manual_seed(0)
    # GELU: single entries of a gradient jump where float32's rounding crosses the kink of a ReLU
    layer = nn.TransformerEncoderLayer(
        dim, heads, 4 * dim, dropout=0.0, batch_first=True, activation="gelu"
    )
    encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
    for parameter in encoder.parameters():  # layers start as copies of one
        parameter.data.add_(0.02 * torch.randn_like(parameter))
    return encoder


def _training_step(module: nn.Module, u: Tensor, *arguments, forward=None) -> Entry:
    """Forward, and backward to the input and all parameters; the outputs and the input's gradient
    are compared.

    The direction of the gradient is random: a sum of squares is constant behind a normalisation,
    and its gradient denormal and slow.
    """
    wanted = [u, *module.parameters()]
    direction = torch.randn(u.shape, generator=torch.Generator().manual_seed(1), dtype=u.dtype)

    def step() -> Tensor:
        out = (forward or module)(u, *arguments)
        gradients = torch.autograd.grad(out, wanted, direction)
        return torch.cat([out.detach().flatten(), gradients[0].flatten()])

    return Entry(step)


def _lie(evolution: Evolution, u: Tensor, domain: Domain) -> Tensor:
    for knot in evolution.knots:
        for term in knot:
            u = term.project(u) if isinstance(term, MomentConstraint) else u + term.rate(u, domain)
    return u


def _strang(evolution: Evolution, u: Tensor, domain: Domain) -> Tensor:
    def act(term: Any, u: Tensor, h: float) -> Tensor:
        if isinstance(term, MomentConstraint):
            return term.project(u)
        return u + h * term.rate(u + h / 2 * term.rate(u, domain), domain)

    for knot in evolution.knots:
        *outer, last = knot
        for term in outer:
            u = act(term, u, 0.5)
        u = act(last, u, 1.0)
        for term in reversed(outer):
            u = act(term, u, 0.5)
    return u


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.splitting", description=__doc__)
    parser.add_argument(
        "--only",
        choices=["orders", "speed"],
        help="measure this; the rest of the file stays as it was",
    )
    parser.add_argument(
        "--quick",
        action="store_true",
        help="small sizes and few rounds: whether it runs, not how fast",
    )
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--out", type=Path, default=FOLDER)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    args.out.mkdir(parents=True, exist_ok=True)
    path = args.out / "splitting.json"
    result: dict[str, Any] = (
        json.loads(path.read_text(encoding="utf-8")) if args.only and path.is_file() else {}
    )
    if args.only != "speed":
        result["orders"] = orders((8, 16, 32)) if args.quick else orders()
        draw(result["orders"], args.out / "splitting.svg")
        for row in result["orders"]:
            errors = " ".join(f"{error:.1e}" for error in row["errors"])
            print(f"{row['scheme']:24} order {row['order']:.3f}  {errors}", flush=True)
    if args.only != "orders":
        result |= {"machine": describe(), "cases": speed(args.quick)}
    path.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    print(f"written to {path}")


def speed(quick: bool) -> list[dict[str, Any]]:
    """Rows of all cases."""
    small: Any = {"layers": 2, "repeats": 3} if quick else {}
    rows = []
    for case in [*recovery(**small | ({"lengths": (64,)} if quick else {})), *strang(**small)]:
        for row in run(case):
            rows.append(row)
            figures = f"{row['ratio']:6.3f} {row['milliseconds']:9.2f} ± {row['spread']:.2f} ms"
            print(f"{row['case']:20} {row['way']:24} {figures}  {row['note']}", flush=True)
    return rows


if __name__ == "__main__":
    main()
