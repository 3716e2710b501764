"""The attention of Hugging Face's BERT, ViT, GPT-2 and Llama. Classes are matched by name; nothing
is imported.
"""

from __future__ import annotations

from typing import Any

from torch import nn

from ...integral import IntegralOperator, Rotary, TransposedLinear
from ...integral.conversion import refuse, refuse_dropout, register_converter
from .kernel import SoftmaxKernel
from .multihead import bind, linear, refuse_hooks

# Backends of the same function; a registered one of any other name may be another function.
SOFTMAX_BACKENDS = {
    None,
    "eager",
    "sdpa",
    "flex_attention",
    "flash_attention_2",
    "flash_attention_3",
    "flash_attention_4",
}
BERT = "transformers.models.bert.modeling_bert"


@register_converter(f"{BERT}.BertSelfAttention", f"{BERT}.BertCrossAttention")
def bert_attention(module: Any) -> IntegralOperator:
    """BERT's attention without its output layer, which lives in ``BertSelfOutput``; causal in a
    decoder.
    """
    options = {"causal": module.is_causal, "scale": module.scaling, "dropout": module.dropout.p}
    return bind(
        _separate(module, ("query", "key", "value"), module.num_attention_heads, options), None
    )


@register_converter("transformers.models.vit.modeling_vit.ViTAttention")
def vit_attention(module: Any) -> IntegralOperator:
    """ViT's attention with its output layer."""
    options = {"scale": module.scaling, "dropout": module.attention_dropout}
    kernel = _separate(module, ("q_proj", "k_proj", "v_proj"), module.num_attention_heads, options)
    return bind(kernel, linear(module, "o_proj"))


@register_converter("transformers.models.llama.modeling_llama.LlamaAttention")
def llama_attention(module: Any) -> IntegralOperator:
    """Llama's causal attention: rotary positions 0, 1, 2, … and keys and values shared by groups of
    heads.

    The model computes its angles in float32; the operator computes them in the precision of the
    positions.
    """
    rope = dict(module.config.rope_parameters)
    base, kind = rope.pop("rope_theta"), rope.pop("rope_type", "default")
    if kind != "default":
        raise refuse(module, f"rope_type={kind!r}", "rope_type='default'")
    if rope:
        raise refuse(
            module, f"rope_parameters with {sorted(rope)}", "rope_theta and rope_type alone"
        )
    rotary = Rotary(module.head_dim, base=base)
    options = {
        "scale": module.scaling,
        "dropout": module.attention_dropout,
        "causal": True,
        "rotary": rotary,
    }
    heads = module.config.num_attention_heads
    return bind(
        _separate(module, ("q_proj", "k_proj", "v_proj"), heads, options), linear(module, "o_proj")
    )


@register_converter("transformers.models.gpt2.modeling_gpt2.GPT2Attention")
def gpt2_attention(module: Any) -> IntegralOperator:
    """GPT-2's causal attention: one packed layer, weights stored as (in, out)."""
    if module.is_cross_attention:
        raise refuse(module, "is_cross_attention=True", "is_cross_attention=False")
    if module.reorder_and_upcast_attn:
        raise refuse(module, "reorder_and_upcast_attn=True", "reorder_and_upcast_attn=False")
    _check_backend(module)
    dropout = max(module.attn_dropout.p, module.resid_dropout.p)
    refuse_dropout(module, dropout)
    packed, out = _conv1d(module, "c_attn"), _conv1d(module, "c_proj")
    options = {"scale": module.scaling, "causal": True, "dropout": dropout}
    return bind(
        SoftmaxKernel(module.embed_dim, module.num_heads, projections=packed, **options), out
    )


def _separate(
    module: Any, names: tuple[str, str, str], heads: int, options: dict[str, Any]
) -> SoftmaxKernel:
    """The kernel of three layers, or a ConversionError."""
    _check_backend(module)
    refuse_dropout(module, options["dropout"])
    query, key, value = (linear(module, name) for name in names)
    if not query.in_features == key.in_features == value.in_features:
        got = ", ".join(
            f"{n} of {layer.in_features}" for n, layer in zip(names, (query, key, value))
        )
        raise refuse(module, got, "queries, keys and values read from signals of one width")
    return SoftmaxKernel(query.in_features, heads, projections=(query, key, value), **options)


def _conv1d(module: Any, name: str) -> nn.Linear:
    layer = getattr(module, name)
    kind = f"{type(layer).__module__}.{type(layer).__qualname__}"
    if kind != "transformers.pytorch_utils.Conv1D":
        raise refuse(module, f"{name}={kind}", "transformers.pytorch_utils.Conv1D")
    refuse_hooks(module, name)
    return TransposedLinear(layer.weight, layer.bias)


def _check_backend(module: Any) -> None:
    backend = module.config._attn_implementation
    if backend not in SOFTMAX_BACKENDS:
        known = ", ".join(sorted(str(name) for name in SOFTMAX_BACKENDS if name))
        raise refuse(module, f"attn_implementation={backend!r}", f"softmax attention: {known}")
