"""The attention of Hugging Face's encoders, of BART and of GPT-2. Classes are matched by name;
nothing is imported.

One reading serves several classes: the library copies its code from model to model, and those that
are listed together have the same code. Attention with rotary positions is in
``huggingface_rotary.py``.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from ..domain import Domain
from ..families.softmax.kernel import SoftmaxKernel
from ..integral import IntegralOperator
from ..integral.conversion import refuse, refuse_dropout, refuse_unless, register_converter
from ..integral.projections import TransposedLinear
from ..registry import qualified_name
from .multihead_attention import linear, refuse_hooks
from .parts import bind

PROJECTIONS = ("q_proj", "k_proj", "v_proj")
# Backends that compute softmax attention. One that is registered under any other name may compute
# something else, and is refused.
SOFTMAX_BACKENDS = {
    None,
    "eager",
    "sdpa",
    "flex_attention",
    "flash_attention_2",
    "flash_attention_3",
    "flash_attention_4",
}
BERT = (
    "bert.modeling_bert.Bert",
    "bert_generation.modeling_bert_generation.BertGeneration",
    "bridgetower.modeling_bridgetower.BridgeTower",
    "camembert.modeling_camembert.Camembert",
    "data2vec.modeling_data2vec_text.Data2VecText",
    "electra.modeling_electra.Electra",
    "ernie.modeling_ernie.Ernie",
    "roberta.modeling_roberta.Roberta",
    "roberta_prelayernorm.modeling_roberta_prelayernorm.RobertaPreLayerNorm",
    "roc_bert.modeling_roc_bert.RoCBert",
    "xlm_roberta.modeling_xlm_roberta.XLMRoberta",
    "xlm_roberta_xl.modeling_xlm_roberta_xl.XLMRobertaXL",
    "xmod.modeling_xmod.Xmod",
)
VIT = (
    "audio_spectrogram_transformer.modeling_audio_spectrogram_transformer.AST",
    "deit.modeling_deit.DeiT",
    "dinov2.modeling_dinov2.Dinov2",
    "dinov2_with_registers.modeling_dinov2_with_registers.Dinov2WithRegisters",
    "ijepa.modeling_ijepa.IJepa",
    "vit.modeling_vit.ViT",
    "vit_mae.modeling_vit_mae.ViTMAE",
    "vit_msn.modeling_vit_msn.ViTMSN",
    "vivit.modeling_vivit.Vivit",
)
CLIP = (
    "altclip.modeling_altclip.AltCLIP",
    "chinese_clip.modeling_chinese_clip.ChineseCLIPVision",
    "clip.modeling_clip.CLIP",
    "clipseg.modeling_clipseg.CLIPSeg",
    "metaclip_2.modeling_metaclip_2.MetaClip2",
    "x_clip.modeling_x_clip.XCLIP",
)
BART = (
    "bart.modeling_bart.Bart",
    "biogpt.modeling_biogpt.BioGpt",
    "blenderbot.modeling_blenderbot.Blenderbot",
    "blenderbot_small.modeling_blenderbot_small.BlenderbotSmall",
    "m2m_100.modeling_m2m_100.M2M100",
    "marian.modeling_marian.Marian",
    "mbart.modeling_mbart.MBart",
    "pegasus.modeling_pegasus.Pegasus",
    "plbart.modeling_plbart.PLBart",
    "time_series_transformer.modeling_time_series_transformer.TimeSeriesTransformer",
)


def sources(names: tuple[str, ...], tail: str) -> list[str]:
    """Qualified names of the classes ``name + tail``."""
    return [f"transformers.models.{name}{tail}" for name in names]


# --- how the layers are called --------------------------------------------------------------------


def is_causal(layer: Any) -> bool:
    """Return whether a layer's model lets points see only themselves and earlier ones.

    The configuration of a decoder may say otherwise than its layers, and then decides.
    """
    config = getattr(layer, "config", None)
    return layer.is_causal and getattr(config, "is_causal", True)


def additive_mask(layer: Any, u: Tensor, domain: Domain) -> Tensor | None:
    """Return the mask that the model of a layer would pass to it, (1, 1, N, N), or None where a
    point sees all and the layer takes no order by itself.
    """
    if not domain.causal and not getattr(layer, "is_causal", False):
        return None
    # Causal order, and of a window its pairs.
    size = domain.size
    seen = torch.ones(size, size, dtype=torch.bool, device=u.device)
    if domain.causal:
        seen = seen.tril()
    pairs = domain.dense().pairs
    if isinstance(pairs, Tensor):
        seen = seen & pairs
    mask = torch.zeros_like(seen, dtype=u.dtype)
    hidden = torch.finfo(u.dtype).min
    mask = mask.masked_fill(~seen, hidden)
    return mask[None, None]


def takes_masks(layer: Any) -> bool:
    """Return whether the layer's backend reads additive masks; the others run on a GPU or
    compiled.
    """
    return layer.config._attn_implementation in (None, "eager", "sdpa")


def call_first(layer: Any, u: Tensor, domain: Domain) -> Tensor | None:
    """Call a layer that takes u and a mask, and returns its output first."""
    if not takes_masks(layer):
        return None
    mask = additive_mask(layer, u, domain)
    return layer(u, attention_mask=mask)[0]


def _call_across(layer: Any, u: Tensor, domain: Domain) -> Tensor | None:
    """Call a cross attention, from u to u."""
    if not takes_masks(layer):
        return None
    return layer(u, encoder_hidden_states=u)[0]


# --- the converters -------------------------------------------------------------------------------


def bert_attention(module: Any) -> IntegralOperator:
    """Convert the attention of BERT, RoBERTa, ELECTRA and their relatives, without its output
    layer, which lives in ``BertSelfOutput``; causal in a decoder.
    """
    options = {
        "causal": is_causal(module),
        "scale": module.scaling,
        "dropout": module.dropout.p,
    }
    names = ("query", "key", "value")
    kernel = separate(module, names, module.num_attention_heads, options)
    return bind(kernel)


register_converter(*sources(BERT, "SelfAttention"), call=call_first)(bert_attention)
register_converter(*sources(BERT, "CrossAttention"), call=_call_across)(bert_attention)


@register_converter(
    "transformers.models.distilbert.modeling_distilbert.DistilBertSelfAttention", call=call_first
)
def distilbert_attention(module: Any) -> IntegralOperator:
    """Convert DistilBERT's attention with its output layer."""
    options = {"scale": module.scaling, "dropout": module.dropout.p}
    kernel = separate(
        module,
        ("q_lin", "k_lin", "v_lin"),
        module.n_heads,
        options,
    )
    return bind(kernel, linear(module, "out_lin"))


