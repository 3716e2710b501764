r"""Measurements of Theorem 4 and Proposition 9: error against the kernel's width, the number of
quadrature points, and depth.

The target operator is a bilateral filter without its normaliser. Its kernel has a closed form:

.. math:: (T u)(x) = \int_0^1 K\,u(y)\,dy, \qquad
    K = \exp\!\Big(-\frac{|x-y|^2}{2\ell^2} - \frac{(u(x)-u(y))^2}{2 s^2}\Big)
      = \mathbb E_{\omega}\cos\big(\omega_1 |x-y| + \omega_2 (u(x) - u(y))\big),

with :math:`\omega_1 \sim N(0, \ell^{-2})`, :math:`\omega_2 \sim N(0, s^{-2})`. The second form is a
network of infinite width and finite Barron norm. Three networks of width w approximate it: units
drawn from that law and averaged (Barron's construction), the same units with a readout fitted by
least squares, and GELU units, drawn without knowledge of the target, with a fitted readout.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

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
    """The closed form for scalar features."""

    def __init__(self) -> None:
        super().__init__(1, 1)

    def forward(self, x: Tensor, y: Tensor, ux: Tensor, uy: Tensor) -> Tensor:
        distance = ((x - y) ** 2).sum(-1, keepdim=True) / LENGTH**2
        return torch.exp(-0.5 * (distance + (ux - uy) ** 2 / SCALE**2))[..., None]


def signals(number: int, seed: int) -> tuple[Tensor, Tensor]:
    """Draw coefficients and phases (number, 6) of band-limited signals, which are a compact set."""
    generator = torch.Generator().manual_seed(seed)
    amplitude = 2 * torch.rand(number, 6, generator=generator, dtype=torch.float64) - 1
    phase = 2 * math.pi * torch.rand(number, 6, generator=generator, dtype=torch.float64)
    return amplitude / (1 + torch.arange(6)), phase


def sample(signal: tuple[Tensor, Tensor], x: Tensor) -> Tensor:
    """Return u(x) = Σ_k a_k cos(πkx + φ_k) at points (N, 1), as (number, N, 1)."""
    amplitude, phase = signal
    angle = math.pi * torch.arange(6) * x[:, :1]
    return (amplitude[:, None] * torch.cos(angle + phase[:, None])).sum(-1, keepdim=True)


def _operator(kernel: Kernel) -> IntegralOperator:
    return IntegralOperator(1, kernel=kernel, residual=False, projection=False).double()


class Target(NamedTuple):
    """Inputs and outputs of the target operator, to which a readout is fitted."""

    u: Tensor
    domain: Domain
    output: Tensor


@torch.no_grad()
def network(
    way: str,
    width: int,
    seed: int,
    target: Target | None = None,
    groups: tuple[str, ...] = GROUPS,
) -> IntegralOperator:
    """Return an operator with an MLP kernel of one hidden layer.

    Args:
        way: of choosing its parameters, see :data:`WAYS`.
        width: number of hidden units.
        seed: of the hidden units.
        target: samples for the ways that fit the readout.
        groups: inputs of the kernel.
    """
    generator = torch.Generator().manual_seed(1000 + seed)
    activation = "gelu" if way == "gelu" else "sin"
    kernel = MLPKernel(1, 1, width=width, groups=groups, activation=activation).double()
    draw = torch.randn(width, 3, generator=generator, dtype=torch.float64)
    if way == "gelu":
        size = kernel.weight1.shape[-1]
        scales = [1 / LENGTH if group == "distance" else 1 / SCALE for group in groups]
        scale = torch.tensor(scales, dtype=torch.float64)
        kernel.weight1.copy_((draw[:, :size] * scale)[None])
        kernel.bias1.copy_(2 * torch.randn(1, width, generator=generator, dtype=torch.float64))
    else:
        # The frequencies of the target's law; sin(z + π/2) is its cosine.
        frequency = torch.stack([draw[:, 0] / LENGTH, draw[:, 1] / SCALE, -draw[:, 1] / SCALE], -1)
        kernel.weight1.copy_(frequency[None])
        kernel.bias1.fill_(math.pi / 2)
    kernel.weight2.fill_(1 / width)
    kernel.bias2.zero_()
    if way != "averaged":
        assert target is not None
        fit(kernel, target)
    return _operator(kernel)


@torch.no_grad()
def fit(kernel: MLPKernel, target: Target) -> None:
    """Fit the readout by least squares: the operator is linear in it."""
    u, domain, output = target
    x, weights = domain.positions[None, None], domain.quadrature().weights().to(u.dtype)
    rows = []
    # The hidden units of all pairs take much memory, so only four signals are treated at a time.
    for part in u.split(4):
        query, key = part[:, None, :, None], part[:, None, None]
        hidden = kernel.hidden(x[:, :, :, None], x[:, :, None], query, key)
        # w_ij u_j
        mass = weights[..., None] * part[:, None, None]
        units = (hidden * mass).sum(-2)[:, 0]
        bias = mass.sum(-2)[:, 0].expand(len(part), domain.size, 1)
        rows.append(torch.cat([units, bias], -1))
    design = torch.cat(rows).flatten(0, 1)
    found = torch.linalg.lstsq(design, output.flatten(0, 1), driver="gelsd").solution[:, 0]
    kernel.weight2.copy_(found[:-1].view_as(kernel.weight2))
    kernel.bias2.fill_(float(found[-1]))


class Errors(NamedTuple):
    """Differences over signals and points, relative to the target's root mean square."""

    rms: float
    largest: float


