"""Convolutions along the grid of tokens: a term, an attention whose queries and keys are convolved,
and fewer tokens.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from ....domain import MEASURES, Domain
from ....errors import DomainError, OptionError
from ....integral.features import head_width
from ....integral.problem import merge_heads, split_heads
from .term import Term

_CONVOLUTIONS = {
    1: nn.Conv1d,
    2: nn.Conv2d,
    3: nn.Conv3d,
}
_BATCH_NORMS = {
    1: nn.BatchNorm1d,
    2: nn.BatchNorm2d,
    3: nn.BatchNorm3d,
}


class ConvolutionTerm(Term):
    r"""Term IV along the tokens: :math:`A(u)(x) = (W^C * u)(x) + b^C`, the domain a regular grid,
    zero beyond its edge.

    On a causal line the taps reach back only. A convolution of fixed taps is tied to its grid: on a
    finer one it is another operator.

    Args:
        dim: width of u.
        kernel_size: taps per axis, odd.
        axes: dimension of the grid, 1 to 3.
        depthwise: one filter per feature instead of all pairs of features.
        norm: None, or a map of the features before the convolution.

    Reference: continuous transformer, Eq. 57, 58; Wu et al. 2021.

    Example:
        >>> ConvolutionTerm(4, 3, axes=2)(torch.zeros(1, 6, 4), Domain.grid(2, 3), 1.0).shape
        torch.Size([1, 6, 4])
    """

    def __init__(
        self,
        dim: int,
        kernel_size: int = 3,
        *,
        axes: int = 2,
        depthwise: bool = False,
        bias: bool = True,
        norm: nn.Module | None = None,
        substep: str = "auto",
    ):
        super().__init__(dim, substep)
        if axes not in _CONVOLUTIONS or kernel_size < 1 or kernel_size % 2 == 0:
            raise OptionError(
                "expected a convolution of 1 to 3 axes and odd taps, got "
                f"axes={axes}, kernel_size={kernel_size}"
            )
        self.axes = axes
        self.kernel_size = kernel_size
        self.norm = norm
        groups = 1
        if depthwise:
            groups = dim
        convolution = _CONVOLUTIONS[axes]
        self.convolution = convolution(
            dim,
            dim,
            kernel_size,
            groups=groups,
            bias=bias,
        )

    def refusal(self, substep: str) -> str | None:
        if substep in ("implicit", "trapezoid", "exact"):
            return "that needs the solution of a system that couples all tokens"
        return None

    def rate(self, u: Tensor, domain: Domain) -> Tensor:
        shape = grid_of(domain, self.axes, "ConvolutionTerm")
        if _has_pairs(domain) or (domain.causal and self.axes > 1):
            raise DomainError(
                "expected a grid without pairs or reach for ConvolutionTerm, and causal order on a "
                f"line only, got {domain!r}"
            )
        reach = self.kernel_size - 1
        if domain.causal:
            padding = (reach, 0)
        else:
            padding = (reach // 2, reach // 2) * self.axes
        if self.norm is not None:
            u = self.norm(u)
        if domain.valid is not None:
            # After the norm, which would make other numbers of zeros.
            u = torch.where(domain.valid[..., None], u, 0.0)
        grid = F.pad(to_grid(u, shape), padding)
        return from_grid(self.convolution(grid))


class ConvolutionalAttention(nn.Module):
    r"""Softmax attention whose queries, keys and values are filtered along the grid before they are
    projected:

    .. math::
        Q = W^Q\,\mathrm{BN}(w^Q * u),\quad
        K = W^K\,\mathrm{BN}(w^K * u),\quad
        V = W^V\,\mathrm{BN}(w^V * u),

    with depthwise filters w. Keys and values may live on a coarser grid (``stride``). An operator
    for :class:`OperatorTerm`.

    Args:
        dim, heads: width of u, number of heads.
        kernel_size, axes: odd taps per axis, and the dimension of the grid.
        stride: of keys and values.
        bias: of the projections W.
        batch_norm: BN after each filter; without it the filters alone.
        scale: of the scores, by default :math:`d_h^{-1/2}`.
        periodic: whether the grid goes on at its other end, as the paper's theory has it; else
            zeros lie beyond its edge.

    Shape: (B, N, dim) on a regular grid of N points with equal masses, no padding, order or pairs,
    to (B, N, dim).

    Reference: Wu et al. 2021, §3.2; continuous transformer, §6.2, with tokens as positions.

    Example:
        >>> ConvolutionalAttention(8, 2, stride=2)(torch.zeros(1, 16, 8), Domain.grid(4, 4)).shape
        torch.Size([1, 16, 8])
    """

    def __init__(
        self,
        dim: int,
        heads: int = 1,
        *,
        kernel_size: int = 3,
        axes: int = 2,
        stride: int = 1,
        bias: bool = True,
        batch_norm: bool = True,
        scale: float | None = None,
        periodic: bool = False,
    ):
        super().__init__()
        width = head_width(dim, heads)
        if axes not in _CONVOLUTIONS or kernel_size < 1 or kernel_size % 2 == 0 or stride < 1:
            got = f"axes={axes}, kernel_size={kernel_size}, stride={stride}"
            raise OptionError(
                "expected a convolution of 1 to 3 axes, odd taps and a stride of 1 or more, got "
                f"{got}"
            )
        self.dim = dim
        self.heads = heads
        self.axes = axes
        self.stride = stride
        if scale is None:
            scale = width**-0.5
        self.scale = scale
        mode = "zeros"
        if periodic:
            mode = "circular"

        def filtered(step: int) -> nn.Sequential:
            padding = kernel_size // 2
            sizes: Any = (dim, dim, kernel_size, step, padding)
            convolution = _CONVOLUTIONS[axes]
            filters = convolution(
                *sizes,
                groups=dim,
                bias=False,
                padding_mode=mode,
            )
            if not batch_norm:
                return nn.Sequential(filters)
            return nn.Sequential(filters, _BATCH_NORMS[axes](dim))

        self.filters = nn.ModuleDict(
            {
                "query": filtered(1),
                "key": filtered(stride),
                "value": filtered(stride),
            }
        )
        self.query = nn.Linear(dim, dim, bias=bias)
        self.key = nn.Linear(dim, dim, bias=bias)
        self.value = nn.Linear(dim, dim, bias=bias)
        self.projection = nn.Linear(dim, dim)

    def forward(
        self,
        u: Float[Tensor, "b n d"],
        domain: Domain,
    ) -> Float[Tensor, "b n d"]:
        shape = grid_of(domain, self.axes, "ConvolutionalAttention")
        grid = to_grid(u, shape)
        if _is_limited(domain) or not MEASURES[domain.kind].equal:
            raise DomainError(
                "expected a grid of equal masses without padding, order, pairs or reach for "
                f"ConvolutionalAttention, got {domain!r}"
            )

        def projected(name: str, layer: nn.Linear) -> Tensor:
            """Return features after a filter along the grid and a projection, by head."""
            filtered = from_grid(self.filters[name](grid))
            return split_heads(layer(filtered), self.heads)

        query = projected("query", self.query)
        key = projected("key", self.key)
        value = projected("value", self.value)
        out = F.scaled_dot_product_attention(query, key, value, scale=self.scale)
        return self.projection(merge_heads(out))

    def extra_repr(self) -> str:
        return f"dim={self.dim}, heads={self.heads}, stride={self.stride}"


class ConvolutionalEmbedding(nn.Module):
    """Fewer tokens of another width: a strided convolution along the grid and a layer
    normalisation, between two evolutions.

    Args:
        in_dim, out_dim: widths before and after.
        kernel_size, stride: taps per axis, and the points from one token to the next.
        padding: zeros beyond each edge of the grid, by default half the taps.
        axes: dimension of the grid, 1 to 3.

    Shape: u (B, N, in_dim) on a grid to (u', domain'), (B, N', out_dim) on the coarser grid.

    Reference: Wu et al. 2021, §3.1; continuous transformer, §6.2.

    Example:
        >>> embedding = ConvolutionalEmbedding(3, 8, 3, stride=2)
        >>> u, domain = embedding(torch.zeros(1, 16, 3), Domain.grid(4, 4))
        >>> u.shape, domain.shape
        (torch.Size([1, 4, 8]), (2, 2))
    """

    def __init__(
        self,
        in_dim: int,
        out_dim: int,
        kernel_size: int = 3,
        *,
        stride: int = 2,
        padding: int | None = None,
        axes: int = 2,
    ):
        super().__init__()
        if axes not in _CONVOLUTIONS or kernel_size < 1 or stride < 1:
            got = f"axes={axes}, kernel_size={kernel_size}, stride={stride}"
            raise OptionError(
                "expected a convolution of 1 to 3 axes, with kernel_size and stride of 1 or more, "
                f"got {got}"
            )
        self.axes = axes
        if padding is None:
            padding = kernel_size // 2
        convolution = _CONVOLUTIONS[axes]
        self.convolution = convolution(
            in_dim,
            out_dim,
            kernel_size,
            stride,
            padding,
        )
        self.norm = nn.LayerNorm(out_dim)

    def forward(
        self,
        u: Float[Tensor, "b n i"],
        domain: Domain,
    ) -> tuple[Float[Tensor, "b m o"], Domain]:
        shape = grid_of(domain, self.axes, "ConvolutionalEmbedding")
        if _is_limited(domain):
            raise DomainError(
                "expected a grid without padding, order, pairs or reach for "
                f"ConvolutionalEmbedding, got {domain!r}"
            )
        out = self.convolution(to_grid(u, shape))
        like = domain.positions
        extents = out.shape[2:]
        coarse = Domain.grid(*extents, device=like.device, dtype=like.dtype)
        return self.norm(from_grid(out)), coarse


def _is_limited(domain: Domain) -> bool:
    """Whether padding, an order, pairs or a reach hide some points from others."""
    return domain.valid is not None or domain.causal or _has_pairs(domain)


def _has_pairs(domain: Domain) -> bool:
    """Whether pairs or a reach decide which points see one another."""
    return domain.pairs is not None or domain.reach is not None


def grid_of(
    domain: Domain,
    axes: int,
    caller: str,
) -> tuple[int, ...]:
    """Return the extents of a domain that is a regular grid of so many axes, or a DomainError."""
    if domain.shape is None or len(domain.shape) != axes:
        raise DomainError(
            f"expected a regular grid of {axes} axes for {caller}, got {domain!r}; use "
            "Domain.grid(...)"
        )
    return domain.shape


def to_grid(
    u: Float[Tensor, "b n d"],
    shape: tuple[int, ...],
) -> Tensor:
    """Return (B, N, D) as (B, D, *shape)."""
    if _by_number():
        # Inductor has no code for points that it must split into the axes of a grid whose extents
        # a strided convolution rounded down. It has code for points that are taken by number.
        number = torch.zeros(
            (),
            dtype=torch.int64,
            device=u.device,
        )
        for extent in shape:
            along_axis = torch.arange(extent, device=u.device)
            number = number[..., None] * extent + along_axis
        return u.mT[..., number]
    return u.mT.unflatten(-1, shape)


def _by_number() -> bool:
    """Whether points are taken by their numbers: in code that ``torch.compile`` makes for values
    alone. A gradient would add up point by point, and in exported programs a view is faster.
    """
    if torch.is_grad_enabled() or torch.compiler.is_exporting():
        return False
    return torch.compiler.is_compiling()


def from_grid(u: Tensor) -> Float[Tensor, "b n d"]:
    """Return (B, D, *shape) as (B, N, D)."""
    return u.flatten(2).mT
