"""Recurrences: the states that the ranks before leave behind, from a scan between the ranks."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from ...forms.scan import StatesScan
from ...integral.features import weighed
from ...integral.problem import Problem
from ...layers.selective import SelectiveKernel
from ...layers.time_invariant import TimeInvariantKernel, real_points
from ...ops.backend import full_precision
from ...ops.scan import pack, ranks, reorder, scan, transition_scan
from .. import Shards, gathered
from ..exchange import Exchange, register_exchange
from ..part import before_this


@register_exchange(StatesScan, TimeInvariantKernel)
class SystemScan(Exchange):
    """A linear system with constant coefficients."""

    passes = "an exclusive scan of the ranks' states"

    def respond(
        self, form: StatesScan, kernel: TimeInvariantKernel, problem: Problem, shards: Shards
    ) -> Tensor:
        q, valid = problem.quadrature, real_points(problem)
        order, back = (None, None) if valid is None else pack(valid)
        recurrence = partial(scan_between, shards, _first(valid, order))
        with full_precision(problem.uy):
            signal = weighed(problem.uy, q.mass)
            out = reorder(kernel.states(reorder(signal, order, 2), recurrence), back, 2)
        if q.scale is not None:
            out = out * q.scale[..., None].to(out.dtype)
        if kernel.free(1) is None:
            return out

        # The free response goes by steps of the whole, so that each rank needs the ranks' before.
        at = ranks(valid, problem.uy.shape[2], out.device)
        steps = at[:, -1:] + 1
        before = before_this(steps.to(out.dtype), shards).long()
        with full_precision(problem.uy):
            free = kernel.free(shards.total)
        assert free is not None
        return out + free[:, (at + before).clamp(min=0)].movedim(0, 1)


@register_exchange(StatesScan, SelectiveKernel)
class SelectiveScan(Exchange):
    """A linear system whose coefficients follow from the signal."""

    passes = SystemScan.passes

    def respond(
        self, form: StatesScan, kernel: SelectiveKernel, problem: Problem, shards: Shards
    ) -> Tensor:
        valid = real_points(problem)
        order, back = (None, None) if valid is None else pack(valid)
        recurrence = partial(scan_between, shards, _first(valid, order))
        out = kernel.response(reorder(problem.uy[:, 0], order, 1), recurrence)
        return reorder(out, back, 1)[:, None]


def _first(valid: Tensor | None, order: Tensor | None) -> Tensor | None:
    """Which points are real, in an order that has those first, (B, n); None for all."""
    return None if valid is None else reorder(valid, order, 1)


def scan_between(shards: Shards, real: Tensor | None, transition: Tensor, drive: Tensor) -> Tensor:
    """Return the states of h_t = A_t h_(t-1) + b_t over all ranks' points, at this rank's points.

    What the ranks before leave behind enters with this rank's first point.

    Args:
        shards: the ranks.
        real: points that are a step, (#B, n); None for all.
        transition: A, a diagonal (#B, #n, *S) or matrices (#B, #n, S, S).
        drive: b, (B, n, *S).

    Cost: two scans of n points; sends its last state and the product of its transitions to each
    other rank.
    """
    dense = transition.dim() > drive.dim()
    run, apply = (transition_scan, _times) if dense else (scan, torch.mul)
    shape = (*drive.shape, drive.shape[-1]) if dense else drive.shape
    transition = transition.expand(shape)
    if real is not None:
        still = _identity(transition, dense)
        shown = real.view(*real.shape, *[1] * (drive.dim() - 2))
        drive = torch.where(shown, drive, 0.0)
        transition = torch.where(shown[..., None] if dense else shown, transition, still)
    last = run(transition, drive)[:, -1]
    products = _product(transition) if dense else transition.prod(1)
    ends, products = _everyones(last, shards), _everyones(products, shards)
    # the first rank has the same messages in its graph, which adds up nothing of them
    state = apply(products[:0].sum(0), ends[:0].sum(0))
    for product, end in zip(products[: shards.rank], ends[: shards.rank]):
        state = apply(product, state) + end
    entering = drive[:, :1] + apply(transition[:, 0], state)[:, None]
    return run(transition, torch.cat([entering, drive[:, 1:]], 1))


def _times(matrix: Tensor, state: Tensor) -> Tensor:
    return (matrix @ state[..., None])[..., 0]


def _identity(like: Tensor, dense: bool) -> Tensor:
    if dense:
        return torch.eye(like.shape[-1], dtype=like.dtype, device=like.device)
    return torch.ones((), dtype=like.dtype, device=like.device)


def _product(matrices: Tensor) -> Tensor:
    """A_n ... A_1, (B, S, S), by halves: log2 n products of all."""
    while matrices.shape[1] > 1:
        even = matrices.shape[1] // 2 * 2
        pairs = matrices[:, 1:even:2] @ matrices[:, 0:even:2]
        matrices = torch.cat([pairs, matrices[:, even:]], 1)
    return matrices[:, 0]


def _everyones(x: Tensor, shards: Shards) -> Tensor:
    if x.is_complex():
        return torch.view_as_complex(gathered(torch.view_as_real(x.contiguous()), shards))
    return gathered(x.contiguous(), shards)
