"""Features of points: zero at padding, apart and together by head."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from jaxtyping import Float
from torch import Tensor

from ..errors import OptionError
from ..ops.backend import at_least_single, cast

if TYPE_CHECKING:
    from .contract import Kernel


def clean(x: Tensor, valid: Tensor | None) -> Tensor:
    """Set padding to zero: ``x`` (..., N, c) where ``valid`` (..., N) is False.

    A product with the mask would leave NaN where padding is NaN, so this is ``where``.
    """
    if valid is None:
        return x
    zero = torch.zeros((), dtype=x.dtype, device=x.device)
    return torch.where(valid[..., None], x, zero)


def head_width(dim: int, heads: int) -> int:
    """Return the width of one head's slice, dim / heads.

    Raises:
        OptionError: heads that do not divide the width.

    Example:
        >>> head_width(12, 3)
        4
    """
    if heads < 1 or dim % heads:
        raise OptionError(
            f"heads: expected a divisor of the width {dim}, got {heads}; change one of the two"
        )
    return dim // heads


def by_head_of(kernel: Kernel, u: Tensor) -> Tensor:
    """Return features (B, N, dim) as the kernel's heads read them: a slice each, (B, H, N, d), or
    all features for all heads, (B, 1, N, dim).
    """
    if kernel.whole:
        return u.unsqueeze(1)
    return split_heads(u, kernel.heads)


def split_heads(u: Float[Tensor, "b n d"], heads: int) -> Float[Tensor, "b h n c"]:
    """Return (B, N, H·c) as (B, H, N, c), a view.

    Example:
        >>> split_heads(torch.zeros(1, 5, 6), 2).shape
        torch.Size([1, 2, 5, 3])
    """
    if heads == 1:
        return u.unsqueeze(1)
    batch, points, width = u.shape
    return u.view(batch, points, heads, width // heads).transpose(1, 2)


def merge_heads(u: Float[Tensor, "b h n c"]) -> Float[Tensor, "b n d"]:
    """Return (B, H, N, c) as (B, N, H·c).

    Example:
        >>> merge_heads(torch.zeros(1, 2, 5, 3)).shape
        torch.Size([1, 5, 6])
    """
    if u.shape[1] == 1:
        return u.squeeze(1)
    return u.transpose(1, 2).flatten(2)


def weighed(u: Float[Tensor, "#b h n c"], mass: Float[Tensor, "#b n"]) -> Float[Tensor, "_ h n c"]:
    """Multiply features by the masses of their points, (B, H, N, c).

    The product is in float32 or better, because a mass may lie outside the range of float16.

    Example:
        >>> weighed(torch.ones(1, 1, 1, 2).half(), torch.full((1, 1), 1e5)).tolist()
        [[[[100000.0, 100000.0]]]]
    """
    dtype = at_least_single(u.dtype)
    return cast(mass, dtype)[:, None, :, None] * cast(u, dtype)


def heads_apart(u: Float[Tensor, "b h i"], weight: Float[Tensor, "h o i"]) -> Tensor:
    """Multiply one point's features by a matrix for each head, (B, H, o).

    All samples of a head are one matrix product. On a CPU, ``weight @ u[..., None]`` takes twenty
    times as long: it makes a product for each sample.

    Example:
        >>> heads_apart(torch.ones(1, 2, 3), torch.ones(2, 4, 3)).shape
        torch.Size([1, 2, 4])
    """
    return torch.bmm(u.transpose(0, 1), weight.mT).transpose(0, 1)


def by_head(x: Float[Tensor, "b h n i"], weight: Float[Tensor, "h o i"]) -> Tensor:
    """Multiply every point's features by a matrix for each head, (B, H, N, o).

    All samples of a head are one matrix product, so that no matrix is copied for each sample.

    Example:
        >>> by_head(torch.ones(1, 2, 5, 3), torch.ones(2, 4, 3)).shape
        torch.Size([1, 2, 5, 4])
    """
    batch, heads, points, _ = x.shape
    rows = x.transpose(0, 1).flatten(1, 2)
    out = torch.bmm(rows, weight.mT)
    return out.view(heads, batch, points, out.shape[-1]).transpose(0, 1)
