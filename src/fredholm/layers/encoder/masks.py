"""An encoder's masks as a domain."""

from __future__ import annotations

import torch
from torch import Tensor

from ...domain import Domain
from ...errors import OptionError, ShapeError


def encoder_domain(
    n: int,
    *,
    key_padding_mask: Tensor | None = None,
    mask: Tensor | None = None,
    is_causal: bool = False,
    heads: int = 1,
    device: torch.device | str | None = None,
    dtype: torch.dtype | None = None,
) -> Domain:
    """Return the line of n tokens that a ``torch.nn.TransformerEncoder`` sees under its masks.

    Args:
        n: number of tokens.
        key_padding_mask: boolean (B, n), True where a key is padding; it becomes ``valid``.
        mask: (n, n) or (B·heads, n, n), boolean (True hides a pair) or additive; it becomes
            ``pairs``.
        is_causal: a token sees itself and the tokens before it.
        heads: of the attention, for a mask of three dimensions.
        device, dtype: of the positions.

    At padded tokens an evolution returns zero, where PyTorch returns meaningless numbers. For a
    query that sees no key the attention is zero, where PyTorch returns NaN.

    Example:
        >>> encoder_domain(3, key_padding_mask=torch.tensor([[False, False, True]])).valid.tolist()
        [[True, True, False]]
    """
    valid = None
    if key_padding_mask is not None:
        if key_padding_mask.dtype != torch.bool or key_padding_mask.dim() != 2:
            got = f"{key_padding_mask.dtype} {tuple(key_padding_mask.shape)}"
            raise ShapeError(
                f"key_padding_mask: expected boolean (B, {n}), True at padding, got {got}"
            )
        valid = ~key_padding_mask

    pairs = mask
    if mask is not None and mask.dtype == torch.bool:
        pairs = ~mask
    if pairs is not None and pairs.dim() == 3:
        slices = pairs.shape[0]
        if slices % heads:
            raise OptionError(
                f"mask: expected a multiple of {heads} slices for {heads} heads, got {slices}; "
                "pass heads=..."
            )
        pairs = pairs.unflatten(0, (-1, heads))
    return Domain.line(
        n,
        causal=is_causal,
        valid=valid,
        pairs=pairs,
        device=device,
        dtype=dtype,
    )
