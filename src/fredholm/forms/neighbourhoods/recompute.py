"""A function of tiles whose backward gathers and computes each tile again: only what is gathered
from is kept.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ...integral.contract import Kernel, call_with
from ...ops.backend import full_precision, transforms
from ...ops.plain import vjp
from ...quadrature import Quadrature
from .gather import Neighbours, Rows
from .tiles import Group, Partition

Weights = dict[str, Tensor]


class LastStep(ABC):
    """The end of a tile's computation, with a gradient of its own. The backward computes again what
    leads to the inputs of this step, but not its results.
    """

    @abstractmethod
    def respond(self, *inputs: Any) -> Tensor:
        """The results of a tile, (R, H, b, o), in operations that autograd can follow."""

    @abstractmethod
    def gradients(self, above: Tensor, needs: Sequence[bool], *inputs: Any) -> list[Tensor | None]:
        """Gradients of the inputs for ``above``, that of the results; None or anything else where
        ``needs`` is False.
        """


class Pending(NamedTuple):
    """Results of a tile that ``step`` is still to compute from its inputs."""

    step: LastStep
    inputs: tuple[Tensor | None, ...]

    def respond(self) -> Tensor:
        """The results."""
        first = next(x for x in self.inputs if x is not None)
        with full_precision(first):
            return self.step.respond(*self.inputs)

    def backward(self, above: Tensor) -> tuple[list[Tensor], list[Tensor]]:
        """The inputs that need a gradient, and their gradients."""
        needs = [x is not None and x.requires_grad for x in self.inputs]
        inputs = [None if x is None else x.detach() for x in self.inputs]
        with torch.no_grad(), full_precision(above):
            found = self.step.gradients(above, needs, *inputs)
        pairs = [(x, g) for x, g, needed in zip(self.inputs, found, needs) if needed]
        recorded = [x for x, _ in pairs if x is not None]
        return recorded, [g for _, g in pairs if g is not None]


Answer = Callable[[Neighbours, Weights], Tensor | Pending]
Within = Callable[[Weights, Callable[[], Any]], Any]
"""Calls a function while the weights of a call are in place."""


def as_they_are(weights: Weights, function: Callable[[], Any]) -> Any:
    """Call ``function``: nothing has to be put in place for weights that ``answer`` is given."""
    return function()


class Work(NamedTuple):
    """A computation of each tile.

    Attributes:
        rows: what is gathered.
        weights: tensors that every tile reads, and that may need a gradient.
        tiles: the tiles.
        answer: gives the results of a tile, (R, H, b, o), or the step that is left.
        quadrature: of the whole problem.
        within: puts a kernel's parameters in place for all tiles.
    """

    rows: Rows
    weights: Weights
    tiles: Partition
    answer: Answer
    quadrature: Quadrature
    within: Within = as_they_are

    def results(self) -> Tensor:
        """The results of all tiles, each at its place: (results, H, o)."""
        tensors = [*self.rows.tensors.values(), *self.weights.values()]
        recorded = torch.is_grad_enabled() and any(x.requires_grad for x in tensors)
        if not recorded or torch.compiler.is_compiling() or transforms():
            return self.plain(*tensors)
        out = _Tiled.apply(self, *tensors)
        assert isinstance(out, Tensor)
        return out

    def split(self, tensors: Sequence[Tensor]) -> tuple[dict[str, Tensor], Weights]:
        """The gathered tensors and the weights, by name."""
        count = len(self.rows.tensors)
        gathered = dict(zip(self.rows.tensors, tensors[:count]))
        return gathered, dict(zip(self.weights, tensors[count:]))

    def pending(self, part: Group, rows: dict[str, Tensor], weights: Weights) -> Tensor | Pending:
        """The results of a tile, (R, H, b, o), or the step that is left."""
        return self.answer(Neighbours.of(part, rows, self.quadrature), weights)

    def of_tile(
        self, part: Group, rows: dict[str, Tensor], weights: Weights
    ) -> tuple[Tensor, Tensor]:
        """The places of a tile's results, and the results (·, H, o)."""
        out = self.pending(part, rows, weights)
        if isinstance(out, Pending):
            out = out.respond()
        if part.seen is None:
            return part.place, out[:, :, 0]
        here = (part.place >= 0).nonzero()[:, 0]
        return part.place[here], out.transpose(1, 2).flatten(0, 1)[here]

    def plain(self, *tensors: Tensor) -> Tensor:
        """:meth:`results`, recorded as they are."""
        gathered, weights = self.split(tensors)
        written = not (torch.is_grad_enabled() or torch.compiler.is_compiling() or transforms())
        results = _Written(self.tiles.results) if written else _Recorded()

        def every_tile() -> None:
            for part in self.tiles.groups():
                results.add(*self.of_tile(part, self.rows.gather(part, gathered), weights))

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
        return torch.zeros_like(result).index_copy(0, torch.cat(self.places), result)


