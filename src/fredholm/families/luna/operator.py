"""LUNA: linear attention whose kernel is learned."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...integral import IntegralOperator, Strategy, register_operator
from .kernel import LunaKernel


@register_operator("luna")
class LunaAttention(IntegralOperator):
    r"""LUNA: linear attention with learned features,
    :math:`W_O\,[\int \phi(Q_h u(x))\cdot\phi(K_h u(y))\,V_h u(y)\,d\mu(y) / Z_h(x)]_h`
    with a learned φ.

    Args:
        dim: width of u.
        heads: H, must divide ``dim``.
        strategy: ``"auto"`` takes the linear form (two sums, causal chunks, steps with a state of
            fixed size); ``"exact"`` the quadratic definition, a block of queries at a time.
        out_dim: see :class:`IntegralOperator`.
        kernel_options: ``bias``, ``projections``, ``floor``, ``tied``, ``window``, ``sinks``,
            ``decay``, ``half_life`` of :class:`fredholm.kernels.LunaKernel`, and the options of
            :class:`fredholm.kernels.LunaMap`: ``directions``, ``channels``, ``hidden``, ``preset``,
            ``envelope``, …

    Shape: (B, N, dim) to (B, N, out_dim).

    Cost: O(N·dim·(dim + M·L)), causal or not; ``step`` O(dim·(dim + M·L)) at any position.

    Reference: LUNA, Eqs. 9-11.

    Example:
        >>> import torch
        >>> LunaAttention(16, heads=4)(torch.randn(2, 5, 16)).shape
        torch.Size([2, 5, 16])
    """

    options_class = LunaKernel

    def __init__(
        self,
        dim: int,
        heads: int = 1,
        *,
        strategy: Strategy | str | Mapping[str, Any] = "auto",
        out_dim: int | None = None,
        **kernel_options,
    ):
        kernel = LunaKernel(dim, heads, **kernel_options)
        super().__init__(
            dim,
            heads,
            kernel=kernel,
            strategy=strategy,
            out_dim=out_dim,
            residual=False,
        )
