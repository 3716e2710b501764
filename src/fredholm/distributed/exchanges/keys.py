"""The keys of other ranks, for queries of this one.

A *ring* brings the keys of one rank after another to every query. Where a weight depends on all
keys at once, they are *gathered*: only then does a rank hold more than one block of the others'
keys. Both send O(N) numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from ...integral.facts import Layout
from ...integral.problem import Problem
from ...ops.plain import recomputed
from ...quadrature import Quadrature
from .. import Ring, Shards, concatenated
from ..part import all_times, places


def visible_from(problem: Problem, shards: Shards, owner: int) -> Tensor | None:
    """Return the pair density of this rank's queries and the keys of rank ``owner``.

    In causal order within one domain, keys after a query have density 0. The shape is (1 | B, 1 |
    H, n, n'), or None where every query sees every key.
    """
    q = problem.quadrature
    density = None
    if q.density is not None:
        density = q.density[..., _columns(shards, owner)]
    if q.query_time is None:
        return density

    # (1 | B, 1, n, n'): a key counts from its own time on.
    key_time = places(shards, owner, problem.y.device)
    visible = key_time[:, None, :] <= q.query_time[:, :, None]
    visible = visible[:, None]
    if density is None:
        return visible.to(q.mass.dtype)
    return density * visible


def _columns(shards: Shards, owner: int) -> slice:
    """Return the columns of one rank's keys in a matrix over the keys of all ranks."""
    start = sum(shards.sizes[:owner])
    return slice(start, start + shards.sizes[owner])


Parts = tuple[Tensor, ...]
"""One rank's part of a result, which may be several tensors, such as a sum and a maximum."""


def fold_ring(
    tensors: Sequence[Tensor],
    dims: Sequence[int],
    shards: Shards,
    respond: Callable[[int, list[Tensor]], Parts],
    combine: Callable[[Parts, Parts], Parts],
) -> Parts:
    """Call ``respond(rank, tensors)`` with each rank's tensors in turn, and combine the results.

    Args:
        tensors: those of this rank, with its points on the dimensions ``dims``.
        dims: one dimension per tensor; all others have the same size on every rank.
        shards: the ranks. This one comes first, then the ranks before it, from near to far.
        respond: returns one rank's part of the result.
        combine: joins the result so far with one rank's part.

    The next block travels while the present one is computed. The backward receives and computes the
    blocks again, from the last to the first, so that memory holds two blocks, never all of them.
    """
    messages = Ring(tensors, dims, shards)
    computed = set()

    def block(by: int, *own: Tensor) -> Parts:
        """Return the part of the rank that is ``by`` before this one."""
        if by == 0:
            theirs = list(own)
        else:
            theirs = messages.shifted(own, by)

        # The second call for a block comes from the backward, which goes from the last to the
        # first.
        if by in computed:
            following = by - 1
        else:
            following = by + 1
        computed.add(by)
        if 0 < following < shards.count:
            messages.begin(own, following)
        return respond((shards.rank - by) % shards.count, theirs)

    total = block(0, *tensors)
    for by in range(1, shards.count):
        total = combine(total, recomputed(block, by, *tensors))
    return total


def add_parts(a: Parts, b: Parts) -> Parts:
    """Add each tensor of ``b`` to its counterpart in ``a``."""
    return tuple(x + y for x, y in zip(a, b))


def ring(
    problem: Problem,
    shards: Shards,
    respond: Callable[[Problem], Tensor],
    combine: Callable[[Parts, Parts], Parts] = add_parts,
) -> Tensor:
    """Combine the responses of this rank's queries to each rank's keys, by :func:`fold_ring`."""
    tensors = [problem.y, problem.uy, problem.quadrature.mass]

    # Within one domain a key's time is its place, which follows from the shards. Times of another
    # domain travel with its keys.
    if problem.layout.causal and problem.layout.cross:
        assert problem.quadrature.key_time is not None
        tensors.append(problem.quadrature.key_time)

    def block(owner: int, keys: list[Tensor]) -> Parts:
        of_owner = with_keys(problem, shards, owner, keys)
        return (respond(of_owner),)

    dims = KEY_DIMS[: len(tensors)]
    (response,) = fold_ring(tensors, dims, shards, block, combine)
    return response


KEY_DIMS = (1, 2, 1, 1)
"""The dimension of the points in positions, features, masses and times."""


def with_keys(
    problem: Problem,
    shards: Shards,
    owner: int,
    keys: list[Tensor],
) -> Problem:
    """Return the problem of the same queries over the keys of rank ``owner``.

    ``keys`` are that rank's positions, features, masses and, across two domains in causal order,
    times.
    """
    positions, features, mass, *times = keys
    q = problem.quadrature
    key_time = None
    if times:
        key_time = times[0]
    elif q.query_time is not None:
        key_time = places(shards, owner, problem.y.device)

    columns = _columns(shards, owner)
    quadrature = Quadrature(
        mass=mass,
        scale=q.scale,
        query_time=q.query_time,
        key_time=key_time,
        density=_select(q.density, columns),
        log_density=_select(q.log_density, columns),
    )
    return Problem(
        x=problem.x,
        y=positions,
        ux=problem.ux,
        uy=features,
        quadrature=quadrature,
        layout=_across(problem.layout),
        real=problem.real,
    )


def _select(x: Tensor | None, points: slice | Tensor) -> Tensor | None:
    """Return the points ``points`` (a slice, or indices) of a tensor's last dimension.

    None stays None: a quadrature has no density where nothing hides or weights pairs.
    """
    if x is None:
        return None
    return x[..., points]


def _across(layout: Layout) -> Layout:
    """Return the layout of one rank's queries over other keys."""
    return replace(
        layout,
        keys=None,
        queries=None,
        cross=True,
        sharded=False,
    )


def all_keys(problem: Problem, shards: Shards) -> Problem:
    """Return the problem of this rank's queries over the keys of all ranks, gathered.

    Where queries are keys and nothing acts on pairs, its ``parent`` is the problem of all ranks'
    queries. Cost: O(N) memory; each rank sends its keys to every other one.
    """
    p = problem
    q = p.quadrature
    y = concatenated(p.y, shards, 1)
    uy = concatenated(p.uy, shards, 2)
    mass = concatenated(q.mass, shards, 1)

    valid = None
    if q.valid is not None:
        # Booleans have no message of their own.
        valid = concatenated(q.valid.to(mass.dtype), shards, 1) > 0
    key_time = q.key_time
    if key_time is not None:
        key_time = all_times(key_time, p.layout.cross, shards)
    clock = q.clock
    if clock is not None:
        clock = concatenated(clock, shards, 1)
    quadrature = replace(
        q,
        mass=mass,
        key_time=key_time,
        valid=valid,
        triangular=False,
        clock=clock,
    )

    rows = Problem(
        p.x,
        y,
        p.ux,
        uy,
        quadrature,
        _across(p.layout),
        real=p.real,
    )
    if q.density is not None and shards.holes:
        rows = _without_holes(rows, shards)
    if p.layout.cross:
        return rows
    index = torch.arange(
        shards.start,
        shards.start + shards.size,
        device=y.device,
    )
    if q.density is not None:
        return replace(rows, index=index)

    scale = q.scale
    if scale is not None:
        scale = concatenated(scale, shards, 2)
    full_quadrature = replace(
        quadrature,
        scale=scale,
        query_time=key_time,
        triangular=p.layout.causal,
    )
    layout = replace(p.layout, sharded=False)
    parent = Problem(
        y,
        y,
        uy,
        uy,
        full_quadrature,
        layout,
        real=valid,
    )
    return replace(rows, index=index, parent=parent)


def _without_holes(rows: Problem, shards: Shards) -> Problem:
    """Return the problem without the keys that only stand for ranks without points.

    Elsewhere their mass of 0 is enough. A kernel on weighted pairs may count keys.
    """
    q = rows.quadrature
    kept = torch.tensor(shards.kept, device=rows.y.device)
    quadrature = replace(
        q,
        mass=q.mass[:, kept],
        key_time=_select(q.key_time, kept),
        valid=_select(q.valid, kept),
        clock=_select(q.clock, kept),
        density=_select(q.density, kept),
        log_density=_select(q.log_density, kept),
    )
    return replace(
        rows,
        y=rows.y[:, kept],
        uy=rows.uy[:, :, kept],
        quadrature=quadrature,
    )
