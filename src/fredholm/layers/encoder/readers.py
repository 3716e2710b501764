"""Readers: facts of each class of encoder layers, one function per class or group of classes with
the same code.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn

from ...errors import ConversionError, suggest
from ...registry import qualified_name
from ..huggingface_attention import CLIP, sources
from .layers import TIMM_NORM, Layer, Slot, deterministic, exactly, plain, read_activation

BERT_LAYERS = (
    "bert.modeling_bert.Bert",
    "camembert.modeling_camembert.Camembert",
    "data2vec.modeling_data2vec_text.Data2VecText",
    "electra.modeling_electra.Electra",
    "ernie.modeling_ernie.Ernie",
    "roberta.modeling_roberta.Roberta",
    "roc_bert.modeling_roc_bert.RoCBert",
    "xlm_roberta.modeling_xlm_roberta.XLMRoberta",
)
VIT_LAYERS = (
    "audio_spectrogram_transformer.modeling_audio_spectrogram_transformer.AST",
    "deit.modeling_deit.DeiT",
    "ijepa.modeling_ijepa.IJepa",
    "vit.modeling_vit.ViT",
    "vit_mae.modeling_vit_mae.ViTMAE",
    "vit_msn.modeling_vit_msn.ViTMSN",
    "vivit.modeling_vivit.Vivit",
)
CLIP_LAYERS = tuple(name for name in CLIP if not name.endswith("ChineseCLIPVision"))


def read_layer(layer: nn.Module) -> Layer:
    """Return the facts of a layer of a known class, or raise ConversionError for anything else."""
    kind = type(layer)
    name = qualified_name(kind)
    if name in READERS:
        return READERS[name](layer)
    # A subclass may compute something else with the same parameters.
    for base in kind.__mro__[1:]:
        if qualified_name(base) in READERS:
            raise ConversionError(
                f"{name} is a subclass of {base.__name__} whose response is not known"
            )
    short = [known.rsplit(".", 1)[-1] for known in READERS]
    raise ConversionError(
        f"{name} is not an encoder layer that is understood{suggest(kind.__name__, short)}"
    )


def _torch_layer(layer: Any) -> Layer:
    attention = layer.self_attn
    quantizable = nn.modules.linear.NonDynamicallyQuantizableLinear
    exactly(layer, "self_attn", nn.MultiheadAttention)
    exactly(layer, "self_attn.out_proj", quantizable, nn.Linear)
    for name in ("linear1", "linear2"):
        exactly(layer, name, nn.Linear)
    for name in ("norm1", "norm2"):
        exactly(layer, name, nn.LayerNorm)
    if not attention._qkv_same_embed_dim or attention.bias_k is not None or attention.add_zero_attn:
        raise ConversionError(
            "TransformerEncoderLayer with kdim, vdim, bias_kv or add_zero_attn is not understood"
        )
    rates = (
        attention.dropout,
        layer.dropout.p,
        layer.dropout1.p,
        layer.dropout2.p,
    )
    deterministic(layer, rates)
    places = {
        "out": "self_attn.out_proj",
        "expand": "linear1",
        "contract": "linear2",
        "norm1": "norm1",
        "norm2": "norm2",
    }
    return Layer(
        source=layer,
        dim=attention.embed_dim,
        heads=attention.num_heads,
        hidden=layer.linear1.out_features,
        activation=read_activation(layer.activation, layer),
        norm="pre" if layer.norm_first else "post",
        eps=(layer.norm1.eps, layer.norm2.eps),
        slots=_thirds("self_attn.in_proj") | _plain_slots(places),
    )


def _timm_block(layer: Any) -> Layer:
    """Read timm's pre-norm block, without scales of its branches and without normalised queries."""
    attention = layer.attn
    network = layer.mlp
    for name in ("ls1", "ls2", "attn.q_norm", "attn.k_norm", "attn.norm", "mlp.norm"):
        part = _part(layer, name)
        if not isinstance(part, nn.Identity | None):
            raise ConversionError(
                f"Block.{name} is a {type(part).__name__}, which is not understood; only none is"
            )
    if getattr(attention, "gate", None) is not None:
        raise ConversionError("Block.attn is gated, which is not understood")
    kinds = [qualified_name(type(part)) for part in (attention, network)]
    if kinds != ["timm.layers.attention.Attention", "timm.layers.mlp.Mlp"]:
        raise ConversionError(f"Block with {' and '.join(kinds)} is not understood")
    for name in ("attn.qkv", "attn.proj", "mlp.fc1", "mlp.fc2"):
        exactly(layer, name, nn.Linear)
    for name in ("norm1", "norm2"):
        exactly(layer, name, nn.LayerNorm, TIMM_NORM)
    width = attention.qkv.in_features
    if attention.qkv.out_features != 3 * width:
        raise ConversionError("Block.attn has heads that do not split the width")

    # An identity stands where a block has no stochastic depth.
    paths = (layer.drop_path1, layer.drop_path2)
    rates = [getattr(path, "drop_prob", 0.0) for path in paths]
    rates += [
        attention.attn_drop.p,
        attention.proj_drop.p,
        network.drop1.p,
        network.drop2.p,
    ]
    deterministic(layer, rates)
    places = {
        "out": "attn.proj",
        "expand": "mlp.fc1",
        "contract": "mlp.fc2",
        "norm1": "norm1",
        "norm2": "norm2",
    }
    return Layer(
        source=layer,
        dim=width,
        heads=attention.num_heads,
        hidden=network.fc1.out_features,
        activation=read_activation(network.act, layer),
        norm="pre",
        eps=(layer.norm1.eps, layer.norm2.eps),
        slots=_thirds("attn.qkv.") | _plain_slots(places),
    )


