"""Hidden units are integrated before the linear readout, a block of queries at a time."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..contract import Kernel, Memory
from ..problem import Problem
from ..strategy import Exact
from .blocks import by_query_blocks
from .keys import KeyForm


class HiddenBlocks(KeyForm):
    """The readout commutes with the integral, so that no kernel matrix is formed: O(N²·w·d) time,
    memory of one block.
    """

    word = Exact
    strategy: Exact
    name = "hidden units by query block"
    reason = "the last layer is linear, so hidden units are integrated first"

    def integrate(self, kernel: Kernel, problem: Problem, keys: Memory) -> Tensor:
        width: int = getattr(kernel, "width", 64)
        return by_query_blocks(_block, kernel, problem, width, self.strategy.memory)


def _block(kernel: Any, problem: Problem) -> Tensor:
    p, signal = problem, problem.uy
    weights = p.quadrature.weights().to(signal.dtype)
    x, y = p.x[:, None, :, None], p.y[:, None, None, :]
    hidden = kernel.hidden(x, y, p.ux[:, :, :, None], signal[:, :, None, :])
    readout, bias = kernel.readout()
    # Hidden units times signal, summed over the keys first: the readout, d_out times as wide, then
    # meets one moment per query instead of every pair.
    moment = torch.einsum("bhqkw,bhqki->bhqwi", hidden, weights[..., None] * signal[:, :, None])
    out = torch.einsum("bhqwi,hoiw->bhqo", moment, readout)
    if bias is not None:
        weights = weights.expand(signal.shape[0], -1, -1, -1)
        total = torch.einsum("bhqk,bhki->bhqi", weights, signal)
        out = out + torch.einsum("hoi,bhqi->bhqo", bias, total)
    return out
