"""InfSA over ranks.

A hop on the token graph is a ring of the ranks' keys and values, and the norm of the graph one
number over all ranks. For central queries, each sum over points becomes a sum over ranks too.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ...families.infsa.capabilities import TokenGraphWeights
from ...families.infsa.centre_kernel import CentreKernel, StreamingCentreKernel
from ...families.infsa.graph import NORMS, EdgeOptions, edge_product
from ...families.infsa.graph.token_graph import row_factor
from ...families.infsa.hops import Hops, OneHop, gained
from ...forms.own import OwnResponse
from ...integral.facts import Facts
from ...integral.problem import Problem
from ...ops.tiles import root_of
from .. import Shards, gathered, summed
from ..exchange import Exchange, register_exchange
from ..part import before_this
from .keys import add_parts, fold_ring, visible_from


@register_exchange(OneHop, TokenGraphWeights)
class OneHopInTurn(Exchange):
    """One hop: keys, values and masses go round once."""

    passes = "a ring of the ranks' keys and values each hop, and the norm"

    def respond(
        self,
        form: OneHop,
        kernel: TokenGraphWeights,
        problem: Problem,
        shards: Shards,
    ) -> Tensor:
        graph, value = _sharded_graph(
            kernel,
            problem,
            shards,
            memory=form.strategy.memory,
            backend=form.strategy.backend,
        )
        hop = graph.sum_of_hops(value, 1)
        return gained(kernel, hop, value)


@register_exchange(Hops, TokenGraphWeights)
class HopsInTurn(Exchange):
    """Several hops: keys and values go round at each."""

    passes = OneHopInTurn.passes

    def respond(
        self,
        form: Hops,
        kernel: TokenGraphWeights,
        problem: Problem,
        shards: Shards,
    ) -> Tensor:
        graph, value = _sharded_graph(
            kernel,
            problem,
            shards,
            backend=form.strategy.backend,
        )
        hops = graph.sum_of_hops(value, form.strategy.hops)
        return gained(kernel, hops, value)


class _GraphAndValue(NamedTuple):
    """The graph at this rank's tokens, and their values."""

    graph: ShardedGraph
    value: Tensor


def _sharded_graph(
    kernel: TokenGraphWeights,
    problem: Problem,
    shards: Shards,
    *,
    backend: str,
    memory: int | None = None,
) -> _GraphAndValue:
    query, key, value = kernel.tokens(problem.uy)
    dtype = torch.promote_types(query.dtype, torch.float32)
    graph = ShardedGraph(
        query=query.to(dtype),
        key=key.to(dtype),
        problem=problem,
        shards=shards,
        rules=kernel.rules(),
        backend=backend,
        memory=memory,
    )
    return _GraphAndValue(graph, value)


@register_exchange(OwnResponse, CentreKernel)
class CentresSummed(Exchange):
    """Central queries that all points share: each sum over points is summed over ranks too."""

    passes = "the kernel's own statistics"

    def refuses(
        self,
        form: OwnResponse,
        kernel: CentreKernel,
        facts: Facts,
    ) -> str | None:
        if facts.layout.causal or facts.layout.pairs:
            return "the kernel's own form needs all points in one process here"
        return None

    def respond(
        self,
        form: OwnResponse,
        kernel: CentreKernel,
        problem: Problem,
        shards: Shards,
    ) -> Tensor:
        return kernel.evaluate_with(problem, lambda x: summed(x, shards))


@register_exchange(OwnResponse, StreamingCentreKernel)
class CentresBefore(CentresSummed):
    """Central queries; in causal order, running sums that begin with those of the ranks before."""

    def refuses(
        self,
        form: OwnResponse,
        kernel: CentreKernel,
        facts: Facts,
    ) -> str | None:
        if facts.layout.pairs:
            return "the kernel's own form needs all points in one process here"
        return None

    def respond(
        self,
        form: OwnResponse,
        kernel: StreamingCentreKernel,
        problem: Problem,
        shards: Shards,
    ) -> Tensor:
        if problem.quadrature.query_time is None:
            return super().respond(form, kernel, problem, shards)

        def running(x: Tensor) -> Tensor:
            """Return sums up to each point, of this rank and of the ranks before."""
            own = x.sum(3, keepdim=True)
            return x.cumsum(3) + before_this(own, shards)

        return kernel.evaluate_stream(problem, running)


