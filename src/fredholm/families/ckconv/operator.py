"""CKConv's operator, a thin constructor: the formula is in ``kernel.py``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from ...errors import OptionError
from ...integral import IntegralOperator, Strategy, register_operator
from ...integral.features import head_width
from .finite_horizon import FiniteHorizonKernel
from .kernel import ContinuousConvolutionKernel


@register_operator("ckconv")
class CKConv(IntegralOperator):
    r"""Convolution with a continuous kernel, :math:`(Tu)(x) = \int \psi(x - y)\,u(y)\,d\mu(y) + b`,
    where ψ is a small sine network.

    One layer covers the entire signal with a fixed number of parameters. Causality, sampling and
    rate belong to the domain: on ``Domain.line(n, length=N, causal=True, measure="counting")`` this
    is the paper's layer for training sequences of N samples; at another rate or with real
    timestamps the masses are the spacings in training steps. Without a domain that line is assumed.

    Args:
        dim: channels of u.
        heads: groups, must divide ``dim`` and ``out_dim``; ``heads=dim`` is a depthwise
            convolution.
        out_dim: channels of the output.
        position_dim: dimension p of positions.
        length: samples of a training sequence; their positions run from 0 to ``extent`` (below).
        horizon: training steps after which ψ is zero, or None; a causal step then stores that many
            points, see
            :class:`fredholm.families.ckconv.finite_horizon.FiniteHorizonKernel`.
        memory: beside a horizon, the points that a causal step stores; as many as its steps by
            default.
        separable: one kernel per channel (heads = dim), then a matrix: 1/dim of the kernel's
            outputs.
        strategy: ``"auto"`` takes the FFT on regular grids, hidden units first, and direct
            evaluation elsewhere.
        kernel_options: further options of :class:`fredholm.kernels.ContinuousConvolutionKernel`:
            ``extent``, ``origin``, ``bias``, ``unit_variance``, ``blur``, ``width``, ``depth``,
            ``activation``, ``omega``, ``learned_omega``, ``knots``, ``preset``.

    Shape: (B, N, dim) to (B, N, out_dim).

    Cost: O(N log N) time and O(N) memory by FFT; O(N²) time and O(N) memory on irregular points.

    Raises:
        OptionError: heads that do not divide the widths, heads of a separable convolution, or
            memory without a horizon.

    Reference: CKConv Eqs. 1-5, 8.

    Example:
        >>> CKConv(4, out_dim=6, length=100)(torch.randn(2, 50, 4)).shape
        torch.Size([2, 50, 6])
    """

    options_class = ContinuousConvolutionKernel
    small: ClassVar[Mapping[str, Any]] = {"width": 16}

    def __init__(
        self,
        dim: int,
        heads: int = 1,
        *,
        out_dim: int | None = None,
        position_dim: int = 1,
        length: int = 1024,
        horizon: int | None = None,
        memory: int | None = None,
        separable: bool = False,
        strategy: Strategy | str | Mapping[str, Any] = "auto",
        **kernel_options,
    ):
        out_dim = out_dim or dim

        # A separable convolution has one kernel per channel, and a matrix behind it.
        if separable and heads not in (1, dim):
            raise OptionError(
                f"expected {dim} heads in a separable convolution, one per channel, got {heads}; "
                "leave heads out"
            )
        if separable:
            heads = dim
            d_in = 1
            d_out = 1
        else:
            d_in = head_width(dim, heads)
            d_out = head_width(out_dim, heads)

        if memory is not None and horizon is None:
            raise OptionError(
                f"expected memory beside a horizon only, got memory={memory} without one; give "
                "horizon too, or leave memory out"
            )
        kernel_options |= {"position_dim": position_dim, "length": length}
        if horizon is None:
            kernel = ContinuousConvolutionKernel(heads, d_in, d_out, **kernel_options)
        else:
            kernel = FiniteHorizonKernel(
                heads,
                d_in,
                d_out,
                horizon=horizon,
                memory=memory,
                **kernel_options,
            )
        super().__init__(
            dim,
            heads,
            kernel=kernel,
            strategy=strategy,
            out_dim=out_dim,
            residual=False,
            projection=separable,
        )
