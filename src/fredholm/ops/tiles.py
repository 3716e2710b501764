"""Tools of the ops that go over pairs tile by tile: spans of an axis, groups of matrices, scratch
memory, activations that overwrite a tile, distances.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from ..errors import OptionError, suggest
from .backend import followed

Span = slice
aten = torch.ops.aten


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


def rectangles(rows: int, columns: int, size: int) -> Iterator[tuple[Span, Span]]:
    """A (rows, columns) matrix in pieces of about ``size`` elements: some whole rows, or a part of
    one.
    """
    high, wide = max(1, size // max(1, columns)), min(size, max(1, columns))
    for r in range(0, rows, high):
        for c in range(0, columns, wide):
            yield slice(r, r + high), slice(c, c + wide)


class Scratch:
    """A buffer reused by every tile, so that its memory is paged in once."""

    def __init__(self, like: Tensor, size: int):
        self.buffer = like.new_empty(size)

    @classmethod
    def of(cls, buffer: Tensor) -> Scratch:
        """Memory that is there already."""
        scratch = cls.__new__(cls)
        scratch.buffer = buffer
        return scratch

    def view(self, *shape: int) -> Tensor:
        size, buffer = math.prod(shape), self.buffer
        return (buffer if size == buffer.numel() else buffer[:size]).view(shape)


KEPT = threading.local()
KEPT_BYTES = 8 << 20


@contextmanager
def kept_scratch(like: Tensor, sizes: Iterable[int]) -> Iterator[list[Scratch]]:
    """A :class:`Scratch` of each of these sizes, for as long as the context is open.

    On a processor one buffer of up to 8 MB is kept per thread and dtype: memory that the system
    hands out anew is paged in again, which for a call of milliseconds may take as long as its
    arithmetic. Nothing may hold on to a view.

    Example:
        >>> with kept_scratch(torch.ones(1), [2, 3]) as (first, second):
        ...     first.view(2).shape, second.view(3, 1).shape
        (torch.Size([2]), torch.Size([3, 1]))
    """
    sizes = [*sizes]
    total = sum(sizes)
    kept: dict[torch.dtype, Tensor] = {}
    if like.device.type == "cpu":
        kept = KEPT.__dict__.setdefault("buffers", kept)
    buffer = kept.pop(like.dtype, None)
    if buffer is None or buffer.numel() < total:
        with torch.inference_mode(False):  # an inference tensor could not be written to elsewhere
            buffer = torch.empty(total, dtype=like.dtype, device=like.device)
    yield [Scratch.of(part) for part in torch.split_with_sizes(buffer[:total], sizes)]
    if buffer.numel() * buffer.element_size() <= KEPT_BYTES:
        kept[like.dtype] = buffer


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


# --- activations ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Activation:
    """A pointwise nonlinearity.

    Attributes:
        function: the nonlinearity, differentiable by autograd.
        apply_: overwrites its argument with the nonlinearity's value.
        gradient_: ``gradient_(grad, s)`` overwrites ``grad`` with ``grad * f'(s)``; ``s`` is left
            alone.
    """

    function: Callable[[Tensor], Tensor]
    apply_: Callable[[Tensor], object]
    gradient_: Callable[[Tensor, Tensor], object]


def _gelu(approximate: str) -> Activation:
    return Activation(
        lambda x: F.gelu(x, approximate=approximate),
        lambda x: aten.gelu_(x, approximate=approximate),
        lambda g, s: aten.gelu_backward.grad_input(g, s, approximate=approximate, grad_input=g),
    )


ACTIVATIONS: dict[str, Activation] = {
    "gelu": _gelu("none"),
    "gelu_tanh": _gelu("tanh"),
    "relu": Activation(
        torch.relu,
        torch.relu_,
        lambda g, s: aten.threshold_backward.grad_input(g, s, 0.0, grad_input=g),
    ),
    "silu": Activation(
        F.silu, aten.silu_, lambda g, s: aten.silu_backward.grad_input(g, s, grad_input=g)
    ),
    "tanh": Activation(
        torch.tanh,
        torch.tanh_,
        lambda g, s: aten.tanh_backward.grad_input(g, torch.tanh(s), grad_input=g),
    ),
    "sin": Activation(torch.sin, torch.sin_, lambda g, s: g.mul_(torch.cos(s))),
}


def find_activation(name: str, among: Mapping[str, Activation] = ACTIVATIONS) -> Activation:
    """The :class:`Activation` called ``name`` of a table, by default :data:`ACTIVATIONS`.

    Raises:
        OptionError: where there is none of that name.

    Example:
        >>> find_activation("relu").function(torch.tensor([-1.0, 2.0])).tolist()
        [0.0, 2.0]
    """
    if name not in among:
        raise OptionError(f"unknown activation {name!r}{suggest(name, among)}")
    return among[name]


# --- distances, with gradient zero, not infinite, at zero -----------------------------------------


def root_of(x: Tensor) -> Tensor:
    """√x with gradient zero, not infinity, at zero.

    The root is taken of 1 where x is 0: its slope there is infinite, and the zero of the outer
    ``where``'s gradient times infinity would be NaN.

    Example:
        >>> x = torch.tensor([4.0, 0.0], requires_grad=True)
        >>> torch.autograd.grad(root_of(x).sum(), x)[0].tolist()
        [0.25, 0.0]
    """
    if not followed(x):
        return x.clamp_min(0.0).sqrt()
    positive = x > 0
    return torch.where(positive, torch.where(positive, x, 1.0).sqrt(), 0.0)


def distances(x: Float[Tensor, "*b q p"], y: Float[Tensor, "*c k p"]) -> Float[Tensor, "*d q k"]:
    """Euclidean distances whose gradient is zero, not NaN, between coinciding points. O(Nq·Nk·p).

    Example:
        >>> distances(torch.zeros(1, 2), torch.tensor([[3.0, 4.0], [0.0, 0.0]])).tolist()
        [[5.0, 0.0]]
    """
    square = (x[..., :, None, :] - y[..., None, :, :]).square().sum(-1)
    return root_of(square)
