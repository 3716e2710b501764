"""Linear attention with any feature map as an integral operator."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor

from ...integral import IntegralOperator, Strategy, register_operator
from .linear import LinearAttentionKernel


@register_operator("linear_attention")
class LinearAttention(IntegralOperator):
    r"""Linear attention,
    :math:`W_O\,[\int \phi(Q_h u(x))\cdot\phi(K_h u(y))\,V_h u(y)\,d\mu(y) / Z_h(x)]_h`, any φ.

    Args:
        dim: width of u.
        heads: H, must divide ``dim``.
        feature_map: φ: a name of :data:`fredholm.kernels.FEATURE_MAPS`, a function, or a module.
        strategy: ``"auto"`` takes the linear form; ``"exact"`` the quadratic definition, a block of
            queries at a time.
        out_dim: see :class:`IntegralOperator`.
        kernel_options: ``feature_options``, ``tied``, ``normalised``, ``floor``, ``bias``,
            ``projections`` of
            :class:`fredholm.kernels.LinearAttentionKernel`.

    Shape: (B, N, dim) to (B, N, out_dim).

    Cost: O(N·dim·(dim + r)) for r features a head, causal or not; ``step`` O(dim·(dim + r)).

    Reference: Katharopoulos et al. 2020, Eqs. 4-7.

    Example:
        >>> import torch
        >>> LinearAttention(16, heads=4, feature_map="performer")(torch.randn(2, 5, 16)).shape
        torch.Size([2, 5, 16])
    """

    kernel_class = LinearAttentionKernel

    def __init__(
        self,
        dim: int,
        heads: int = 1,
        *,
        feature_map: str | Callable[[Tensor], Tensor] = "elu",
        strategy: Strategy | str | Mapping[str, Any] = "auto",
        out_dim: int | None = None,
        **kernel_options,
    ):
        kernel = LinearAttentionKernel(dim, heads, feature_map=feature_map, **kernel_options)
        super().__init__(
            dim, heads, kernel=kernel, strategy=strategy, out_dim=out_dim, residual=False
        )
