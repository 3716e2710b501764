"""How far back a causal operator looks."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from ..domain import Domain
from ..errors import ShapeError
from ..integral import IntegralOperator


def memory_profile(
    operator: IntegralOperator,
    u: Float[Tensor, "b n d"],
    domain: Domain | None = None,
    *,
    rows: list[int] | None = None,
) -> Float[Tensor, " lags"]:
    r"""Return the mean of :math:`\lVert K(t, t - \tau; u) \rVert_F` at each lag τ = 0, 1, …

    Args:
        operator: on a causal line, such as a converted LSTM.
        u, domain: a signal and its line, without padding; the mean is over the batch.
        rows: the queries t to average over, default the last point; lags reach to the earliest of
            them.

    Cost: that of ``kernel_matrix(rows=...)``; O(N) for a recurrence.

    Raises:
        ShapeError: no rows, or rows that are not points of u.

    Example:
        >>> from torch import nn
        >>> from fredholm.convert import as_operator
        >>> linear = nn.RNN(1, 1, nonlinearity="relu", bias=False)
        >>> _ = nn.init.ones_(linear.weight_ih_l0), nn.init.constant_(linear.weight_hh_l0, 0.5)
        >>> memory_profile(as_operator(linear), torch.ones(1, 4, 1)).tolist()
        [1.0, 0.5, 0.25, 0.125]
    """
    last = u.shape[1] - 1
    if rows is None:
        rows = [last]
    if not rows or min(rows) < 0 or max(rows) > last:
        raise ShapeError(f"rows: expected some of the points 0 to {last}, got {rows}")

    matrix = operator.kernel_matrix(u, domain, rows=rows)
    norms = torch.linalg.matrix_norm(matrix)
    sizes = norms.mean((0, 1))
    lags = min(rows) + 1
    profiles = []
    for size, t in zip(sizes, rows):
        # The points at the lags 0, 1, … before t.
        past = size[t + 1 - lags : t + 1]
        profiles.append(past.flip(0))
    return torch.stack(profiles).mean(0)
