"""Hidden units first against the literal evaluation of the paper's Algorithm 1, same weights."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from fredholm.domain import Domain
from fredholm.operators import ITNetOperator

from ..kit.clock import Case, Entry, no_grad


def literal(operator: ITNetOperator, u: Tensor, domain: Domain, block: int = 4) -> Tensor:
    """Algorithm 1 as it is written: the network on the full input of every pair, the kernel matrix,
    its product with u. A block of queries at a time, so that memory does not decide.
    """
    outs = []
    problem = operator.problem(u, domain)
    weights = problem.quadrature.weights()
    for start in range(0, domain.size, block):
        part = problem.rows(list(range(start, min(domain.size, start + block))))
        matrix = operator.kernel.matrix(part)
        outs.append(
            torch.einsum(
                "bhqkoi,bhki,bhqk->bhqo",
                matrix,
                part.uy,
                weights.expand(*matrix.shape[:4][:2], 1, -1),
            )
        )
    return operator._finish(torch.cat(outs, 2), problem.query, problem.real)


def hidden_first(
    points: int = 196, dim: int = 64, width: int = 128, side: int = 14
) -> Iterator[Case]:
    """d_h 64, w 128, N 196 on a 14 × 14 grid: one head, and the six heads of ITNet-S."""
    for batch, heads in ((1, 1), (4, 6)):
        torch.manual_seed(0)
        operator = ITNetOperator(dim * heads, heads, position_dim=2, width=width)
        with torch.no_grad():
            operator.kernel.weight2.add_(0.05 * torch.randn_like(operator.kernel.weight2))
        domain, u = Domain.grid(side, points // side), torch.randn(batch, points, dim * heads)
        pairs = batch * heads * points * points * 2 * width * dim  # multiply-adds of S and M
        contraction = batch * heads * points * width * dim * dim  # multiply-adds of W2
        fast, slow = no_grad(operator, u, domain), no_grad(literal, operator, u, domain)
        entries = {"hidden units first": Entry(fast, 2.0 * (pairs + contraction))}
        entries["literal"] = Entry(slow)
        note = f"B={batch} N={points} d_h={dim} H={heads} w={width}"
        yield Case(
            f"itnet forward H={heads}",
            slow,
            entries,
            tolerance=1e-3,
            note=note,
            repeats=7 if heads == 1 else 3,
        )
