"""The converter of ``torch.nn.MultiheadAttention``, and what conversions of attentions check."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn.modules.linear import NonDynamicallyQuantizableLinear

from ..domain import Domain
from ..families.softmax.kernel import SoftmaxKernel
from ..integral import IntegralOperator
from ..integral.conversion import refuse, refuse_dropout, register_converter


def _call(layer: nn.MultiheadAttention, u: Tensor, domain: Domain) -> Tensor:
    """Self attention on (B, N, dim)."""
    u = u if layer.batch_first else u.transpose(0, 1)
    out = layer(u, u, u, need_weights=False)[0]
    return out if layer.batch_first else out.transpose(0, 1)


@register_converter("torch.nn.modules.activation.MultiheadAttention", call=_call)
def multihead_attention(module: nn.MultiheadAttention) -> IntegralOperator:
    r"""Multi-head attention, self or cross, on (B, N, dim) whatever the module's ``batch_first``.

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
    if module.add_zero_attn:
        raise refuse(module, "add_zero_attn=True", "add_zero_attn=False")
    if module.in_proj_weight is None:
        option = f"kdim={module.kdim}, vdim={module.vdim}"
        raise refuse(
            module,
            option,
            "keys and values of the queries' width, kdim=vdim=None; embed_dim is "
            f"{module.embed_dim}",
        )
    refuse_dropout(module, module.dropout)
    packed = nn.Linear(*reversed(module.in_proj_weight.shape), bias=False, device="meta")
    packed.weight, packed.bias = module.in_proj_weight, module.in_proj_bias
    kernel = SoftmaxKernel(
        module.embed_dim, module.num_heads, projections=packed, dropout=module.dropout
    )
    return bind(kernel, linear(module, "out_proj"))


def bind(kernel: SoftmaxKernel, projection: nn.Linear | None) -> IntegralOperator:
    """The operator of an attention kernel and the module's output layer."""
    width = kernel.heads * kernel.d_out
    return IntegralOperator(
        kernel.d_in,
        kernel.heads,
        kernel=kernel,
        out_dim=width if projection is None else projection.out_features,
        residual=False,
        projection=False if projection is None else projection,
    )


def linear(module: nn.Module, name: str) -> nn.Linear:
    """The module's layer of this name, or a ConversionError unless it is a plain ``nn.Linear``: no
    adapter, no quantised layer.
    """
    layer = getattr(module, name)
    if type(layer) not in (nn.Linear, NonDynamicallyQuantizableLinear):
        raise refuse(
            module, f"{name}={type(layer).__module__}.{type(layer).__name__}", "torch.nn.Linear"
        )
    refuse_hooks(module, name)
    return layer


def refuse_hooks(module: nn.Module, name: str) -> None:
    """ConversionError where a layer of the module has hooks, which its parameters alone would not
    run.
    """
    layer = getattr(module, name)
    if any(
        getattr(layer, hooks)
        for hooks in ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks")
    ):
        raise refuse(module, f"hooks on {name}", "layers without hooks; remove them first")
