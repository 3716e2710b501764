"""Columns of all rows on each rank, turned into complete rows, and back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from .collectives import deliver_into
from .shards import Shards, shares


def to_whole(
    matrices: Sequence[Tensor],
    shards: Shards,
    stretches: Sequence[Sequence[int]],
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
    parts = list(zip(stretches, rows))
    return _Transpose.apply(shards, parts, False, *matrices)


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
    parts = list(zip(stretches, all_shares))
    return _Transpose.apply(shards, parts, True, *matrices)


Parts = tuple[Sequence[int], Sequence[int]]
"""For each rank the number of a matrix's columns and of its rows: its stretch and its share."""


class _Transpose(torch.autograd.Function):
    """:func:`to_whole`, or with ``back`` its inverse :func:`to_stretches`. Each is the gradient of
    the other.
    """

    @staticmethod
    def forward(
        ctx: Any,
        shards: Shards,
        parts: Sequence[Parts],
        back: bool,
        *matrices: Tensor,
    ) -> tuple[Tensor, ...]:
        ctx.options = shards, parts, back
        prepared = [_Pieces(x, shards.rank, *part, back) for x, part in zip(matrices, parts)]
        messages = [(x.send, x.flat) for x in prepared]
        deliver_into(messages, shards)
        found = tuple(x.put_together() for x in prepared)

        # The first three inputs are not tensors.
        needs = ctx.needs_input_grad[3:]
        constant = [x for x, need in zip(found, needs) if not need]
        ctx.mark_non_differentiable(*constant)
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
    """One rank's buffers for the exchange of one matrix: the pieces that leave, and the memory
    that the arriving ones are written into.

    With R rows and N columns in all, this rank turns (R, n), its stretch of the columns, into
    (r, N), its share of the rows; with ``back`` it turns (r, N) into (R, n).

    Args:
        x: the matrix on this rank, real or complex.
        rank: the number of this rank.
        stretches: n of every rank, with the sum N.
        rows: r of every rank, with the sum R.
        back: the direction, see above.

    Attributes:
        out: the result, (r, N, depth) or (R, n, depth), complete after :meth:`put_together`. The
            depth is 2 for complex numbers and 1 for real ones.
        received: for each rank the block of the result that it sends.
        send: for each rank the piece that goes to it, flat.
        flat: flat views of ``received``, which messages are written into. Both are empty for this
            rank, whose own piece is copied here and needs no message.
    """

    def __init__(
        self,
        x: Tensor,
        rank: int,
        stretches: Sequence[int],
        rows: Sequence[int],
        back: bool,
    ):
        self.is_complex = x.is_complex()
        self.back = back

        # gloo sends real numbers only: complex ones are pairs on a third dimension, and real ones
        # get a third dimension of size 1, so that both take the same path.
        if self.is_complex:
            x = torch.view_as_real(x.resolve_conj())
        else:
            x = x[..., None]
        depth = x.shape[2]

        if back:
            # This rank's rows are cut by columns. A block of rows arrives from each rank. It is
            # contiguous in the result, and is received there.
            self.out = x.new_empty(sum(rows), stretches[rank], depth)
            parts = x.split(list(stretches), 1)
            self.received = list(self.out.split(list(rows)))
            self.received[rank].copy_(parts[rank])
        else:
            # This rank's columns are cut by rows. A block of columns arrives from each rank. It is
            # not contiguous in the result: it has memory of its own, and put_together copies it.
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
