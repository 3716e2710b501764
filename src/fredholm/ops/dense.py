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
    r"""Return the integral as it is written, :math:`out_i = \sum_j w_{ij} K_{ij} u_j`.

    Args:
        matrix: kernel densities K (B, H, Nq, Nk, d_out, d_in).
        weights: quadrature weights w (1 | B, 1 | H, 1 | Nq, Nk).
        signal: u, (B, H, Nk, d_in), or (B, 1, Nk, d_in) where every head reads all channels.

    Returns:
        (B, H, Nq, d_out) in the dtype of the matrix.

    Cost: O(Nq·Nk·d_out·d_in).

    Example:
        >>> weights, u = torch.tensor([[[[0.5, 0.5]]]]), torch.tensor([[[[1.0], [3.0]]]])
        >>> dense_apply(torch.ones(1, 1, 1, 2, 1, 1), weights, u).item()
        2.0
    """
    # w_ij u_j first, (B, H, Nq, Nk, d_in): it is d_out times smaller than w_ij K_ij.
    weighted = (weights[..., None] * signal[:, :, None]).to(matrix.dtype)
    *pairs, _, inputs = matrix.shape
    weighted = weighted.expand(*pairs, inputs)
    return torch.einsum("bhqkoi,bhqki->bhqo", matrix, weighted)


def kernel_norm(
    matrix: Float[Tensor, "b h q k o i"],
    weights: Float[Tensor, "#b #h #q k"],
) -> Float[Tensor, "b h q k"]:
    r"""Return :math:`w_{ij} \|K_{ij}\|_F`: a bound on the part of output i that comes from key j,
    for a signal of norm 1.

    Example:
        >>> matrix = torch.tensor([3.0, 4.0]).view(1, 1, 1, 1, 1, 2)
        >>> kernel_norm(matrix, torch.full((1, 1, 1, 1), 0.5)).item()
        2.5
    """
    return torch.linalg.matrix_norm(matrix) * weights
