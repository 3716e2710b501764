"""The converter of ``torch.nn.MultiheadAttention``, and what conversions of attentions check."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from torch.nn.modules.linear import NonDynamicallyQuantizableLinear

from ..domain import Domain
from ..families.softmax.kernel import SoftmaxKernel
from ..integral import IntegralOperator
from ..integral.conversion import refuse, refuse_dropout, refuse_unless, register_converter
from .parts import bind


def call_multihead(layer: Any, u: Tensor, domain: Domain | None = None) -> Tensor:
    """Call self attention on (B, N, dim), whatever the layer's layout."""
    if layer.batch_first:
        out, _ = layer(u, u, u, need_weights=False)
        return out
    u = u.transpose(0, 1)
    out, _ = layer(u, u, u, need_weights=False)
    return out.transpose(0, 1)


@register_converter("torch.nn.modules.activation.MultiheadAttention", call=call_multihead)
def multihead_attention(module: nn.MultiheadAttention) -> IntegralOperator:
    r"""Convert multi-head attention, self or cross, on (B, N, dim) whatever the module's
    ``batch_first``.

    .. math::
        K_h(x, y; u) = Z_h(x)^{-1} e^{\langle Q_h u(x), K_h u(y)\rangle/\sqrt{d_h}}\,V_h,
        \qquad \text{offset} = b_V

    The arguments of the module's forward are the domain's: ``key_padding_mask`` = ``~valid``,
    ``attn_mask`` = ``~pairs`` where boolean and ``pairs`` where float, ``is_causal`` = ``causal``;
    ``query`` stays, and key = value = u.

    Reference: ITNet, Theorem 2, Appendix D.
    """
    if module.bias_k is not None or module.bias_v is not None:
        raise refuse(module, "add_bias_kv=True", "add_bias_kv=False")
    refuse_unless(module, {"add_zero_attn": False})
    if module.in_proj_weight is None:
        option = f"kdim={module.kdim}, vdim={module.vdim}"
        need = "keys and values of the queries' width, kdim=vdim=None; embed_dim is "
        raise refuse(module, option, f"{need}{module.embed_dim}")
    refuse_dropout(module, module.dropout)

    # A layer without memory of its own, which takes over the module's parameters.
    width, dim = module.in_proj_weight.shape
    packed = nn.Linear(dim, width, bias=False, device="meta")
    packed.weight = module.in_proj_weight
    packed.bias = module.in_proj_bias
    kernel = SoftmaxKernel(
        module.embed_dim,
        module.num_heads,
        projections=packed,
        dropout=module.dropout,
    )
    return bind(kernel, linear(module, "out_proj"))


def linear(module: nn.Module, name: str) -> nn.Linear:
    """Return the module's layer of this name, or raise ConversionError unless it is a plain
    ``nn.Linear``: no adapter, no quantised layer.
    """
    layer = getattr(module, name)
    kind = type(layer)
    if kind not in (nn.Linear, NonDynamicallyQuantizableLinear):
        raise refuse(module, f"{name}={kind.__module__}.{kind.__name__}", "torch.nn.Linear")
    refuse_hooks(module, name)
    return layer


def refuse_hooks(module: nn.Module, name: str) -> None:
    """Raise ConversionError where a layer of the module has hooks, which its parameters alone would
    not run.
    """
    layer = getattr(module, name)
    kinds = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks")
    if any(getattr(layer, hooks) for hooks in kinds):
        raise refuse(module, f"hooks on {name}", "layers without hooks; remove them first")