def errors(found: Tensor, expected: Tensor) -> Errors:
    """Return the root mean square and the largest difference."""
    size = expected.pow(2).mean().sqrt()
    difference = found - expected
    rms = float(difference.pow(2).mean().sqrt() / size)
    return Errors(rms, float(difference.abs().max() / size))


@torch.no_grad()
def against_width(
    widths: list[int], seeds: int, points: int = 32, number: int = 192
) -> dict[str, Any]:
    """Measure the error against the kernel's width, on signals that are not in the fit.

    Target and network have the same quadrature, so only the kernel's error remains.
    """
    domain = Domain.grid(points, dtype=torch.float64)
    truth = _operator(BilateralKernel())
    train = sample(signals(number, 1), domain.positions)
    test = sample(signals(number, 2), domain.positions)
    target, expected = Target(train, domain, truth(train, domain)), truth(test, domain)
    result: dict[str, Any] = {"widths": widths, "seeds": seeds, "points": points, "signals": number}
    for way in WAYS:
        rms, largest = [], []
        for width in widths:
            nets = [network(way, width, seed, target) for seed in range(seeds)]
            runs = [errors(net(test, domain), expected) for net in nets]
            rms.append(mean_sd([run.rms for run in runs]))
            largest.append(mean_sd([run.largest for run in runs]))
        rate = slope(widths, [point["mean"] for point in rms])
        result[way] = {"rms": rms, "largest": largest, "rate": rate}
    return result


@torch.no_grad()
def against_points(
    counts: list[int], seeds: int, fine: int = 4096, number: int = 16
) -> dict[str, Any]:
    """Measure the error of the exact kernel with N points against ``fine`` points.

    The queries are 33 fixed points; the keys are cell centres, left ends or random points.
    """
    truth = _operator(BilateralKernel())
    queries = Domain.points(torch.linspace(0, 1, 33, dtype=torch.float64)[:, None])

    def keys(n: int, rule: str, seed: int) -> Domain:
        if rule == "random":
            generator = torch.Generator().manual_seed(seed)
            return Domain.points(torch.rand(n, 1, generator=generator, dtype=torch.float64))
        if rule == "centres":
            return Domain.grid(n, dtype=torch.float64)
        return Domain.line(n, dtype=torch.float64)

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
                found.append(errors(respond(keys(n, rule, seed)), exact).rms)
            table.append(mean_sd(found))
        result[rule] = {"rms": table, "rate": slope(counts, [p["mean"] for p in table])}
    return result


