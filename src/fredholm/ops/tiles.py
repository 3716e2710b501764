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


# --- tiles ----------------------------------------------------------------------------------------


def cut(
    x: Tensor | None,
    h: Span,
    b: Span,
) -> Any:
    """Return heads ``h`` and batch entries ``b`` of ``x`` (H, B, …); None remains None.

    A dimension of size 1 is shared by all heads or entries, and stays.

    Example:
        >>> cut(torch.ones(1, 4, 2), slice(2, 3), slice(0, 2)).shape
        torch.Size([1, 2, 2])
    """
    if x is None:
        return None
    every = slice(None)
    heads, batch = x.shape[:2]
    if heads == 1:
        h = every
    if batch == 1:
        b = every
    return x[h, b]


def spans(start: int, stop: int, size: int) -> list[Span]:
    """Cut ``start`` to ``stop`` into the fewest nearly equal spans of at most ``size``.

    Example:
        >>> spans(0, 10, 4)
        [slice(0, 3, None), slice(3, 6, None), slice(6, 10, None)]
    """
    n = stop - start
    count = -(-n // max(size, 1))
    found = []
    first = start
    for i in range(1, count + 1):
        last = start + i * n // count
        found.append(slice(first, last))
        first = last
    return found


def groups(
    heads: int,
    batch: int,
    limit: int,
    head_limit: int,
) -> Iterator[tuple[Span, Span]]:
    """Yield all (head, batch) pairs in groups of at most ``limit``, as spans of heads and batch.

    A group is several complete heads, at most ``head_limit`` of them, or a part of one head. Its
    matrices are therefore consecutive in memory, and flattening its two dimensions copies nothing.

    Example:
        >>> list(groups(1, 2, 1, 1))
        [(slice(0, 1, None), slice(0, 1, None)), (slice(0, 1, None), slice(1, 2, None))]
    """
    if limit >= batch:
        complete_heads = limit // max(batch, 1)
        heads_together = max(1, min(complete_heads, head_limit))
        for h in spans(0, heads, heads_together):
            yield h, slice(0, batch)
    else:
        for i in range(heads):
            for b in spans(0, batch, limit):
                yield slice(i, i + 1), b


def rectangles(rows: int, columns: int, size: int) -> Iterator[tuple[Span, Span]]:
    """Yield a (rows, columns) matrix in rectangles of about ``size`` elements, as two spans each.

    A rectangle is several complete rows, or a part of one row.

    Example:
        >>> list(rectangles(1, 3, 2))
        [(slice(0, 1, None), slice(0, 2, None)), (slice(0, 1, None), slice(2, 4, None))]
    """
    height = max(1, size // max(1, columns))
    width = min(size, max(1, columns))
    for r in range(0, rows, height):
        for c in range(0, columns, width):
            yield slice(r, r + height), slice(c, c + width)


def add_shared(total: Tensor | None, part: Tensor) -> None:
    """Add ``part`` to ``total``, summed over the dimensions that ``total`` shares. Without
    ``total`` do nothing.

    Example:
        >>> total = torch.zeros(1, 2)
        >>> add_shared(total, torch.ones(3, 2))
        >>> total.tolist()
        [[3.0, 3.0]]
    """
    if total is None:
        return
    shared = []
    for dim, (of_total, of_part) in enumerate(zip(total.shape, part.shape)):
        if of_total == 1 and of_part != 1:
            shared.append(dim)
    if shared:
        part = part.sum(shared, keepdim=True)
    total.add_(part)


def multiply_rows(
    out: Tensor,
    rows: Tensor,
    right: Tensor,
    *,
    beta: int,
) -> None:
    """Compute ``out = beta·out + rows @ right`` in place, batched (g, m, ·).

    A single matrix goes to the matrix library as one part per thread. Each thread then multiplies
    the rows that it also has in the elementwise passes, and a tile does not travel between the
    caches of the cores: 6% of a tile's work (docs/log.md, 2026-11-21, "One matrix a tile").
    """
    parts = 1
    if out.device.type == "cpu" and out.shape[0] == 1:
        parts = torch.get_num_threads()
    if parts > 1 and out.shape[1] % parts == 0:
        out = out.view(parts, -1, out.shape[-1])
        rows = rows.view(parts, -1, rows.shape[-1])
        right = right.expand(parts, -1, -1)
    out.baddbmm_(rows, right, beta=beta)


# --- groups of matrices ---------------------------------------------------------------------------


def heads_apart(
    u: Float[Tensor, "b h i"],
    weight: Float[Tensor, "h o i"],
) -> Tensor:
    """Multiply one point's features by a matrix for each head, (B, H, o).

    All samples of a head are one matrix product. On a CPU, ``weight @ u[..., None]`` takes twenty
    times as long: it makes a product for each sample.

    Example:
        >>> heads_apart(torch.ones(1, 2, 3), torch.ones(2, 4, 3)).shape
        torch.Size([1, 2, 4])
    """
    return torch.bmm(u.transpose(0, 1), weight.mT).transpose(0, 1)


def by_head(
    x: Float[Tensor, "b h n i"],
    weight: Float[Tensor, "h o i"],
) -> Tensor:
    """Multiply every point's features by a matrix for each head, (B, H, N, o).

    All samples of a head are one matrix product, so that no matrix is copied for each sample.

    Example:
        >>> by_head(torch.ones(1, 2, 5, 3), torch.ones(2, 4, 3)).shape
        torch.Size([1, 2, 5, 4])
    """
    batch, heads, points, _ = x.shape
    rows = x.transpose(0, 1).flatten(1, 2)
    out = torch.bmm(rows, weight.mT)
    out = out.view(heads, batch, points, out.shape[-1])
    return out.transpose(0, 1)


# --- scratch memory -------------------------------------------------------------------------------


class Scratch:
    """A buffer that every tile reuses, so that the system pages its memory in only once.

    Args:
        like: a tensor of the buffer's dtype and device.
        size: elements of the largest view.
    """

    def __init__(self, like: Tensor, size: int):
        self.buffer = like.new_empty(size)

    @classmethod
    def of(cls, buffer: Tensor) -> Scratch:
        """Wrap a flat tensor that exists already."""
        scratch = cls.__new__(cls)
        scratch.buffer = buffer
        return scratch

    def view(self, *shape: int) -> Tensor:
        """Return the front of the buffer in a shape. Its values are those of the last use."""
        size = math.prod(shape)
        buffer = self.buffer
        if size != buffer.numel():
            buffer = buffer[:size]
        return buffer.view(shape)


KEPT = threading.local()
KEPT_BYTES = 8 << 20


@contextmanager
def kept_scratch(like: Tensor, sizes: Iterable[int]) -> Iterator[list[Scratch]]:
    """A :class:`Scratch` of each size, for as long as the context is open.

    On a processor each thread keeps one buffer per dtype, of up to 8 MB, from call to call. Memory
    that the system hands out anew is paged in again, which in a call of milliseconds may take as
    long as the arithmetic. No view may be used after the context has closed.

    Args:
        like: a tensor of the dtype and device.
        sizes: elements of each scratch.

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

    # Popped, not read: a call inside this one must not write to the same memory.
    buffer = kept.pop(like.dtype, None)
    if buffer is None or buffer.numel() < total:
        # A later call may run outside inference mode, where nothing may write to a tensor that was
        # made inside it.
        with torch.inference_mode(False):
            buffer = torch.empty(total, dtype=like.dtype, device=like.device)

    yield [Scratch.of(part) for part in torch.split_with_sizes(buffer[:total], sizes)]

    if buffer.numel() * buffer.element_size() <= KEPT_BYTES:
        kept[like.dtype] = buffer


# --- activations ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Activation:
    """A pointwise nonlinearity f.

    Attributes:
        function: returns f(x), differentiable by autograd.
        apply_: overwrites its argument x with f(x).
        gradient_: ``gradient_(grad, s)`` overwrites ``grad`` with ``grad * f'(s)`` and only reads
            ``s``.
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


# The backward kernels of torch write f'(s)·g over g. Those of tanh and ReLU read f(s): for tanh it
# is computed from s, and a ReLU has the same sign as s where it is positive.
ACTIVATIONS: dict[str, Activation] = {
    "gelu": _gelu("none"),
    "gelu_tanh": _gelu("tanh"),
    "relu": Activation(
        torch.relu,
        torch.relu_,
        lambda g, s: aten.threshold_backward.grad_input(g, s, 0.0, grad_input=g),
    ),
    "silu": Activation(
        F.silu,
        aten.silu_,
        lambda g, s: aten.silu_backward.grad_input(g, s, grad_input=g),
    ),
    "tanh": Activation(
        torch.tanh,
        torch.tanh_,
        lambda g, s: aten.tanh_backward.grad_input(g, torch.tanh(s), grad_input=g),
    ),
    "sin": Activation(
        torch.sin,
        torch.sin_,
        lambda g, s: g.mul_(torch.cos(s)),
    ),
}


def find_activation(name: str, among: Mapping[str, Activation] = ACTIVATIONS) -> Activation:
    """Return the :class:`Activation` of a name in a table, by default :data:`ACTIVATIONS`.

    Raises:
        OptionError: where the table has no such name.

    Example:
        >>> find_activation("relu").function(torch.tensor([-1.0, 2.0])).tolist()
        [0.0, 2.0]
    """
    if name not in among:
        raise OptionError(f"unknown activation {name!r}{suggest(name, among)}")
    return among[name]


# --- distances whose gradient at zero is zero -----------------------------------------------------


def root_of(x: Tensor) -> Tensor:
    """Return √x, with gradient zero at x = 0.

    Example:
        >>> x = torch.tensor([4.0, 0.0], requires_grad=True)
        >>> torch.autograd.grad(root_of(x).sum(), x)[0].tolist()
        [0.25, 0.0]
    """
    if not followed(x):
        return x.clamp_min(0.0).sqrt()

    # The slope of the root at 0 is infinite. Behind a single ``where`` its gradient would be
    # 0 · ∞ = NaN, so the root is taken of 1 there.
    positive = x > 0
    root = torch.where(positive, x, 1.0).sqrt()
    return torch.where(positive, root, 0.0)


def distances(
    x: Float[Tensor, "*b q p"],
    y: Float[Tensor, "*c k p"],
) -> Float[Tensor, "*d q k"]:
    """Return the Euclidean distances of all pairs; between coinciding points the gradient is zero.

    Cost: O(Nq·Nk·p) time and memory.

    Example:
        >>> distances(torch.zeros(1, 2), torch.tensor([[3.0, 4.0], [0.0, 0.0]])).tolist()
        [[5.0, 0.0]]
    """
    square = (x[..., :, None, :] - y[..., None, :, :]).square().sum(-1)
    return root_of(square)