@dataclass(frozen=True, eq=False)
class ShardedGraph:
    """:class:`fredholm.families.infsa.graph.TokenGraph` at one rank's tokens.

    Attributes:
        query, key: of this rank's tokens, (B, H, n, e).
        problem: who sees whom.
        shards: the ranks.
        rules: decay, activation, norm and eps.
        backend, memory: of each product.
    """

    query: Tensor
    key: Tensor
    problem: Problem
    shards: Shards
    rules: dict[str, Any]
    backend: str
    memory: int | None

    def sum_of_hops(self, value: Tensor, hops: int) -> Tensor:
        """Return :func:`fredholm.families.infsa.graph.sum_of_hops` at this rank's tokens."""
        value = value.to(self.query.dtype)
        out, row = self._product(value, NORMS[self.rules["norm"]])
        factor = self._factor(row)[..., None]
        out = out * factor
        for _ in range(hops - 1):
            product, _ = self._product(value + out, "none")
            out = product * factor
        return out

    def _product(self, value: Tensor, statistic: str) -> tuple[Tensor, Tensor]:
        """Return the edges of this rank's queries times all values, and the size of each row."""
        mass = self.problem.quadrature.mass.to(self.query.dtype)
        weighted_value = value * mass[:, None, :, None]
        options = EdgeOptions(
            activation=self.rules["activation"],
            statistic=statistic,
            memory=self.memory,
        )

        # Masses travel only where row sizes are asked for.
        needs_mass = statistic != "none"
        tensors = [self.key, weighted_value]
        if needs_mass:
            tensors.append(mass)

        def respond(owner: int, theirs: list[Tensor]) -> tuple[Tensor, ...]:
            key, weighted, *masses = theirs
            density = visible_from(self.problem, self.shards, owner)
            key_mass = mass[:, :1]
            if needs_mass:
                key_mass = masses[0]
            return edge_product(
                self.query,
                key,
                weighted,
                key_mass,
                density,
                options,
                backend=self.backend,
            )

        # The dimension of the points in keys, values and masses.
        dims = (2, 2, 1)[: len(tensors)]
        product, row = fold_ring(
            tensors,
            dims,
            self.shards,
            respond,
            add_parts,
        )
        return product, row

    def _factor(self, row: Tensor) -> Tensor:
        """Return the factors by which the rows of a product are multiplied, (B, H, n | 1); see
        :func:`~fredholm.families.infsa.graph.token_graph.row_factor`.

        The norm in it is that of the whole graph, over the rows of all ranks: the largest of their
        sizes for ``"rows"``, else the root of the sum of their sizes times masses. In causal order
        each row has the norm of the rows up to its own.

        Args:
            row: sizes of this rank's rows, (B, H, n); see
                :func:`~fredholm.families.infsa.graph.token_graph.row_sizes`.
        """
        q = self.problem.quadrature
        rules = self.rules
        mass = q.mass.to(row.dtype)[:, None]
        causal = q.query_time is not None
        if rules["norm"] == "rows":
            # Points without mass do not count.
            row = torch.where(mass > 0, row, 0.0)
            own_largest = row.amax(-1, keepdim=True)
            largest = gathered(own_largest, self.shards)
            if not causal:
                norm = largest.amax(0)
            else:
                # Rank 0 uses an empty slice of what it received, for the sake of its backward: see
                # :class:`.Exchange`. The zero in front is the maximum over no rows.
                no_rows = torch.zeros_like(largest[:1])
                before = torch.cat([no_rows, largest[: self.shards.rank]])
                norm = torch.maximum(row.cummax(-1).values, before.amax(0))
        elif causal:
            size = mass * row
            own = size.sum(-1, keepdim=True)
            before = before_this(own, self.shards)
            norm = root_of(size.cumsum(-1) + before)
        else:
            size = mass * row
            own = size.sum(-1, keepdim=True)
            total = summed(own, self.shards)
            norm = root_of(total)

        scale = None
        if q.scale is not None:
            scale = q.scale.to(row.dtype)
        return row_factor(
            norm,
            scale,
            rules["decay"].to(row.dtype),
            rules["eps"],
        )
