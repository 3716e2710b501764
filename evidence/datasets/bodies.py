"""Bodies of unknown mass that move under springs or gravity, by a semi-implicit integrator.

A system is observed in two frames. Their velocities differ by the acceleration of the first, from
which the masses follow if the law is known.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

LAWS = ("springs", "gravity")
STEP = 0.01
"""Time between two frames."""
OBSERVED = 2
"""Frames that a model receives."""
HEAVIEST = 3.0
"""Largest mass. The smallest is its inverse, and the logarithm is uniform in between."""
STIFFNESS, REST_LENGTH, SPRING_SOFTENING = 10.0, 0.4, 0.05
GRAVITY, GRAVITY_SOFTENING = 0.3, 0.15
SPEED = {"springs": 0.3, "gravity": 0.5}
"""Standard deviation of a component of the first velocity."""


class Motions(NamedTuple):
    """S systems of N bodies in T frames.

    Attributes:
        positions, velocities: (S, T, N, 2).
        masses: (S, N, 1), which no model receives.
    """

    positions: Tensor
    velocities: Tensor
    masses: Tensor

    @property
    def accelerations(self) -> Tensor:
        """The acceleration in every frame but the last, (S, T - 1, N, 2)."""
        return (self.velocities[:, 1:] - self.velocities[:, :-1]) / STEP


def pulls(law: str, positions: Tensor) -> Tensor:
    """Return how each body pulls each other one, (..., N, N, 2), from positions (..., N, 2).

    Entry (i, j) is the acceleration of i by a j of mass one under gravity, and the force of the
    spring between both on i.

    Example:
        >>> both = pulls("springs", torch.tensor([[0.0, 0.0], [0.8, 0.0]]))
        >>> bool((both + both.transpose(0, 1)).abs().max() < 1e-6), bool(both[0, 1, 0] > 0)
        (True, True)
    """
    displacement = positions[..., None, :, :] - positions[..., :, None, :]
    square = displacement.square().sum(-1, keepdim=True)
    if law == "gravity":
        return GRAVITY * displacement / (square + GRAVITY_SOFTENING**2) ** 1.5
    length = (square + SPRING_SOFTENING**2).sqrt()
    return STIFFNESS * displacement * (1 - REST_LENGTH / length)


def accelerations(law: str, positions: Tensor, masses: Tensor) -> Tensor:
    """Return accelerations (..., N, 2) at positions (..., N, 2) by the exact law."""
    found = pulls(law, positions)
    if law == "gravity":
        return (found * masses[..., None, :, :]).sum(-2)
    return found.sum(-2) / masses


def advance(positions: Tensor, velocities: Tensor, acceleration: Tensor) -> tuple[Tensor, Tensor]:
    """Return positions and velocities of the next frame by the semi-implicit Euler method.

    The new velocity moves the positions.
    """
    velocities = velocities + STEP * acceleration
    return positions + STEP * velocities, velocities


def solve_masses(law: str, positions: Tensor, acceleration: Tensor) -> Tensor:
    """Return the masses (S, N, 1) that explain the accelerations (S, N, 2) at positions (S, N, 2).

    Under gravity the 2 N accelerations are linear in the N masses, which are found by least squares.
    A spring's force does not depend on masses, so a body's own acceleration determines its mass.
    """
    found = pulls(law, positions.double())
    target = acceleration.double()
    if law == "gravity":
        systems, points = positions.shape[:2]
        matrix = found.transpose(-1, -2).reshape(systems, 2 * points, points)
        masses = torch.linalg.lstsq(matrix, target.reshape(systems, 2 * points, 1)).solution
        return masses.to(positions.dtype)
    force = found.sum(-2)
    inverse = (force * target).sum(-1, keepdim=True) / force.square().sum(-1, keepdim=True)
    return (1 / inverse).to(positions.dtype)


def make_motions(law: str, count: int, points: int, frames: int, seed: int) -> Motions:
    """Return systems whose bodies start uniformly in the unit square with random velocities.

    The total momentum is zero.

    Example:
        >>> make_motions("gravity", 3, 8, frames=4, seed=0).positions.shape
        torch.Size([3, 4, 8, 2])
    """
    generator = torch.Generator().manual_seed(seed)
    draw = {"generator": generator, "dtype": torch.float64}
    positions = torch.rand(count, points, 2, **draw)
    velocities = SPEED[law] * torch.randn(count, points, 2, **draw)
    exponents = 2 * torch.rand(count, points, 1, **draw) - 1
    masses = (math.log(HEAVIEST) * exponents).exp()
    momentum = (masses * velocities).sum(1, keepdim=True)
    velocities = velocities - momentum / masses.sum(1, keepdim=True)

    states = [(positions, velocities)]
    for _ in range(frames - 1):
        positions, velocities = states[-1]
        states.append(advance(positions, velocities, accelerations(law, positions, masses)))
    return Motions(
        torch.stack([each for each, _ in states], 1).float(),
        torch.stack([each for _, each in states], 1).float(),
        masses.float(),
    )
