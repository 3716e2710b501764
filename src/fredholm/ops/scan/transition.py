"""Recurrences whose state is mixed by a matrix."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor


def transition_scan(
    transition: Float[Tensor, "#b #n s s"], drive: Float[Tensor, "b n s"]
) -> Float[Tensor, "b n s"]:
    r"""All states of :math:`h_t = A_t h_{t-1} + b_t` from :math:`h_{-1} = 0`. N steps of O(S²).

    Example:
        >>> matrix = torch.tensor([[0.0, 1.0], [0.0, 0.0]])
        >>> transition_scan(matrix[None, None], matrix[None]).tolist()
        [[[0.0, 1.0], [1.0, 0.0]]]
    """
    steps = drive.unbind(1)
    matrices = transition.mT.expand(-1, drive.shape[1], -1, -1).unbind(1)
    state, states = steps[0], [steps[0]]
    for t in range(1, len(steps)):
        state = (state[:, None] @ matrices[t])[:, 0] + steps[t]
        states.append(state)
    return torch.stack(states, 1)


def krylov(
    transition: Float[Tensor, "s s"], start: Float[Tensor, "s c"], n: int
) -> Float[Tensor, "n s c"]:
    """A^k X for k = 0 ... n - 1, by doubling: log₂ n products. Memory O(n·S·c).

    Example:
        >>> krylov(torch.tensor([[2.0]]), torch.tensor([[1.0]]), 5).flatten().tolist()
        [1.0, 2.0, 4.0, 8.0, 16.0]
    """
    powers, power = start[None], transition
    while powers.shape[0] < n:
        powers = torch.cat([powers, power @ powers])
        power = power @ power if powers.shape[0] < n else power
    return powers[:n]
