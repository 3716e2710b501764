"""On a grid, where nothing but values is wanted: the columns of W1 by the groups that they read,
and what they make of positions and of features at both ends.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import TYPE_CHECKING

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
GROUPS = {*ENDS, "relative", "distance", *CONTENT, "product"}
LONGEST = 1 << 19  # hidden units of one query up to which keys are not cut into tiles
LARGEST = 1 << 20  # hidden units of all pairs: `python -m evidence time small tune`


def fits(kernel: MLPKernel, problem: Problem) -> bool:
    """Whether :func:`.few_queries` can take this problem and is faster than the op."""
    u, q = problem.uy, problem.quadrature
    if (
        not GROUPS.issuperset(kernel.groups)
        or kernel.weight1.shape[0] > 1
        or problem.domain is None
    ):
        return False
    if q.density is not None or (q.query_time is not None and not q.triangular):
        return False
    # any one of them that needs a gradient would have the passes record what they overwrite
    others = (problem.x, q.mass, *kernel.parameters()) if torch.is_grad_enabled() else ()
    # Before any size is compared: a comparison in traced code would bound the program's lengths.
    if not values_alone((u, kernel.weight1, *others)):
        return False
    return u.shape[2] * kernel.width <= LONGEST and u.device.type == "cpu" and u.numel() > 0


def all_at_once(kernel: MLPKernel, problem: Problem) -> bool:
    """Whether :func:`.few_points` is faster still."""
    n = problem.ux.shape[2]
    return problem.uy.shape[0] * kernel.heads * n * n * kernel.width <= LARGEST


class Columns:
    """W1 (w, ·), each group's columns behind those of the one before it.

    Args:
        kernel: one that has a single W1 for all heads.
        dtype: that products are computed in.
    """

    def __init__(self, kernel: MLPKernel, dtype: torch.dtype):
        self.weight, self.bias = cast(kernel.weight1, dtype)[0], cast(kernel.bias1, dtype)[0]
        self.sizes = kernel.sizes
        self.starts = dict(zip(self.sizes, accumulate(self.sizes.values(), initial=0)))

    def of(self, name: str, other: str | None = None) -> Tensor:
        """The columns of a group, and of those behind it up to ``other``, (w, size)."""
        last = name if other is None else other
        return self.weight[:, self.starts[name] : self.starts[last] + self.sizes[last]]

    def products(self, names: Sequence[str], x: Tensor) -> Tensor | None:
        """Rows x (n, size) times the columns of those of two neighbouring groups that the network
        reads, as one product, (groups, n, w); None where it reads none.
        """
        read = [name for name in names if name in self.sizes]
        if not read:
            return None
        columns = self.of(read[0], read[-1]).unflatten(1, (len(read), x.shape[1]))
        return torch.bmm(x.expand(len(read), -1, -1), columns.permute(1, 2, 0))

    def of_positions(
        self, kernel: MLPKernel, domain: Domain, points: Tensor, lengths: Tensor, n: int
    ) -> tuple[Tensor | None, Tensor]:
        """The terms of both ends' positions (groups, N, w), and the table of displacements with the
        first layer's bias, (D, w); ``points`` and ``lengths`` are :func:`ends_and_shifts`.
        """
        ends, table = None, self.bias
        if "relative" in self.sizes or any(name in self.sizes for name in ENDS):
            gamma = kernel.gamma(points, domain, "points and displacements")
            gamma = cast(gamma, table.dtype)
            ends = self.products(ENDS, gamma[:n])
            if "relative" in self.sizes:
                table = F.linear(gamma[n:], self.of("relative"), table)
        if "distance" in self.sizes:
            table = torch.addmm(table, cast(lengths, table.dtype), self.of("distance").mT)
        return ends, table.expand(lengths.shape[0], -1)

    def of_ends(
        self, positions: Tensor | None, flat: Tensor, matrices: int
    ) -> tuple[Tensor | None, Tensor | None]:
        """The terms of queries and of keys, (H·B, N, w) each or None: of their positions
        (groups, N, w) and of their features ``flat`` (H·B·N, d).
        """
        terms = self._by_name(CONTENT, self.products(CONTENT, flat))
        terms |= self._by_name(ENDS, positions)
        return self._end(terms, 0, matrices), self._end(terms, 1, matrices)

    def _by_name(self, names: Sequence[str], products: Tensor | None) -> dict[str, Tensor]:
        """What :meth:`products` returned, (n, w) of each group."""
        read = [name for name in names if name in self.sizes]
        return {} if products is None else dict(zip(read, products.unbind(0)))

    def _end(self, terms: dict[str, Tensor], end: int, matrices: int) -> Tensor | None:
        position, content = terms.get(ENDS[end]), terms.get(CONTENT[end])
        if content is None:
            return None if position is None else position.expand(matrices, -1, -1)
        content = content.view(matrices, -1, content.shape[1])
        return content if position is None else content.add_(position)


def ends_and_shifts(problem: Problem) -> tuple[Tensor, Tensor, Tensor]:
    """A grid's positions above its displacements, (N + D, p), the lengths of the latter, and each
    point's index into them.
    """
    displacements, index = problem.displacements()
    lengths = torch.linalg.vector_norm(displacements, dim=-1, keepdim=True)
    return torch.cat([problem.x[0], displacements]), lengths, index
