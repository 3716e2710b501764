"""Pure InfSA under the strategies of more than one hop, each compared with its dense series."""

from __future__ import annotations

import torch

from fredholm.operators import InfSA, Neumann, Resolvent

from ..cases import DIM, HEADS, GraphCase


class Walks(InfSA):
    """Its definition is the dense series of its strategy, not one hop."""

    def dense(self, u, domain=None, *, query=None, query_domain=None):
        problem = self.problem(u, domain, query=query, query_domain=query_domain)
        query, valid = problem.query, problem.real
        graph = self.kernel.weights(problem) * problem.quadrature.weights()
        value = self.kernel.tokens(problem.uy)[2]
        if isinstance(self.strategy, Neumann):
            powers = [torch.linalg.matrix_power(graph, t) for t in range(1, self.strategy.hops + 1)]
            return self._finish(sum(powers) @ value, query, valid)
        return self._finish(
            torch.linalg.solve(torch.eye(graph.shape[-1]).to(graph) - graph, graph @ value),
            query,
            valid,
        )


class WalksCase(GraphCase):
    """``traced``: how often a resolvent iterates depends on values, so that it is eager only."""

    def __init__(self, label: str, strategy, **options):
        super().__init__("infsa", label, **options)
        self.strategy = strategy
        self.traced = not isinstance(strategy, Resolvent)

    def operator(self):
        torch.manual_seed(1)
        operator = Walks(DIM, HEADS, strategy=self.strategy, **self.options).double()
        with torch.no_grad():
            for parameter in operator.parameters():
                parameter.add_(0.3 * torch.randn_like(parameter))
        return operator


CASES = [
    WalksCase("infsa-neumann", Neumann(hops=3), bias=True),
    WalksCase("infsa-resolvent", Resolvent(tol=1e-13), learned_decay=True),
    WalksCase("infsa-resolvent-gmres", Resolvent(tol=1e-13, method="gmres"), norm="rows"),
]
