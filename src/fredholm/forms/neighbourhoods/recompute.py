"""A function of tiles whose backward gathers and computes each tile again: only the tensors that
tiles are gathered from stay in memory.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ...integral.contract import Kernel, call_with
from ...ops.backend import full_precision, transforms
from ...ops.plain import in_places, vjp
from ...quadrature import Quadrature
from .gather import Neighbours, Rows
from .tiles import Group, Partition

Weights = dict[str, Tensor]


class LastStep(ABC):
    """The end of a tile's computation, whose gradient is written out. The backward computes the
    inputs of this step again, but not its results.
    """

    @abstractmethod
    def respond(self, *inputs: Any) -> Tensor:
        """Return the results of a tile, (R, H, b, o), in operations that autograd can follow."""

    @abstractmethod
    def gradients(
        self,
        above: Tensor,
        needs: Sequence[bool],
        *inputs: Any,
    ) -> list[Tensor | None]:
        """Return the gradients of the inputs for ``above``, that of the results; None or anything
        else where ``needs`` is False.
        """


class Recorded(NamedTuple):
    """Tensors that autograd has recorded of a tile, each with the gradient that arrives at it."""

    outputs: list[Tensor]
    gradients: list[Tensor]


class Pending(NamedTuple):
    """Results of a tile that ``step`` has yet to compute from its inputs."""

    step: LastStep
    inputs: tuple[Tensor | None, ...]

    def respond(self) -> Tensor:
        """Return the results."""
        first = next(x for x in self.inputs if x is not None)
        with full_precision(first):
            return self.step.respond(*self.inputs)

    def backward(self, above: Tensor) -> Recorded:
        """Return the inputs that need a gradient, and their gradients."""
        needs = [x is not None and x.requires_grad for x in self.inputs]
        inputs = [None if x is None else x.detach() for x in self.inputs]
        with torch.no_grad(), full_precision(above):
            gradients = self.step.gradients(above, needs, *inputs)
        recorded = Recorded([], [])
        for x, gradient, needed in zip(self.inputs, gradients, needs):
            if needed and x is not None and gradient is not None:
                recorded.outputs.append(x)
                recorded.gradients.append(gradient)
        return recorded


Answer = Callable[[Neighbours, Weights], Tensor | Pending]
Within = Callable[[Weights, Callable[[], Any]], Any]
"""Calls a function while the weights of a call are in place."""


def as_they_are(weights: Weights, function: Callable[[], Any]) -> Any:
    """Call ``function``: ``answer`` receives the weights, and no kernel has to hold them."""
    return function()


class Work(NamedTuple):
    """A computation of each tile.

    Attributes:
        rows: tensors that each tile is gathered from.
        weights: tensors that every tile reads, and that may need a gradient.
        tiles: the tiles.
        answer: gives the results of a tile, (R, H, b, o), or the step that is left.
        quadrature: that of the whole problem.
        within: puts a kernel's parameters in place for all tiles.
    """

    rows: Rows
    weights: Weights
    tiles: Partition
    answer: Answer
    quadrature: Quadrature
    within: Within = as_they_are

    def results(self) -> Tensor:
        """Return the results of all tiles, each at its place: (results, H, o)."""
        tensors = [*self.rows.tensors.values(), *self.weights.values()]
        recorded = torch.is_grad_enabled() and any(x.requires_grad for x in tensors)
        if not recorded or torch.compiler.is_compiling() or transforms():
            # Traces and transforms follow the plain operations.
            return self.plain(*tensors)
        out = _Tiled.apply(self, *tensors)
        assert isinstance(out, Tensor)
        return out

    def split(self, tensors: Sequence[Tensor]) -> tuple[dict[str, Tensor], Weights]:
        """Return the gathered tensors and the weights by name, from the flat list of both.

        An autograd function takes tensors one after the other: first those of ``rows``, then
        ``weights``, in the order in which :meth:`results` passes them.
        """
        count = len(self.rows.tensors)
        gathered = dict(zip(self.rows.tensors, tensors[:count]))
        weights = dict(zip(self.weights, tensors[count:]))
        return gathered, weights

    def pending(
        self,
        part: Group,
        rows: dict[str, Tensor],
        weights: Weights,
    ) -> Tensor | Pending:
        """Return the results of a tile, (R, H, b, o), or the step that is left."""
        tile = Neighbours.of(part, rows, self.quadrature)
        return self.answer(tile, weights)

    def of_tile(
        self,
        part: Group,
        rows: dict[str, Tensor],
        weights: Weights,
    ) -> tuple[Tensor, Tensor]:
        """Return the places of a tile's results, and the results (·, H, o)."""
        out = self.pending(part, rows, weights)
        if isinstance(out, Pending):
            out = out.respond()
        if part.seen is None:
            return part.place, out[:, :, 0]

        # The last block of queries reaches beyond the line, to results with no place.
        here = (part.place >= 0).nonzero()[:, 0]
        by_query = out.transpose(1, 2).flatten(0, 1)
        return part.place[here], by_query[here]

    def plain(self, *tensors: Tensor) -> Tensor:
        """Return :meth:`results` in plain operations, which autograd records as they are."""
        gathered, weights = self.split(tensors)
        if torch.is_grad_enabled() or torch.compiler.is_compiling() or transforms():
            results = _Recorded()
        else:
            results = _Written(self.tiles.results)

        def every_tile() -> None:
            for part in self.tiles.groups():
                # In memory at a time: the rows of one tile, and its results.
                rows = self.rows.gather(part, gathered)
                place, result = self.of_tile(part, rows, weights)
                results.add(place, result)

        self.within(weights, every_tile)
        return results.joined()


