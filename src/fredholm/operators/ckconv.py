"""Continuous kernel convolution."""

from __future__ import annotations

from ..kernels import ContinuousConvolutionKernel
from ..kernels.base import head_width
from .integral import IntegralOperator
from .registry import register_operator
from .strategies import Strategy


@register_operator("ckconv")
class CKConv(IntegralOperator):
    r"""Convolution with a continuous kernel: :math:`(Tu)(x) = \int \psi(x - y)\,u(y)\,d\mu(y) + b`, ψ a small sine network.

    One layer sees the whole signal at a fixed number of parameters. Causality, sampling and rate belong to the domain: on
    ``Domain.line(n, length=N, causal=True, measure="counting")`` this is the paper's layer for training sequences of N samples; at another
    rate or with real timestamps the masses are the spacings in training steps. Without a domain that line is assumed.

    Args:
        dim: channels of u.
        heads: groups, must divide ``dim`` and ``out_dim``; ``heads=dim`` is a depthwise convolution.
        out_dim: channels of the output.
        position_dim: dimension p of positions.
        length: samples of a training sequence; positions of 0 to ``extent`` (below).
        strategy: ``"auto"`` takes the FFT on regular grids, hidden units first, and direct evaluation elsewhere.
        kernel_options: further options of :class:`fredholm.kernels.ContinuousConvolutionKernel`: ``extent``, ``origin``, ``bias``,
            ``unit_variance``, ``width``, ``depth``, ``activation``, ``omega``, ``learned_omega``, ``knots``, ``preset``.

    Shape: (B, N, dim) to (B, N, out_dim).

    Cost: O(N log N) time and O(N) memory by FFT; O(N²) time and O(N) memory on irregular points.

    Reference: CKConv Eqs. 1-5, 8.

    Example:
        >>> CKConv(4, out_dim=6, length=100)(torch.randn(2, 50, 4)).shape
        torch.Size([2, 50, 6])
    """

    kernel_class = ContinuousConvolutionKernel

    def __init__(
        self,
        dim: int,
        heads: int = 1,
        *,
        out_dim: int | None = None,
        position_dim: int = 1,
        length: int = 1024,
        strategy: Strategy | str = "auto",
        **kernel_options,
    ):
        out_dim = out_dim or dim
        kernel = ContinuousConvolutionKernel(
            heads,
            head_width(dim, heads),
            head_width(out_dim, heads),
            position_dim=position_dim,
            length=length,
            **kernel_options,
        )
        super().__init__(
            dim, heads, kernel=kernel, strategy=strategy, out_dim=out_dim, residual=False, projection=False
        )
