"""transformers' attention interface: one function that every model of the library calls, and what
it is called with.

Nothing is imported before a model of the library is given. The function looks for :class:`Heads` in
the attention module that calls it, and computes the module's own softmax where there are none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ...errors import ConversionError, require
from .heads import Heads, Seen, softmax_attention

NAME = "fredholm_linear"
SLOT = "linear_heads"  # the attribute of an attention module that holds its Heads
# Arguments by which models ask for more than a softmax of scaled products; harmless where they are
# None.
REFUSED = {
    "sliding_window": "a sliding window",
    "softcap": "capped logits",
    "s_aux": "attention sinks",
    "position_bias": "a relative position bias",
    "head_mask": "a mask of heads",
}


@dataclass(frozen=True)
class Call:
    """What one attention module asked of the interface.

    Attributes:
        name: the module's, in the model.
        heads, groups, width: query heads, key and value heads, features of a query.
        causal: whether its queries see only what came before.
        scale: factor of the products; None for one over the root of the width.
        dropout: rate on the attention weights in training.
        problem: why it cannot be linear, or "".
    """

    name: str
    heads: int
    groups: int
    width: int
    causal: bool
    scale: float | None
    dropout: float
    problem: str = ""


def is_transformers(model: nn.Module) -> bool:
    """Whether a model comes from the library, without importing it."""
    return any(
        f"{c.__module__}.{c.__name__}" == "transformers.modeling_utils.PreTrainedModel"
        for c in type(model).__mro__
    )


def register() -> None:
    """Make the function and its masks known to the library, once a process."""
    modeling: Any = require("transformers.modeling_utils", "hf", "converting a transformers model")
    masking: Any = require("transformers.masking_utils", "hf", "converting a transformers model")
    if NAME not in modeling.ALL_ATTENTION_FUNCTIONS:
        modeling.AttentionInterface.register(NAME, attend)
        masking.AttentionMaskInterface.register(NAME, padding_mask)


def padding_mask(
    batch_size: int,
    q_length: int,
    kv_length: int,
    q_offset: Any = 0,
    kv_offset: Any = 0,
    mask_function: Callable[..., Any] | None = None,
    attention_mask: Tensor | None = None,
    **options: Any,
) -> Tensor | None:
    """The library asks for a mask: padding alone, (B, Nk), where order and padding say all; else
    pairs, (B, 1, Nq, Nk).

    Raises:
        ConversionError: a mask of another kind than causal or none: windows, packed sequences,
            blocks.
    """
    masking: Any = require("transformers.masking_utils", "hf", "converting a transformers model")
    causal = mask_function is None or mask_function is masking.causal_mask_function
    if not causal and mask_function is not masking.bidirectional_mask_function:
        raise ConversionError(
            "this model asks for a mask that is neither causal nor none (a sliding window, chunks, "
            "packed sequences); linear "
            "attention keeps no pairs to mask. Give it padded sequences, or keep its softmax"
        )
    fits = attention_mask is None or attention_mask.shape[-1] == kv_length
    if fits and (not causal or q_length == kv_length):
        return attention_mask
    return masking.sdpa_mask(
        batch_size,
        q_length,
        kv_length,
        q_offset=q_offset,
        kv_offset=kv_offset,
        mask_function=mask_function,
        attention_mask=attention_mask,
        **{**options, "allow_is_causal_skip": False, "allow_is_bidirectional_skip": False},
    )


_calls: list[tuple[nn.Module, Call]] | None = None


def attend(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    scaling: float | None = None,
    dropout: float = 0.0,
    is_causal: bool | None = None,
    **options: Any,
) -> tuple[Tensor, None]:
    """The library's attention function: (B, Nq, H, d) and no weights.

    Raises:
        ConversionError: an argument that changes the attention and is not understood.
    """
    causal = bool(getattr(module, "is_causal", True) if is_causal is None else is_causal)
    asked = next((what for name, what in REFUSED.items() if options.get(name) is not None), "")
    seen = _seen(attention_mask, causal, query.shape[2], key.shape[2])
    if _calls is not None:
        rate = float(
            getattr(getattr(module, "dropout", None), "p", None)
            or getattr(module, "attention_dropout", 0.0)
            or 0.0
        )
        sizes = (query.shape[1], key.shape[1], query.shape[-1])
        _calls.append((module, Call("", *sizes, causal, scaling, rate, asked)))
    heads: Heads | None = getattr(module, SLOT, None)
    if heads is not None:
        if asked:
            raise ConversionError(
                f"{type(module).__name__} asks for {asked}, which linear attention does not have"
            )
        out = heads(query, key, value, seen, scale=scaling, dropout=dropout)
    else:
        if asked and _calls is None:
            raise ConversionError(
                f"{type(module).__name__} was not converted and asks for {asked}; keep its own "
                "attention"
            )
        groups = query.shape[1] // key.shape[1]
        key, value = (x.repeat_interleave(groups, 1) for x in (key, value))
        scale = query.shape[-1] ** -0.5 if scaling is None else scaling
        out = softmax_attention(query, key, value, seen, scale, dropout)
    return out.transpose(1, 2).contiguous(), None


def _seen(mask: Tensor | None, causal: bool, queries: int, keys: int) -> Seen:
    if mask is not None and mask.dim() == 4:
        return Seen(pairs=mask)
    # one query over more keys is a step of a decoder, which sees all that its cache holds
    return Seen(
        valid=None if mask is None else mask.bool(),
        causal=causal and queries == keys and queries > 1,
    )


@contextmanager
def recorded() -> Iterator[list[tuple[nn.Module, Call]]]:
    """The calls made inside, in order."""
    global _calls
    before, _calls = _calls, []
    try:
        yield _calls
    finally:
        _calls = before


@torch.no_grad()
def probe(model: Any, inputs: dict[str, Any] | None = None) -> list[Call]:
    """Which modules call the interface and with what heads, in order, by one forward pass.

    Args:
        model: of the library; comes back with the attention implementation it had, and in its mode.
        inputs: arguments of one call; default the library's dummy ones.

    Raises:
        ConversionError: a model that does not go through the interface, by name.
    """
    register()
    kind = type(model).__name__
    if getattr(model.config, "is_encoder_decoder", False):
        raise ConversionError(
            f"{kind} is an encoder-decoder, whose cross attention is not converted; convert its "
            "encoder alone"
        )
    if not model._can_set_attn_implementation():
        raise ConversionError(
            f"{kind} does not compute its attention through transformers' attention interface (a "
            "relative bias inside, as T5 and "
            "DeBERTa have, or an older implementation), so that nothing can take its place"
        )
    before, training = model.config._attn_implementation, model.training
    model.set_attn_implementation(NAME)
    names = {id(module): name for name, module in model.named_modules()}
    try:
        with recorded() as calls:
            model.eval()(**(inputs or _dummy(model)))
    finally:
        model.train(training)
        model.set_attn_implementation(before)
    found = {names[id(module)]: call for module, call in calls if id(module) in names}
    return [
        Call(name, *(getattr(call, f) for f in Call.__dataclass_fields__ if f != "name"))
        for name, call in found.items()
    ]


def _dummy(model: Any) -> dict[str, Any]:
    """Inputs of a small call: tokens, or an image of the configuration's size."""
    device = next(model.parameters()).device
    if model.main_input_name != "pixel_values":
        return {model.main_input_name: torch.ones(1, 4, dtype=torch.long, device=device)}
    size = model.config.image_size
    size = (size, size) if isinstance(size, int) else tuple(size)
    return {"pixel_values": torch.zeros(1, model.config.num_channels, *size, device=device)}