class _Recorded:
    """Results of tiles, which autograd or a trace follows to their places."""

    def __init__(self) -> None:
        self.places: list[Tensor] = []
        self.results: list[Tensor] = []

    def add(self, place: Tensor, result: Tensor) -> None:
        self.places.append(place)
        self.results.append(result)

    def joined(self) -> Tensor:
        result = torch.cat(self.results)
        place = torch.cat(self.places)
        return torch.zeros_like(result).index_copy(0, place, result)


class _Written:
    """Results of tiles, written to their places at once, so that there is no second copy of all."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.out: Tensor | None = None

    def add(self, place: Tensor, result: Tensor) -> None:
        if self.out is None:
            self.out = result.new_zeros(self.count, *result.shape[1:])
        self.out.index_copy_(0, place, result)

    def joined(self) -> Tensor:
        # There is a tile at least.
        assert self.out is not None
        return self.out


class _Tiled(torch.autograd.Function):
    """The function :meth:`Work.plain`, with a backward that computes each tile again."""

    @staticmethod
    def forward(ctx: Any, work: Work, *tensors: Tensor) -> Tensor:
        ctx.work = work
        ctx.autocast = _autocast(tensors[0].device.type)
        ctx.save_for_backward(*tensors)
        return work.plain(*tensors)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        work: Work = ctx.work
        tensors = ctx.saved_tensors
        # The first argument of the node is ``work``.
        needs = ctx.needs_input_grad[1:]
        (grad,) = grads
        with ctx.autocast():
            if torch.is_grad_enabled():
                # Second derivatives are recorded: all tiles at once, in plain operations.
                wanted = vjp(
                    work.plain,
                    tensors,
                    needs,
                    [grad],
                )
            else:
                wanted = _tile_gradients(work, tensors, needs, grad)
        return None, *in_places(wanted, needs)


def _tile_gradients(
    work: Work,
    tensors: Sequence[Tensor],
    needs: Sequence[bool],
    grad: Tensor,
) -> list[Tensor]:
    """Return the gradients of the wanted tensors, added up tile by tile."""
    gathered, weights = work.split(tensors)
    names = [*gathered, *weights]
    totals = {}
    for name, x, needed in zip(names, tensors, needs):
        if needed:
            totals[name] = torch.zeros_like(x)

    with torch.enable_grad():
        # Leaves of this backward, so that the gradients of tiles end there.
        leaves = dict(weights)
        for name, x in weights.items():
            if name in totals:
                leaves[name] = x.detach().requires_grad_()

        def every_tile() -> None:
            """Gather each tile again and add its gradients to the totals, one tile at a time."""
            for part in work.tiles.groups():
                # Gathering is not recorded: `_add_gradients` adds the gradients of gathered rows to
                # the points that the rows came from.
                with torch.no_grad():
                    rows = work.rows.gather(part, gathered)
                _add_gradients(
                    work,
                    part,
                    rows,
                    leaves,
                    totals,
                    grad,
                )

        work.within(leaves, every_tile)
    return list(totals.values())


def _add_gradients(
    work: Work,
    part: Group,
    rows: dict[str, Tensor],
    leaves: Weights,
    totals: dict[str, Tensor],
    grad: Tensor,
) -> None:
    """Add the gradients of one tile to ``totals``, by name."""
    inputs = {**rows, **leaves}
    for name in totals:
        if name in rows:
            rows[name].requires_grad_()
    out = work.pending(part, rows, leaves)
    recorded = _recorded(out, part, grad)
    if not recorded.outputs:
        return

    wanted = [inputs[name] for name in totals]
    found = torch.autograd.grad(
        recorded.outputs,
        wanted,
        recorded.gradients,
        allow_unused=True,
    )
    for name, gradient in zip(totals, found):
        if gradient is None:
            continue
        if name in leaves:
            totals[name] += gradient
        elif len(totals[name]):
            # A point that several queries see has a row in several slots, whose gradients add up.
            index = work.rows.index(name, part).flatten()
            totals[name].index_add_(0, index, gradient.flatten(0, 1))


def _recorded(
    out: Tensor | Pending,
    part: Group,
    grad: Tensor,
) -> Recorded:
    """Return the tensors of a tile at which its backward through autograd begins, with their
    gradients.

    Args:
        out: results of the tile, (R, H, b, o), or the step that would compute them. A step has its
            own gradients, so the backward begins at the step's inputs.
        part: the tile's queries.
        grad: gradients of the results of all tiles, (results, H, o).
    """
    # A block may have fewer queries than b. The place -1 of its empty rows reads any gradient,
    # which is then set to zero; only blocks, which have ``seen``, have such rows.
    tile_grad = grad.index_select(0, part.place.clamp_min(0))
    if part.seen is not None:
        tile_grad = tile_grad * (part.place >= 0)[:, None, None]
    # (R, H, b, o), as the tile has computed them.
    tile_grad = tile_grad.unflatten(0, part.query.shape).transpose(1, 2)

    if isinstance(out, Pending):
        return out.backward(tile_grad)
    if not out.requires_grad:
        return Recorded([], [])
    return Recorded([out], [tile_grad.to(out.dtype)])


def _autocast(device: str) -> Callable[[], AbstractContextManager[object]]:
    """Return the present state of autocast as a context for the backward."""
    if not torch.amp.is_autocast_available(device):
        return nullcontext
    enabled = torch.is_autocast_enabled(device)
    dtype = torch.get_autocast_dtype(device)
    return partial(
        torch.autocast,
        device,
        dtype=dtype,
        enabled=enabled,
    )


# --- kernels in tiles -----------------------------------------------------------------------------


class _Bound(nn.Module):
    """A kernel as a module that calls a function while its parameters are replaced."""

    def __init__(self, kernel: Kernel):
        super().__init__()
        self.kernel = kernel

    def forward(self, function: Callable[[], Any]) -> Any:
        return function()


def parameters_of(kernel: Kernel) -> Weights:
    """Return the kernel's parameters that need a gradient, as weights of :class:`Work`."""
    return {name: x for name, x in kernel.named_parameters() if x.requires_grad}


def with_parameters(kernel: Kernel, names: Sequence[str]) -> Within:
    """Return :attr:`Work.within` for a kernel that reads its parameters from itself.

    The result, ``within(weights, function)``, calls ``function`` while the kernel's parameters
    ``names`` are replaced by the tensors of these names in ``weights``.
    """
    bound = _Bound(kernel)

    def holds(name: str, tensor: Tensor) -> bool:
        """Whether the kernel's parameter ``name`` is this very tensor."""
        module, _, attribute = name.rpartition(".")
        return kernel.get_submodule(module)._parameters.get(attribute) is tensor

    def within(weights: Weights, function: Callable[[], Any]) -> Any:
        # A forward usually finds its own parameters in place. A backward differentiates leaves of
        # its own, and may run after the parameters of a functional call have been put back.
        if all(holds(name, weights[name]) for name in names):
            return function()
        replaced = {f"kernel.{name}": weights[name] for name in names}
        return call_with(bound, replaced, (function,))

    return within
