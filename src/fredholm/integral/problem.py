"""What one integral is about: the facts that are known before any number is, and the tensors."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from ..domain import Domain
from ..quadrature import Quadrature, Rows, take_rows


@dataclass(frozen=True)
class Layout:
    """Where keys and queries live, as far as it is static: what a kernel may refuse.

    Attributes:
        keys, queries: extents of the regular grids that keys and queries form, or None.
        cross: queries live on another domain than keys.
        given: that domain came from the caller, not from the kernel's ``output_domain``.
        causal, pairs, padded: whether there is an order, a pair mask or bias, padding.
        measure: the measure's name, as in :class:`fredholm.Domain`.
        fixed: positions are shared by the batch and need no gradient.
        stepping: one point at a time.
    """

    keys: tuple[int, ...] | None = None
    queries: tuple[int, ...] | None = None
    cross: bool = False
    given: bool = False
    causal: bool = False
    pairs: bool = False
    padded: bool = False
    measure: str = "uniform"
    fixed: bool = True
    stepping: bool = False

    @classmethod
    def of(
        cls,
        domain: Domain,
        query_domain: Domain | None = None,
        *,
        given: bool = False,
        stepping: bool = False,
    ) -> Layout:
        """The layout of integrating over ``domain`` at the points of ``query_domain`` (default: the
        same).
        """
        target = domain if query_domain is None else query_domain
        fixed = domain.positions.dim() == 2 and not domain.positions.requires_grad
        return cls(
            keys=domain.shape,
            queries=target.shape,
            cross=query_domain is not None,
            given=given,
            causal=domain.causal,
            pairs=domain.pairs is not None,
            padded=domain.valid is not None,
            measure=domain.kind,
            fixed=fixed,
            stepping=stepping,
        )

    @property
    def grid(self) -> tuple[int, ...] | None:
        """The regular grid at fixed positions that queries and keys share, or None."""
        return self.keys if self.fixed and not (self.cross or self.stepping) else None


class Facts(NamedTuple):
    """All that the choice of a form may depend on: static, so that traced code takes the same form
    as eager code, and never the value of a tensor.

    Attributes:
        layout: where keys and queries live.
        queries, keys: how many there are. Traced lengths may be symbols: comparing them fixes them.
        dtype, device: of the features; the device's type, as ``"cpu"``.
        training: the kernel's mode.
        tracing: inside torch.compile or torch.export.
        gradients: whether autograd records.
    """

    layout: Layout
    queries: int = 0
    keys: int = 0
    dtype: torch.dtype = torch.float32
    device: str = "cpu"
    training: bool = False
    tracing: bool = False
    gradients: bool = False

    @classmethod
    def of(cls, layout: Layout, ux: Tensor, uy: Tensor, training: bool) -> Facts:
        """The facts about features ``ux`` (B, H, Nq, d) and ``uy`` (B, H, Nk, d)."""
        return cls(
            layout,
            ux.shape[2],
            uy.shape[2],
            uy.dtype,
            uy.device.type,
            training,
            torch.compiler.is_compiling(),
            torch.is_grad_enabled(),
        )


class Point(NamedTuple):
    """One point of a causal step: position (1 | B, p), features (B, H, d), mass (1 | B,), scale
    (1 | B, 1 | H) or None.
    """

    x: Tensor
    u: Tensor
    mass: Tensor
    scale: Tensor | None

    @classmethod
    def at(cls, x: Tensor, u: Tensor, quadrature: Quadrature, t: int) -> Point:
        """Point t of a quadrature, at x (1 | B, 1, p) with features u (B, H, 1, d)."""
        scale = None if quadrature.scale is None else quadrature.scale[..., t].to(u.dtype)
        return cls(x[:, 0], u[:, :, 0], quadrature.mass[:, t].to(u.dtype), scale)


@dataclass(frozen=True, eq=False)
class Problem:
    """What one integral is about, all heads at once: both ends' positions and features, and the
    quadrature between them.

    Per-head parameters of shape (H, a, b) meet the features in a plain matrix product,
    ``ux @ weight`` with ``weight`` (H, d, e): heads are dimension -3 of both.

    Attributes:
        x, y: positions of queries and keys, (1 | B, Nq, p) and (1 | B, Nk, p).
        ux, uy: features, (B, H, Nq, d) and (B, H, Nk, d); H is 1 where every head reads all
            features.
        quadrature: who sees whom with which weight.
        layout: its static facts.
        index: which of the layout's queries these are, or None for all.
        whole: the problem that these queries were taken from, for kernels with a functional of all
            pairs; or None.
        real: queries that are not padding, or None where all are.
    """

    x: Float[Tensor, "#b q p"]
    y: Float[Tensor, "#b k p"]
    ux: Float[Tensor, "#b #h q d"]
    uy: Float[Tensor, "#b #h k d"]
    quadrature: Quadrature
    layout: Layout = field(default_factory=Layout)
    index: Tensor | None = None
    whole: Problem | None = None
    real: Bool[Tensor, "#b q"] | None = None

    def rows(self, rows: Rows) -> Problem:
        """The same problem for some of the queries."""
        if rows is None:
            return self
        index = torch.as_tensor(rows, device=self.x.device)
        return Problem(
            x=take_rows(self.x, rows, 1),
            y=self.y,
            ux=take_rows(self.ux, rows, 2),
            uy=self.uy,
            quadrature=self.quadrature.rows(rows),
            layout=replace(self.layout, cross=True),
            index=index if self.index is None else self.index[index],
            whole=self if self.whole is None else self.whole,
            real=None if self.real is None else take_rows(self.real, rows, 1),
        )
