"""Messages between the shards of a domain, each differentiable and each counted.

Every rank must take part in every message, in the same order. A backward sends in the order that
autograd visits the graph, which is the same on all ranks because their graphs are the same. Sums
are taken in the order of the ranks, so that results do not depend on which message arrives first.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import accumulate
from math import prod
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd.profiler import record_function

from .peers import answering_peers
from .shards import Shards


@dataclass
class Traffic:
    """The traffic that this process gave to the process group.

    Attributes:
        numbers: elements of tensors, counted once for every rank they were sent to, or once where
            they entered a sum or a maximum over all ranks.
        messages: number of calls.
    """

    numbers: int = 0
    messages: int = 0


_COUNTS: list[Traffic] = []


@contextmanager
def count_traffic() -> Iterator[Traffic]:
    """Count what passes between the shards in a block.

    Example:
        >>> with count_traffic() as traffic:
        ...     pass
        >>> traffic.numbers
        0
    """
    traffic = Traffic()
    _COUNTS.append(traffic)
    try:
        yield traffic
    finally:
        _COUNTS.remove(traffic)


def _note(numbers: int) -> None:
    for traffic in _COUNTS:
        traffic.numbers += numbers
        traffic.messages += 1


# --- messages for forms ---------------------------------------------------------------------------


def summed(x: Tensor, shards: Shards) -> Tensor:
    """Return the sum of all ranks' ``x``, the same bits on each. Sends the elements of x."""
    return _Sum.apply(x, shards)


def largest(x: Tensor, shards: Shards) -> Tensor:
    """Return the elementwise maximum of all ranks' ``x``, without gradient. Sends the elements of
    x."""
    out = x.detach().clone(memory_format=torch.contiguous_format)
    _note(out.numel())
    with answering_peers(shards):
        dist.all_reduce(out, dist.ReduceOp.MAX, group=shards.group)
    return out


def concatenated(x: Tensor, shards: Shards, dim: int) -> Tensor:
    """Return all ranks' points, on dimension ``dim``, in the order of the complete domain.

    Sends the elements of x to each other rank. So does the gradient, of all points.
    """
    rows = x.movedim(dim, 0)
    others = rows.shape[1:]
    flat = _Gather.apply(rows.reshape(-1), shards, prod(others))
    return flat.view(shards.total, *others).movedim(0, dim)


def gathered(x: Tensor, shards: Shards) -> Tensor:
    """Return all ranks' ``x`` stacked on a new first dimension; their shapes must be equal.

    Sends the elements of x to each other rank.
    """
    flat = _Gather.apply(
        x.reshape(-1),
        shards.ones,
        x.numel(),
    )
    return flat.view(shards.count, *x.shape)


