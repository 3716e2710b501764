"""A bank of scalar networks, literally: every hidden unit at every scalar."""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from ..tiles import find_activation


class Bank(NamedTuple):
    r"""S sets of G networks 1 → h → C each, with L = G·C channels per set.

    Channel g·C + c is output c of network g.

    Attributes:
        weight, bias: of the hidden units, (S, G, h) each.
        readout, shift: of the outputs, (S, G, C, h) and (S, G, C).
    """

    weight: Tensor
    bias: Tensor
    readout: Tensor
    shift: Tensor

    @property
    def channels(self) -> int:
        """L, the number of channels per set."""
        return self.shift.shape[1] * self.shift.shape[2]


def scalar_bank_naive(
    u: Float[Tensor, "r s t"],
    bank: Bank,
    *,
    activation: str = "relu",
    nonneg: bool = True,
) -> Float[Tensor, "r s l t"]:
    r"""Return :math:`\psi_l(u) = \sum_j R_{lj}\,\sigma(w_{lj} u + b_{lj}) + c_l`, and its ReLU if
    ``nonneg``: the oracle of :func:`fredholm.ops.feature_map.scalar_bank`.

    Args:
        u: scalars; set s of the bank is applied to ``u[:, s]``.
        bank: w, b, R and c.
        activation: σ, a name in ``fredholm.ops.tiles.ACTIVATIONS``.
        nonneg: whether a ReLU follows.

    Cost: O(T·G·h·C) time, O(T·G·h) memory.

    Example:
        >>> one = torch.ones(1, 1, 1)
        >>> bank = Bank(one, -one, one[None], 0 * one)  # ReLU(u - 1)
        >>> scalar_bank_naive(torch.tensor([[[-1.0, 0.0, 2.0]]]), bank).tolist()
        [[[[0.0, 0.0, 1.0]]]]
    """
    weight, bias, readout, shift = bank
    # (R, S, G, h, T)
    before = u[:, :, None, None] * weight[..., None] + bias[..., None]
    hidden = find_activation(activation).function(before)
    out = torch.einsum("rsght,sgch->rsgct", hidden, readout) + shift[..., None]
    out = out.flatten(2, 3)
    if nonneg:
        return torch.relu(out)
    return out
