"""The definition: a dense kernel matrix against a quadrature."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor


def dense_apply(
    matrix: Float[Tensor, "b h q k o i"],
    weights: Float[Tensor, "#b #h #q k"],
    signal: Float[Tensor, " b #h k i"],
) -> Float[Tensor, "b h q o"]:
    r""":math:`out_i = \sum_j w_{ij} K_{ij} u_j`, the integral as it is written.
    O(Nq·Nk·d_out·d_in).

    Args:
        matrix: kernel densities K (B, H, Nq, Nk, d_out, d_in).
        weights: quadrature weights w.
        signal: u, (B, H, Nk, d_in), or (B, 1, Nk, d_in) where every head reads all of it.

    Example:
        >>> weights, u = torch.tensor([[[[0.5, 0.5]]]]), torch.tensor([[[[1.0], [3.0]]]])
        >>> dense_apply(torch.ones(1, 1, 1, 2, 1, 1), weights, u).item()
        2.0
    """
    weighted = (weights[..., None] * signal[:, :, None]).to(matrix.dtype)
    return torch.einsum(
        "bhqkoi,bhqki->bhqo", matrix, weighted.expand(*matrix.shape[:4], matrix.shape[-1])
    )


def kernel_norm(
    matrix: Float[Tensor, "b h q k o i"], weights: Float[Tensor, "#b #h #q k"]
) -> Float[Tensor, "b h q k"]:
    """Frobenius norm of each pair's kernel times the pair's weight: how much of a query's output
    may come from a key.
    """
    return torch.linalg.matrix_norm(matrix) * weights
