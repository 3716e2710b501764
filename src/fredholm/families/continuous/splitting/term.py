"""Terms of a split evolution: the rate of each, and the substeps that advance it alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

import torch
from torch import Tensor, nn

from ....domain import Domain
from ....errors import OptionError, suggest

Rate = Callable[[Tensor], Tensor]

STEP_ERROR = 1e-9
"""Largest difference from 1 of a step that counts as one: a step is horizon / steps, which is
rounded."""


class SubstepError(OptionError):
    """A substep that a term does not have, or not in this scheme."""


# --- explicit Runge-Kutta methods, one step of u' = rate(u) ---------------------------------------


def _euler(rate: Rate, u: Tensor, h: float) -> Tensor:
    return torch.add(u, rate(u), alpha=h)


def _midpoint(rate: Rate, u: Tensor, h: float) -> Tensor:
    half = torch.add(u, rate(u), alpha=h / 2)
    return torch.add(u, rate(half), alpha=h)


def _heun(rate: Rate, u: Tensor, h: float) -> Tensor:
    first = rate(u)
    end = torch.add(u, first, alpha=h)
    second = rate(end)
    return torch.add(u, first + second, alpha=h / 2)


def _rk4(rate: Rate, u: Tensor, h: float) -> Tensor:
    # The rates at the start, twice at the middle, and at the end.
    a = rate(u)
    middle = torch.add(u, a, alpha=h / 2)
    b = rate(middle)
    middle = torch.add(u, b, alpha=h / 2)
    c = rate(middle)
    end = torch.add(u, c, alpha=h)
    d = rate(end)
    total = a + 2 * (b + c) + d
    return torch.add(u, total, alpha=h / 6)


def mix(a: Tensor, b: Tensor, w: float) -> Tensor:
    """Return (1 - w) a + w b in the dtype of a: under autocast the two may differ."""
    return torch.lerp(a, b.to(a.dtype), w)


EXPLICIT: dict[str, Callable[[Rate, Tensor, float], Tensor]] = {
    "euler": _euler,
    "midpoint": _midpoint,
    "heun": _heun,
    "rk4": _rk4,
}
"""Explicit substeps by name, of order 1, 2, 2 and 4."""


class Term(nn.Module):
    r"""One term :math:`A` of :math:`u_t = \sum_k A_k(u; \theta_k(t))`, and how it is advanced alone
    over a time h.

    A subclass defines :meth:`rate`, from which the explicit substeps follow (``euler``,
    ``midpoint``, ``heun``, ``rk4``), and a method for every other substep that it lists in
    ``serves``: ``implicit``, ``trapezoid``, ``exact``, ...

    Args:
        dim: width of u, or None where any width will do.
        substep: one of ``serves``, or ``"auto"``: the one that suits the order of the scheme.

    Attributes:
        serves: names of the substeps of this class.
        automatic: the substeps for ``"auto"`` in a scheme of order 1 and in one of order 2.
    """

    serves: ClassVar[tuple[str, ...]] = tuple(EXPLICIT)
    automatic: ClassVar[tuple[str, str]] = ("euler", "midpoint")

    def __init__(self, dim: int | None, substep: str = "auto"):
        super().__init__()
        self.dim = dim
        self.substep = self.check(substep)

    def check(self, substep: str) -> str:
        """Return the name itself where this term has this substep.

        Raises:
            SubstepError: a substep that this term does not have, with the reason and those it has.
        """
        if substep == "auto" or substep in self.serves:
            return substep
        reason = self.refusal(substep)
        if reason is None:
            reason = f"no substep of that name{suggest(substep, self.serves)}"
        raise SubstepError(
            f"{type(self).__name__} cannot serve substep={substep!r}: {reason}; it serves "
            f"{', '.join(self.serves)}"
        )

    def refusal(self, substep: str) -> str | None:
        """Return why this term lacks a substep that others have; None for an unknown name."""
        return None

    def resolve(self, order: int) -> str:
        """Return the substep that runs in a scheme of this order."""
        if self.substep != "auto":
            return self.substep
        first, second = self.automatic
        if order == 1:
            return first
        return second

    def rate(self, u: Tensor, domain: Domain) -> Tensor:
        """Return A(u), the change of u in unit time by this term alone."""
        raise NotImplementedError(f"{type(self).__name__} must define rate(u, domain)")

    def forward(
        self,
        u: Tensor,
        domain: Domain,
        h: float,
        substep: str = "euler",
    ) -> Tensor:
        """Return u after this term alone has acted for a time h; with ``substep="rate"`` A(u)."""
        if substep == "rate":
            return self.rate(u, domain)
        if substep in EXPLICIT and substep in self.serves:
            return EXPLICIT[substep](
                lambda v: self.rate(v, domain),
                u,
                h,
            )
        method = self.check(substep).replace("-", "_")
        return getattr(self, method)(u, domain, h)

    def stages(
        self,
        u: Tensor,
        domain: Domain,
        substep: str,
    ) -> list[tuple[str, Tensor]]:
        """Return named states inside one substep, for observers; most terms have none.

        The last one is the state after the substep, for which an evolution reports what it really
        computed.
        """
        return []

    def extra_repr(self) -> str:
        return f"dim={self.dim}, substep={self.substep!r}"
