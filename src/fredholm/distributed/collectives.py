"""Messages between the shards of a domain, each differentiable and each counted.

Every rank must take part in every message, in the same order; a backward sends in the order that
autograd gives it, which is the same on all ranks because their graphs are. Sums are taken in an
order that follows from the ranks alone.
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
    """What this process gave to the process group.

    Attributes:
        numbers: elements of tensors: those sent to another rank, once for each, and those that
            entered a sum or a maximum over all ranks.
        messages: how many calls.
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


# --- what forms use -------------------------------------------------------------------------------


def summed(x: Tensor, shards: Shards) -> Tensor:
    """The sum of all ranks' ``x``, the same bits on each. Sends the elements of x."""
    return _Sum.apply(x, shards)


def largest(x: Tensor, shards: Shards) -> Tensor:
    """The elementwise maximum of all ranks' ``x``, without gradient. Sends the elements of x."""
    out = x.detach().clone(memory_format=torch.contiguous_format)
    _note(out.numel())
    with answering_peers(shards):
        dist.all_reduce(out, dist.ReduceOp.MAX, group=shards.group)
    return out


def concatenated(x: Tensor, shards: Shards, dim: int) -> Tensor:
    """All ranks' points, on dimension ``dim``, in the order of the whole. Sends the elements of x
    to each other rank; so does the gradient of the whole.
    """
    first = x.movedim(dim, 0)
    flat = _Gather.apply(first.reshape(-1), shards, prod(first.shape[1:]))
    return flat.view(shards.total, *first.shape[1:]).movedim(0, dim)


def gathered(x: Tensor, shards: Shards) -> Tensor:
    """All ranks' ``x``, of one shape, stacked in front. Sends the elements of x to each other
    rank.
    """
    return _Gather.apply(x.reshape(-1), shards.ones, x.numel()).view(shards.count, *x.shape)


