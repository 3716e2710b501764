"""What samples ten times as long cost: the time of an operator on N and on 10 N points."""

from __future__ import annotations

from typing import Any

import torch

from ...domain import Domain
from ...errors import FredholmError
from ...models.bodies.backbone import make_layer, suited
from ...models.encoders import TextConfig
from ..training.machine import seconds_of

TIMES = 10
MOST = 4.0  # seconds: a call that would take longer is extrapolated


def growth(body: Any, points: int) -> dict[str, Any]:
    """Seconds of a forward and backward pass of one sample through one layer, on ``points`` and on
    ten times as many; where these would take too long, from points and twice as many by the power
    of N between them (``measured`` is False).
    """
    try:
        here = _seconds(body, points)
        twice = _seconds(body, 2 * points)
        power = max(0.0, torch.tensor(twice / here).log2().item())
        guess = here * TIMES**power
        measured = guess * 1.5 < MOST
        then = _seconds(body, TIMES * points, 2) if measured else guess
    except FredholmError as error:
        return {"points": points, "refused": str(error).partition("\n")[0]}
    return {"points": points, "seconds": here, "then": then, "measured": measured}


def _seconds(body: Any, points: int, repeats: int = 3) -> float:
    torch.manual_seed(0)
    layer = make_layer(body, 1, TextConfig(max_length=points))
    u = torch.randn(1, points, body.dim, requires_grad=True)
    domain, along = suited(layer, Domain.line(points)), torch.randn(1, points, body.dim)

    def once() -> None:
        torch.autograd.grad(layer(u, domain), [u, *layer.parameters()], along, allow_unused=True)

    return min([seconds_of(once) for _ in range(repeats + 1)][1:])  # the least disturbed
