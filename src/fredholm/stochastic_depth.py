"""Stochastic depth, which residual blocks and the terms of an evolution share."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from .distributed import Shards, summed
from .errors import OptionError


class StochasticDepth(nn.Module):
    """Drop a whole residual branch for a sample with probability ``rate`` in training, and rescale
    the others.

    Reference: Huang et al. 2016.

    Example:
        >>> StochasticDepth(0.5).eval()(torch.ones(2, 3)).sum().item()
        6.0
    """

    def __init__(self, rate: float):
        super().__init__()
        if not 0.0 <= rate < 1.0:
            raise OptionError(f"expected a drop rate in [0, 1), got {rate}")
        self.rate = rate

    def forward(self, branch: Tensor, shards: Shards | None = None) -> Tensor:
        """Return the branch with some samples dropped. ``shards`` are the ranks that hold the
        points of a sample: all follow the draws of the first.
        """
        if not self.training or self.rate == 0.0:
            return branch
        others = [1] * (branch.dim() - 1)
        each = torch.rand(branch.shape[0], *others, device=branch.device)
        kept = (each >= self.rate).to(branch.dtype)
        if shards is not None:
            # A sum to which only the first rank contributes: every rank draws all the same, so
            # that the order of random numbers does not depend on the rank.
            if shards.rank > 0:
                kept = torch.zeros_like(kept)
            kept = summed(kept, shards)
        return branch * kept / (1.0 - self.rate)

    def extra_repr(self) -> str:
        return f"rate={self.rate}"
