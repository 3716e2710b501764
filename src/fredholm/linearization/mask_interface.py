"""Masks that transformers makes for attention: padding alone where order and padding say all.

This file imports transformers, and is imported when a model of the library is given.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from transformers import masking_utils

from ..errors import ConversionError


def padding_mask(*sizes: Any, **options: Any) -> Tensor | None:
    """Return the mask of an attention that the library asks for: padding alone, (B, Nk), or None,
    where order and padding decide everything; else pairs, (B, 1, Nq, Nk).

    Args:
        sizes, options: of :func:`any_mask`; the library names all of them.

    Raises:
        ConversionError: a mask of another kind than causal or none: windows, packed sequences,
            blocks.
    """
    if _plain(options.get("mask_function")) is None:
        advice = "Give it padded sequences, or keep its softmax"
        if torch.compiler.is_compiling() and options.get("attention_mask") is None:
            # transformers cannot read the values of positions while it is traced.
            advice = (
                "While it is traced, a call without attention_mask counts as packed: pass one, "
                "torch.ones_like(input_ids) where nothing is padding"
            )
        raise ConversionError(
            "this model asks for a mask that is neither causal nor none (a sliding window, chunks, "
            f"packed sequences); linear attention keeps no pairs to mask. {advice}"
        )
    return any_mask(*sizes, **options)


def any_mask(
    batch_size: int,
    q_length: int,
    kv_length: int,
    q_offset: Any = 0,
    kv_offset: Any = 0,
    mask_function: Callable[..., Any] | None = None,
    attention_mask: Tensor | None = None,
    **options: Any,
) -> Tensor | None:
    """Return the mask for a model that keeps some of its softmax: any other than order and padding
    as boolean pairs.
    """
    causal = _plain(mask_function)
    stop = kv_offset + kv_length
    fits = attention_mask is None or attention_mask.shape[-1] == stop
    if fits and (causal is False or (causal and q_offset + q_length == stop)):
        if attention_mask is None:
            return None
        # Keys before ``kv_offset`` are no longer in the cache.
        return attention_mask[:, kv_offset:]

    # The library may leave a mask out that torch's own softmax does not need. Ours does.
    return masking_utils.sdpa_mask(
        batch_size,
        q_length,
        kv_length,
        q_offset=q_offset,
        kv_offset=kv_offset,
        mask_function=mask_function or masking_utils.causal_mask_function,
        attention_mask=attention_mask,
        **{**options, "allow_is_causal_skip": False, "allow_is_bidirectional_skip": False},
    )


def _plain(mask_function: Callable[..., Any] | None) -> bool | None:
    """Whether a mask is causal; None where it is neither causal nor none."""
    if mask_function is None or mask_function is masking_utils.causal_mask_function:
        return True
    if mask_function is masking_utils.bidirectional_mask_function:
        return False
    return None
