r"""Splitting schemes: a step of :math:`u_t = \sum_k A_k(u)` composed of steps of its terms."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from ....errors import OptionError, suggest
from .term import STEP_ERROR, Term

Flow = Callable[..., Tensor]
"""``flow(u, t, dt, speed=1.0)``: u after v' = speed · A(v; θ(t + dt/2)) over [t, t + dt]."""


@dataclass(frozen=True)
class Scheme:
    """A way of composing the flows of terms. Subclasses are frozen dataclasses without parameters.

    Attributes:
        order: order of accuracy, given substeps of that order; a term's ``"auto"`` substep follows
            it.
    """

    order: ClassVar[int] = 1

    def check(self, terms: int) -> None:
        """OptionError where this scheme cannot be run with that many terms."""

    def check_step(self, dt: float) -> None:
        """OptionError where this scheme cannot take a step of that length."""

    def resolve(self, term: Term) -> str:
        """Return the substep that a term takes under this scheme."""
        return term.resolve(self.order)

    def step(
        self,
        flows: Sequence[Flow],
        u: Tensor,
        t: float,
        dt: float,
    ) -> Tensor:
        """Return u at t + dt from u at t."""
        raise NotImplementedError


@dataclass(frozen=True)
class Lie(Scheme):
    r"""Sequential splitting, :math:`u^{n+1} = \Phi_K(\Delta t) \cdots \Phi_1(\Delta t)\,u^n`: order
    1, one substep per term.

    Reference: continuous transformer, Eq. 74.
    """

    def step(
        self,
        flows: Sequence[Flow],
        u: Tensor,
        t: float,
        dt: float,
    ) -> Tensor:
        for flow in flows:
            u = flow(u, t, dt)
        return u


@dataclass(frozen=True)
class Relaxed(Lie):
    r"""The paper's :math:`4 + J` substeps, with the relaxation :math:`\tfrac12(N(u) + u)` in place
    of the explicit step of the network.

    A step of 1 is one layer of the post-norm encoder. The relaxation halves term III, so it
    approximates nothing as
    :math:`\Delta t \to 0`: any other step is refused.

    Reference: continuous transformer, Eq. 16-21.
    """

    def check_step(self, dt: float) -> None:
        if abs(dt - 1.0) > STEP_ERROR:
            raise OptionError(
                f"expected steps of 1 for Relaxed, which recovers the encoder, got {dt:g}; use Lie "
                "for other steps, which adds dt·N(u)"
            )

    def resolve(self, term: Term) -> str:
        if "relaxed" in term.serves:
            return "relaxed"
        return super().resolve(term)


@dataclass(frozen=True)
class Strang(Scheme):
    r"""Symmetric splitting, half steps of all terms but the last there and back: order 2, 2K - 1
    substeps.

    .. math::
        \Phi_1(\tau) \cdots \Phi_{K-1}(\tau)\,\Phi_K(2\tau)\,\Phi_{K-1}(\tau) \cdots \Phi_1(\tau),
        \qquad \tau = \Delta t / 2

    The substeps must be of order 2 themselves (``midpoint``, ``heun``, ``exact``, ...); ``euler``
    caps it at 1.
    """

    order: ClassVar[int] = 2

    def step(
        self,
        flows: Sequence[Flow],
        u: Tensor,
        t: float,
        dt: float,
    ) -> Tensor:
        # Half steps of all terms but the last, a whole step of that, and the half steps back.
        *outer, last = flows
        half = dt / 2
        for flow in outer:
            u = flow(u, t, half)
        u = last(u, t, dt)
        for flow in reversed(outer):
            u = flow(u, t + half, half)
        return u


@dataclass(frozen=True)
class Parallel(Scheme):
    r"""Parallel splitting: every term starts from :math:`u^n` at K times its rate, and the results
    are averaged; order 1.

    .. math:: u^{n+1} = \tfrac1K \sum_k v_k(t^{n+1}),\qquad v_k' = K A_k(v_k),\quad v_k(t^n) = u^n

    Reference: continuous transformer, Eq. 75.
    """

    def step(
        self,
        flows: Sequence[Flow],
        u: Tensor,
        t: float,
        dt: float,
    ) -> Tensor:
        return _parallel_step(flows, u, t, dt)


@dataclass(frozen=True)
class Hybrid(Scheme):
    """Groups of terms one after the other, the terms of a group in parallel; order 1.

    Args:
        groups: indices of the terms, every term once: ``((0, 1), (2,))`` runs terms 0 and 1 in
            parallel, then term 2.

    Reference: continuous transformer, App. C.
    """

    groups: tuple[tuple[int, ...], ...]

    def check(self, terms: int) -> None:
        indices = sorted(k for group in self.groups for k in group)
        if indices != list(range(terms)) or not all(self.groups):
            raise OptionError(
                f"expected groups that name each of the terms 0 to {terms - 1} once, got "
                f"{self.groups}"
            )

    def step(
        self,
        flows: Sequence[Flow],
        u: Tensor,
        t: float,
        dt: float,
    ) -> Tensor:
        for group in self.groups:
            members = [flows[k] for k in group]
            u = _parallel_step(members, u, t, dt)
        return u


def _parallel_step(
    flows: Sequence[Flow],
    u: Tensor,
    t: float,
    dt: float,
) -> Tensor:
    """Return the mean of the flows, each at their number times its rate."""
    if len(flows) == 1:
        return flows[0](u, t, dt)
    # Each term alone must go as far as all of them together: at K times its rate.
    speed = float(len(flows))
    after = [flow(u, t, dt, speed) for flow in flows]
    return torch.stack(after).mean(0)


SCHEMES: dict[str, Callable[[], Scheme]] = {
    "lie": Lie,
    "strang": Strang,
    "parallel": Parallel,
    "relaxed": Relaxed,
}


def resolve_scheme(scheme: Scheme | str) -> Scheme:
    """Return a scheme by its name: ``lie``, ``strang``, ``parallel`` or ``relaxed``; a Scheme is
    returned as it is.

    Example:
        >>> resolve_scheme("strang")
        Strang()
    """
    if isinstance(scheme, Scheme):
        return scheme
    if scheme not in SCHEMES:
        raise OptionError(
            f"unknown scheme {scheme!r}{suggest(scheme, SCHEMES)}, or pass a Scheme such as "
            "Hybrid(groups=...)"
        )
    return SCHEMES[scheme]()
