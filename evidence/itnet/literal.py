"""The library's exact form against a literal evaluation of the paper's Algorithm 1.

The library sums hidden units over the keys and applies the readout last. Both use the same weights.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from fredholm.domain import Domain
from fredholm.operators import ITNetOperator

from ..kit.clock import Case, Entry, no_grad


def literal(operator: ITNetOperator, u: Tensor, domain: Domain, block: int = 4) -> Tensor:
    """Evaluate Algorithm 1 as it is written.

    It applies the network to the full input of every pair, which gives the kernel matrix, and
    multiplies it by u. It takes a block of queries at a time, since storing the matrices of all
    pairs would make it slower.
    """
    outs = []
    problem = operator.problem(u, domain)
    weights = problem.quadrature.weights()
    for start in range(0, domain.size, block):
        part = problem.rows(list(range(start, min(domain.size, start + block))))
        # One d × d matrix per pair: (batch, heads, queries, keys, out, in).
        matrix = operator.kernel.matrix(part)
        batch, heads = matrix.shape[:2]
        masses = weights.expand(batch, heads, 1, -1)
        outs.append(torch.einsum("bhqkoi,bhki,bhqk->bhqo", matrix, part.uy, masses))
    return operator._finish(torch.cat(outs, 2), problem.query, problem.real)


def hidden_first(
    points: int = 196, dim: int = 64, width: int = 128, side: int = 14
) -> Iterator[Case]:
    """Yield the cases: one head, and the six heads of ITNet-S.

    By default d_h = 64, w = 128, and N = 196 points lie on a 14 × 14 grid.
    """
    for batch, heads in ((1, 1), (4, 6)):
        torch.manual_seed(0)
        operator = ITNetOperator(dim * heads, heads, position_dim=2, width=width)
        with torch.no_grad():
            operator.kernel.weight2.add_(0.05 * torch.randn_like(operator.kernel.weight2))
        domain, u = Domain.grid(side, points // side), torch.randn(batch, points, dim * heads)
        # Multiply-adds of S and M (all pairs), and of W2 (all points).
        pairs = batch * heads * points * points * 2 * width * dim
        contraction = batch * heads * points * width * dim * dim
        fast, slow = no_grad(operator, u, domain), no_grad(literal, operator, u, domain)
        entries = {"hidden units first": Entry(fast, 2.0 * (pairs + contraction))}
        entries["literal"] = Entry(slow)
        note = f"B={batch} N={points} d_h={dim} H={heads} w={width}"
        repeats = 7 if heads == 1 else 3
        name = f"itnet forward H={heads}"
        yield Case(name, slow, entries, tolerance=1e-3, note=note, repeats=repeats)
