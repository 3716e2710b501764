"""Models of the accelerations of bodies whose masses they infer from two observed frames.

A model has two stages. ``infer`` reads the positions (S, N, 2) and accelerations (S, N, 2) of the
observed frame and returns a code per body. ``predict`` reads the code and the present positions
and returns the present accelerations (S, N, 2). A rollout infers only once.

The interactions are those of :mod:`.models`: two blocks at the observed positions and one at the
present positions.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from fredholm.kernels import FourierFeatures

from .models import (
    ABSOLUTE,
    FREQUENCIES,
    INTERACTIONS,
    Design,
    distance_of,
    ends,
    network,
    others,
)

INFERRING = 2
"""Blocks at the observed positions."""


class MovingModel(nn.Module):
    """The two stages of a model, see the module."""

    def infer(self, observed: Tensor, accelerations: Tensor) -> Tensor:
        """Return a code (S, N, c) of the observed frame."""
        raise NotImplementedError

    def predict(self, code: Tensor, positions: Tensor) -> Tensor:
        """Return the accelerations at the present positions."""
        raise NotImplementedError

    def forward(self, observed: Tensor, accelerations: Tensor, positions: Tensor) -> Tensor:
        return self.predict(self.infer(observed, accelerations), positions)


class ResidualBlock(nn.Module):
    """An interaction and a network per body, each added to its normalised input."""

    def __init__(self, design: Design):
        super().__init__()
        dim = design.dim
        self.norms = nn.ModuleList(nn.LayerNorm(dim) for _ in range(2))
        self.interact = INTERACTIONS[design.name](design)
        self.per_point = network(dim, 2 * dim, dim)

    def forward(self, h: Tensor, positions: Tensor) -> Tensor:
        h = h + self.interact(self.norms[0](h), positions)
        return h + self.per_point(self.norms[1](h))


class ResidualModel(MovingModel):
    """Residual blocks between an embedding of the observed accelerations and a readout."""

    def __init__(self, design: Design):
        super().__init__()
        dim = design.dim
        # Models whose interactions read displacements don't depend on absolute positions.
        self.fourier = None
        encoded = 0
        if design.name in ABSOLUTE:
            self.fourier = FourierFeatures(2, FREQUENCIES, design.sigma)
            encoded = 2 * FREQUENCIES
            self.embed_present = nn.Linear(encoded, dim)
        self.embed = nn.Linear(2 + encoded, dim)
        self.inferring = nn.ModuleList(ResidualBlock(design) for _ in range(INFERRING))
        self.predicting = ResidualBlock(design)
        self.norm = nn.LayerNorm(dim)
        self.readout = nn.Linear(dim, 2)

    def infer(self, observed: Tensor, accelerations: Tensor) -> Tensor:
        inputs = [accelerations]
        if self.fourier is not None:
            inputs.append(self.fourier(observed))
        h = self.embed(torch.cat(inputs, -1))
        for block in self.inferring:
            h = block(h, observed)
        return h

    def predict(self, code: Tensor, positions: Tensor) -> Tensor:
        h = code
        if self.fourier is not None:
            h = h + self.embed_present(self.fourier(positions))
        return self.readout(self.norm(self.predicting(h, positions)))


class EquivariantBlock(nn.Module):
    """One block of EGNN with a vector per body.

    A message is a network of both bodies, their distance, and the scalar products of their
    displacement with the vectors of both. It updates a body's features, and its vector by a
    weighted sum of displacements.
    """

    def __init__(self, design: Design):
        super().__init__()
        dim = design.dim
        self.fourier = FourierFeatures(1, FREQUENCIES, design.sigma)
        size = 2 * dim + 2 * FREQUENCIES + 3
        self.message = nn.Sequential(
            nn.Linear(size, dim), nn.SiLU(), nn.Linear(dim, dim), nn.SiLU()
        )
        self.weight = network(dim, dim, 1)
        self.keep = network(dim, dim, 1)
        self.update = network(2 * dim + 1, dim, dim)

    def forward(self, h: Tensor, vectors: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        displacement = positions[:, :, None] - positions[:, None]
        distance = distance_of(displacement)
        products = [(displacement * end).sum(-1, keepdim=True) for end in ends(vectors)]
        pairs = torch.cat([*ends(h), self.fourier(distance), distance, *products], -1)
        found = self.message(pairs) * others(h)

        vectors = vectors + self.keep(h) * vectors + (displacement * self.weight(found)).sum(2)
        inputs = [h, found.sum(2), distance_of(vectors)]
        return h + self.update(torch.cat(inputs, -1)), vectors


class EquivariantModel(MovingModel):
    """EGNN whose vectors are the observed accelerations at first and the present ones at last.

    Reference: the form with velocities of Satorras et al. 2021.
    """

    def __init__(self, design: Design):
        super().__init__()
        self.embed = nn.Linear(1, design.dim)
        self.inferring = nn.ModuleList(EquivariantBlock(design) for _ in range(INFERRING))
        self.predicting = EquivariantBlock(design)

    def infer(self, observed: Tensor, accelerations: Tensor) -> Tensor:
        h = self.embed(distance_of(accelerations))
        vectors = accelerations
        for block in self.inferring:
            h, vectors = block(h, vectors, observed)
        return torch.cat([h, vectors], -1)

    def predict(self, code: Tensor, positions: Tensor) -> Tensor:
        h, vectors = code[..., :-2], code[..., -2:]
        _, vectors = self.predicting(h, vectors, positions)
        return vectors


def make_moving(design: Design) -> MovingModel:
    """Return a model by its design."""
    if design.name == "egnn":
        return EquivariantModel(design)
    return ResidualModel(design)
