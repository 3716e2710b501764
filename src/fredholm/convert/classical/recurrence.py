"""Recurrences as integral operators (ITNet Theorem 3, Appendix E)."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ...domain import Domain
from ...errors import ShapeError
from ...kernels.recurrent import InitialState, RecurrentKernel
from ...operators import IntegralOperator
from .registry import refuse_dropout, register_converter


@register_converter(*(f"torch.nn.modules.rnn.{name}" for name in ("RNN", "LSTM", "GRU")))
def recurrence(
    module: nn.RNN | nn.LSTM | nn.GRU,
    *,
    initial_state: InitialState | None = None,
    linearization: str = "secant",
) -> IntegralOperator:
    """An RNN (tanh or relu), LSTM or GRU of any depth, one or two directions, with any of torch's
    options but active dropout.

    Its default domain is the causal line with a mass of one a point, for two directions the same
    line without order. ``initial_state`` and ``linearization`` are those of
    :class:`fredholm.kernels.recurrent.RecurrentKernel`.
    """
    refuse_dropout(module, module.dropout if module.num_layers > 1 else 0.0)
    kernel = RecurrentKernel(module, initial_state=initial_state, linearization=linearization)
    return IntegralOperator(
        module.input_size, kernel=kernel, out_dim=kernel.d_out, residual=False, projection=False
    )


def memory_profile(
    operator: IntegralOperator,
    u: Float[Tensor, "b n d"],
    domain: Domain | None = None,
    *,
    rows: list[int] | None = None,
) -> Float[Tensor, " lags"]:
    r"""How far back a causal operator looks: the mean of :math:`\lVert K(t, t - \tau; u) \rVert_F`
    against the lag τ = 0, 1, …

    Args:
        operator: on a causal line, such as a converted LSTM.
        u, domain: a signal and its line, without padding; the mean is over the batch.
        rows: the queries t to average over, default the last point; lags reach to the earliest of
            them.

    Cost: that of ``kernel_matrix(rows=...)``; O(N) for a recurrence.

    Raises:
        ShapeError: no rows, or rows that are no points of u.

    Example:
        >>> from fredholm.convert import as_operator
        >>> linear = nn.RNN(1, 1, nonlinearity="relu", bias=False)
        >>> _ = nn.init.ones_(linear.weight_ih_l0), nn.init.constant_(linear.weight_hh_l0, 0.5)
        >>> memory_profile(as_operator(linear), torch.ones(1, 4, 1)).tolist()
        [1.0, 0.5, 0.25, 0.125]
    """
    rows = [u.shape[1] - 1] if rows is None else rows
    if not rows or min(rows) < 0 or max(rows) >= u.shape[1]:
        raise ShapeError(f"rows must name some of the points 0 to {u.shape[1] - 1}, got {rows}")
    sizes = torch.linalg.matrix_norm(operator.kernel_matrix(u, domain, rows=rows)).mean((0, 1))
    lags = min(rows) + 1
    return torch.stack([size[t + 1 - lags : t + 1].flip(0) for size, t in zip(sizes, rows)]).mean(0)
