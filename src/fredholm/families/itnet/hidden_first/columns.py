"""On a grid, where nothing but values is wanted: the columns of W1 by the groups that they read,
and what they make of positions and of features at both ends.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from ....domain import Domain
from ....integral import Problem
from ....ops.backend import cast, values_alone

if TYPE_CHECKING:
    from ..kernel import MLPKernel

ENDS = ("query_position", "key_position")
CONTENT = ("query", "key")
FEW_HIDDEN = 1 << 21
"""Hidden units of all pairs up to which they are taken at once: `python -m evidence time small
tune`.
"""


def fits(kernel: MLPKernel, problem: Problem) -> bool:
    """Return whether :func:`.few_points` can take this problem and is faster than the op."""
    if kernel.weight1.shape[0] > 1:
        return False
    q = problem.quadrature
    if problem.domain is None or q.density is not None:
        return False
    if q.query_time is not None and not q.triangular:
        return False

    # The passes overwrite their inputs, so that no tensor may need a gradient.
    u = problem.uy
    tensors = [u, kernel.weight1]
    if torch.is_grad_enabled():
        tensors += [problem.x, q.mass, *kernel.parameters()]
    # Before any size is compared: a comparison in traced code would bound the program's lengths.
    if not values_alone(tensors):
        return False
    if u.device.type != "cpu" or u.numel() == 0:
        return False
    batch, _, n, _ = u.shape
    return batch * kernel.heads * n * n * kernel.width <= FEW_HIDDEN


class PositionTerms(NamedTuple):
    """Terms of positions in the first layer.

    Attributes:
        ends: of queries and of keys, (groups, N, w), or None where no group reads them.
        table: of displacements, with the first layer's bias: (D, w) for D displacements, or
            (Nq, Nk, w) where it is written out for every pair.
    """

    ends: Tensor | None
    table: Tensor


class GridPoints(NamedTuple):
    """Positions of a grid, and its displacements.

    Attributes:
        points: positions above displacements, (N + D, p).
        lengths: of the displacements, (D, 1).
        index: of each point into the displacements, (N,).
    """

    points: Tensor
    lengths: Tensor
    index: Tensor


class Columns:
    """W1 (w, ·), each group's columns behind those of the one before it.

    Args:
        kernel: one that has a single W1 for all heads.
        dtype: that products are computed in.
    """

    def __init__(self, kernel: MLPKernel, dtype: torch.dtype):
        self.weight = cast(kernel.weight1, dtype)[0]
        self.bias = cast(kernel.bias1, dtype)[0]
        self.sizes = kernel.sizes
        starts = accumulate(self.sizes.values(), initial=0)
        self.starts = dict(zip(self.sizes, starts))

    def of(self, name: str, other: str | None = None) -> Tensor:
        """Return the columns of a group, and of those behind it up to ``other``, (w, size)."""
        last = other or name
        first = self.starts[name]
        end = self.starts[last] + self.sizes[last]
        return self.weight[:, first:end]

    def read(self, names: Sequence[str]) -> list[str]:
        """Return those of some groups that the network reads."""
        return [name for name in names if name in self.sizes]

    def products(self, names: Sequence[str], x: Tensor) -> Tensor | None:
        """Return rows x (n, size) times the columns of those of two neighbouring groups that the
        network reads, as one product, (groups, n, w); None where it reads none.
        """
        read = self.read(names)
        if not read:
            return None
        count = len(read)
        columns = self.of(read[0], read[-1])
        size = x.shape[1]
        columns = columns.unflatten(1, (count, size))
        columns = columns.permute(1, 2, 0)
        inputs = x.expand(count, -1, -1)
        return torch.bmm(inputs, columns)

    def of_positions(
        self,
        kernel: MLPKernel,
        domain: Domain,
        grid: GridPoints,
        n: int,
    ) -> PositionTerms:
        """Return the terms of both ends' n positions and of displacements."""
        ends = None
        table = self.bias
        if self.read((*ENDS, "relative")):
            gamma = kernel.gamma(grid.points, domain, "points and displacements")
            gamma = cast(gamma, table.dtype)
            ends = self.products(ENDS, gamma[:n])
            if "relative" in self.sizes:
                of_displacements = gamma[n:]
                weight = self.of("relative")
                table = F.linear(of_displacements, weight, table)
        if "distance" in self.sizes:
            lengths = cast(grid.lengths, table.dtype)
            weight = self.of("distance")
            table = torch.addmm(table, lengths, weight.mT)
        displacements = grid.lengths.shape[0]
        return PositionTerms(ends, table.expand(displacements, -1))

    def of_ends(
        self,
        positions: Tensor | None,
        flat: Tensor,
        matrices: int,
    ) -> tuple[Tensor | None, Tensor | None]:
        """Return the terms of queries and of keys, (H·B, N, w) each or None: of their positions
        (groups, N, w) and of their features ``flat`` (H·B·N, d).
        """
        features = self.products(CONTENT, flat)
        terms: dict[str, Tensor] = {}
        if features is not None:
            names = self.read(CONTENT)
            of_ends = features.unbind(0)
            terms.update(zip(names, of_ends))
        if positions is not None:
            names = self.read(ENDS)
            of_ends = positions.unbind(0)
            terms.update(zip(names, of_ends))

        query, key = (
            _sum_of_terms(
                terms.get(position),
                terms.get(content),
                matrices,
            )
            for position, content in zip(ENDS, CONTENT)
        )
        return query, key


def _sum_of_terms(
    position: Tensor | None,
    content: Tensor | None,
    matrices: int,
) -> Tensor | None:
    """Return the sum of an end's terms, (H·B, N, w): of positions (N, w), which all matrices share,
    and of features (H·B·N, w), which is overwritten. None where there is neither.
    """
    if content is None:
        if position is None:
            return None
        return position.expand(matrices, -1, -1)
    by_matrix = content.view(matrices, -1, content.shape[1])
    if position is not None:
        by_matrix.add_(position)
    return by_matrix


def ends_and_shifts(problem: Problem) -> GridPoints:
    """Return a grid's positions and displacements."""
    displacements, index = problem.displacements()
    lengths = torch.linalg.vector_norm(displacements, dim=-1, keepdim=True)
    points = torch.cat([problem.x[0], displacements])
    return GridPoints(points, lengths, index)
