"""The evolution by an adaptive or adjoint solver of the package torchdiffeq."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from ....domain import Domain
from ....errors import require
from .evolution import Evolution


class _Field(nn.Module):
    """The right-hand side f(t, u), as the solver calls it."""

    def __init__(self, evolution: Evolution, domain: Domain):
        super().__init__()
        self.evolution = evolution
        self.domain = domain

    def forward(self, t: Tensor, u: Tensor) -> Tensor:
        # A solver's last step may reach beyond the interval.
        time = max(float(t.detach()), 0.0)
        time = min(time, self.evolution.horizon)
        return self.evolution.rate(u, self.domain, time)


def solve(
    evolution: Evolution,
    u: Tensor,
    domain: Domain | None = None,
    *,
    adjoint: bool = True,
    method: str = "dopri5",
    rtol: float = 1e-6,
    atol: float = 1e-8,
    **options: Any,
) -> Tensor:
    """Return u(T) of the unsplit equation by torchdiffeq: the optimise-then-discretise way of the
    control problem.

    With ``adjoint`` the backward pass integrates the adjoint equation backwards in time and keeps
    no states: memory O(1) in the number of steps, and gradients that equal those of the forward
    pass up to the tolerances only. Evolutions themselves are trained discretise-then-optimise, with
    exact gradients.

    Args:
        evolution: without hard constraints. Interpolated controls (``controls="linear"``) suit
            adaptive steps best.
        adjoint: integrate the adjoint equation; otherwise differentiate through the solver.
        method, rtol, atol, options: of ``torchdiffeq.odeint``.

    Raises:
        MissingExtraError: torchdiffeq is not installed.
        SubstepError: a hard constraint has no rate.

    Reference: continuous transformer, Eq. 13, 14; Chen et al. 2018.
    """
    torchdiffeq: Any = require(
        "torchdiffeq",
        "ode",
        "solving an evolution by an adaptive or adjoint solver",
    )
    u, domain = evolution.enter(u, domain)
    time = torch.tensor(
        [0.0, evolution.horizon],
        device=u.device,
        dtype=torch.float64,
    )
    field = _Field(evolution, domain)
    solver = torchdiffeq.odeint
    if adjoint:
        solver = torchdiffeq.odeint_adjoint
    states = solver(
        field,
        u,
        time,
        method=method,
        rtol=rtol,
        atol=atol,
        **options,
    )
    return evolution.leave(states[-1], domain)
