"""Features of several heads: their widths, and products with a matrix for each head."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from ..errors import OptionError
from ..ops.backend import at_least_single, cast


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
