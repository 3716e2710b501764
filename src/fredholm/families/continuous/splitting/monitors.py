"""Observers of an evolution: moments, distance to the constraints, energy, growth of
differences.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from ....domain import Domain
from .constraints import MomentConstraint, MomentErrors
from .evolution import Evolution, Substep


def energy(u: Tensor, domain: Domain | None = None) -> Tensor:
    r"""Return :math:`\tfrac12 \int\!\!\int u(x, y)^2\,dy\,d\mu(x)` per sample, (B,): half the
    features' mean square, averaged over the real points in proportion to their masses (dμ has the
    total mass 1); without a domain all points count alike.

    Example:
        >>> energy(torch.ones(2, 3, 4), Domain.line(3)).tolist()
        [0.5, 0.5]
    """
    square = u.square().mean(-1)
    if domain is None:
        return square.mean(-1) / 2
    domain.refuse_shards("the energy")
    masses = domain.measure
    if domain.valid is not None:
        # Padding may hold NaN, which a mass of zero would not remove.
        masses = torch.where(domain.valid, masses, 0.0)
        square = torch.where(domain.valid, square, 0.0)
    total = masses.sum(-1, keepdim=True)
    weights = (masses / total).to(u.dtype)
    return (square * weights).sum(-1) / 2


@dataclass
class Monitor:
    """An observer that records one row per substep:
    ``evolution(u, domain, observer=Monitor(domain))``.

    A row holds ``step``, ``time``, ``name``, ``energy``, the errors of ``mean`` and ``variance``
    against S1, and ``distance`` to it: the means over the real points. After a moment constraint
    these are taken before its affine map, because a normalisation followed by one is not a
    projection; there they show what ε leaves. ``negative`` is the share of negative values.

    Args:
        domain: of the evolution, for its measure and padding.
        mean, std: σ1 and σ2 of the set S1.

    Example:
        >>> from fredholm.families.continuous.splitting import Evolution, encoder_terms
        >>> monitor = Monitor()
        >>> _ = Evolution(encoder_terms(8, 2, 16))(torch.randn(1, 4, 8), observer=monitor)
        >>> [row["name"] for row in monitor.rows], monitor.rows[1]["distance"] < 1e-3
        (['OperatorTerm', 'MomentConstraint', 'FeedForwardTerm', 'MomentConstraint'], True)
    """

    domain: Domain | None = None
    mean: float = 0.0
    std: float = 1.0
    rows: list[dict] = field(default_factory=list)

    @torch.no_grad()
    def __call__(self, substep: Substep) -> None:
        u = substep.after
        term = substep.term
        if isinstance(term, MomentConstraint) and term.penalty is None:
            # Before its affine map, a moment constraint has mean 0 and standard deviation 1.
            standardised = term.standardise(substep.before)
            errors = MomentErrors.of(standardised, 0.0, 1.0)
        else:
            errors = MomentErrors.of(u, self.mean, self.std)
        negative = (u < 0).to(u.dtype)
        negative = negative.mean(-1)
        self.rows.append(
            {
                "step": substep.step,
                "time": substep.time + substep.length,
                "name": substep.name,
                "energy": float(energy(u, self.domain).mean()),
                "mean": self._average(errors.mean),
                "variance": self._average(errors.variance),
                "distance": self._average(errors.distance),
                "negative": self._average(negative),
            }
        )

    def _average(self, values: Tensor) -> float:
        """Return the mean over the real points, (B, N) to a number."""
        if self.domain is not None and self.domain.valid is not None:
            values = values[self.domain.valid.expand_as(values)]
        return float(values.mean())


@torch.no_grad()
def growth(
    evolution: Evolution,
    u: Tensor,
    domain: Domain | None = None,
    *,
    perturbation: Tensor,
    steps: int | None = None,
) -> list[float]:
    r"""Return the growth of a difference, :math:`\|u^n - v^n\| / \|u^0 - v^0\|` for n = 1, ...,
    N_t, where v starts at u + ``perturbation``.

    Values that stay bounded as the steps multiply say that the scheme is stable on these inputs.

    Example:
        >>> from fredholm.families.continuous.splitting import Evolution, LinearTerm
        >>> evolution, u = Evolution([LinearTerm(3)], steps=2), torch.zeros(1, 2, 3)
        >>> growth(evolution, u, perturbation=torch.ones(1, 2, 3))
        [1.0, 1.0]
    """
    if steps is None:
        steps = evolution.steps
    dt = evolution.horizon / steps
    size = perturbation.norm()
    v = u + perturbation
    ratios = []
    for n in range(steps):
        t = n * dt
        u = evolution.step(u, domain, t, dt)
        v = evolution.step(v, domain, t, dt)
        ratio = (u - v).norm() / size
        ratios.append(float(ratio))
    return ratios