def _vit_layer(layer: Any) -> Layer:
    attention = layer.attention
    deterministic(layer, (attention.attention_dropout, layer.dropout.p))
    places = {
        "query": "attention.q_proj",
        "key": "attention.k_proj",
        "value": "attention.v_proj",
        "out": "attention.o_proj",
        "norm1": "layernorm_before",
        "norm2": "layernorm_after",
        "expand": "mlp.fc1",
        "contract": "mlp.fc2",
    }
    activation = layer.mlp.activation_fn
    return _hugging_face(layer, places, attention.num_attention_heads, activation, "pre")


def _clip_layer(layer: Any) -> Layer:
    attention = layer.self_attn
    deterministic(layer, (attention.dropout,))
    places = {
        "query": "self_attn.q_proj",
        "key": "self_attn.k_proj",
        "value": "self_attn.v_proj",
        "out": "self_attn.out_proj",
        "norm1": "layer_norm1",
        "norm2": "layer_norm2",
        "expand": "mlp.fc1",
        "contract": "mlp.fc2",
    }
    return _hugging_face(
        layer,
        places,
        attention.num_heads,
        layer.mlp.activation_fn,
        "pre",
    )


def _bert_layer(layer: Any) -> Layer:
    if layer.is_decoder or layer.add_cross_attention:
        raise ConversionError(
            f"{type(layer).__name__} as a decoder or with cross-attention is not understood; "
            "convert an encoder layer"
        )
    attention = layer.attention.self
    rates = (
        attention.dropout.p,
        layer.attention.output.dropout.p,
        layer.output.dropout.p,
    )
    deterministic(layer, rates)
    places = {
        "query": "attention.self.query",
        "key": "attention.self.key",
        "value": "attention.self.value",
        "out": "attention.output.dense",
        "norm1": "attention.output.LayerNorm",
        "expand": "intermediate.dense",
        "contract": "output.dense",
        "norm2": "output.LayerNorm",
    }
    activation = layer.intermediate.intermediate_act_fn
    return _hugging_face(layer, places, attention.num_attention_heads, activation, "post")


def _hugging_face(
    layer: nn.Module,
    places: dict[str, str],
    heads: int,
    activation: Any,
    norm: str,
) -> Layer:
    """Return the facts of a layer whose parts have no packed parameters."""
    parts: dict[str, Any] = {}
    for role, name in places.items():
        kind = nn.Linear
        if role.startswith("norm"):
            kind = nn.LayerNorm
        exactly(layer, name, kind)
        parts[role] = layer.get_submodule(name)
    query = parts["query"]
    if query.out_features != query.in_features:
        widths = f"{query.in_features} to {query.out_features}"
        raise ConversionError(
            f"{type(layer).__name__} with heads that do not split the width ({widths}) is not "
            "understood"
        )
    return Layer(
        source=layer,
        dim=query.in_features,
        heads=heads,
        hidden=parts["expand"].out_features,
        activation=read_activation(activation, layer),
        norm=norm,
        eps=(parts["norm1"].eps, parts["norm2"].eps),
        slots=_plain_slots(places),
    )


def _plain_slots(places: dict[str, str]) -> dict[str, Slot]:
    """Return the places of roles with a layer of their own."""
    return {role: plain(name) for role, name in places.items()}


def _thirds(prefix: str) -> dict[str, Slot]:
    """Return the places of queries, keys and values in one packed layer, whose parameters' names
    begin with ``prefix``.
    """
    separator = "" if prefix.endswith(".") else "_"
    weight = f"{prefix}{separator}weight"
    bias = f"{prefix}{separator}bias"
    roles = ("query", "key", "value")
    return {role: Slot(weight, bias, third) for third, role in enumerate(roles)}


def _part(layer: nn.Module, name: str) -> nn.Module | None:
    """Return an inner layer, or None where this version of the library has none of that name."""
    part: Any = layer
    for step in name.split("."):
        part = getattr(part, step, None)
    return part


READERS: dict[str, Callable[[Any], Layer]] = {
    "torch.nn.modules.transformer.TransformerEncoderLayer": _torch_layer,
    "timm.models.vision_transformer.Block": _timm_block,
    **dict.fromkeys(sources(BERT_LAYERS, "Layer"), _bert_layer),
    **dict.fromkeys(sources(VIT_LAYERS, "Layer"), _vit_layer),
    **dict.fromkeys(sources(CLIP_LAYERS, "EncoderLayer"), _clip_layer),
}
