"""A graph's normalised adjacency as a kernel: what graph convolution does."""

from __future__ import annotations

import torch
from torch import Tensor

from ..domain import Domain
from ..errors import DomainError
from ..integral import Layout, Problem, WeightedKernel, own_parameter


class AdjacencyKernel(WeightedKernel):
    r"""One map, weighted by degrees: :math:`K(x, y) = V / \sqrt{d(x)\,d(y)}`, d(x) the mass that x
    sees.

    On ``Domain.graph(edge_index, n, measure="counting")`` d is the number of edges into a node, its
    loop included; a domain's float ``pairs`` are logarithms of edge weights. Without ``symmetric``
    K = V, a sum over neighbours.

    Args:
        value: V, the weight (d_out, dim).
        bias: (d_out,) or None.
        symmetric: divide by the degrees.

    Shape: u (B, N, dim) to (B, N, d_out).

    Cost: O(N²), a block of queries at a time.

    Raises:
        DomainError: queries on another domain, or an order.

    Reference: Kipf and Welling 2017, Eq. 2.

    Example:
        >>> from fredholm.operators import IntegralOperator
        >>> op = IntegralOperator(1, kernel=AdjacencyKernel(torch.ones(1, 1)), residual=False, projection=False)
        >>> graph = Domain.graph(torch.tensor([[0], [1]]), 2, measure="counting")
        >>> [[round(w, 3) for w in row] for row in op.weights(torch.ones(1, 2, 1), graph)[0, 0].tolist()]
        [[1.0, 0.0], [0.707, 0.5]]
    """

    whole = True
    reads_query = False

    def __init__(self, value: Tensor, bias: Tensor | None = None, *, symmetric: bool = True):
        super().__init__(1, value.shape[1], value.shape[0])
        self.value, self.symmetric = own_parameter(value), symmetric
        self.bias = None if bias is None else own_parameter(bias)

    def check(self, layout: Layout) -> None:
        if layout.given or layout.causal:
            what = "queries on another domain" if layout.given else "an order"
            raise DomainError(
                f"AdjacencyKernel weighs by degrees within one graph, got {what}; pass one domain "
                "without it"
            )

    def default_domain(self, n: int, *, device: torch.device, dtype: torch.dtype) -> Domain:
        return Domain.line(n, measure="counting", device=device, dtype=dtype)

    def value_map(self) -> Tensor:
        return self.value[None]

    def offset(self, problem: Problem) -> Tensor | None:
        return None if self.bias is None else self.bias.view(1, 1, 1, -1)

    def weights(self, problem: Problem) -> Tensor:
        everyone = (problem.whole or problem).quadrature.weights()
        degree = everyone.expand(-1, -1, problem.uy.shape[2], -1).sum(-1).to(problem.uy.dtype)
        seen = degree > 0
        root = torch.where(seen, torch.where(seen, degree, 1.0).rsqrt(), 0.0)
        if not self.symmetric:
            root = torch.ones_like(degree)
        of_query = root if problem.index is None else root.index_select(2, problem.index)
        return of_query[..., None] * root[:, :, None]
