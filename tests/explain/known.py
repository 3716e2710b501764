"""Operators with known kernels that use the contract alone, without IntegralOperator and Kernel."""

from __future__ import annotations

import torch
from torch import Tensor

from fredholm import Domain


class KnownOperator:
    """One head with kernel K_ij = f(x_i, y_j, u_i, u_j) M, with a 2 × 2 matrix M of Frobenius norm 2.

    Weights are |f| · measure.
    """

    has_weights = True

    def __init__(self, function):
        self.function = function

    def scalar(self, u, domain, rows) -> Tensor:
        rows = list(range(domain.size)) if rows is None else rows
        x = domain.positions.reshape(-1, domain.size, domain.dim)
        value = self.function(x[:, rows, None], x[:, None], u[:, rows, None], u[:, None])
        return value.expand(len(u), len(rows), domain.size)[:, None]

    def kernel_matrix(self, u, domain=None, *, query=None, query_domain=None, rows=None) -> Tensor:
        return self.scalar(u, domain, rows)[..., None, None] * torch.tensor(
            [[1.0, 1.0], [-1.0, 1.0]]
        )

    def weights(self, u, domain=None, *, query=None, query_domain=None, rows=None) -> Tensor:
        return self.scalar(u, domain, rows).abs() * domain.quadrature().weights(rows)

    def influence(self, u, domain=None, *, query=None, query_domain=None, rows=None) -> Tensor:
        return 2 * self.weights(u, domain, rows=rows)


def distance_kernel(x, y, u, v):
    return torch.exp(-3 * (x - y).norm(dim=-1))


def content_kernel(x, y, u, v):
    return (u * v).sum(-1)


POSITION = KnownOperator(distance_kernel)
CONTENT = KnownOperator(content_kernel)
GRID = Domain.grid(5, 5)
