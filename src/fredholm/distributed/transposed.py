"""Columns of all rows on each rank, turned into complete rows, and back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from .collectives import deliver_into
from .shards import Shards, shares


def to_whole(
    matrices: Sequence[Tensor], shards: Shards, stretches: Sequence[Sequence[int]]
) -> tuple[Tensor, ...]:
    """Turn this rank's stretch of all rows into its share of complete rows.

    Args:
        matrices: each (R, n), real or complex.
        shards: the ranks.
        stretches: for each matrix, n of every rank.

    Returns:
        matrices (r, N), where r is this rank's share of the R rows.

    One message to each other rank carries what it needs of all matrices. The gradients are sent in
    the same way.
    """
    rows = [shares(len(x), shards.count) for x in matrices]
    return _Transpose.apply(shards, list(zip(stretches, rows)), False, *matrices)


def to_stretches(
    matrices: Sequence[Tensor],
    shards: Shards,
    stretches: Sequence[Sequence[int]],
    rows: Sequence[int],
) -> tuple[Tensor, ...]:
    """Turn shares of complete rows, (r, N), back into stretches of all rows, (R, n).

    The inverse of :func:`to_whole`. ``rows`` is R of each matrix.
    """
    all_shares = [shares(count, shards.count) for count in rows]
    return _Transpose.apply(shards, list(zip(stretches, all_shares)), True, *matrices)


Parts = tuple[Sequence[int], Sequence[int]]
"""For each rank the number of a matrix's columns and of its rows: its stretch and its share."""


class _Transpose(torch.autograd.Function):
    """:func:`to_whole`, or with ``back`` its inverse :func:`to_stretches`. Each is the gradient of
    the other.
    """

    @staticmethod
    def forward(
        ctx: Any, shards: Shards, parts: Sequence[Parts], back: bool, *matrices: Tensor
    ) -> tuple[Tensor, ...]:
        ctx.options = shards, parts, back
        prepared = [_Pieces(x, shards.rank, *part, back) for x, part in zip(matrices, parts)]
        deliver_into([(x.send, x.flat) for x in prepared], shards)
        found = tuple(x.put_together() for x in prepared)

        # The first three inputs are not tensors.
        needs = ctx.needs_input_grad[3:]
        ctx.mark_non_differentiable(*(x for x, need in zip(found, needs) if not need))
        return found

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple:
        shards, parts, back = ctx.options

        # Only the gradients that are needed are sent. The first three inputs are not tensors.
        needs = ctx.needs_input_grad[3:]
        needed_parts = [part for part, need in zip(parts, needs) if need]
        needed_grads = [grad for grad, need in zip(grads, needs) if need]
        found = iter(_Transpose.apply(shards, needed_parts, not back, *needed_grads))

        gradients: list[Tensor | None] = [None] * len(needs)
        for position, need in enumerate(needs):
            if need:
                gradients[position] = next(found)
        return None, None, None, *gradients


class _Pieces:
    """The pieces of one matrix that go to each rank, and the places for those that arrive.

    Attributes:
        send: flat, one per rank.
        flat: flat views of the places where each rank's piece will lie. Both are empty for this
            rank, whose own piece is in place from the start.
    """

    def __init__(
        self, x: Tensor, rank: int, stretches: Sequence[int], rows: Sequence[int], back: bool
    ):
        self.is_complex = x.is_complex()
        self.back = back

        # gloo sends real numbers only: complex ones are pairs on a third dimension.
        if self.is_complex:
            x = torch.view_as_real(x.resolve_conj())
        else:
            x = x[..., None]
        depth = x.shape[2]

        if back:
            # What arrives from a rank is a block of rows, and is received where it belongs.
            self.out = x.new_empty(sum(rows), stretches[rank], depth)
            parts = x.split(list(stretches), 1)
            self.received = list(self.out.split(list(rows)))
            self.received[rank].copy_(parts[rank])
        else:
            # What arrives is a block of columns, which is not contiguous in the result: it is
            # received on the side and copied by put_together.
            self.out = x.new_empty(rows[rank], sum(stretches), depth)
            parts = x.split(list(rows))
            self.received = [x.new_empty(rows[rank], n, depth) for n in stretches]
            self.received[rank] = parts[rank]

        nothing = x.new_empty(0)
        self.send = [nothing] * len(parts)
        self.flat = [nothing] * len(parts)
        for r, (leaving, arriving) in enumerate(zip(parts, self.received)):
            if r != rank:
                self.send[r] = leaving.flatten()
                self.flat[r] = arriving.view(-1)

    def put_together(self) -> Tensor:
        """Return the matrix once all pieces have arrived."""
        if not self.back:
            torch.cat(self.received, 1, out=self.out)
        if self.is_complex:
            return torch.view_as_complex(self.out)
        return self.out[..., 0]
