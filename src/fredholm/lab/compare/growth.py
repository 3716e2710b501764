"""Cost of longer samples: the time of an operator on N and on 10 N points."""

from __future__ import annotations

from typing import Any

import torch

from ...domain import Domain
from ...errors import FredholmError
from ...models.bodies.backbone import make_layer, suited
from ...models.encoders import TextConfig
from ..training.machine import seconds_of

TIMES = 10

# Seconds of a call, above which it is extrapolated instead of measured.
MOST = 4.0


def growth(body: Any, points: int) -> dict[str, Any]:
    """Time a forward and backward pass of one layer on one sample of N and of 10 N points.

    If 10 N points would take too long, their time follows from the power of N between N and 2 N.

    Returns:
        ``points`` N; ``seconds`` on N and ``then`` on 10 N points; whether the latter is
        ``measured``. Or, of an operator that cannot be applied, ``points`` and why it is
        ``refused``.
    """
    try:
        here = _seconds(body, points)
        twice = _seconds(body, 2 * points)
        ratio = torch.tensor(twice / here)
        power = max(0.0, ratio.log2().item())
        then = here * TIMES**power

        # The guess may be too low by half.
        measured = then * 1.5 < MOST
        if measured:
            then = _seconds(body, TIMES * points, repeats=2)
    except FredholmError as error:
        why, _, _ = str(error).partition("\n")
        return {"points": points, "refused": why}
    return {
        "points": points,
        "seconds": here,
        "then": then,
        "measured": measured,
    }


def _seconds(body: Any, points: int, repeats: int = 3) -> float:
    """Return the time of one layer, forward and backward, on one sample of so many points."""
    torch.manual_seed(0)
    layer = make_layer(body, 1, TextConfig(max_length=points))
    domain = suited(layer, Domain.line(points))
    shape = (1, points, body.dim)
    u = torch.randn(shape, requires_grad=True)
    along = torch.randn(shape)

    def once() -> None:
        out = layer(u, domain)
        torch.autograd.grad(out, [u, *layer.parameters()], along, allow_unused=True)

    # The first call is slower. Of the others the shortest is the least disturbed.
    times = [seconds_of(once) for _ in range(repeats + 1)]
    return min(times[1:])
