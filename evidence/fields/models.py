"""Models from a field to a field on the same grid, (S, 1, n, m) to (S, 1, n, m).

- ``itnet``: the library's operator with one head, whose kernel is a matrix per pair of points; a
  mean over the points within a radius.
- ``softmax``: the library's attention.
- ``gno``: neuraloperator's ``GNOBlock``, an ancestor of ITNet: a network of two positions within a
  radius, with one number per channel.
- ``gno, values``: the same block, whose network also reads the features of the point that is seen.
- ``fno``: neuraloperator's ``FNO``.

The first four have the same residual blocks of an interaction and a network per point, receive
Fourier features of the positions, and interact within a radius. FNO appends positions by itself. A
field's values lie at the nodes i / n of its grid, not at the centres of cells.

References: Li et al. 2020 (graph neural operators); Li et al. 2021 (Fourier neural operators).
"""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from fredholm import Domain
from fredholm.kernels import FourierFeatures
from fredholm.operators import create_operator

from ..kit.contest import parameters
from ..kit.grid import Row
from ..performance.peers import peer, row_means
from ..physics.models import network

KERNEL_WIDTH = 12
"""Hidden units of the kernels of ITNet."""
GNO_WIDTH = 32
"""Hidden units of the kernels of GNO."""
GNO_OF_VALUES = "gno, values"
"""GNO with a kernel of positions and values."""
SOFTMAX_HEADS = 4
FEATURES = (8, 1.0)
"""Frequencies and bandwidth of the Fourier features at a point, for models with a kernel of their
own frequencies."""
POSITIONS = ("query_position", "key_position", "relative", "distance")
"""Inputs of ITNet's kernel without features."""
WIDE = "fno, wide"
"""FNO with more parameters than the other models."""
DIAGONAL = math.sqrt(2)
"""A radius beyond which every point sees all others."""
SPARSE = 0.25
"""The part of all pairs below which edges are made for ITNet, which takes longer per edge than per
pair of a mask."""
POSITIONS_ALONE, BOTH_ENDS = "positions", "both ends"
"""What ITNet's kernel reads: positions alone, or also the features of both ends."""


def available() -> bool:
    """Return whether neuraloperator is installed."""
    return peer("neuralop") is not None


def nodes(*extents: int) -> Tensor:
    """Return the nodes i / n of a grid on the unit square, row-major, (n·m, 2).

    Example:
        >>> nodes(1, 2).tolist()
        [[0.0, 0.0], [0.0, 0.5]]
    """
    axes = [torch.arange(extent) / extent for extent in extents]
    return torch.stack(torch.meshgrid(*axes, indexing="ij"), -1).flatten(0, 1)


@cache
def neighbourhoods(extents: tuple[int, ...], radius: float, *, edges: bool) -> Domain:
    """Return the nodes of a grid, of which each sees those within a radius.

    The weights of a point's neighbours add up to one, so that the integral is a mean over them.

    Args:
        extents: of the grid.
        radius: in the unit square.
        edges: whether the pairs are edges instead of a mask where they are few.
    """
    # The cached domain is also used in training, wherever it is made.
    with torch.inference_mode(False):
        positions = nodes(*extents)
        if radius > DIAGONAL:
            return Domain.points(positions, measure="uniform")
        near = torch.cdist(positions, positions) <= radius
        target, source = near.nonzero(as_tuple=True)
        return Domain.graph(
            torch.stack([source, target]),
            len(positions),
            positions=positions,
            self_loops=False,
            edge_weight=1 / near.sum(1)[target],
            sparse=edges and len(target) < SPARSE * near.numel(),
            measure="counting",
        )


class GraphOperator(nn.Module):
    """W u plus neuraloperator's mean over the points within a radius."""

    def __init__(self, row: Row, dim: int):
        super().__init__()
        gno: Any = peer("neuralop.layers.gno_block")
        transform: Any = peer("neuralop.layers.integral_transform")
        # The same means in one call, so that its time is not that of a loop.
        transform.segment_csr = row_means
        levels = row["levels"]
        # Sines and cosines of two coordinates at either end.
        inputs = 8 * levels
        transform_type = "linear"
        if row["variant"] == GNO_OF_VALUES:
            inputs += dim
            transform_type = "nonlinear"
        self.residual = nn.Linear(dim, dim)
        self.block = gno.GNOBlock(
            dim,
            dim,
            2,
            row["radius"],
            reduction="mean",
            transform_type=transform_type,
            pos_embedding_type="nerf",
            pos_embedding_channels=levels,
            channel_mlp_layers=[inputs, GNO_WIDTH, dim],
            use_torch_scatter_reduce=False,
            use_open3d_neighbor_search=False,
        )

    def forward(self, h: Tensor, domain: Domain) -> Tensor:
        positions = domain.positions.to(h)
        return self.residual(h) + self.block(positions, positions, h)


