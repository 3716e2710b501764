"""ITNet's operator with a kernel of low rank."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...integral import IntegralOperator, Strategy, head_width, register_operator
from .low_rank import LowRankKernel


@register_operator("itnet_low_rank")
class LowRankITNetOperator(IntegralOperator):
    r"""ITNet's operator in linear time:
    :math:`(Tu)(x) = W u(x) + W_O\,[\Phi_h(x, u_h(x)) \int \Psi_h(y, u_h(y))^T u_h(y)\,d\mu(y)]_h`.

    Args:
        dim: width d of u.
        heads: H, must divide ``dim``.
        position_dim: dimension p of the domain's positions.
        rank: r, of one head. A total rank R over the heads (the paper's "LR-64") is ``rank=ceil(R /
            heads)``.
        width: hidden width w of both factor networks.
        strategy, out_dim: see :class:`IntegralOperator`.
        kernel_options: further options of :class:`fredholm.kernels.LowRankKernel`: ``frequencies``,
            ``sigma``, ``learned_frequencies``, ``activation``.

    Shape: (B, N, dim) to (B, N, out_dim).

    Cost: O(N) time and memory, causal or not; ``step`` has a state of H·r numbers.

    Reference: ITNet §3.3, App. H.12, Table 17.

    Example:
        >>> operator = LowRankITNetOperator(16, heads=2, rank=4, width=8)
        >>> operator(torch.randn(2, 5, 16)).shape, operator.plan(Domain.line(5)).path
        (torch.Size([2, 5, 16]), 'hidden units pooled')
    """

    kernel_class = LowRankKernel

    def __init__(
        self,
        dim: int,
        heads: int = 1,
        *,
        position_dim: int = 1,
        rank: int = 16,
        width: int = 128,
        strategy: Strategy | str | Mapping[str, Any] = "auto",
        out_dim: int | None = None,
        **kernel_options,
    ):
        kernel = LowRankKernel(
            heads,
            head_width(dim, heads),
            rank=rank,
            position_dim=position_dim,
            width=width,
            **kernel_options,
        )
        super().__init__(dim, heads, kernel=kernel, strategy=strategy, out_dim=out_dim)
