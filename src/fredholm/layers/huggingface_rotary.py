"""The attention of Hugging Face's decoders with rotary positions: Llama, Mistral, Qwen, Gemma."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from ..domain import Domain
from ..integral import IntegralOperator, Rotary
from ..integral.conversion import refuse, register_converter
from .huggingface_attention import (
    PROJECTIONS,
    additive_mask,
    is_causal,
    separate,
    sources,
    takes_masks,
)
from .multihead_attention import linear
from .parts import bind

# The same code and the same rotary embedding.
LLAMA = (
    "arcee.modeling_arcee.Arcee",
    "gemma.modeling_gemma.Gemma",
    "granite.modeling_granite.Granite",
    "llama.modeling_llama.Llama",
)
WINDOWED = (
    "mistral.modeling_mistral.Mistral",
    "mixtral.modeling_mixtral.Mixtral",
    "qwen2.modeling_qwen2.Qwen2",
    "qwen3.modeling_qwen3.Qwen3",
    "qwen3_moe.modeling_qwen3_moe.Qwen3Moe",
)


def _call(layer: Any, u: Tensor, domain: Domain) -> Tensor | None:
    """Call the layer with the cosines, sines and mask that its model would pass to it."""
    if not takes_masks(layer):
        return None
    powers = torch.arange(
        0,
        layer.head_dim,
        2,
        device=u.device,
        dtype=torch.float32,
    )
    frequencies = _base(layer) ** -(powers / layer.head_dim)
    angles = domain.positions.float() * frequencies
    # The library turns features i and i + d/2 by the same angle.
    angles = torch.cat([angles, angles], -1)[None]
    cos = angles.cos().to(u.dtype)
    sin = angles.sin().to(u.dtype)
    mask = additive_mask(layer, u, domain)
    out = layer(u, (cos, sin), attention_mask=mask)
    return out[0]


@register_converter(*sources(LLAMA, "Attention"), call=_call)
def llama_attention(module: Any) -> IntegralOperator:
    """Convert Llama's causal attention: rotary positions 0, 1, 2, … and keys and values shared by
    groups of heads. Gemma's and Granite's are the same with widths and scales of their own.

    The model computes its angles in float32; the operator computes them in the precision of the
    positions.
    """
    return _convert(module)


@register_converter(*sources(WINDOWED, "Attention"), call=_call)
def windowed_attention(module: Any) -> IntegralOperator:
    """Convert Mistral's and Qwen's causal attention: Llama's, with normalised queries and keys in
    Qwen 3, and where ``sliding_window`` says so with a window: the default domain then has it as
    ``pairs``.

    Raises:
        ConversionError: a window around a point, of a model without order.
    """
    norms = {}
    for name, source in (("query_norm", "q_norm"), ("key_norm", "k_norm")):
        if hasattr(module, source):
            norms[name] = _norm(module, source)
    window = getattr(module, "sliding_window", None)
    # These keep their window in the configuration alone.
    if type(module).__name__ in ("MistralAttention", "MixtralAttention"):
        window = getattr(module.config, "sliding_window", None)
    if window is not None:
        _check_window(module, window)
    return _convert(module, window=window, **norms)


def _convert(module: Any, **options: Any) -> IntegralOperator:
    options |= {
        "scale": module.scaling,
        "dropout": module.attention_dropout,
        "causal": is_causal(module),
        "rotary": Rotary(module.head_dim, base=_base(module)),
    }
    heads = module.config.num_attention_heads
    kernel = separate(module, PROJECTIONS, heads, options)
    return bind(kernel, linear(module, "o_proj"))


def _check_window(module: Any, window: int) -> None:
    """Raise ConversionError for a window that counts no points before."""
    if window < 1:
        raise refuse(module, f"sliding_window={window}", "sliding_window=None, or 1 or more")
    if not is_causal(module):
        got = f"sliding_window={window}, is_causal=False"
        raise refuse(module, got, "sliding_window=None without an order, or is_causal=True")


def _base(module: Any) -> float:
    """Return the base of the rotary angles, where nothing else changes them."""
    rope = dict(module.config.rope_parameters)
    base = rope.pop("rope_theta")
    kind = rope.pop("rope_type", "default")
    if kind != "default":
        raise refuse(module, f"rope_type={kind!r}", "rope_type='default'")
    if rope:
        got = f"rope_parameters with {sorted(rope)}"
        raise refuse(module, got, "rope_theta and rope_type alone")
    return base


def _norm(module: Any, name: str) -> nn.Module:
    """Return a root-mean-square normalisation of a head's features."""
    norm = getattr(module, name)
    kind = type(norm).__qualname__
    if not kind.endswith("RMSNorm"):
        raise refuse(module, f"{name}={kind}", "an RMSNorm over a head")
    return norm
