"""Linear attention as a kernel: softmax's exponential replaced by an inner product of features."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from ...integral import FeatureAttentionKernel


class LinearAttentionKernel(FeatureAttentionKernel):
    r"""Attention with any feature map:
    :math:`K_h(x, y; u) = \phi(Q_h u(x))\cdot\phi(K_h u(y))\,V_h / Z_h(x)`.

    .. math:: Z_h(x) = \int \phi(Q_h u(x))\cdot\phi(K_h u(y))\,d\mu(y)

    Args:
        dim, heads: width of u, and H.
        feature_map: φ: a name of :data:`fredholm.kernels.FEATURE_MAPS`, a function, or a module.
        options: ``feature_options``, ``tied``, ``normalised``, ``floor``, ``window``, ``sinks``,
            ``decay``, ``half_life``, ``bias``, ``projections`` of
            :class:`fredholm.integral.FeatureAttentionKernel`.

    Cost: O(N·r·d_h) with the strategy ``Linear``, causal or not; ``step`` O(r·d_h).

    Raises:
        OptionError: an unknown feature map; no positive floor; a value bias without normalisation.

    Reference: Katharopoulos et al. 2020, Eqs. 4-7; ITNet, App. D.7.

    Example:
        >>> from fredholm.operators import IntegralOperator
        >>> op = IntegralOperator(8, 2, kernel=LinearAttentionKernel(8, 2), residual=False)
        >>> op(torch.randn(1, 5, 8)).shape, op.plan(Domain.line(5, causal=True)).path
        (torch.Size([1, 5, 8]), 'causal chunks')
    """

    def __init__(
        self,
        dim: int,
        heads: int,
        *,
        feature_map: str | Callable[[Tensor], Tensor] = "elu",
        **options,
    ):
        super().__init__(dim, heads, feature_map=feature_map, **options)