@register_converter(*sources(VIT, "Attention"), call=call_first)
def vit_attention(module: Any) -> IntegralOperator:
    """Convert the attention of ViT, DeiT, DINOv2 and their relatives with its output layer."""
    options = {"scale": module.scaling, "dropout": module.attention_dropout}
    kernel = separate(module, PROJECTIONS, module.num_attention_heads, options)
    return bind(kernel, linear(module, "o_proj"))


@register_converter(*sources(CLIP, "Attention"), call=call_first)
def clip_attention(module: Any) -> IntegralOperator:
    """Convert CLIP's attention with its output layer.

    The layer itself does not know whether it is causal: CLIP's text model passes it a causal mask,
    its vision model none. Apply the operator of a text layer on a domain with ``causal=True``.
    """
    options = {"scale": module.scale, "dropout": module.dropout}
    kernel = separate(module, PROJECTIONS, module.num_heads, options)
    return bind(kernel, linear(module, "out_proj"))


@register_converter(*sources(BART, "Attention"), call=call_first)
def bart_attention(module: Any) -> IntegralOperator:
    """Convert the attention of BART and its relatives with its output layer: of an encoder, of a
    decoder (causal), or across, where ``query`` are the decoder's features.
    """
    options = {
        "scale": module.scaling,
        "dropout": module.dropout,
        "causal": is_causal(module),
    }
    kernel = separate(module, PROJECTIONS, module.num_heads, options)
    return bind(kernel, linear(module, "out_proj"))


@register_converter("transformers.models.gpt2.modeling_gpt2.GPT2Attention", call=call_first)
def gpt2_attention(module: Any) -> IntegralOperator:
    """Convert GPT-2's causal attention: one packed layer, weights stored as (in, out)."""
    refuse_unless(module, {"is_cross_attention": False, "reorder_and_upcast_attn": False})
    _check_backend(module)
    # One rate stands for both: any above zero is refused in training.
    dropout = max(module.attn_dropout.p, module.resid_dropout.p)
    refuse_dropout(module, dropout)
    packed = _conv1d(module, "c_attn")
    options = {
        "scale": module.scaling,
        "causal": is_causal(module),
        "dropout": dropout,
    }
    kernel = SoftmaxKernel(
        module.embed_dim,
        module.num_heads,
        projections=packed,
        **options,
    )
    return bind(kernel, _conv1d(module, "c_proj"))


def separate(
    module: Any,
    names: tuple[str, str, str],
    heads: int,
    options: dict[str, Any],
) -> SoftmaxKernel:
    """Return the kernel of three layers, or raise ConversionError."""
    _check_backend(module)
    refuse_dropout(module, options["dropout"])
    query, key, value = (linear(module, name) for name in names)
    widths = [layer.in_features for layer in (query, key, value)]
    if len(set(widths)) > 1:
        got = ", ".join(f"{name} of {width}" for name, width in zip(names, widths))
        raise refuse(module, got, "queries, keys and values read from signals of one width")
    return SoftmaxKernel(
        query.in_features,
        heads,
        projections=(query, key, value),
        **options,
    )


def _conv1d(module: Any, name: str) -> nn.Linear:
    layer = getattr(module, name)
    kind = qualified_name(type(layer))
    if kind != "transformers.pytorch_utils.Conv1D":
        raise refuse(module, f"{name}={kind}", "transformers.pytorch_utils.Conv1D")
    refuse_hooks(module, name)
    return TransposedLinear(layer.weight, layer.bias)


def _check_backend(module: Any) -> None:
    backend = module.config._attn_implementation
    if backend not in SOFTMAX_BACKENDS:
        known = ", ".join(sorted(str(name) for name in SOFTMAX_BACKENDS if name))
        raise refuse(module, f"attn_implementation={backend!r}", f"softmax attention: {known}")
