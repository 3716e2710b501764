"""The converter of the attention of timm's vision transformers."""

from __future__ import annotations

from typing import Any

from torch import nn

from ..families.softmax.kernel import SoftmaxKernel
from ..integral import IntegralOperator
from ..integral.conversion import refuse, refuse_dropout, register_converter
from ..registry import qualified_name
from .multihead_attention import linear, refuse_hooks
from .parts import bind

POINTWISE_NORMS = {
    "torch.nn.modules.normalization.LayerNorm",
    "torch.nn.modules.normalization.RMSNorm",
    "timm.layers.norm.LayerNorm",
    "timm.layers.norm.RmsNorm",
}


@register_converter("timm.layers.attention.Attention", "timm.models.vision_transformer.Attention")
def timm_attention(module: Any) -> IntegralOperator:
    """Convert attention with one layer for queries, keys and values (``qkv``), optional
    ``qk_norm``, and an output layer (``proj``).
    """
    if getattr(module, "gate", None) is not None:
        raise refuse(module, "gated=True", "gated=False")
    if not isinstance(getattr(module, "norm", nn.Identity()), nn.Identity):
        raise refuse(module, "scale_norm=True", "scale_norm=False")
    dropout = max(module.attn_drop.p, module.proj_drop.p)
    refuse_dropout(module, dropout)
    packed = linear(module, "qkv")
    kernel = SoftmaxKernel(
        packed.in_features,
        module.num_heads,
        projections=packed,
        query_norm=_norm(module, "q_norm"),
        key_norm=_norm(module, "k_norm"),
        dropout=dropout,
    )
    # A user may have set another scale than the kernel takes from the width.
    if abs(module.scale - kernel.scale) > 1e-12:
        need = f"one over the root of a head's width, {kernel.scale}"
        raise refuse(module, f"scale={module.scale}", need)
    return bind(kernel, linear(module, "proj"))


def _norm(module: Any, name: str) -> nn.Module | None:
    norm = getattr(module, name, None)
    if norm is None or isinstance(norm, nn.Identity):
        return None
    refuse_hooks(module, name)
    kind = qualified_name(type(norm))
    if kind not in POINTWISE_NORMS:
        raise refuse(module, f"{name}={kind}", "LayerNorm or RMSNorm over a head's features")
    return norm