def interaction(row: Row, dim: int) -> nn.Module:
    """Return the interaction of a block: a module of features and their domain."""
    name = row["variant"]
    if name in ("gno", GNO_OF_VALUES):
        return GraphOperator(row, dim)
    if name == "softmax":
        return create_operator(name, dim, SOFTMAX_HEADS)
    options: dict[str, Any] = {}
    if row["reads"] == POSITIONS_ALONE:
        options["groups"] = POSITIONS
    return create_operator(
        name,
        dim,
        1,
        position_dim=2,
        width=KERNEL_WIDTH,
        frequencies=row["frequencies"],
        sigma=row["sigma"],
        **options,
    )


class FieldModel(nn.Module):
    """An embedding, residual blocks of an interaction and a network per point, and a readout."""

    def __init__(self, row: Row, dim: int):
        super().__init__()
        # GNO reads the domain's positions alone, and searches the neighbours by itself.
        self.radius = row["radius"]
        self.edges = row["variant"] == "itnet"
        frequencies, sigma = FEATURES
        if row["variant"] == "softmax":
            # It has no kernel of positions: its settings are those of the features.
            frequencies, sigma = row["frequencies"], row["sigma"]
        self.fourier = FourierFeatures(2, frequencies, sigma)
        self.embed = nn.Linear(1 + 2 + 2 * frequencies, dim)
        blocks = range(row["depth"])

        def norm() -> nn.Module:
            return nn.LayerNorm(dim) if row["norm"] == "layer" else nn.Identity()

        self.interactions = nn.ModuleList(interaction(row, dim) for _ in blocks)
        self.networks = nn.ModuleList(network(dim, 2 * dim, dim) for _ in blocks)
        self.norms = nn.ModuleList(norm() for _ in range(2 * row["depth"] + 1))
        self.readout = network(dim, 2 * dim, 1)

    def forward(self, fields: Tensor) -> Tensor:
        extents = tuple(fields.shape[2:])
        domain = neighbourhoods(extents, self.radius, edges=self.edges)
        positions = domain.positions
        places = torch.cat([positions, self.fourier(positions)], -1)
        values = fields.flatten(2).mT
        h = self.embed(torch.cat([values, places.expand(len(values), -1, -1)], -1))
        for block, (interact, per_point) in enumerate(zip(self.interactions, self.networks)):
            h = h + interact(self.norms[2 * block](h), domain)
            h = h + per_point(self.norms[2 * block + 1](h))
        return self.readout(self.norms[-1](h)).mT.unflatten(-1, extents)


def make_fno(row: Row, dim: int) -> nn.Module:
    """Return neuraloperator's FNO."""
    models: Any = peer("neuralop.models")
    modes = row["modes"]
    norm = "instance_norm" if row["norm"] == "instance" else None
    return models.FNO(
        n_modes=(modes, modes),
        in_channels=1,
        out_channels=1,
        hidden_channels=dim,
        n_layers=row["depth"],
        norm=norm,
        domain_padding=row["padding"],
    )


def make_model(row: Row, dim: int) -> nn.Module:
    """Return the model of a row with a width."""
    if row["variant"] in ("fno", WIDE):
        return make_fno(row, dim)
    return FieldModel(row, dim)


def sized(row: Row, target: int) -> int:
    """Return the width that brings a model's number of parameters nearest to ``target``."""
    step = SOFTMAX_HEADS if row["variant"] == "softmax" else 1
    best, least = step, float("inf")
    for dim in range(step, 161, step):
        off = abs(parameters(make_model(row, dim)) - target)
        if off > least:
            # Every further width has more parameters.
            break
        best, least = dim, off
    return best
