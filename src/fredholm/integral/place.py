"""Points of a domain as an integral reads them: positions, padding, regular grids."""

from __future__ import annotations

from dataclasses import replace
from math import prod
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from ..domain import Domain
from ..edges import Edges
from ..errors import ShapeError
from ..ops.backend import cast, promoted
from ..quadrature import Quadrature
from .facts import Layout, grid_of
from .features import clean

if TYPE_CHECKING:
    from .contract import Kernel


class Place(NamedTuple):
    """Facts and tensors that a domain alone decides about integrals over it at its own points.

    It is cached with the domain, so that a call looks it up once.

    Attributes:
        layout: the static facts.
        size, batch: of the domain.
        x: positions (1 | B, N, p), in the dtype that they meet the features in.
        quadrature: in the features' working precision.
    """

    layout: Layout
    size: int
    batch: int | None
    x: Tensor
    quadrature: Quadrature

    @classmethod
    def of(cls, domain: Domain, dtype: torch.dtype) -> Place:
        """Return the place for features of a dtype."""
        position_dtype = promoted(dtype, domain.positions.dtype)
        return cls(
            layout=Layout.of(domain),
            size=domain.size,
            batch=domain.batch,
            x=cast(positions(domain), position_dtype),
            quadrature=domain.quadrature().to(dtype),
        )


def default_domain(kernel: Kernel, u: Tensor) -> Domain:
    """Return the kernel's domain for features u (B, N, dim) that came without one."""
    dtype = torch.float32
    if u.dtype == torch.float64:
        dtype = torch.float64
    return kernel.default_domain(u.shape[1], device=u.device, dtype=dtype)


def without_images(domain: Domain) -> Domain:
    """Return the domain without the images of a periodic box, for kernels that read no positions:
    to them a key is the same from everywhere.
    """
    edges = domain.pairs
    if not isinstance(edges, Edges) or edges.shift is None:
        return domain
    plain = replace(edges, shift=None)
    return domain.kept("without images", lambda: replace(domain, pairs=plain))


def points_of(
    kernel: Kernel,
    query: Tensor,
    domain: Domain,
    *,
    default: bool,
) -> Domain:
    """Return the domain of queries that came without one.

    Where the keys came without one too, it is the kernel's default domain; else the domain of the
    keys. A kernel that reads no positions may have any number of queries: they lie at the origin,
    and none of them is padding. In an order or within a reach the place of a query counts, so that
    these lie on the domain of the keys.

    Raises:
        ShapeError: keys on a domain of the caller's that has another number of points.
    """
    n = query.shape[1]
    if default:
        return kernel.default_domain(n, device=query.device, dtype=domain.positions.dtype)
    places_count = domain.causal or domain.reach is not None
    if not kernel.reads_position and not places_count:
        origin = torch.zeros(n, domain.dim, device=query.device, dtype=domain.positions.dtype)
        return Domain.points(origin)
    if n != domain.size:
        raise ShapeError(
            f"query: expected the {domain.size} points of domain, got {n}; pass query_domain, "
            "which says where they lie"
        )
    return domain


def batched(x: Tensor, dims: int) -> Tensor:
    """Return ``x`` with a batch of one in front, where its ``dims`` dimensions are without one."""
    if x.dim() == dims:
        return x[None]
    return x


def positions(domain: Domain) -> Tensor:
    """Return positions (1 | B, N, p), zero at padding.

    On a grid that all samples share they stay as they are, at padding too: fast forms read the
    grid's displacements from its last points.
    """
    x = domain.positions
    shared_grid = grid_of(domain) is not None and x.dim() == 2
    if domain.valid is not None and not shared_grid:
        x = clean(x, domain.valid)
    return batched(x, 2)


def grid_displacements(positions: Tensor, grid: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """Return all displacements of a regular grid, (D, p) with D = ∏(2n - 1), and each point's index
    c (N,) into them.

    The displacement x_i - x_j is row ``c_i - c_j + D // 2``: a grid of N points has N² pairs of
    points but only D < 2^p·N displacements.

    Args:
        positions: of the grid's points, (N, p), the last axis fastest.
        grid: extents n.

    Example:
        >>> table, index = grid_displacements(torch.tensor([[0.0], [0.5]]), (2,))
        >>> table.squeeze(1).tolist(), index.tolist()
        ([-0.5, 0.0, 0.5], [0, 1])
    """
    device = positions.device
    dtype = positions.dtype
    extents = [2 * n - 1 for n in grid]
    table = torch.zeros((*extents, positions.shape[-1]), dtype=dtype, device=device)
    index = torch.zeros(grid, dtype=torch.int64, device=device)

    # A regular grid is affine: every displacement is a sum of one displacement per axis, and its
    # row in the table is a sum of one index per axis, times the stride of the axis.
    stride = 1
    for axis in reversed(range(len(grid))):
        n = grid[axis]
        shape = [1] * len(grid)
        shape[axis] = -1
        if n > 1:
            last_point = (n - 1) * prod(grid[axis + 1 :])
            length = positions[last_point] - positions[0]
            steps = torch.arange(1 - n, n, device=device, dtype=dtype) / (n - 1)
            table = table + steps.reshape(*shape, 1) * length
        number = torch.arange(n, device=device).reshape(shape)
        index = index + number * stride
        stride *= 2 * n - 1
    return table.flatten(0, -2), index.flatten()
