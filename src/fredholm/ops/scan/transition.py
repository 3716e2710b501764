"""Recurrences whose state is multiplied by a matrix at each step."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor


def transition_scan(
    transition: Float[Tensor, "#b #n s s"],
    drive: Float[Tensor, "b n s"],
) -> Float[Tensor, "b n s"]:
    r"""Return all states of :math:`h_t = A_t h_{t-1} + b_t` from :math:`h_{-1} = 0`.

    Args:
        transition: A; a batch or a time of size 1 is shared by all.
        drive: b.

    Cost: N steps of O(S²).

    Example:
        >>> matrix = torch.tensor([[0.0, 1.0], [0.0, 0.0]])
        >>> transition_scan(matrix[None, None], matrix[None]).tolist()
        [[[0.0, 1.0], [1.0, 0.0]]]
    """
    drives = drive.unbind(1)
    # A state is a row here, and A h becomes h Aᵀ.
    transposed = transition.mT.expand(-1, drive.shape[1], -1, -1).unbind(1)

    # h_0 = b_0, because nothing comes before the first point.
    state = drives[0]
    states = [state]
    for t in range(1, len(drives)):
        state = (state[:, None] @ transposed[t])[:, 0] + drives[t]
        states.append(state)
    return torch.stack(states, 1)


def krylov(
    transition: Float[Tensor, "s s"],
    start: Float[Tensor, "s c"],
    n: int,
) -> Float[Tensor, "n s c"]:
    """Return the Krylov sequence A^k X for k = 0 … n - 1.

    Args:
        transition: A.
        start: X.
        n: the number of powers.

    Cost: log₂ n products of matrices by doubling, O(n·S·c) memory.

    Example:
        >>> krylov(torch.tensor([[2.0]]), torch.tensor([[1.0]]), 5).flatten().tolist()
        [1.0, 2.0, 4.0, 8.0, 16.0]
    """
    powers = start[None]
    power = transition
    while powers.shape[0] < n:
        # ``powers`` holds m = 2^i of the matrices and ``power`` is A^m: the next m follow from it.
        powers = torch.cat([powers, power @ powers])
        if powers.shape[0] < n:
            power = power @ power
    return powers[:n]
