"""The definition of the convolution: a double sum over the grid."""

from __future__ import annotations

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
    lags = tuple(n if causal else 2 * n - 1 for n in grid)
    first = 0 if causal else 1
    kernel = torch.einsum("hoiw,lw->lhoi", readout, hidden)
    points = list(product(*(range(n) for n in grid)))
    rows = []
    for x in points:
        total = signal.new_zeros(*signal.shape[:2], readout.shape[1])
        for j, y in enumerate(points):
            # The row of the displacement x - y, in row-major order; without an order the lags of
            # an axis begin at 1 - n.
            place = 0
            for a, b, n, count in zip(x, y, grid, lags):
                place = place * count + (a - b) + first * (n - 1)
            if not causal or j <= points.index(x):
                total = total + torch.einsum("hoi,bhi->bho", kernel[place], signal[:, :, j])
        rows.append(total)
    return torch.stack(rows, 2)
