"""Masks that a model gives its attention: read, and made into pairs for layers with softmax."""

from __future__ import annotations

import torch
from torch import Tensor

from ..errors import ConversionError

FORBIDDEN = -1e4  # an additive mask below this hides a pair
WINDOW = "a mask that is neither causal nor none (a sliding window, chunks, packed sequences)"


def visible_pairs(mask: Tensor | None, causal: bool, query: Tensor, key: Tensor) -> Tensor | None:
    """A mask of padding as a mask of pairs, (B | 1, 1, Nq | 1, Nk), with the order; None where all
    is visible.
    """
    if mask is not None and mask.dim() == 4:
        return mask
    pairs = None if mask is None else mask.bool()[:, None, None]
    queries, keys = query.shape[2], key.shape[2]
    if causal and 1 < queries <= keys:  # the queries are the last of the keys
        order = torch.ones(queries, keys, dtype=torch.bool, device=query.device)
        order = order.tril(keys - queries)
        pairs = order if pairs is None else pairs & order
        return pairs.expand(query.shape[0], 1, queries, keys)
    return pairs


def additive(mask: Tensor | None, like: Tensor) -> Tensor | None:
    """A mask as numbers that are added to scores."""
    if mask is None or mask.dtype != torch.bool:
        return mask
    least = torch.finfo(like.dtype).min
    return torch.zeros_like(mask, dtype=like.dtype).masked_fill(~mask, least)


def pairs_of(mask: Tensor) -> Tensor:
    """A mask of pairs, in whose numbers the finite ones that hide a pair are -∞: linear attention
    and a window beside it have to know which pairs are hidden.
    """
    return mask.masked_fill(mask < FORBIDDEN, -torch.inf) if mask.is_floating_point() else mask


def padding_of(pairs: Tensor, keys: int) -> Tensor:
    """Return which keys are no padding, (B, Nk), of a mask of pairs that says order and padding
    alone.

    Raises:
        ConversionError: a mask that hides other pairs.
    """
    seen = pairs if pairs.dtype == torch.bool else pairs > FORBIDDEN
    valid, queries = seen[:, 0, -1], seen.shape[2]
    order = torch.ones(queries, keys, dtype=torch.bool, device=seen.device).tril(keys - queries)
    # The row of a hidden query says nothing.
    real = valid[:, keys - queries :, None]
    same = (seen == (order & valid[:, None, None])) | ~real[:, None]
    plain = pairs.dtype == torch.bool or not bool((pairs[seen] != 0).any())
    if not plain or not bool(same.all()):
        raise ConversionError(
            "expected a mask of order and padding beside a store, which lies along both, got "
            f"other pairs, {tuple(pairs.shape)}; convert without store, or give padding, (B, N)"
        )
    return valid


def new_tokens(mask: Tensor | None, count: int) -> Tensor | None:
    """Which of the last tokens are not padding; None for all, where that costs nothing to know.

    Raises:
        ConversionError: a mask of pairs.
    """
    if mask is None:
        return None
    if mask.dim() == 4:
        raise ConversionError(
            f"a mask of pairs, {tuple(mask.shape)}, reaches back to tokens of which a state of "
            "fixed size keeps no keys; give the padding of all tokens so far, (B, N), or pass "
            "use_cache=False"
        )
    valid = mask[:, -count:].bool()
    # a processor knows at once; a GPU would wait for the answer, and traced code has none
    plain = valid.device.type == "cpu" and not torch.compiler.is_compiling()
    return None if plain and bool(valid.all()) else valid


def problem_of(mask: Tensor | None) -> str:
    """Why linear attention cannot do without a mask of pairs that a model gave in a small call, or
    "".
    """
    if mask is None or mask.dim() != 4:
        return ""
    if mask.dtype == torch.bool:
        # Order and padding alone come as (B, Nk), and never as pairs.
        return WINDOW
    seen = mask > FORBIDDEN
    if mask.shape[1] > 1 or bool((mask[seen] != 0).any()):
        return "a relative position bias, a number for each pair and head"
    keys = seen[..., -1:, :]
    order = torch.ones(seen.shape[-2:], dtype=torch.bool, device=mask.device).tril()
    if torch.equal(seen, keys.expand_as(seen)) or torch.equal(seen, keys & order):
        return ""
    return WINDOW