class Ring:
    """Tensors of all ranks, one rank's after another's; a message may travel while what came before
    it is used.

    Args:
        tensors: this rank's.
        dims: where each has the rank's points; all else is of one shape on all ranks.
        shards: the ranks.
    """

    def __init__(self, tensors: Sequence[Tensor], dims: Sequence[int], shards: Shards):
        self.dims, self.shards = dims, shards
        self.widths = [prod(x.shape) // max(1, x.shape[dim]) for x, dim in zip(tensors, dims)]
        self._under_way: dict[int, _Transfer] = {}

    def begin(self, tensors: Sequence[Tensor], by: int) -> None:
        """Send what :meth:`shifted` will be asked for, and do not wait."""
        if by not in self._under_way:
            with torch.no_grad(), record_function(f"fredholm: ring message {by} begins"):
                sizes = [0] * self.shards.count
                sizes[(self.shards.rank - by) % self.shards.count] = self._size(by)
                to = (self.shards.rank + by) % self.shards.count
                self._under_way[by] = _begin(self._packed(tensors), to, sizes, self.shards)

    def shifted(self, tensors: Sequence[Tensor], by: int) -> list[Tensor]:
        """The tensors of the rank that is ``by`` before this one. One message with the elements of
        all of them; so is the gradient.
        """
        self.begin(tensors, by)
        flat = _Shift.apply(
            self._packed(tensors), self.shards, by, self._size(by), self._under_way.pop(by)
        )
        owner = self._points(by)
        parts = flat.split([owner * width for width in self.widths])
        return [
            part.view(owner, *x.movedim(dim, 0).shape[1:]).movedim(0, dim).to(x.dtype)
            for part, x, dim in zip(parts, tensors, self.dims)
        ]

    def _points(self, by: int) -> int:
        return self.shards.sizes[(self.shards.rank - by) % self.shards.count]

    def _size(self, by: int) -> int:
        return self._points(by) * sum(self.widths)

    def _packed(self, tensors: Sequence[Tensor]) -> Tensor:
        dtype = tensors[0].dtype
        for x in tensors[1:]:
            dtype = torch.promote_types(dtype, x.dtype)
        rows = [x.movedim(d, 0).reshape(-1).to(dtype) for x, d in zip(tensors, self.dims)]
        return torch.cat(rows)


# --- derivatives: each message's is another message -----------------------------------------------


class _Sum(torch.autograd.Function):
    """Every rank's input adds to every rank's output, and so do the gradients backwards."""

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
        return _Sum.apply(grads[0], ctx.shards), None


class _Gather(torch.autograd.Function):
    """Rows of ``width`` numbers, of all ranks in order."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, shards: Shards, width: int) -> Tensor:
        ctx.shards, ctx.width = shards, width
        sizes = [n * width for n in shards.sizes]
        return torch.cat(deliver([x] * shards.count, sizes, shards))

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple:
        return _Scatter.apply(grads[0], ctx.shards, ctx.width), None, None


class _Scatter(torch.autograd.Function):
    """The sum over ranks, in their order, of what each has for this rank's rows."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, shards: Shards, width: int) -> Tensor:
        ctx.shards, ctx.width = shards, width
        sizes = [n * width for n in shards.sizes]
        received = deliver(list(x.split(sizes)), [sizes[shards.rank]] * shards.count, shards)
        return sum(received[1:], received[0].clone())

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple:
        return _Gather.apply(grads[0], ctx.shards, ctx.width), None, None


class _Shift(torch.autograd.Function):
    """To the rank ``by`` behind; ``size`` numbers come from the rank ``by`` before, in a transfer
    that is already under way or begins here.
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, shards: Shards, by: int, size: int, under_way: _Transfer | None
    ) -> Tensor:
        ctx.shards, ctx.by, ctx.size = shards, by, x.numel()
        source = (shards.rank - by) % shards.count
        if under_way is None:
            sizes = [0] * shards.count
            sizes[source] = size
            under_way = _begin(x, (shards.rank + by) % shards.count, sizes, shards)
        with record_function(f"fredholm: ring message {by} is awaited"):
            return under_way.arrive()[source]

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple:
        return _Shift.apply(grads[0], ctx.shards, -ctx.by, ctx.size, None), None, None, None, None


class _Transfer(NamedTuple):
    """Messages under way: what was sent, kept until it has gone, and where what comes will lie."""

    works: list[Any]
    sent: list[Tensor]
    received: list[Tensor]
    shards: Shards

    def arrive(self) -> list[Tensor]:
        with answering_peers(self.shards):
            for work in self.works:
                work.wait()
        return self.received


def _begin(x: Tensor, to: int, sizes: Sequence[int], shards: Shards) -> _Transfer:
    """``x`` goes to rank ``to`` alone."""
    send = [x.new_empty(0)] * shards.count
    send[to] = x
    return _exchange(send, sizes, shards)


def deliver(send: Sequence[Tensor], sizes: Sequence[int], shards: Shards) -> list[Tensor]:
    """What :func:`_exchange` brings."""
    return _exchange(send, sizes, shards).arrive()


def deliver_into(
    matrices: Sequence[tuple[Sequence[Tensor], Sequence[Tensor]]], shards: Shards
) -> None:
    """For each of several (send, received), in one message: ``send[r]`` goes to rank r, and what
    rank r sends comes into ``received[r]``, all flat; this rank's own are left as they are.
    """
    _transfer(matrices, shards).arrive()


def _exchange(send: Sequence[Tensor], sizes: Sequence[int], shards: Shards) -> _Transfer:
    """``send[r]`` goes to rank r; the flat tensors of ``sizes`` numbers come from each rank, its
    own part included.
    """
    received = [send[0].new_empty(size) for size in sizes]
    received[shards.rank] = send[shards.rank]
    transfer = _transfer([(send, received)], shards)
    return transfer._replace(received=received)


def _transfer(
    matrices: Sequence[tuple[Sequence[Tensor], Sequence[Tensor]]], shards: Shards
) -> _Transfer:
    transfers, numbers = [], 0
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
        works = dist.batch_isend_irecv(transfers) if transfers else []
    return _Transfer(works, [transfer.tensor for transfer in transfers], [], shards)


def starts(sizes: Sequence[int]) -> list[int]:
    """Where each part begins, and where the last one ends.

    Example:
        >>> starts([2, 0, 3])
        [0, 2, 2, 5]
    """
    return list(accumulate(sizes, initial=0))
