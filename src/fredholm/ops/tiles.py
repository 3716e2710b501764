"""Tools of the ops that go over pairs tile by tile: spans of an axis, groups of matrices, scratch
memory.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

Span = slice


def cut(x: Tensor | None, h: Span, b: Span) -> Any:
    """Heads ``h`` and batch entries ``b`` of ``x``, whose dimensions of size 1 are shared."""
    if x is None:
        return None
    return x[h if x.shape[0] > 1 else slice(None), b if x.shape[1] > 1 else slice(None)]


def spans(start: int, stop: int, size: int) -> list[Span]:
    """``start`` to ``stop`` in the fewest nearly equal pieces of at most ``size``."""
    n = stop - start
    count = -(-n // max(size, 1))
    return [slice(start + i * n // count, start + (i + 1) * n // count) for i in range(count)]


def groups(heads: int, batch: int, limit: int, head_limit: int) -> Iterator[tuple[Span, Span]]:
    """All (head, batch) pairs in groups of at most ``limit``: whole heads, or else parts of one
    head.

    A group is therefore a run of consecutive matrices, and flattening its two leading dimensions
    copies nothing.
    """
    if limit >= batch:
        for h in spans(0, heads, max(1, min(limit // max(batch, 1), head_limit))):
            yield h, slice(0, batch)
    else:
        for i in range(heads):
            for b in spans(0, batch, limit):
                yield slice(i, i + 1), b


class Scratch:
    """A buffer reused by every tile, so that its memory is paged in once."""

    def __init__(self, like: Tensor, size: int):
        self.buffer = like.new_empty(size)

    def view(self, *shape: int) -> Tensor:
        return self.buffer[: math.prod(shape)].view(shape)


def multiply_rows(out: Tensor, rows: Tensor, right: Tensor, *, beta: int) -> None:
    """``out = beta·out + rows @ right``, batched (g, m, ·).

    A single matrix is handed over as one part a thread: each thread then works on the rows that it
    also has in the elementwise passes, and a tile does not travel between the cores' caches.
    """
    parts = torch.get_num_threads() if out.device.type == "cpu" and out.shape[0] == 1 else 1
    if parts > 1 and out.shape[1] % parts == 0:
        out, rows = (t.view(parts, -1, t.shape[-1]) for t in (out, rows))
        right = right.expand(parts, -1, -1)
    out.baddbmm_(rows, right, beta=beta)
