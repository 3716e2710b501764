r"""Theorem 4 and Proposition 9 measured: error against the kernel's width, against quadrature
points, and against depth.

The operator to be approximated is a bilateral filter without its normaliser, whose kernel is known
in closed form:

.. math:: (T u)(x) = \int_0^1 K\,u(y)\,dy, \qquad
    K = \exp\!\Big(-\frac{|x-y|^2}{2\ell^2} - \frac{(u(x)-u(y))^2}{2 s^2}\Big)
      = \mathbb E_{\omega}\cos\big(\omega_1 |x-y| + \omega_2 (u(x) - u(y))\big),

with :math:`\omega_1 \sim N(0, \ell^{-2})`, :math:`\omega_2 \sim N(0, s^{-2})`: the second form is a
network of infinite width and finite Barron norm. Three networks of width w stand against it: units
drawn from that law and averaged (Barron's own construction), units drawn and their readout fitted
by least squares, and the same with GELU units that know nothing of the target.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from fredholm import Domain, IntegralOperator
from fredholm.kernels import Kernel, MLPKernel, PairKernel

from ..kit.page import band, logarithmic
from ..kit.page import table as as_table
from ..kit.statistics import mean_sd, slope

LENGTH, SCALE = 0.15, 0.5
GROUPS = ("distance", "query", "key")
WAYS = {
    "averaged": "target's law, averaged",
    "fitted": "target's law, fitted",
    "gelu": "blind GELU, fitted",
}
RULES = {"centres": "cell centres", "left": "left ends", "random": "random points"}


class BilateralKernel(PairKernel):
    """The closed form, scalar features."""

    def __init__(self) -> None:
        super().__init__(1, 1)

    def forward(self, x: Tensor, y: Tensor, ux: Tensor, uy: Tensor) -> Tensor:
        distance = ((x - y) ** 2).sum(-1, keepdim=True) / LENGTH**2
        return torch.exp(-0.5 * (distance + (ux - uy) ** 2 / SCALE**2))[..., None]


def signals(number: int, seed: int) -> tuple[Tensor, Tensor]:
    """Coefficients (number, 6) and phases of band-limited signals: a compact set."""
    generator = torch.Generator().manual_seed(seed)
    amplitude = 2 * torch.rand(number, 6, generator=generator, dtype=torch.float64) - 1
    phase = 2 * math.pi * torch.rand(number, 6, generator=generator, dtype=torch.float64)
    return amplitude / (1 + torch.arange(6)), phase


def sample(signal: tuple[Tensor, Tensor], x: Tensor) -> Tensor:
    """u(x) = Σ_k a_k cos(πkx + φ_k) at points (N, 1): (number, N, 1)."""
    amplitude, phase = signal
    angle = math.pi * torch.arange(6) * x[:, :1]
    return (amplitude[:, None] * torch.cos(angle + phase[:, None])).sum(-1, keepdim=True)


def _operator(kernel: Kernel) -> IntegralOperator:
    return IntegralOperator(1, kernel=kernel, residual=False, projection=False).double()


@torch.no_grad()
def network(
    way: str, width: int, seed: int, target: Any = None, groups: tuple[str, ...] = GROUPS
) -> IntegralOperator:
    """An operator with an MLP kernel of one hidden layer; ``target`` = (u, domain, T u) where the
    readout is fitted.
    """
    generator = torch.Generator().manual_seed(1000 + seed)
    kernel = MLPKernel(
        1, 1, width=width, groups=groups, activation="gelu" if way == "gelu" else "sin"
    ).double()
    draw = torch.randn(width, 3, generator=generator, dtype=torch.float64)
    if way == "gelu":
        size = kernel.weight1.shape[-1]
        scale = torch.tensor(
            [1 / LENGTH if g == "distance" else 1 / SCALE for g in groups], dtype=torch.float64
        )
        kernel.weight1.copy_((draw[:, :size] * scale)[None])
        kernel.bias1.copy_(2 * torch.randn(1, width, generator=generator, dtype=torch.float64))
    else:
        frequency = torch.stack([draw[:, 0] / LENGTH, draw[:, 1] / SCALE, -draw[:, 1] / SCALE], -1)
        kernel.weight1.copy_(frequency[None])
        kernel.bias1.fill_(math.pi / 2)
    kernel.weight2.fill_(1 / width)
    kernel.bias2.zero_()
    if way != "averaged":
        fit(kernel, *target)
    return _operator(kernel)


@torch.no_grad()
def fit(kernel: MLPKernel, u: Tensor, domain: Domain, output: Tensor) -> None:
    """The readout that is best in the mean square on some signals: the operator is linear in it."""
    rows = []
    for one in u.split(4):  # hidden units of all pairs of a few signals at a time
        x, weights = domain.positions[None, None], domain.quadrature().weights().to(u.dtype)
        hidden = kernel.hidden(
            x[:, :, :, None], x[:, :, None], one[:, None, :, None], one[:, None, None]
        )
        mass = weights[..., None] * one[:, None, None]  # w_ij u_j
        rows.append(
            torch.cat(
                [
                    (hidden * mass).sum(-2)[:, 0],
                    mass.sum(-2)[:, 0].expand(len(one), domain.size, 1),
                ],
                -1,
            )
        )
    design = torch.cat(rows).flatten(0, 1)
    found = torch.linalg.lstsq(design, output.flatten(0, 1), driver="gelsd").solution[:, 0]
    kernel.weight2.copy_(found[:-1].view_as(kernel.weight2))
    kernel.bias2.fill_(float(found[-1]))


def errors(found: Tensor, expected: Tensor) -> tuple[float, float]:
    """Root mean square, and the largest difference, both over signals and points, relative to the
    target's rms.
    """
    size = expected.pow(2).mean().sqrt()
    return float((found - expected).pow(2).mean().sqrt() / size), float(
        (found - expected).abs().max() / size
    )


@torch.no_grad()
def against_width(
    widths: list[int], seeds: int, points: int = 32, number: int = 192
) -> dict[str, Any]:
    """Same quadrature on both sides, so that only the kernel's error is left; signals held out from
    the fit.
    """
    domain = Domain.grid(points, dtype=torch.float64)
    truth = _operator(BilateralKernel())
    train, test = (sample(signals(number, s), domain.positions) for s in (1, 2))
    goal, expected = truth(train, domain), truth(test, domain)
    result: dict[str, Any] = {"widths": widths, "seeds": seeds, "points": points, "signals": number}
    for way in WAYS:
        runs = [
            [
                errors(network(way, w, s, (train, domain, goal))(test, domain), expected)
                for s in range(seeds)
            ]
            for w in widths
        ]
        rms, largest = ([mean_sd([run[i] for run in row]) for row in runs] for i in (0, 1))
        result[way] = {
            "rms": rms,
            "largest": largest,
            "rate": slope(widths, [p["mean"] for p in rms]),
        }
    return result


@torch.no_grad()
def against_points(
    counts: list[int], seeds: int, fine: int = 4096, number: int = 16
) -> dict[str, Any]:
    """The exact kernel with N points against ``fine`` ones, at 33 fixed queries: cell centres, left
    ends, random points.
    """
    truth = _operator(BilateralKernel())
    queries = Domain.points(torch.linspace(0, 1, 33, dtype=torch.float64)[:, None])

    def makes(n: int, rule: str, seed: int) -> Domain:
        if rule == "random":
            generator = torch.Generator().manual_seed(seed)
            return Domain.points(torch.rand(n, 1, generator=generator, dtype=torch.float64))
        return (
            Domain.grid(n, dtype=torch.float64)
            if rule == "centres"
            else Domain.line(n, dtype=torch.float64)
        )

    result: dict[str, Any] = {"points": counts, "seeds": seeds, "fine": fine}
    for rule in RULES:
        table = []
        for n in counts:
            found = []
            for seed in range(seeds):
                signal = signals(number, 10 + seed)
                at = sample(signal, queries.positions)

                def respond(domain: Domain, signal=signal, at=at) -> Tensor:
                    return truth(
                        sample(signal, domain.positions), domain, query=at, query_domain=queries
                    )

                exact = respond(Domain.grid(fine, dtype=torch.float64))
                found.append(errors(respond(makes(n, rule, seed)), exact)[0])
            table.append(mean_sd(found))
        result[rule] = {"rms": table, "rate": slope(counts, [p["mean"] for p in table])}
    return result


@torch.no_grad()
def against_depth(
    widths: list[int], seeds: int, points: int = 24, number: int = 384
) -> dict[str, Any]:
    r"""The operator u ↦ (∫u)², which is no single integral of :math:`K(x, y, u(x), u(y))\,u(y)`:
    one layer and two.

    Seen from a query whose own u(x) is held, one layer answers to the union of two pieces of a
    signal with the sum of its answers; the square does not. Two layers: the mean first, then a
    kernel that reads it at the query.
    """
    domain = Domain.grid(points, dtype=torch.float64)
    train, test = (sample(signals(number, s), domain.positions) for s in (3, 4))
    goal, expected = (u.mean(1, keepdim=True).expand_as(u) ** 2 for u in (train, test))
    mean = _operator(MLPKernel(1, 1, width=1, groups=()).double())  # starts as K = 1: the mean
    mean.kernel.weight2.zero_()
    result: dict[str, Any] = {"widths": widths, "seeds": seeds, "points": points, "signals": number}
    for layers in (1, 2):
        first, last = (train, test) if layers == 1 else (mean(train, domain), mean(test, domain))
        table = []
        for w in widths:
            nets = [network("gelu", w, s, (first, domain, goal)) for s in range(seeds)]
            table.append(mean_sd([errors(net(last, domain), expected)[0] for net in nets]))
        result[f"layers {layers}"] = {"rms": table}
    return result


def measure(*, tiny: bool = False) -> dict[str, Any]:
    """All three, with the seeds' standard deviations and fitted exponents."""
    if tiny:
        return {
            "width": against_width([8, 32, 128], 3, points=16, number=12),
            "points": against_points([8, 16, 32], 3, fine=256, number=4),
            "depth": against_depth([8, 32], 2, points=12, number=12),
        }
    return {
        "width": against_width([8, 16, 32, 64, 128, 256, 512], 5),
        "points": against_points([8, 16, 32, 64, 128, 256, 512], 5),
        "depth": against_depth([8, 16, 32, 64, 128], 5),
    }


