"""Hops on a token graph whose tokens are in shards: each product is a ring of the ranks' keys and
values, and the graph's norm is one number over all ranks.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ...distributed import Shards, gathered, summed
from ...distributed.part import before_this
from ...domain import Domain
from ...integral import Exchange, Problem, fold_ring, mass_rows, sums, visible_from
from ...ops.tiles import root_of
from .graph import NORMS, edge_product
from .graph.token_graph import row_factor


@dataclass(frozen=True, eq=False)
class ShardedGraph:
    """:class:`.TokenGraph` at one rank's tokens.

    Attributes:
        query, key: of this rank's tokens, (B, H, n, e).
        problem: who sees whom.
        shards: the ranks.
        rules: decay, activation, norm and eps.
        options: of each product: memory, backend.
    """

    query: Tensor
    key: Tensor
    problem: Problem
    shards: Shards
    rules: dict[str, Any]
    options: dict[str, Any]

    def sum_of_hops(self, value: Tensor, hops: int) -> Tensor:
        """:func:`.sum_of_hops` at this rank's tokens."""
        value = value.to(self.query.dtype)
        out, row = self._product(value, NORMS[self.rules["norm"]])
        factor = self._factor(row)[..., None]
        out = out * factor
        for _ in range(hops - 1):
            out = self._product(value + out, "none")[0] * factor
        return out

    def _product(self, value: Tensor, statistic: str) -> tuple[Tensor, Tensor]:
        """Edges from this rank's queries times all values, and the size of every row."""
        mass = self.problem.quadrature.mass.to(self.query.dtype)
        massive = value * mass[:, None, :, None]

        def respond(owner: int, theirs: list[Tensor]) -> tuple[Tensor, ...]:
            density = visible_from(self.problem, self.shards, owner)
            return edge_product(
                self.query,
                theirs[0],
                theirs[1],
                theirs[2] if statistic != "none" else mass[:, :1],
                density,
                activation=self.rules["activation"],
                statistic=statistic,
                **self.options,
            )

        tensors = [self.key, massive] + ([mass] if statistic != "none" else [])
        parts = fold_ring(tensors, (2, 2, 1)[: len(tensors)], self.shards, respond, sums)
        return parts[0], parts[1]

    def _factor(self, row: Tensor) -> Tensor:
        """The rows' factors from their sizes, by the norm over all ranks, or of each prefix."""
        q, rules = self.problem.quadrature, self.rules
        weight, causal = q.mass.to(row.dtype)[:, None], q.query_time is not None
        if rules["norm"] == "rows":
            row = torch.where(weight > 0, row, 0.0)
            every = gathered(row.amax(-1, keepdim=True), self.shards)
            if not causal:
                norm = every.amax(0)
            else:
                # an empty slice too: what a rank leaves out of its graph, it would not send back
                before = torch.cat([torch.zeros_like(every[:1]), every[: self.shards.rank]])
                norm = torch.maximum(row.cummax(-1).values, before.amax(0))
        elif causal:
            total = weight * row
            before = before_this(total.sum(-1, keepdim=True), self.shards)
            norm = root_of(total.cumsum(-1) + before)
        else:
            norm = root_of(summed((weight * row).sum(-1, keepdim=True), self.shards))
        scale = None if q.scale is None else q.scale.to(row.dtype)
        return row_factor(norm, scale, rules["decay"].to(row.dtype), rules["eps"])


def hops_between(
    kernel: Any, problem: Problem, shards: Shards, hops: int, **options: Any
) -> tuple[Tensor, Tensor]:
    """The sum over hops at this rank's tokens, and their values."""
    query, key, value = kernel.tokens(problem.uy)
    dtype = torch.promote_types(query.dtype, torch.float32)
    graph = ShardedGraph(query.to(dtype), key.to(dtype), problem, shards, kernel.rules(), options)
    return graph.sum_of_hops(value, hops), value


def hops_sent(kernel: Any, domain: Domain, batch: int, hops: int) -> Exchange:
    """What :func:`hops_between` sends: keys and values once a hop, masses once, and the norm."""
    shards = domain.shards
    assert shards is not None
    point = batch * kernel.heads * (kernel.width + kernel.d_out)
    others, norm = shards.count - 1, batch * kernel.heads
    if domain.causal or kernel.rules()["norm"] == "rows":
        norm *= others
    numbers = others * shards.filled.size * (hops * point + mass_rows(domain)) + norm
    return Exchange("a ring of the ranks' keys and values each hop, and the norm", numbers)
