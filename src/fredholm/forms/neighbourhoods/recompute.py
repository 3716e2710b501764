"""A function of tiles whose backward gathers and computes each tile again: only what is gathered
from is kept.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ...integral.contract import Kernel, call_with
from ...ops.backend import transforms
from ...ops.plain import vjp
from ...quadrature import Quadrature
from .gather import Neighbours, Rows
from .tiles import Group, Partition

Weights = dict[str, Tensor]
Answer = Callable[[Neighbours, Weights], Tensor]


class Work(NamedTuple):
    """A computation of each tile.

    Attributes:
        rows: what is gathered.
        weights: tensors that every tile reads, and that may need a gradient.
        tiles: the tiles.
        answer: gives the results of a tile, (R, H, b, o).
        quadrature: of the whole problem.
    """

    rows: Rows
    weights: Weights
    tiles: Partition
    answer: Answer
    quadrature: Quadrature

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

    def of_tile(
        self, part: Group, rows: dict[str, Tensor], weights: Weights
    ) -> tuple[Tensor, Tensor]:
        """The places of a tile's results, and the results (·, H, o)."""
        out = self.answer(Neighbours.of(part, rows, self.quadrature), weights)
        if part.seen is None:
            return part.place, out[:, :, 0]
        here = (part.place >= 0).nonzero()[:, 0]
        return part.place[here], out.transpose(1, 2).flatten(0, 1)[here]

    def plain(self, *tensors: Tensor) -> Tensor:
        """:meth:`results`, recorded as they are."""
        gathered, weights = self.split(tensors)
        places, results = [], []
        for part in self.tiles.groups():
            place, out = self.of_tile(part, self.rows.gather(part, gathered), weights)
            places.append(place)
            results.append(out)
        result = torch.cat(results)
        out = torch.zeros_like(result)
        return out.index_copy(0, torch.cat(places), result)


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
        for part in work.tiles.groups():
            with torch.no_grad():
                rows = work.rows.gather(part, gathered)
            inputs = {**rows, **leaves}
            for name in wanted:
                if name in rows:
                    rows[name].requires_grad_()
            place, out = work.of_tile(part, rows, leaves)
            if not out.requires_grad:
                continue
            above = grad.index_select(0, place).to(out.dtype)
            found = torch.autograd.grad(
                out, [inputs[name] for name in wanted], above, allow_unused=True
            )
            for name, g in zip(wanted, found):
                if g is None:
                    continue
                if name in leaves:
                    totals[name] += g
                elif len(totals[name]):
                    index = work.rows.index(name, part).flatten()
                    totals[name].index_add_(0, index, g.flatten(0, 1))
    return list(totals.values())


def _autocast(device: str) -> Callable[[], AbstractContextManager[object]]:
    """Autocast as it is now, to be entered again in the backward."""
    if not torch.amp.is_autocast_available(device):
        return nullcontext
    enabled, dtype = torch.is_autocast_enabled(device), torch.get_autocast_dtype(device)
    return lambda: torch.autocast(device, dtype=dtype, enabled=enabled)


# --- kernels in tiles -----------------------------------------------------------------------------


OfKernel = Callable[[Any, Neighbours, Weights], Tensor]
"""A kernel's result for a tile, from its parameters and the weights."""


class _Bound(nn.Module):
    """A function of a kernel, as a module whose parameters may be replaced for a call."""

    def __init__(self, kernel: Kernel, function: OfKernel):
        super().__init__()
        self.kernel, self.function = kernel, function

    def forward(self, tile: Neighbours, weights: Weights) -> Tensor:
        return self.function(self.kernel, tile, weights)


def parameters_of(kernel: Kernel) -> Weights:
    """The kernel's parameters that need a gradient, as weights of :class:`Work`."""
    return {name: x for name, x in kernel.named_parameters() if x.requires_grad}


def with_parameters(kernel: Kernel, function: OfKernel, names: Sequence[str]) -> Answer:
    """``function``, whose kernel has those parameters that the weights of a call have under
    ``names``.
    """
    bound = _Bound(kernel, function)

    def has(name: str, parameter: Tensor) -> bool:
        """Whether the kernel's parameter is this one at the moment."""
        module, _, last = name.rpartition(".")
        return kernel.get_submodule(module)._parameters.get(last) is parameter

    def answer(tile: Neighbours, weights: Weights) -> Tensor:
        if all(has(name, weights[name]) for name in names):
            return function(kernel, tile, weights)
        # The backward has leaves of its own, and another call may have replaced parameters.
        named = {f"kernel.{name}": weights[name] for name in names}
        return call_with(bound, named, (tile, weights))

    return answer
