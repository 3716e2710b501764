"""The definition of the convolution: a double sum over the grid."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

import torch
from jaxtyping import Float
from torch import Tensor


def grid_convolution_naive(
    signal: Float[Tensor, "b h n i"],
    hidden: Float[Tensor, "l w"],
    readout: Float[Tensor, "h o i w"],
    grid: tuple[int, ...],
    *,
    causal: bool = False,
) -> Float[Tensor, "b h n o"]:
    """Return the convolution pair by pair of points: the oracle of :func:`grid_convolution`.

    The arguments are those of the fast form: a signal with its masses multiplied in, and hidden
    units at all lags of the grid in row-major order.

    Cost: O(N²·d_out·d_in).
    """
    batch, heads = signal.shape[:2]
    kernel = torch.einsum("hoiw,lw->lhoi", readout, hidden)
    points = list(product(*(range(n) for n in grid)))
    rows = []
    for i, x in enumerate(points):
        total = signal.new_zeros(batch, heads, readout.shape[1])
        for j, y in enumerate(points):
            if causal and j > i:
                continue
            at_lag = kernel[_place(x, y, grid, causal)]
            total = total + torch.einsum("hoi,bhi->bho", at_lag, signal[:, :, j])
        rows.append(total)
    return torch.stack(rows, 2)


def _place(
    x: Sequence[int],
    y: Sequence[int],
    grid: Sequence[int],
    causal: bool,
) -> int:
    """Return the row-major number of the displacement x - y among all lags.

    The lags of an axis of n points begin at 0 in causal order, else at 1 - n.
    """
    place = 0
    for a, b, n in zip(x, y, grid):
        lag = a - b
        if causal:
            place = place * n + lag
        else:
            place = place * (2 * n - 1) + lag + n - 1
    return place