class _Written:
    """Results of tiles, written to their places at once: no second copy of all is held."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.out: Tensor | None = None

    def add(self, place: Tensor, result: Tensor) -> None:
        if self.out is None:
            self.out = result.new_zeros(self.count, *result.shape[1:])
        self.out.index_copy_(0, place, result)

    def joined(self) -> Tensor:
        assert self.out is not None  # there is a tile
        return self.out


class _Tiled(torch.autograd.Function):
    """:meth:`Work.plain`, whose backward computes each tile again."""

    @staticmethod
    def forward(ctx: Any, work: Work, *tensors: Tensor) -> Tensor:
        ctx.work, ctx.autocast = work, _autocast(tensors[0].device.type)
        ctx.save_for_backward(*tensors)
        return work.plain(*tensors)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        work, tensors, needs = ctx.work, ctx.saved_tensors, ctx.needs_input_grad[1:]
        (grad,) = grads
        with ctx.autocast():
            if torch.is_grad_enabled():
                found = iter(vjp(work.plain, tensors, needs, [grad]))
            else:
                found = iter(_tile_gradients(work, tensors, needs, grad))
        return None, *(next(found) if needed else None for needed in needs)


def _tile_gradients(
    work: Work, tensors: Sequence[Tensor], needs: Sequence[bool], grad: Tensor
) -> list[Tensor]:
    """Gradients of the wanted tensors, added up tile by tile."""
    gathered, weights = work.split(tensors)
    every = {**gathered, **weights}
    wanted = [name for name, needed in zip(every, needs) if needed]
    totals = {name: torch.zeros_like(every[name]) for name in wanted}
    with torch.enable_grad():
        leaves = {
            name: x.detach().requires_grad_() if name in totals else x
            for name, x in weights.items()
        }

        def every_tile() -> None:
            for part in work.tiles.groups():
                with torch.no_grad():
                    rows = work.rows.gather(part, gathered)
                _add_gradients(work, part, rows, leaves, totals, grad)

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
    outputs, above = _above(work.pending(part, rows, leaves), part, grad)
    if not outputs:
        return
    wanted = [inputs[name] for name in totals]
    found = torch.autograd.grad(outputs, wanted, above, allow_unused=True)
    for name, g in zip(totals, found):
        if g is None:
            continue
        if name in leaves:
            totals[name] += g
        elif len(totals[name]):
            index = work.rows.index(name, part).flatten()
            totals[name].index_add_(0, index, g.flatten(0, 1))


def _above(out: Tensor | Pending, part: Group, grad: Tensor) -> tuple[list[Tensor], list[Tensor]]:
    """What was recorded of a tile, and its gradients; ``grad`` is that of the results of all tiles,
    (results, H, o).
    """
    of_tile = grad.index_select(0, part.place.clamp_min(0))
    if part.seen is not None:
        of_tile = of_tile * (part.place >= 0)[:, None, None]
    of_tile = of_tile.unflatten(0, part.query.shape).transpose(1, 2)
    if isinstance(out, Pending):
        return out.backward(of_tile)
    if not out.requires_grad:
        return [], []
    return [out], [of_tile.to(out.dtype)]


def _autocast(device: str) -> Callable[[], AbstractContextManager[object]]:
    """Autocast as it is now, to be entered again in the backward."""
    if not torch.amp.is_autocast_available(device):
        return nullcontext
    enabled, dtype = torch.is_autocast_enabled(device), torch.get_autocast_dtype(device)
    return lambda: torch.autocast(device, dtype=dtype, enabled=enabled)


# --- kernels in tiles -----------------------------------------------------------------------------


class _Bound(nn.Module):
    """A kernel as a module that calls a function while its parameters are replaced."""

    def __init__(self, kernel: Kernel):
        super().__init__()
        self.kernel = kernel

    def forward(self, function: Callable[[], Any]) -> Any:
        return function()


def parameters_of(kernel: Kernel) -> Weights:
    """The kernel's parameters that need a gradient, as weights of :class:`Work`."""
    return {name: x for name, x in kernel.named_parameters() if x.requires_grad}


def with_parameters(kernel: Kernel, names: Sequence[str]) -> Within:
    """Call a function while the kernel has those parameters that the weights of a call have under
    ``names``.
    """
    bound = _Bound(kernel)

    def has(name: str, parameter: Tensor) -> bool:
        """Whether the kernel's parameter is this one at the moment."""
        module, _, last = name.rpartition(".")
        return kernel.get_submodule(module)._parameters.get(last) is parameter

    def within(weights: Weights, function: Callable[[], Any]) -> Any:
        if all(has(name, weights[name]) for name in names):
            return function()
        # The backward has leaves of its own, and another call may have replaced parameters.
        named = {f"kernel.{name}": weights[name] for name in names}
        return call_with(bound, named, (function,))

    return within
