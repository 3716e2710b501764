"""Stochastic depth, which residual blocks and the terms of an evolution share."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from .distributed import Shards, summed
from .errors import OptionError


class StochasticDepth(nn.Module):
    """Drops a whole residual branch for a sample with probability ``rate`` in training, and
    rescales the kept ones.

    Reference: Huang et al. 2016.

    Example:
        >>> StochasticDepth(0.5).eval()(torch.ones(2, 3)).sum().item()
        6.0
    """

    def __init__(self, rate: float):
        super().__init__()
        if not 0.0 <= rate < 1.0:
            raise OptionError(f"a drop rate lies in [0, 1), got {rate}")
        self.rate = rate

    def forward(self, branch: Tensor, shards: Shards | None = None) -> Tensor:
        """``shards``: the ranks that have the points of a sample; what the first of them draws
        holds for all.
        """
        if not self.training or self.rate == 0.0:
            return branch
        kept = (
            torch.rand(branch.shape[0], *[1] * (branch.dim() - 1), device=branch.device)
            >= self.rate
        ).to(branch.dtype)
        if shards is not None:
            kept = summed(kept if shards.rank == 0 else torch.zeros_like(kept), shards)
        return branch * kept / (1.0 - self.rate)

    def extra_repr(self) -> str:
        return f"rate={self.rate}"
