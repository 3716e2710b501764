"""Stacks: where an encoder, or a whole model, keeps its layers and its final norm, and how both are
called on features.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from ...errors import ConversionError
from ...registry import qualified_name
from ..huggingface_attention import sources
from .readers import BERT_LAYERS, CLIP_LAYERS, VIT_LAYERS


@dataclass(frozen=True, eq=False)
class Stack:
    """Layers, a final norm or None, and the function of features (B, N, dim) that they make up."""

    layers: Sequence[nn.Module]
    norm: nn.Module | None
    call: Callable[[Tensor], Tensor]


def read_stack(encoder: nn.Module) -> Stack:
    """Return the stack in a module. A lone layer is a stack of one."""
    name = qualified_name(type(encoder))
    if type(encoder) is nn.ModuleList:
        stack = _in_turn(list(encoder))
    elif name in STACKS:
        stack = STACKS[name](encoder)
    else:
        return _in_turn([encoder])
    if not stack.layers:
        raise ConversionError(f"{name} has no layers")
    return stack


def _in_turn(layers: Sequence[nn.Module], norm: nn.Module | None = None) -> Stack:
    """Return a stack of layers called one after the other, then the norm."""

    def call(u: Tensor) -> Tensor:
        for layer in layers:
            u = _layer(layer, u)
        if norm is not None:
            u = norm(u)
        return u

    return Stack(layers, norm, call)


def _layer(layer: Any, u: Tensor) -> Tensor:
    """Call one layer on (B, N, dim), without masks."""
    attention = getattr(layer, "self_attn", None)
    if isinstance(attention, nn.MultiheadAttention):
        return _batch_first(layer, attention.batch_first, u)
    if hasattr(layer, "layer_norm1"):
        # CLIP's mask has no default.
        out = layer(u, None)
    else:
        out = layer(u)
    if isinstance(out, Tensor):
        return out
    return out[0]


def _batch_first(layer: nn.Module, batch_first: bool, u: Tensor) -> Tensor:
    """Call one of torch's layers on (B, N, dim), whatever the order of its dimensions."""
    if batch_first:
        return layer(u)
    out = layer(u.transpose(0, 1))
    return out.transpose(0, 1)


def _torch_encoder(encoder: nn.TransformerEncoder) -> Stack:
    layers: list[Any] = list(encoder.layers)

    def call(u: Tensor) -> Tensor:
        attention = getattr(layers[0], "self_attn", None)
        batch_first = getattr(attention, "batch_first", True)
        return _batch_first(encoder, batch_first, u)

    return Stack(layers, encoder.norm, call)


def _bert_encoder(encoder: Any) -> Stack:
    return Stack(list(encoder.layer), None, lambda u: encoder(u).last_hidden_state)


def _clip_encoder(encoder: Any) -> Stack:
    call = lambda u: encoder(inputs_embeds=u).last_hidden_state  # noqa: E731
    return Stack(list(encoder.layers), None, call)


def _timm_model(model: Any) -> Stack:
    """Return the blocks and the norm behind them: ``forward_features`` after ``norm_pre``."""
    norm = model.norm
    if isinstance(norm, nn.Identity):
        norm = None
    return _in_turn(list(model.blocks), norm)


# A model's embeddings, pooler and heads are not part of its stack.
STACKS: dict[str, Callable[[Any], Stack]] = {
    "torch.nn.modules.transformer.TransformerEncoder": _torch_encoder,
    "timm.models.vision_transformer.VisionTransformer": _timm_model,
    **dict.fromkeys(sources(BERT_LAYERS, "Encoder"), _bert_encoder),
    **dict.fromkeys(
        sources(BERT_LAYERS, "Model"),
        lambda model: _bert_encoder(model.encoder),
    ),
    **dict.fromkeys(
        sources(VIT_LAYERS, "Model"),
        lambda model: _in_turn(list(model.layers), model.layernorm),
    ),
    **dict.fromkeys(sources(CLIP_LAYERS, "Encoder"), _clip_encoder),
    **dict.fromkeys(
        sources(CLIP_LAYERS, "VisionModel"),
        lambda model: _clip_encoder(model.encoder),
    ),
}