@torch.no_grad()
def against_depth(
    widths: list[int], seeds: int, points: int = 24, number: int = 384
) -> dict[str, Any]:
    r"""Measure the error for u ↦ (∫u)² with one layer and with two.

    It is not a single integral of :math:`K(x, y, u(x), u(y))\,u(y)`: with u(x) fixed, one layer's
    answer to the union of two pieces of a signal is the sum of its answers to the pieces, and the
    square's is not. Two layers can compute the mean and then apply a kernel that reads it at the
    query.
    """
    domain = Domain.grid(points, dtype=torch.float64)
    train = sample(signals(number, 3), domain.positions)
    test = sample(signals(number, 4), domain.positions)
    goal = train.mean(1, keepdim=True).expand_as(train) ** 2
    expected = test.mean(1, keepdim=True).expand_as(test) ** 2

    # Without inputs and hidden units the kernel is K = 1, which computes the mean.
    mean = _operator(MLPKernel(1, 1, width=1, groups=()).double())
    mean.kernel.weight2.zero_()
    result: dict[str, Any] = {"widths": widths, "seeds": seeds, "points": points, "signals": number}
    for layers in (1, 2):
        fitted, tested = train, test
        if layers == 2:
            fitted, tested = mean(train, domain), mean(test, domain)
        target = Target(fitted, domain, goal)
        table = []
        for width in widths:
            nets = [network("gelu", width, seed, target) for seed in range(seeds)]
            table.append(mean_sd([errors(net(tested, domain), expected).rms for net in nets]))
        result[f"layers {layers}"] = {"rms": table}
    return result


def measure(*, tiny: bool = False) -> dict[str, Any]:
    """Measure all three, with standard deviations over seeds and fitted exponents."""
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
    """Return the page's table of errors, mean ± standard deviation over seeds, and exponents."""
    width, points, depth = found["width"], found["points"], found["depth"]
    shown = [row for row in (0, 3, 6, 9) if row < len(width["widths"])]
    sizes = [width["widths"][i] for i in shown]
    rows: list[list[str]] = []

    def add(label: str, part: dict[str, Any]) -> None:
        cells = []
        for i in shown:
            cell = ""
            if i < len(part["rms"]):
                point = part["rms"][i]
                cell = f"{point['mean']:.1e} ± {point['sd']:.0e}"
            cells.append(cell)
        rate = f"{part['rate']:.2f}" if "rate" in part else ""
        rows.append([label, *cells, rate])

    for way, label in WAYS.items():
        add(f"width w: {label}", width[way])
    for rule, label in RULES.items():
        add(f"points N: {label}", points[rule])
    for layers, label in ((1, "one layer"), (2, "two layers")):
        add(f"width w, (∫u)²: {label}", depth[f"layers {layers}"])
    heads = ["relative rms error", *map(str, sizes), "exponent"]
    return as_table(heads, rows)


def draw(theme: Any, found: dict[str, Any]) -> Any:
    """Draw three panels on logarithmic axes."""
    from fredholm.lab.report.style import WIDTH, new_figure

    figure = new_figure(WIDTH + 1, 3.4)
    left, middle, right = figure.subplots(1, 3)
    width, points, depth = found["width"], found["points"], found["depth"]
    marks = {"marker": "o", "markersize": 3}

    for colour, (way, label) in zip(theme.series, WAYS.items()):
        text = f"{label}: slope {width[way]['rate']:.2f}"
        band(left, width["widths"], width[way]["rms"], colour, text, **marks)
    x, start = width["widths"], width["averaged"]["rms"][0]["mean"]
    guide = [start * (v / x[0]) ** -0.5 for v in x]
    left.plot(x, guide, color=theme.faint, linestyle=":", label="slope −0.5")
    left.set_title("error against the kernel's width")
    left.set_ylabel("relative rms error on new signals")

    for colour, (rule, label) in zip(theme.series, RULES.items()):
        text = f"{label}: slope {points[rule]['rate']:.2f}"
        band(middle, points["points"], points[rule]["rms"], colour, text, **marks)
    middle.set_title("error against quadrature points")

    for colour, layers, label in zip(theme.series, (1, 2), ("one layer", "two layers")):
        errors_of_depth = depth[f"layers {layers}"]["rms"]
        band(right, depth["widths"], errors_of_depth, colour, label, **marks)
    right.set_title("u ↦ (∫u)², which needs depth")

    for axes, name in ((left, "width w"), (middle, "points N"), (right, "width w")):
        axes.set_xscale("log", base=2)
        axes.set_xlabel(name)
        logarithmic(axes)
    return figure
