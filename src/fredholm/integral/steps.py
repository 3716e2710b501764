"""The points of a causal step: what an operator reads of them, and what a kernel is given."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from ..domain import Domain
from ..errors import DomainError
from ..ops.backend import at_least_single
from ..quadrature import Quadrature
from .checks import check_device, check_dtype
from .facts import OperatorFacts
from .features import clean, weighed
from .place import batched
from .problem import by_head_of

if TYPE_CHECKING:
    from .contract import Kernel


class Stretch(NamedTuple):
    """The next points of a causal domain, as :meth:`Form.step` and :meth:`Form.prefill` take them.

    Attributes:
        x: positions (1 | B, n, p).
        u: features by head, (B, H, n, d).
        query: the same features, (B, n, dim), for the pointwise term W.
        real: points that are not padding, (B, n), or None where all are.
    """

    x: Tensor
    u: Tensor
    query: Tensor
    real: Tensor | None

    @classmethod
    def of(
        cls,
        kernel: Kernel,
        u: Tensor,
        domain: Domain,
        seen: int,
        *,
        operator: OperatorFacts,
    ) -> Stretch:
        """Read features (B, n, dim) of the n points of ``domain`` after the first ``seen``.

        Raises:
            ShapeError: features of another dtype, or on another device than the state.
            DomainError: more points than the domain has left.
        """
        check_dtype(u, "u", operator.dtype)
        check_device(u, domain, "u", "state")
        stop = seen + u.shape[1]
        if stop > domain.size:
            raise DomainError(
                f"u: expected at most {domain.size - seen} more points of the state's domain of "
                f"{domain.size}, got {u.shape[1]}; build a longer domain"
            )

        real = None
        if domain.valid is not None:
            real = domain.valid[:, seen:stop]
        u = clean(u, real)

        x = batched(clean(domain.positions[..., seen:stop, :], real), 2)
        if x.dtype != u.dtype:
            x = x.to(torch.promote_types(u.dtype, x.dtype))
        return cls(x, by_head_of(kernel, u), u, real)


class Point(NamedTuple):
    """One point of a causal step.

    Attributes:
        x: position, (1 | B, p).
        u: features, (B, H, d).
        mass: of the point, (1 | B,), in float32 or better.
        scale: one over the mass that the point sees, (1 | B, 1 | H), in float32 or better; None
            where nothing is renormalised.
        real: in which samples the point is not padding, (1 | B,); None where in all.
    """

    x: Tensor
    u: Tensor
    mass: Tensor
    scale: Tensor | None
    real: Tensor | None = None

    @classmethod
    def at(
        cls,
        x: Tensor,
        u: Tensor,
        quadrature: Quadrature,
        t: int,
    ) -> Point:
        """Return point t of a quadrature, at x (1 | B, 1, p) with features u (B, H, 1, d)."""
        dtype = at_least_single(u.dtype)
        scale, real = None, None
        if quadrature.scale is not None:
            scale = quadrature.scale[..., t].to(dtype)
        if quadrature.valid is not None:
            real = quadrature.valid[:, t]
        return cls(x[:, 0], u[:, :, 0], quadrature.mass[:, t].to(dtype), scale, real)

    def weighed(self) -> Tensor:
        """Return :func:`weighed` of the one point, (B, H, d)."""
        return weighed(self.u[:, :, None], self.mass[:, None])[:, :, 0]

    def scaled(self, out: Tensor) -> Tensor:
        """Return the sum (B, H, d) of a query here, times its scale."""
        if self.scale is None:
            return out
        return out * self.scale[..., None]
