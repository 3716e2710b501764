"""The kernel K(x, y, u(x), u(y)): what interacts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ..errors import OptionError
from ..quadrature import Quadrature, Rows, take_rows


@dataclass(frozen=True, eq=False)
class Problem:
    """What one integral is about, all heads at once: both ends' positions and features, and the quadrature between them.

    Attributes:
        x, y: positions of queries and keys, (1 | B, Nq, p) and (1 | B, Nk, p).
        ux, uy: features, (B, H, Nq, d) and (B, H, Nk, d); H is 1 where every head reads all features.
        quadrature: who sees whom with which weight.
        grid: extents of the regular grid that queries and keys share, or None.
    """

    x: Float[Tensor, "#b q p"]
    y: Float[Tensor, "#b k p"]
    ux: Float[Tensor, "#b #h q d"]
    uy: Float[Tensor, "#b #h k d"]
    quadrature: Quadrature
    grid: tuple[int, ...] | None = None

    def rows(self, rows: Rows) -> Problem:
        """The same problem for some of the queries."""
        if rows is None:
            return self
        return Problem(
            take_rows(self.x, rows, 1), self.y, take_rows(self.ux, rows, 2), self.uy, self.quadrature.rows(rows)
        )


class Kernel(nn.Module):
    r"""A matrix-valued kernel, one small function of both ends.

    A subclass defines :meth:`forward`, or the methods of a trait of :mod:`fredholm.kernels.traits`, from which the definition
    and a faster form follow: ``hidden`` and ``readout``, or ``weights`` and ``value_map``. A kernel with a global functional
    (softmax's normaliser) cannot be a function of two ends; it defines ``weights`` or overrides :meth:`matrix`.

    Args:
        heads: number of heads H.
        d_in: features a head reads of u: ``dim // heads`` (a slice each), or ``dim`` where ``whole``.
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
        """K at broadcast pairs: positions (B, 1, Nq, 1, p) and (B, 1, 1, Nk, p), features (B, H, Nq, 1, d) and
        (B, H, 1, Nk, d) give (B, H, Nq, Nk, d_out, d_in); a parameter of shape (H, 1, 1, ...) is one per head."""
        if not hasattr(self, "hidden"):
            needs = "forward(x, y, ux, uy), or hidden and readout, or weights and value_map"
            raise NotImplementedError(f"{type(self).__name__} must define {needs}")
        trait: Any = self
        weight, bias = trait.readout()
        dense = torch.einsum("bhqkw,hoiw->bhqkoi", trait.hidden(x, y, ux, uy), weight)
        return dense if bias is None else dense + bias[:, None, None]

    def matrix(self, problem: Problem) -> Float[Tensor, "b h q k o i"]:
        """The kernel at all pairs, (B, H, Nq, Nk, d_out, d_in), densities against the measure. O(Nq·Nk)."""
        if hasattr(self, "value_map"):
            trait: Any = self
            dense = torch.einsum("bhqk,hoi->bhqkoi", trait.weights(problem), trait.value_map())
            return dense.expand(problem.uy.shape[0], self.heads, -1, -1, -1, -1)
        p = problem
        x, y = p.x[:, None, :, None], p.y[:, None, None, :]
        dense = self(x, y, p.ux[:, :, :, None], p.uy[:, :, None, :])
        shape = (p.uy.shape[0], self.heads, p.ux.shape[2], p.uy.shape[2], self.d_out, self.d_in)
        return dense.expand(shape)

    def offset(self) -> Tensor | None:
        """Response to a constant channel, (H, d_out), where the layer is affine; None otherwise."""
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


def identity(heads: int, dim: int) -> Tensor:
    """One identity matrix a head, (H, dim, dim)."""
    return torch.eye(dim).repeat(heads, 1, 1)
