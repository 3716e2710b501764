"""The strategy that integrates from few keys: its options."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ...errors import OptionError
from ...integral.strategy import Strategy, register_strategy
from .anchors import Anchors


@register_strategy("monte_carlo")
@dataclass(frozen=True)
class MonteCarlo(Strategy):
    r"""Estimate the integral from S keys per query instead of N:
    :math:`\int K u\,d\mu \approx \frac1S \sum_s \frac{\mu(y_s)}{q(y_s|x)} K(x, y_s) u(y_s)`.

    While the kernel is in training mode keys are drawn, with replacement, from its proposal
    (:func:`fredholm.kernels.add_proposal`) or, where it has none, by measure, mixed with ``floor``
    of the uniform distribution over the keys a query sees. The estimate and its gradients are
    unbiased. A proposal is trained by :func:`fredholm.kernels.auxiliary_loss`, which each forward
    stores. In evaluation mode the result is deterministic: a lattice replaces the random levels
    (:func:`fredholm.ops.anchors.lattice`). It is the same for all elements of a batch and differs
    between heads and queries. With ``anchors``, single points represent clusters of positions.
    They are the same for all queries, so errors add up. In causal order a cluster is represented
    by its earliest point, weighted by the mass of the cluster that the query sees.

    Args:
        samples: S, at most N.
        floor: ε.
        anchors: evaluate at clusters of the domain, computed once by ``Anchors.of(domain,
            samples)``, or in each call (True).
        loss_weight: λ.
        loss_queries: queries, drawn at random from all of the batch, over which the proposal's loss
            is averaged: each costs S complete kernel matrices per head.

    Cost: O(N·S·w·d) for an MLP kernel and O(N·A) for a proposal of A components; pairs, and an
    order across two domains, O(N²·A) for the proposal. Blocks of queries are recomputed in the
    backward.

    Raises:
        OptionError: more samples than points, or ``anchors`` of another type.
        StrategyError: kernels that are not a function of two ends (a normaliser, a trajectory);
            ``step``; traced code.
        DomainError: anchors on a domain with pairs; anchors of another domain.

    Reference: ITNet §3.2, Eqs. 13, 14, 207-210; the lattice is ours.

    Example:
        >>> MonteCarlo(samples=32).exact
        False
    """

    exact: ClassVar[bool] = False
    needs: ClassVar[str] = "a kernel that is a function of two ends: forward, or hidden and readout"
    samples: int = 128
    floor: float = 0.1
    anchors: Anchors | bool = False
    loss_weight: float = 0.1
    loss_queries: int = 16

    def __post_init__(self):
        if self.samples < 1 or self.loss_queries < 1:
            raise OptionError(
                f"expected samples and loss_queries of 1 or more, got {self.samples} and "
                f"{self.loss_queries}"
            )
        if not 0.0 < self.floor <= 1.0:
            raise OptionError(f"expected a floor in (0, 1], got {self.floor}")
        if not isinstance(self.anchors, Anchors | bool):
            raise OptionError(
                f"expected anchors=True, False or Anchors.of(domain, samples), got {self.anchors!r}"
            )
