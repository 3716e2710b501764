"""A matrix of which each rank has rows, as one of which each has columns, and back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from .collectives import deliver
from .shards import Shards


def shares(total: int, count: int) -> tuple[int, ...]:
    """``total`` things over ``count`` ranks as evenly as can be; a rank may get none.

    Example:
        >>> shares(3, 2), shares(1, 3)
        ((2, 1), (1, 0, 0))
    """
    return tuple(total // count + (r < total % count) for r in range(count))


def to_columns(x: Tensor, shards: Shards, rows: Sequence[int]) -> Tensor:
    """Rows of this rank (n, C), real or complex, ``rows`` of each rank, to all rows of its share of
    the columns, (N, c). Sends what is not its share; so does the gradient.
    """
    return _Transpose.apply(x, shards, tuple(rows), shares(x.shape[1], shards.count), False)


def to_rows(x: Tensor, shards: Shards, rows: Sequence[int], columns: int) -> Tensor:
    """The inverse of :func:`to_columns`, for ``columns`` of them in all: (N, c) to (n, C)."""
    return _Transpose.apply(x, shards, tuple(rows), shares(columns, shards.count), True)


def transposed_numbers(
    shards: Shards, rows: Sequence[int], columns: int, back: bool, each: int = 1
) -> int:
    """What :func:`to_columns`, or ``back`` from there, sends where an entry is ``each`` numbers."""
    r, share = shards.rank, shares(columns, shards.count)
    others = (sum(rows) - rows[r]) * share[r] if back else rows[r] * (columns - share[r])
    return each * others


class _Transpose(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        shards: Shards,
        rows: tuple[int, ...],
        columns: tuple[int, ...],
        back: bool,
    ) -> Tensor:
        ctx.options = shards, rows, columns, not back
        n, c = rows[shards.rank], columns[shards.rank]
        parts = x.split(rows) if back else x.split(columns, 1)
        shapes = [(n, k) for k in columns] if back else [(m, c) for m in rows]
        each = 2 if x.is_complex() else 1
        flat = [
            (torch.view_as_real(part.resolve_conj()) if x.is_complex() else part).flatten()
            for part in parts
        ]
        received = deliver(flat, [each * a * b for a, b in shapes], shards)
        blocks = [
            torch.view_as_complex(part.view(*shape, 2)) if x.is_complex() else part.view(shape)
            for part, shape in zip(received, shapes)
        ]
        return torch.cat(blocks, 1 if back else 0)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple:
        return _Transpose.apply(grads[0], *ctx.options), None, None, None, None
