"""Charges in a box: random systems, and the force on every charge by the exact law."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

SOFTENING = 0.15
"""Softening length of the law, in sides of the box."""
LEAST, MOST = 0.5, 1.5
"""Smallest and largest absolute value of a charge."""


class Systems(NamedTuple):
    """S systems of N charges.

    Attributes:
        positions: (S, N, 2), in the unit square.
        charges: (S, N, 1).
        forces: (S, N, 2), the force on every charge.
    """

    positions: Tensor
    charges: Tensor
    forces: Tensor


def law(displacement: Tensor) -> Tensor:
    r"""Return the force between unit charges at a displacement r (..., 2),

    .. math:: r / (|r|^2 + s^2)^{3/2},

    which is Coulomb's law with its peak cut off.

    Example:
        >>> law(torch.tensor([[0.0, 0.0], [0.0, 2.0]])).round(decimals=2).tolist()
        [[0.0, 0.0], [0.0, 0.25]]
    """
    square = displacement.square().sum(-1, keepdim=True)
    return displacement / (square + SOFTENING**2) ** 1.5


def make_systems(count: int, points: int, seed: int) -> Systems:
    """Return systems whose charges lie uniformly in the unit square, each positive or negative.

    Example:
        >>> found = make_systems(3, 8, seed=0)
        >>> found.forces.shape, bool(found.forces.sum(1).abs().max() < 1e-4)  # action is reaction
        (torch.Size([3, 8, 2]), True)
    """
    generator = torch.Generator().manual_seed(seed)
    positions = torch.rand(count, points, 2, generator=generator)
    signs = torch.randint(0, 2, (count, points, 1), generator=generator) * 2.0 - 1
    sizes = LEAST + (MOST - LEAST) * torch.rand(count, points, 1, generator=generator)
    charges = signs * sizes

    displacements = positions[:, :, None] - positions[:, None]
    field = (law(displacements) * charges[:, None]).sum(2)
    return Systems(positions, charges, charges * field)
