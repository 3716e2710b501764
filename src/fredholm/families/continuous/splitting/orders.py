"""Order of accuracy, measured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ....domain import Domain
from ....errors import OptionError
from .evolution import Evolution
from .schemes import Scheme


@dataclass(frozen=True)
class Convergence:
    """Errors of one scheme against the number of steps.

    Attributes:
        steps: N_t, ascending.
        errors: relative L² distance to the reference.
        order: minus the slope of log error over log N_t, by least squares.
    """

    steps: tuple[int, ...]
    errors: tuple[float, ...]
    order: float


@torch.no_grad()
def convergence(
    evolution: Evolution,
    u: Tensor,
    domain: Domain | None = None,
    *,
    scheme: Scheme | str | None = None,
    steps: Sequence[int] = (16, 32, 64, 128),
    reference: Tensor | None = None,
) -> Convergence:
    """Measure the order with which a scheme approaches the solution of the evolution's equation.

    Args:
        evolution: without hard constraints, whose projections have no rate; else pass a
            ``reference``.
        u, domain: initial value; float64 is advised.
        scheme: by default that of the evolution.
        steps: at least two numbers of steps.
        reference: u(T); by default ``evolution.integrate`` with twice the most steps, a Runge-Kutta
            method of order 4.

    Reference: continuous transformer, App. C, which claims order 1 for all three.

    Example:
        >>> from fredholm.families.continuous.splitting import Evolution, FeedForwardTerm
        >>> terms = [FeedForwardTerm(4, 8, activation="tanh") for _ in range(2)]
        >>> evolution = Evolution(terms).double()
        >>> u = torch.randn(1, 3, 4, dtype=torch.float64)
        >>> 1.9 < convergence(evolution, u, scheme="strang").order < 2.1
        True
    """
    if len(set(steps)) < 2:
        raise OptionError(f"expected two or more numbers of steps, got {tuple(steps)}")
    steps = tuple(sorted(steps))
    if reference is None:
        finer = 2 * steps[-1]
        reference = evolution.integrate(u, domain, steps=finer)
    scale = reference.norm()
    errors = []
    for n in steps:
        solution = evolution(u, domain, steps=n, scheme=scheme)
        difference = solution - reference
        errors.append(float(difference.norm() / scale))

    # A line through the logarithms, by least squares.
    x = torch.tensor(steps, dtype=torch.float64).log()
    y = torch.tensor(errors, dtype=torch.float64).log()
    x = x - x.mean()
    y = y - y.mean()
    products = (x * y).sum()
    squares = x.square().sum()
    slope = products / squares
    return Convergence(steps, tuple(errors), float(-slope))
