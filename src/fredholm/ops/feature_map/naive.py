"""A bank of scalar networks, literally: every hidden unit at every scalar."""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from ..tiles import find_activation


class Bank(NamedTuple):
    r"""S sets of G networks 1 → h → C each, L = G·C channels per set; channel g·C + c is output c
    of network g.

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
        return self.shift.shape[1] * self.shift.shape[2]


def scalar_bank_naive(
    u: Float[Tensor, "r s t"], bank: Bank, *, activation: str = "relu", nonneg: bool = True
) -> Float[Tensor, "r s l t"]:
    r""":math:`\psi_l(u) = \sum_j R_{lj}\,\sigma(w_{lj} u + b_{lj}) + c_l`, set s of the bank at
    ``u[:, s]``, and a ReLU if ``nonneg``: the oracle of
    :func:`fredholm.ops.feature_map.scalar_bank`. O(T·G·h) memory.
    """
    weight, bias, readout, shift = bank
    hidden = find_activation(activation).function(
        u[:, :, None, None] * weight[..., None] + bias[..., None]
    )
    out = (torch.einsum("rsght,sgch->rsgct", hidden, readout) + shift[..., None]).flatten(2, 3)
    return torch.relu(out) if nonneg else out