class Ring:
    """Tensors of all ranks, received one rank at a time.

    :meth:`begin` starts a message early, so that it travels while the block before it is used.

    Args:
        tensors: those of this rank.
        dims: for each tensor the dimension of the rank's points; all other dimensions have the same
            size on every rank.
        shards: the ranks.
    """

    def __init__(
        self,
        tensors: Sequence[Tensor],
        dims: Sequence[int],
        shards: Shards,
    ):
        self.dims = dims
        self.shards = shards

        # Numbers per point of each tensor. A rank may have no points to divide by.
        self.widths = []
        for x, dim in zip(tensors, dims):
            points = max(1, x.shape[dim])
            self.widths.append(prod(x.shape) // points)
        self._under_way: dict[int, _Transfer] = {}

    def begin(self, tensors: Sequence[Tensor], by: int) -> None:
        """Start the message that :meth:`shifted` will return, without waiting for it."""
        if by in self._under_way:
            return
        with torch.no_grad(), record_function(f"fredholm: ring message {by} begins"):
            packed = self._packed(tensors)
            self._under_way[by] = _begin(
                packed,
                by,
                self._size(by),
                self.shards,
            )

    def shifted(self, tensors: Sequence[Tensor], by: int) -> list[Tensor]:
        """Return the tensors of the rank that is ``by`` before this one.

        One message with the elements of all of them. The gradient is one message back.
        """
        self.begin(tensors, by)
        transfer = self._under_way.pop(by)
        flat = _Shift.apply(
            self._packed(tensors),
            self.shards,
            by,
            self._size(by),
            transfer,
        )

        # The other rank's tensors have its number of points, and are as wide as this rank's.
        points = self._points(by)
        sizes = [points * width for width in self.widths]
        parts = flat.split(sizes)
        found = []
        for part, x, dim in zip(parts, tensors, self.dims):
            others = x.movedim(dim, 0).shape[1:]
            theirs = part.view(points, *others).movedim(0, dim)
            found.append(theirs.to(x.dtype))
        return found

    def _points(self, by: int) -> int:
        """Return the number of points of the rank that is ``by`` before this one."""
        rank = (self.shards.rank - by) % self.shards.count
        return self.shards.sizes[rank]

    def _size(self, by: int) -> int:
        """Return the number of elements of that rank's tensors."""
        return self._points(by) * sum(self.widths)

    def _packed(self, tensors: Sequence[Tensor]) -> Tensor:
        """Return all tensors in one flat tensor, points outermost, of a dtype that holds them
        all."""
        dtype = tensors[0].dtype
        for x in tensors[1:]:
            dtype = torch.promote_types(dtype, x.dtype)
        flat = []
        for x, dim in zip(tensors, self.dims):
            rows = x.movedim(dim, 0)
            flat.append(rows.reshape(-1).to(dtype))
        return torch.cat(flat)


# --- messages as functions: the gradient of each is another message -------------------------------


class _Sum(torch.autograd.Function):
    """The sum over ranks, on every rank. Its gradient is the same sum, of the ranks' gradients."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, shards: Shards) -> Tensor:
        ctx.shards = shards
        out = x.clone(memory_format=torch.contiguous_format)
        _note(out.numel())
        with answering_peers(shards):
            dist.all_reduce(out, group=shards.group)
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple:
        (grad,) = grads
        of_x = _Sum.apply(grad, ctx.shards)
        return of_x, None


class _Gather(torch.autograd.Function):
    """The rows of all ranks, in order, on every rank; a row has ``width`` numbers.

    Its gradient is :class:`_Scatter`.
    """

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        shards: Shards,
        width: int,
    ) -> Tensor:
        ctx.shards = shards
        ctx.width = width
        sizes = [n * width for n in shards.sizes]
        received = deliver([x] * shards.count, sizes, shards)
        return torch.cat(received)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple:
        (grad,) = grads
        of_x = _Scatter.apply(grad, ctx.shards, ctx.width)
        return of_x, None, None


class _Scatter(torch.autograd.Function):
    """The sum over ranks of their gradients for this rank's rows; the transpose of a gather."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        shards: Shards,
        width: int,
    ) -> Tensor:
        ctx.shards = shards
        ctx.width = width
        sizes = [n * width for n in shards.sizes]
        own_size = sizes[shards.rank]
        received = deliver(
            list(x.split(sizes)),
            [own_size] * shards.count,
            shards,
        )
        first, *others = received
        return sum(others, first.clone())

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple:
        (grad,) = grads
        of_x = _Gather.apply(grad, ctx.shards, ctx.width)
        return of_x, None, None


class _Shift(torch.autograd.Function):
    """The shift of a flat tensor around the ring of ranks: x goes to the rank ``by`` places after
    this one, modulo the number of ranks, and the result is that of the rank ``by`` places before.

    Its gradient is the shift by ``-by``: the gradient of what arrived goes back to its sender.

    Arguments of ``apply``: x, flat; the ranks; ``by``; the number of elements that arrive, which
    depends on the sender's points; and the transfer if it is under way already, or None to start it
    here.
    """

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        shards: Shards,
        by: int,
        size: int,
        under_way: _Transfer | None,
    ) -> Tensor:
        ctx.shards = shards
        ctx.by = by
        # As many elements as leave here come back as a gradient.
        ctx.size = x.numel()
        source = (shards.rank - by) % shards.count
        if under_way is None:
            under_way = _begin(x, by, size, shards)
        with record_function(f"fredholm: ring message {by} is awaited"):
            return under_way.arrive()[source]

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple:
        (grad,) = grads
        of_x = _Shift.apply(
            grad,
            ctx.shards,
            -ctx.by,
            ctx.size,
            None,
        )
        return of_x, None, None, None, None


