"""Masks that a model gives its attention: read, and made into pairs for layers with softmax."""

from __future__ import annotations

import torch
from torch import Tensor

from ..errors import ConversionError

# An additive mask below this hides a pair: models write the lowest number of a dtype, or -1e4.
FORBIDDEN = -1e4
WINDOW = "a mask that is neither causal nor none (a sliding window, chunks, packed sequences)"


def visible_pairs(
    mask: Tensor | None,
    causal: bool,
    query: Tensor,
    key: Tensor,
) -> Tensor | None:
    """Return a mask of padding (B, Nk) as one of pairs, (B | 1, 1, Nq | 1, Nk), with the order;
    None where every query sees every key. A mask of pairs is returned as it is.
    """
    pairs = mask
    if mask is not None:
        if mask.dim() == 4:
            return mask
        pairs = mask.bool()[:, None, None]

    queries, keys = query.shape[2], key.shape[2]
    if not causal or not 1 < queries <= keys:
        return pairs

    # The queries are the last of the keys.
    order = torch.ones(queries, keys, dtype=torch.bool, device=query.device)
    order = order.tril(keys - queries)
    if pairs is None:
        pairs = order
    else:
        pairs = pairs & order
    return pairs.expand(query.shape[0], 1, queries, keys)


def additive(mask: Tensor | None, like: Tensor) -> Tensor | None:
    """Return a mask as numbers that are added to scores."""
    if mask is None or mask.dtype != torch.bool:
        return mask
    least = torch.finfo(like.dtype).min
    zeros = torch.zeros_like(mask, dtype=like.dtype)
    return zeros.masked_fill(~mask, least)


def pairs_of(mask: Tensor) -> Tensor:
    """Return a mask of pairs in which hidden ones are False or -∞, so that linear attention and a
    window beside it recognise them.
    """
    if not mask.is_floating_point():
        return mask
    return mask.masked_fill(mask < FORBIDDEN, -torch.inf)


def padding_of(pairs: Tensor, keys: int) -> Tensor:
    """Return which keys are not padding, (B, Nk), from a mask of pairs that contains order and
    padding alone.

    Raises:
        ConversionError: a mask that hides other pairs.
    """
    seen = pairs
    if pairs.dtype != torch.bool:
        seen = pairs > FORBIDDEN

    # The last query sees every real key.
    queries = seen.shape[2]
    valid = seen[:, 0, -1]
    first = keys - queries
    order = torch.ones(queries, keys, dtype=torch.bool, device=seen.device).tril(first)
    expected = order & valid[:, None, None]
    # The row of a hidden query may hold anything.
    hidden = ~valid[:, None, first:, None]
    same = (seen == expected) | hidden
    plain = pairs.dtype == torch.bool or not bool((pairs[seen] != 0).any())
    if not plain or not bool(same.all()):
        raise ConversionError(
            "expected a mask of order and padding beside a store, which lies along both, got "
            f"other pairs, {tuple(pairs.shape)}; convert without store, or give padding, (B, N)"
        )
    return valid


def new_tokens(mask: Tensor | None, count: int) -> Tensor | None:
    """Return which of the last ``count`` tokens are not padding, (B, count). None for all of them,
    where that costs nothing to know.

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
    # A GPU would wait for the answer, and traced code has no values.
    known = valid.device.type == "cpu" and not torch.compiler.is_compiling()
    if known and bool(valid.all()):
        return None
    return valid


def problem_of(mask: Tensor | None) -> str:
    """Return why linear attention cannot replace a mask of pairs that a model made in a small call,
    or "".
    """
    if mask is None or mask.dim() != 4:
        return ""
    if mask.dtype == torch.bool:
        # Order and padding alone come as (B, Nk), and never as pairs.
        return WINDOW
    seen = mask > FORBIDDEN
    if mask.shape[1] > 1 or bool((mask[seen] != 0).any()):
        return "a relative position bias, a number for each pair and head"

    # The last query sees every real key.
    keys = seen[..., -1:, :]
    if torch.equal(seen, keys.expand_as(seen)):
        return ""
    order = torch.ones(seen.shape[-2:], dtype=torch.bool, device=mask.device).tril()
    if torch.equal(seen, keys & order):
        return ""
    return WINDOW
