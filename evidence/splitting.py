"""Orders and costs of the splitting schemes, beside PyTorch's encoder."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

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
from fredholm.layers.encoder import from_encoder

from .kit.check import theirs_first
from .kit.clock import Case, Entry, time_cases
from .kit.machine import describe
from .kit.page import PAGES, load, save
from .kit.subject import Options, Subject

FILE = "splitting.json"
SUBJECT = Subject(
    __name__,
    times={"orders": ":time_orders", "speed": ":time_speed"},
    draw=":draw_orders",
    cases=":cases_again",
    ratios=":committed",
)
SCHEMES = {
    "Lie": "lie",
    "Strang": "strang",
    "parallel": "parallel",
    "hybrid": Hybrid(((0, 2), (1, 3))),
}


def smooth_evolution(dim: int = 16, knots: int = 4, *, substep: str = "auto") -> Evolution:
    """Make a smooth equation on [0, 1] with controls that are linear in time.

    Its terms are attention, a network, a linear term and a soft constraint.
    """
    torch.manual_seed(0)
    groups = []
    for _ in range(knots):
        attention = OperatorTerm.of("softmax", dim, 2, substep=substep)
        network = FeedForwardTerm(dim, 2 * dim, activation="tanh", substep=substep)
        linear = LinearTerm(dim, substep=substep)
        constraint = MomentConstraint(dim, affine="none", penalty=1.0, substep=substep)
        groups.append([attention, network, linear, constraint])
    evolution = Evolution(groups, controls="linear", horizon=1.0).double()
    for parameter in evolution.parameters():
        nn.init.normal_(parameter, std=0.25)
    return evolution


@torch.no_grad()
def orders(steps: tuple[int, ...] = (8, 16, 32, 64, 128, 256)) -> list[dict[str, Any]]:
    """Measure errors and order of every scheme.

    The reference is the unsplit equation, solved by a Runge-Kutta method of order 4 with twice the
    largest number of steps.
    """
    evolution = smooth_evolution()
    u, domain = torch.randn(2, 12, 16, dtype=torch.float64), Domain.grid(12, dtype=torch.float64)
    reference = evolution.integrate(u, domain, steps=2 * steps[-1])
    options: dict[str, Any] = {"steps": steps, "reference": reference}
    rows = []
    for name, scheme in SCHEMES.items():
        found = convergence(evolution, u, domain, scheme=scheme, **options)
        rows.append({"scheme": name} | asdict(found))
    euler = smooth_evolution(substep="euler")
    found = convergence(euler, u, domain, scheme="strang", **options)
    return [*rows, {"scheme": "Strang, Euler substeps"} | asdict(found)]


def draw(rows: list[dict[str, Any]], path: Path) -> None:
    """Draw the error against the number of steps, with the measured orders."""
    import matplotlib

    matplotlib.use("svg")
    # A fixed salt gives the same file for the same numbers.
    matplotlib.rcParams["svg.hashsalt"] = "splitting"
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(6.4, 4.4), layout="constrained")
    for row, marker in zip(rows, "osD^v"):
        label = f"{row['scheme']}: order {row['order']:.2f}"
        axes.loglog(row["steps"], row["errors"], marker=marker, label=label)
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


def recovery(
    lengths: tuple[int, ...] = (64, 196, 512),
    dim: int = 256,
    heads: int = 8,
    layers: int = 6,
    batch: int = 4,
    repeats: int = 15,
) -> Iterator[Case]:
    """Yield the cases of ``torch.nn.TransformerEncoder`` and an evolution with steps of 1.

    They have the same weights; forward and backward are timed.
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


def strang(
    n: int = 196, dim: int = 256, heads: int = 8, layers: int = 6, batch: int = 4, repeats: int = 7
) -> Iterator[Case]:
    """Yield the cases of Strang's and Lie's steps with the same weights, forward and backward.

    Each is checked against a plain composition of the terms.
    """
    for norm in ("post", "pre"):
        torch.manual_seed(0)
        knots = []
        for _ in range(layers):
            knots.append(encoder_terms(dim, heads, 4 * dim, norm=norm, activation="gelu"))
        evolution = Evolution(knots)
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
    # With ReLU, single entries of a gradient jump if rounding in float32 crosses its kink.
    layer = nn.TransformerEncoderLayer(
        dim, heads, 4 * dim, dropout=0.0, batch_first=True, activation="gelu"
    )
    encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
    # The layers are copies of one, so their parameters are perturbed.
    for parameter in encoder.parameters():
        parameter.data.add_(0.02 * torch.randn_like(parameter))
    return encoder


def _training_step(module: nn.Module, u: Tensor, *arguments, forward=None) -> Entry:
    """Return an entry for forward, and backward to the input and all parameters.

    The outputs and the input's gradient are compared. The direction of the gradient is random: a
    sum of squares is constant after a normalisation, so its gradient has slow, denormal numbers.
    """
    wanted = [u, *module.parameters()]
    direction = torch.randn(u.shape, generator=torch.Generator().manual_seed(1), dtype=u.dtype)

    def step() -> Tensor:
        out = (forward or module)(u, *arguments)
        gradients = torch.autograd.grad(out, wanted, direction)
        return torch.cat([out.detach().flatten(), gradients[0].flatten()])

    return Entry(step)


def _lie(evolution: Evolution, u: Tensor, domain: Domain) -> Tensor:
    """Apply one step of each term after the other."""
    for knot in evolution.knots:
        for term in knot:
            if isinstance(term, MomentConstraint):
                u = term.project(u)
            else:
                u = u + term.rate(u, domain)
    return u


def _strang(evolution: Evolution, u: Tensor, domain: Domain) -> Tensor:
    """Apply half a step of each term, a full step of the last, and half steps in reverse order."""

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


def time_orders(options: Options) -> None:
    """Measure the orders."""
    found = orders((8, 16, 32)) if options.small else orders()
    _update({"orders": found}, options)


def time_speed(options: Options) -> None:
    """Time encoders and evolutions with the same weights."""
    _update({"machine": describe(), "cases": list(timed(options))}, options)


def _update(part: dict[str, Any], options: Options) -> None:
    save((load(FILE, options.results) or {}) | part, FILE, options.results)


def timed(options: Options) -> Iterator[dict[str, Any]]:
    """Time all cases and yield their rows."""
    sizes: dict[str, Any] = {}
    lengths: dict[str, Any] = {}
    if options.small:
        sizes, lengths = {"layers": 2, "repeats": 3}, {"lengths": (64,)}
    yield from time_cases(recovery(**sizes, **lengths))
    yield from time_cases(strang(**sizes))


def cases_again(options: Options) -> list[dict[str, Any]]:
    """Time the cases again, for ``check``."""
    return theirs_first(list(timed(options)))


def committed() -> list[dict[str, Any]]:
    """Return the committed rows, for ``check``."""
    return theirs_first(load(FILE)["cases"])


def draw_orders() -> None:
    """Draw docs/results/splitting.svg."""
    draw(load(FILE)["orders"], PAGES / "splitting.svg")