def table(found: dict[str, Any]) -> str:
    """Errors with standard deviations over seeds and fitted exponents, for the page."""
    width, points, depth = found["width"], found["points"], found["depth"]
    shown = [row for row in (0, 3, 6, 9) if row < len(width["widths"])]
    sizes = [width["widths"][i] for i in shown]
    rows: list[list[str]] = []

    def add(label: str, part: dict[str, Any]) -> None:
        points = [part["rms"][i] if i < len(part["rms"]) else None for i in shown]
        cells = ["" if p is None else f"{p['mean']:.1e} ± {p['sd']:.0e}" for p in points]
        rows.append([label, *cells, f"{part['rate']:.2f}" if "rate" in part else ""])

    for way, label in WAYS.items():
        add(f"width w: {label}", width[way])
    for rule, label in RULES.items():
        add(f"points N: {label}", points[rule])
    for layers, label in ((1, "one layer"), (2, "two layers")):
        add(f"width w, (∫u)²: {label}", depth[f"layers {layers}"])
    heads = ["relative rms error", *map(str, sizes), "exponent"]
    return as_table(heads, rows)


def draw(theme: Any, found: dict[str, Any]) -> Any:
    """Three panels on logarithmic axes."""
    from fredholm.lab.report.style import WIDTH, new_figure

    figure = new_figure(WIDTH + 1, 3.4)
    panels = figure.subplots(1, 3)
    width, points, depth = found["width"], found["points"], found["depth"]
    for colour, (way, label) in zip(theme.series, WAYS.items()):
        text = f"{label}: slope {width[way]['rate']:.2f}"
        band(panels[0], width["widths"], width[way]["rms"], colour, text, marker="o", markersize=3)
    _guide(
        panels[0], theme, width["widths"], width["averaged"]["rms"][0]["mean"], -0.5, "slope −0.5"
    )
    panels[0].set_title("error against the kernel's width")
    for colour, (rule, label) in zip(theme.series, RULES.items()):
        text = f"{label}: slope {points[rule]['rate']:.2f}"
        band(
            panels[1], points["points"], points[rule]["rms"], colour, text, marker="o", markersize=3
        )
    panels[1].set_title("error against quadrature points")
    for colour, layers in zip(theme.series, (1, 2)):
        label = "one layer" if layers == 1 else "two layers"
        band(
            panels[2],
            depth["widths"],
            depth[f"layers {layers}"]["rms"],
            colour,
            label,
            marker="o",
            markersize=3,
        )
    panels[2].set_title("u ↦ (∫u)², which needs depth")
    for axes, name in zip(panels, ("width w", "points N", "width w")):
        axes.set_xscale("log", base=2)
        axes.set_xlabel(name)
        logarithmic(axes)
    panels[0].set_ylabel("relative rms error on new signals")
    return figure


def _guide(axes: Any, theme: Any, x: list[int], start: float, rate: float, label: str) -> None:
    axes.plot(
        x, [start * (v / x[0]) ** rate for v in x], color=theme.faint, linestyle=":", label=label
    )
