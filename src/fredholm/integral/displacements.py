"""The displacements of a regular grid: ∏(2n - 1) of them stand for N² pairs."""

from __future__ import annotations

from math import prod

import torch
from torch import Tensor


def grid_displacements(positions: Tensor, grid: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """All displacements of a regular grid, (D, p) with D = ∏(2n - 1), and each point's index c (N,)
    into them.

    The displacement x_i - x_j is row ``c_i - c_j + D // 2``.

    Example:
        >>> table, index = grid_displacements(torch.tensor([[0.0], [0.5]]), (2,))
        >>> table.squeeze(1).tolist(), index.tolist()
        ([-0.5, 0.0, 0.5], [0, 1])
    """
    device = positions.device
    lattice = torch.zeros(
        (*(2 * n - 1 for n in grid), positions.shape[-1]), dtype=positions.dtype, device=device
    )
    index = torch.zeros(grid, dtype=torch.int64, device=device)
    stride = 1
    for axis in reversed(range(len(grid))):
        n = grid[axis]
        shape = [1] * len(grid)
        shape[axis] = -1
        if n > 1:
            last = positions[(n - 1) * prod(grid[axis + 1 :])] - positions[0]
            steps = torch.arange(1 - n, n, device=device, dtype=positions.dtype).reshape(
                *shape, 1
            ) / (n - 1)
            lattice = lattice + steps * last
        index = index + torch.arange(n, device=device).reshape(shape) * stride
        stride *= 2 * n - 1
    return lattice.flatten(0, -2), index.flatten()