class _Transfer(NamedTuple):
    """Messages under way.

    Attributes:
        works: the pending calls.
        sent: the tensors that leave; their memory must live until they have gone.
        received: the tensors that are being filled, one per rank.
        shards: the ranks.
    """

    works: list[dist.Work]
    sent: list[Tensor]
    received: list[Tensor]
    shards: Shards

    def arrive(self) -> list[Tensor]:
        """Wait for all messages, and return what came from each rank."""
        with answering_peers(self.shards):
            for work in self.works:
                work.wait()
        return self.received


def _begin(
    x: Tensor,
    by: int,
    size: int,
    shards: Shards,
) -> _Transfer:
    """Start to send x, a flat tensor, to the rank ``by`` places after this one, and to receive
    ``size`` elements from the rank ``by`` places before, modulo the number of ranks.

    All other ranks send and receive an empty tensor, for which there is no message.
    """
    after = (shards.rank + by) % shards.count
    before = (shards.rank - by) % shards.count
    send = [x.new_empty(0)] * shards.count
    send[after] = x
    sizes = [0] * shards.count
    sizes[before] = size
    return _exchange(send, sizes, shards)


def deliver(
    send: Sequence[Tensor],
    sizes: Sequence[int],
    shards: Shards,
) -> list[Tensor]:
    """Send ``send[r]`` to rank r, and return the flat tensors of ``sizes`` numbers that arrive."""
    return _exchange(send, sizes, shards).arrive()


def deliver_into(
    matrices: Sequence[tuple[Sequence[Tensor], Sequence[Tensor]]], shards: Shards
) -> None:
    """Exchange the pieces of several matrices with all ranks at once.

    For each pair (send, received) of flat tensors, ``send[r]`` goes to rank r, and the piece that
    rank r sends is written into ``received[r]``. This rank's own pieces are not touched.
    """
    _transfer(matrices, shards).arrive()


def _exchange(
    send: Sequence[Tensor],
    sizes: Sequence[int],
    shards: Shards,
) -> _Transfer:
    """Start to send ``send[r]`` to rank r and to receive ``sizes[r]`` numbers from it.

    This rank's own piece is passed on as it is.
    """
    received = [send[0].new_empty(size) for size in sizes]
    received[shards.rank] = send[shards.rank]
    transfer = _transfer([(send, received)], shards)
    return transfer._replace(received=received)


def _transfer(
    matrices: Sequence[tuple[Sequence[Tensor], Sequence[Tensor]]], shards: Shards
) -> _Transfer:
    """Start all messages of :func:`deliver_into`, whose pairs (send, received) hold one flat tensor
    per rank. Empty pieces are not sent.
    """
    transfers = []
    numbers = 0

    # The tag tells the matrices apart, whose pieces travel between the same two ranks.
    for tag, (send, received) in enumerate(matrices):
        for r in range(shards.count):
            if r == shards.rank:
                continue
            to = {"group": shards.group, "group_peer": r, "tag": tag}
            if received[r].numel():
                transfers.append(dist.P2POp(dist.irecv, received[r], **to))
            if send[r].numel():
                numbers += send[r].numel()
                transfers.append(dist.P2POp(dist.isend, send[r].contiguous(), **to))
    _note(numbers)
    with answering_peers(shards):
        works = []
        if transfers:
            works = dist.batch_isend_irecv(transfers)
    sent = [transfer.tensor for transfer in transfers]
    return _Transfer(works, sent, [], shards)


def starts(sizes: Sequence[int]) -> list[int]:
    """Return where each part begins, and where the last one ends.

    Example:
        >>> starts([2, 0, 3])
        [0, 2, 2, 5]
    """
    return list(accumulate(sizes, initial=0))
