"""Recurrences: the states that the ranks before leave behind, from a scan between the ranks."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

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
        self,
        form: StatesScan,
        kernel: TimeInvariantKernel,
        problem: Problem,
        shards: Shards,
    ) -> Tensor:
        q = problem.quadrature
        valid = real_points(problem)
        packed = _pack(valid, shards)
        with full_precision(problem.uy):
            signal = reorder(weighed(problem.uy, q.mass), packed.order, 2)
            states = kernel.states(signal, packed.recurrence)
            out = reorder(states, packed.back, 2)
        out = q.scaled(out)
        if kernel.free(1) is None:
            return out

        # The free response depends on the number of steps since the first real point of the whole
        # domain, so each rank needs the steps of the ranks before.
        at = ranks(valid, problem.uy.shape[2], out.device)
        steps = at[:, -1:] + 1
        before = before_this(steps.to(out.dtype), shards).long()
        with full_precision(problem.uy):
            free = kernel.free(shards.total)
        assert free is not None
        step = (at + before).clamp(min=0)
        return out + free[:, step].movedim(0, 1)


@register_exchange(StatesScan, SelectiveKernel)
class SelectiveScan(Exchange):
    """A linear system whose coefficients follow from the signal."""

    passes = SystemScan.passes

    def respond(
        self,
        form: StatesScan,
        kernel: SelectiveKernel,
        problem: Problem,
        shards: Shards,
    ) -> Tensor:
        packed = _pack(real_points(problem), shards)
        signal = reorder(problem.uy[:, 0], packed.order, 1)
        out = kernel.response(signal, packed.recurrence)
        return reorder(out, packed.back, 1)[:, None]


class _Packed(NamedTuple):
    """How to scan this rank's points with the real ones in front.

    Attributes:
        order: the points of each row, real ones first, (B, n); None where all are real.
        back: the inverse of ``order``.
        recurrence: :func:`scan_between` for points in this order.
    """

    order: Tensor | None
    back: Tensor | None
    recurrence: Callable[[Tensor, Tensor], Tensor]


def _pack(valid: Tensor | None, shards: Shards) -> _Packed:
    """Order this rank's points; ``valid`` tells the real ones, (B, n), None for all."""
    if valid is None:
        recurrence = partial(scan_between, shards, None)
        return _Packed(None, None, recurrence)
    order, back = pack(valid)
    real = reorder(valid, order, 1)
    recurrence = partial(scan_between, shards, real)
    return _Packed(order, back, recurrence)


def scan_between(
    shards: Shards,
    real: Tensor | None,
    transition: Tensor,
    drive: Tensor,
) -> Tensor:
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
    is_matrix = transition.dim() > drive.dim()
    if is_matrix:
        run = transition_scan
        apply = _apply_matrix
        product = _matrix_product
        transition = transition.expand(*drive.shape, drive.shape[-1])
    else:
        run = scan
        apply = torch.mul
        product = partial(torch.prod, dim=1)
        transition = transition.expand(drive.shape)
    if real is not None:
        transition, drive = _stand_still(transition, drive, real, is_matrix)

    # h_last = P h_before + e for each rank, where e is its last state from a start of 0 and P the
    # product of its transitions. Both go to every other rank.
    last = run(transition, drive)[:, -1]
    ends = _gather(last, shards)
    products = _gather(product(transition), shards)

    # Sums over no ranks: rank 0 has to use the messages too, see Exchange.
    state = apply(products[:0].sum(0), ends[:0].sum(0))
    before = slice(0, shards.rank)
    for rank_product, end in zip(products[before], ends[before]):
        state = apply(rank_product, state) + end

    # The second scan begins with the state that the ranks before leave behind.
    from_before = apply(transition[:, 0], state)
    entering = drive[:, :1] + from_before[:, None]
    drive = torch.cat([entering, drive[:, 1:]], 1)
    return run(transition, drive)


class _Steps(NamedTuple):
    """The steps h_t = A_t h_(t-1) + b_t of a recurrence."""

    transition: Tensor
    drive: Tensor


def _stand_still(
    transition: Tensor,
    drive: Tensor,
    real: Tensor,
    is_matrix: bool,
) -> _Steps:
    """Make points that are not real leave the state as it is: A = I, b = 0."""
    state_dimensions = drive.dim() - 2
    real = real.view(*real.shape, *[1] * state_dimensions)
    drive = torch.where(real, drive, 0.0)
    if not is_matrix:
        return _Steps(torch.where(real, transition, 1.0), drive)
    size = transition.shape[-1]
    identity = torch.eye(
        size,
        dtype=transition.dtype,
        device=transition.device,
    )
    return _Steps(torch.where(real[..., None], transition, identity), drive)


def _apply_matrix(matrix: Tensor, state: Tensor) -> Tensor:
    """Return matrices (..., S, S) times states (..., S)."""
    return (matrix @ state[..., None])[..., 0]


def _matrix_product(matrices: Tensor) -> Tensor:
    """Return A_n ... A_1 of matrices (B, n, S, S), by pairs: log2 n batched products."""
    while matrices.shape[1] > 1:
        # With an odd number the last matrix waits for the next round.
        even = matrices.shape[1] // 2 * 2
        pairs = matrices[:, 1:even:2] @ matrices[:, 0:even:2]
        matrices = torch.cat([pairs, matrices[:, even:]], 1)
    return matrices[:, 0]


def _gather(x: Tensor, shards: Shards) -> Tensor:
    """Return all ranks' tensors, stacked; gloo sends no complex numbers, so they go as pairs."""
    x = x.contiguous()
    if not x.is_complex():
        return gathered(x, shards)
    pairs = gathered(torch.view_as_real(x), shards)
    return torch.view_as_complex(pairs)
