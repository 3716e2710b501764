"""Orders of the splitting schemes and what they cost, beside PyTorch's encoder."""

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


def time_orders(options: Options) -> None:
    """The measured orders."""
    found = orders((8, 16, 32)) if options.small else orders()
    _update({"orders": found}, options)


def time_speed(options: Options) -> None:
    """Encoders beside the same weights as an evolution."""
    _update({"machine": describe(), "cases": list(timed(options))}, options)


def _update(part: dict[str, Any], options: Options) -> None:
    save((load(FILE, options.results) or {}) | part, FILE, options.results)


def timed(options: Options) -> Iterator[dict[str, Any]]:
    """Rows of all cases."""
    small: Any = {"layers": 2, "repeats": 3} if options.small else {}
    yield from time_cases(recovery(**small | ({"lengths": (64,)} if options.small else {})))
    yield from time_cases(strang(**small))


def cases_again(options: Options) -> list[dict[str, Any]]:
    return theirs_first(list(timed(options)))


def committed() -> list[dict[str, Any]]:
    return theirs_first(load(FILE)["cases"])


def draw_orders() -> None:
    """docs/results/splitting.svg."""
    draw(load(FILE)["orders"], PAGES / "splitting.svg")
