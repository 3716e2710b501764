"""Softmax attention as an integral operator: the baseline."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...integral import IntegralOperator, Strategy, register_operator
from .kernel import SoftmaxKernel


@register_operator("softmax")
class SoftmaxAttention(IntegralOperator):
    r"""Multi-head softmax attention, :math:`W_O \int p_h(x, y)\,V_h u(y)\,d\mu(y)`, p a density of
    the domain's measure.

    On a uniform domain this is ordinary attention. Where masses differ, each key counts by its
    mass: resampling a signal more densely in one place does not move the output. Cost O(N²·dim)
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
            dim, heads, kernel=kernel, strategy=strategy, out_dim=out_dim, residual=False
        )
