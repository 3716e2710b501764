"""Rows of which each rank has a stretch, as rows of which each rank has some whole, and back."""

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
    """This rank's stretch of all rows of each matrix, (R, n), real or complex, where ``stretches``
    is each rank's n, to its share of the rows, whole, (r, N). Sends what is not its share, of all
    matrices at once; so do the gradients.
    """
    rows = [shares(len(x), shards.count) for x in matrices]
    return _Transpose.apply(shards, list(zip(stretches, rows)), False, *matrices)


def to_stretches(
    matrices: Sequence[Tensor],
    shards: Shards,
    stretches: Sequence[Sequence[int]],
    rows: Sequence[int],
) -> tuple[Tensor, ...]:
    """The inverse of :func:`to_whole`, for ``rows`` of each matrix in all: (r, N) to (R, n)."""
    all_shares = [shares(count, shards.count) for count in rows]
    return _Transpose.apply(shards, list(zip(stretches, all_shares)), True, *matrices)


Parts = tuple[Sequence[int], Sequence[int]]  # each rank's stretch of a matrix, and its rows


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
        needed = ctx.needs_input_grad[3:]  # what has no gradient asks for none
        ctx.mark_non_differentiable(*(x for x, need in zip(found, needed) if not need))
        return found

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple:
        shards, parts, back = ctx.options

        # Only the gradients that are needed are sent. The first three inputs are not tensors.
        needs = ctx.needs_input_grad[3:]
        needed_parts = [part for part, need in zip(parts, needs) if need]
        needed_grads = [grad for grad, need in zip(grads, needs) if need]
        gradients = iter(_Transpose.apply(shards, needed_parts, not back, *needed_grads))
        return None, None, None, *(next(gradients) if need else None for need in needs)


class _Pieces:
    """What of a matrix goes to each rank and comes from it."""

    def __init__(
        self, x: Tensor, rank: int, stretches: Sequence[int], rows: Sequence[int], back: bool
    ):
        self.complex, self.back = x.is_complex(), back
        x = torch.view_as_real(x.resolve_conj()) if self.complex else x[..., None]
        each = x.shape[2]
        if back:  # what comes from a rank is a block of rows, and is received where it belongs
            self.out = x.new_empty(sum(rows), stretches[rank], each)
            parts, self.received = x.split(list(stretches), 1), list(self.out.split(list(rows)))
            self.received[rank].copy_(parts[rank])
        else:
            self.out = x.new_empty(rows[rank], sum(stretches), each)
            parts = x.split(list(rows))
            self.received = [x.new_empty(rows[rank], n, each) for n in stretches]
            self.received[rank] = parts[rank]
        others = [x.new_empty(0) if r == rank else part for r, part in enumerate(parts)]
        self.send = [part.flatten() for part in others]
        self.flat = [
            x.new_empty(0) if r == rank else part.view(-1) for r, part in enumerate(self.received)
        ]

    def put_together(self) -> Tensor:
        if not self.back:
            torch.cat(self.received, 1, out=self.out)
        return torch.view_as_complex(self.out) if self.complex else self.out[..., 0]
