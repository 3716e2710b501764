"""Softmax attention, the baseline of every comparison, and linear attention with any feature map.

Thin constructors: the formulas are in ``kernel.py`` and ``linear.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor

from ...integral import IntegralOperator, Strategy, register_operator
from .kernel import SoftmaxKernel
from .linear import LinearAttentionKernel


@register_operator("softmax")
class SoftmaxAttention(IntegralOperator):
    r"""Multi-head softmax attention, :math:`W_O \int p_h(x, y)\,V_h u(y)\,d\mu(y)`, p a density of
    the domain's measure.

    On a uniform domain this is ordinary attention. Where masses differ, each key is weighted by its
    mass, so sampling a signal more densely in one place does not change the output. Cost O(N²·dim)
    time, O(N) memory (fused).

    Args:
        dim: width of u.
        heads: H, must divide ``dim``.
        bias: biases of query, key and value.
        strategy, out_dim: see :class:`IntegralOperator`.

    Shape: (B, N, dim) to (B, N, out_dim).

    Reference: Vaswani et al. 2017; ITNet, Theorem 2.

    Example:
        >>> SoftmaxAttention(16, heads=4)(torch.randn(2, 5, 16)).shape
        torch.Size([2, 5, 16])
    """

    def __init__(
        self,
        dim: int,
        heads: int = 1,
        *,
        bias: bool = True,
        strategy: Strategy | str | Mapping[str, Any] = "auto",
        out_dim: int | None = None,
    ):
        kernel = SoftmaxKernel(dim, heads, bias=bias)
        super().__init__(
            dim,
            heads,
            kernel=kernel,
            strategy=strategy,
            out_dim=out_dim,
            residual=False,
        )


@register_operator("linear_attention")
class LinearAttention(IntegralOperator):
    r"""Linear attention: an inner product of features φ replaces the exponential,
    :math:`W_O\,[\int \phi(Q_h u(x))\cdot\phi(K_h u(y))\,V_h u(y)\,d\mu(y) / Z_h(x)]_h`.

    Args:
        dim: width of u.
        heads: H, must divide ``dim``.
        feature_map: φ: a name of :data:`fredholm.kernels.FEATURE_MAPS`, a function, or a module.
        strategy: ``"auto"`` takes the linear form; ``"exact"`` the quadratic definition, a block of
            queries at a time.
        out_dim: see :class:`IntegralOperator`.
        kernel_options: ``feature_options``, ``tied``, ``normalised``, ``floor``, ``window``,
            ``sinks``, ``decay``, ``half_life``, ``bias``, ``projections`` of
            :class:`fredholm.kernels.LinearAttentionKernel`.

    Shape: (B, N, dim) to (B, N, out_dim).

    Cost: O(N·dim·(dim + r)) for r features per head, causal or not; ``step`` O(dim·(dim + r)).

    Reference: Katharopoulos et al. 2020, Eqs. 4-7.

    Example:
        >>> import torch
        >>> LinearAttention(16, heads=4, feature_map="performer")(torch.randn(2, 5, 16)).shape
        torch.Size([2, 5, 16])
    """

    options_class = LinearAttentionKernel

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
            dim,
            heads,
            kernel=kernel,
            strategy=strategy,
            out_dim=out_dim,
            residual=False,
        )
