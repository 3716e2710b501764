"""One direction of one recurrent layer: the order in which it meets the points, and its responses
in theirs.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from . import Trajectory, pull, push


@dataclass(frozen=True, eq=False)
class Order:
    """Indices that bring points into the order of a direction, and back again; (B | 1, N), or None
    where it meets them as they come.
    """

    there: Int[Tensor, "#b n"] | None = None
    back: Int[Tensor, "#b n"] | None = None

    @classmethod
    def of(
        cls,
        valid: Bool[Tensor, "b n"] | None,
        n: int,
        *,
        reverse: bool,
        device: torch.device,
    ) -> Order:
        """Return the order forwards or backwards over the real points, padding behind them."""
        if valid is None and not reverse:
            return cls()
        if valid is None:
            from_last = torch.arange(n - 1, -1, -1, device=device)
            there = from_last[None]
        # Stable sorts by "is padding" keep the order of the real points.
        elif reverse:
            padding = (~valid.flip(1)).int()
            from_last = padding.argsort(dim=1, stable=True)
            there = n - 1 - from_last
        else:
            padding = (~valid).int()
            there = padding.argsort(dim=1, stable=True)
        back = there.argsort(1)
        return cls(there, back)


def take(x: Tensor, index: Tensor | None, dim: int = 1) -> Tensor:
    """Return x (B, ...) with its dimension ``dim`` in the order of ``index`` (1 | B, N), one order
    per sample or the same for all; None leaves x as it is.
    """
    if index is None:
        return x
    shape = [1] * x.dim()
    shape[0], shape[dim] = index.shape
    index = index.view(shape)
    return torch.take_along_dim(x, index, dim)


@dataclass(frozen=True, eq=False)
class Line:
    """One direction of one layer along its trajectory, with the state before its first point."""

    line: Trajectory
    order: Order
    start: tuple[Tensor, ...]

    def push(self, x: Float[Tensor, "b n d"] | None) -> Float[Tensor, "b n m"]:
        """Return the affine response to x, points as they come. The response to None is the
        offset.
        """
        if x is not None:
            x = take(x, self.order.there)
        # An LSTM's state is its cell, which comes last; its output is h.
        state = self.start[-1]
        output = self.start[0]
        response, _ = push(self.line, x, (state, output))
        return take(response, self.order.back)

    def pull(self, left: Float[Tensor, "b q n o m"]) -> Float[Tensor, "b q n o d"]:
        """Return rows of the kernel under the factors ``left``, points as they come."""
        left = take(left, self.order.there, 2)
        rows = pull(self.line, left)
        return take(rows, self.order.back, 2)
