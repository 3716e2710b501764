"""Features of points: zero at padding, the width of a head, weighed by masses."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from ..errors import OptionError
from ..ops.backend import at_least_single, cast


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


def weighed(
    u: Float[Tensor, "#b h n c"],
    mass: Float[Tensor, "#b n"],
) -> Float[Tensor, "_ h n c"]:
    """Multiply features by the masses of their points, (B, H, N, c).

    The product is in float32 or better, because a mass may lie outside the range of float16.

    Example:
        >>> weighed(torch.ones(1, 1, 1, 2).half(), torch.full((1, 1), 1e5)).tolist()
        [[[[100000.0, 100000.0]]]]
    """
    dtype = at_least_single(u.dtype)
    return cast(mass, dtype)[:, None, :, None] * cast(u, dtype)
