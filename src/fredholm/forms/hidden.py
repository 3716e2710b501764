"""Hidden units are integrated before the linear readout, a block of queries at a time."""

from __future__ import annotations

import torch
from torch import Tensor

from ..integral.capabilities import HiddenReadout
from ..integral.contract import Memory
from ..integral.problem import Problem
from ..integral.strategy import Exact
from ..ops.backend import at_least_single, promoted
from .blocks import by_query_blocks
from .keys import KeyRing


class HiddenBlocks(KeyRing):
    """The readout commutes with the integral, so that no kernel matrix is formed: O(N²·w·d) time,
    memory of one block.
    """

    word = Exact
    strategy: Exact
    name = "hidden units by query block"
    reason = "the last layer is linear, so hidden units are integrated first"

    def integrate(
        self,
        kernel: HiddenReadout,
        problem: Problem,
        keys: Memory,
    ) -> Tensor:
        width: int = getattr(kernel, "width", 64)
        return by_query_blocks(
            _block,
            kernel,
            problem,
            width,
            self.strategy.memory,
        )


def _block(kernel: HiddenReadout, problem: Problem) -> Tensor:
    """Return ∫ K u dμ for all queries of a problem, with hidden units (B, H, Nq, Nk, w)."""
    x = problem.x[:, None, :, None]
    y = problem.y[:, None, None, :]
    ux = problem.ux[:, :, :, None]
    uy = problem.uy[:, :, None, :]
    hidden = kernel.hidden(x, y, ux, uy)
    readout, bias = kernel.readout()

    # Hidden units of positions stay in float32 at least, whatever the features are.
    dtype = promoted(hidden.dtype, at_least_single(problem.uy.dtype))
    signal = problem.uy.to(dtype)
    weights = problem.quadrature.weights().to(dtype)

    # Hidden units times signal, summed over the keys first: the readout, d_out times as wide, then
    # meets one moment per query instead of every pair.
    weighted = weights[..., None] * signal[:, :, None]
    moment = torch.einsum("bhqkw,bhqki->bhqwi", hidden.to(dtype), weighted)
    out = torch.einsum("bhqwi,hoiw->bhqo", moment, readout.to(dtype))
    if bias is not None:
        weights = weights.expand(signal.shape[0], -1, -1, -1)
        total = torch.einsum("bhqk,bhki->bhqi", weights, signal)
        out = out + torch.einsum("hoi,bhqi->bhqo", bias.to(dtype), total)
    return out
