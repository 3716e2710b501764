"""The kernel K(x, y, u(x), u(y)): what interacts."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from ..domain import Domain
from ..errors import ConversionError, OptionError
from ..quadrature import Quadrature, Rows, take_rows


@dataclass(frozen=True)
class Layout:
    """The static facts of a problem: all that the choice of a form, or a refusal, may depend on.

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
        """The facts about integrating over ``domain`` at the points of ``query_domain`` (default:
        the same).
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


class Point(NamedTuple):
    """One point of a causal step: position (1 | B, p), features (B, H, d), mass (1 | B,), scale (1
    | B, 1 | H) or None.
    """

    x: Tensor
    u: Tensor
    mass: Tensor
    scale: Tensor | None


@dataclass(frozen=True, eq=False)
class Problem:
    """What one integral is about, all heads at once: both ends' positions and features, and the
    quadrature between them.

    Attributes:
        x, y: positions of queries and keys, (1 | B, Nq, p) and (1 | B, Nk, p).
        ux, uy: features, (B, H, Nq, d) and (B, H, Nk, d); H is 1 where every head reads all
            features.
        quadrature: who sees whom with which weight.
        layout: its static facts.
        index: which of the layout's queries these are, or None for all.
        whole: the problem that these queries were taken from, for kernels with a functional of all
            pairs; or None.
        real: queries that are no padding, or None where all are.
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


class Kernel(nn.Module):
    r"""A matrix-valued kernel, one small function of both ends.

    A subclass defines :meth:`forward`, or the methods of a trait of :mod:`fredholm.kernels.traits`,
    from which the definition and a faster form follow: ``hidden`` and ``readout``, or ``weights``
    and ``value_map``. A kernel with a global functional (softmax's normaliser) cannot be a function
    of two ends; it defines ``weights`` or overrides :meth:`matrix`.

    Args:
        heads: number of heads H.
        d_in: features a head reads of u: ``dim // heads`` (a slice each), or ``dim`` where
            ``whole``.
        d_out: features a head writes.

    Attributes:
        whole: every head reads all of u instead of its own slice.
        reads_query: the kernel depends on u(x), so that queries on another domain need features.
    """

    whole = False
    reads_query = True

    def __init__(self, heads: int, d_in: int, d_out: int | None = None):
        super().__init__()
        self.heads, self.d_in, self.d_out = heads, d_in, d_out or d_in

    def forward(self, x: Tensor, y: Tensor, ux: Tensor, uy: Tensor) -> Tensor:
        """K at broadcast pairs: positions (B, 1, Nq, 1, p) and (B, 1, 1, Nk, p), features (B, H,
        Nq, 1, d) and (B, H, 1, Nk, d) give (B, H, Nq, Nk, d_out, d_in); a parameter of shape (H, 1,
        1, ...) is one per head.
        """
        if not hasattr(self, "hidden"):
            needs = "forward(x, y, ux, uy), or hidden and readout, or weights and value_map"
            raise NotImplementedError(f"{type(self).__name__} must define {needs}")
        trait: Any = self
        weight, bias = trait.readout()
        dense = torch.einsum("bhqkw,hoiw->bhqkoi", trait.hidden(x, y, ux, uy), weight)
        return dense if bias is None else dense + bias[:, None, None]

    def matrix(self, problem: Problem) -> Float[Tensor, "b h q k o i"]:
        """The kernel at all pairs, (B, H, Nq, Nk, d_out, d_in), densities against the measure.
        O(Nq·Nk).
        """
        if hasattr(self, "value_map"):
            trait: Any = self
            dense = torch.einsum("bhqk,hoi->bhqkoi", trait.weights(problem), trait.value_map())
            return dense.expand(problem.uy.shape[0], self.heads, -1, -1, -1, -1)
        p = problem
        x, y = p.x[:, None, :, None], p.y[:, None, None, :]
        dense = self(x, y, p.ux[:, :, :, None], p.uy[:, :, None, :])
        shape = (p.uy.shape[0], self.heads, p.ux.shape[2], p.uy.shape[2], self.d_out, self.d_in)
        return dense.expand(shape)

    def offset(self, problem: Problem) -> Tensor | None:
        """Response to a constant channel, broadcastable to (B, H, Nq, d_out), where the layer is
        affine; None otherwise.
        """
        return None

    # --- where the kernel lives -------------------------------------------------------------------

    def check(self, layout: Layout) -> None:
        """Raise :class:`fredholm.errors.DomainError` for a domain on which the kernel means
        nothing. By default all are served.
        """

    def default_domain(self, n: int, *, device: torch.device, dtype: torch.dtype) -> Domain:
        """The domain of n points that an operator assumes when it is given none."""
        return Domain.line(n, device=device, dtype=dtype)

    def output_domain(self, domain: Domain) -> Domain | None:
        """Where the output lives when no query domain is given: None for ``domain`` itself, else
        another (a strided grid).
        """
        return None

    def extra_repr(self) -> str:
        return f"heads={self.heads}, d_in={self.d_in}, d_out={self.d_out}"


def head_width(dim: int, heads: int) -> int:
    """dim / heads, or an OptionError."""
    if heads < 1 or dim % heads:
        raise OptionError(f"heads must divide the width: {heads} does not divide {dim}")
    return dim // heads


def split_heads(u: Float[Tensor, "b n d"], heads: int) -> Float[Tensor, "b h n c"]:
    """(B, N, H·c) to (B, H, N, c)."""
    return u.unflatten(-1, (heads, -1)).transpose(1, 2)


def merge_heads(u: Float[Tensor, "b h n c"]) -> Float[Tensor, "b n d"]:
    """(B, H, N, c) to (B, N, H·c)."""
    return u.transpose(1, 2).flatten(2)


def check_dropout(training: bool, rate: float) -> None:
    """ConversionError where dropout is active: such a layer is random, and no integral operator."""
    if training and rate:
        raise ConversionError(
            f"dropout={rate} is active in training mode, where the layer is random and no integral "
            "operator; "
            "call .eval(), or set the dropout to 0 to train without it"
        )


def own_parameter(x: Tensor) -> nn.Parameter:
    """The very same Parameter, or a new one: a Parameter that is wrapped again would be trained
    apart from its layer.
    """
    return x if isinstance(x, nn.Parameter) else nn.Parameter(x)


def identity(heads: int, dim: int) -> Tensor:
    """One identity matrix a head, (H, dim, dim)."""
    return torch.eye(dim).repeat(heads, 1, 1)
