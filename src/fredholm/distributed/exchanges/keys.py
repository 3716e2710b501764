"""The keys of other ranks, for queries of this one.

A *ring* brings the keys of one rank after another to every query. Where a weight is a functional of
all keys at once, they are *gathered*: only then does a rank hold more than a block of the others'
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
    """The pair density of this rank's queries and the keys of ``owner``, an order within one domain
    included; (1 | B, 1 | H, n, n') or None.
    """
    q = problem.quadrature
    density = None
    if q.density is not None:
        start = sum(shards.sizes[:owner])
        density = q.density[..., start : start + shards.sizes[owner]]
    if q.query_time is None:
        return density
    time = places(shards, owner, problem.y.device)
    order = (time[:, None, :] <= q.query_time[:, :, None])[:, None]
    return order.to(q.mass.dtype) if density is None else density * order


# --- the keys of all ranks ------------------------------------------------------------------------


Parts = tuple[Tensor, ...]


def fold_ring(
    tensors: Sequence[Tensor],
    dims: Sequence[int],
    shards: Shards,
    respond: Callable[[int, list[Tensor]], Parts],
    combine: Callable[[Parts, Parts], Parts],
) -> Parts:
    """What ``respond(rank, tensors)`` makes of one rank's ``tensors`` after another's, combined,
    this rank's first. They have the rank's points on the dimensions ``dims``.

    The next block travels while one is answered. Blocks are sent, and answered, again in the
    backward, from the last to the first, so that two at a time are in memory.
    """
    messages, sent = Ring(tensors, dims, shards), set()

    def block(by: int, *own: Tensor) -> Parts:
        theirs = messages.shifted(own, by) if by else list(own)
        following = by - 1 if by in sent else by + 1
        sent.add(by)
        if 0 < following < shards.count:
            messages.begin(own, following)
        return respond((shards.rank - by) % shards.count, theirs)

    total = block(0, *tensors)
    for by in range(1, shards.count):
        total = combine(total, recomputed(block, by, *tensors))
    return total


def sums(a: Parts, b: Parts) -> Parts:
    """Parts that add up."""
    return tuple(x + y for x, y in zip(a, b))


def ring(
    problem: Problem,
    shards: Shards,
    respond: Callable[[Problem], Tensor],
    combine: Callable[[Parts, Parts], Parts] = sums,
) -> Tensor:
    """What every rank's keys give to this rank's queries, by :func:`fold_ring`."""
    tensors = [problem.y, problem.uy, problem.quadrature.mass]
    if problem.layout.causal and problem.layout.cross:
        assert problem.quadrature.key_time is not None
        tensors.append(problem.quadrature.key_time)

    def block(owner: int, keys: list[Tensor]) -> Parts:
        return (respond(with_keys(problem, shards, owner, keys)),)

    return fold_ring(tensors, KEY_DIMS[: len(tensors)], shards, block, combine)[0]


KEY_DIMS = (1, 2, 1, 1)  # where points are in positions, features, masses and times


def with_keys(problem: Problem, shards: Shards, owner: int, keys: list[Tensor]) -> Problem:
    """The same queries over the keys of one rank: positions, features, masses and, across two
    domains in causal order, times.
    """
    q = problem.quadrature
    start = sum(shards.sizes[:owner])
    columns = slice(start, start + shards.sizes[owner])
    time = keys[3] if len(keys) > 3 else None
    if q.query_time is not None and time is None:
        time = places(shards, owner, problem.y.device)
    quadrature = Quadrature(
        mass=keys[2],
        scale=q.scale,
        query_time=q.query_time,
        key_time=time,
        density=None if q.density is None else q.density[..., columns],
        log_density=None if q.log_density is None else q.log_density[..., columns],
    )
    return Problem(
        x=problem.x,
        y=keys[0],
        ux=problem.ux,
        uy=keys[1],
        quadrature=quadrature,
        layout=_across(problem.layout),
        real=problem.real,
    )


def _across(layout: Layout) -> Layout:
    """A layout whose queries are not its keys."""
    return replace(layout, keys=None, queries=None, cross=True, sharded=False)


def all_keys(problem: Problem, shards: Shards) -> Problem:
    """This rank's queries over the keys of all ranks, gathered: O(N) memory.

    Its ``parent`` has the queries of all ranks, where queries are keys and nothing acts on pairs.
    """
    q, p = problem.quadrature, problem
    y, uy = concatenated(p.y, shards, 1), concatenated(p.uy, shards, 2)
    mass = concatenated(q.mass, shards, 1)
    valid = None
    if q.valid is not None:
        valid = concatenated(q.valid.to(mass.dtype), shards, 1) > 0
    key_time = q.key_time
    if key_time is not None:
        key_time = all_times(key_time, p.layout.cross, shards)
    clock = None if q.clock is None else concatenated(q.clock, shards, 1)
    quadrature = replace(
        q, mass=mass, key_time=key_time, valid=valid, triangular=False, clock=clock
    )
    rows = Problem(p.x, y, p.ux, uy, quadrature, _across(p.layout), real=p.real)
    if q.density is not None and shards.holes:
        rows = _without_holes(rows, shards)
    if p.layout.cross:
        return rows
    index = torch.arange(shards.start, shards.start + shards.size, device=y.device)
    if q.density is not None:
        return replace(rows, index=index)
    scale = None if q.scale is None else concatenated(q.scale, shards, 2)
    whole = replace(quadrature, scale=scale, query_time=key_time, triangular=p.layout.causal)
    layout = replace(p.layout, sharded=False)
    return replace(rows, index=index, parent=Problem(y, y, uy, uy, whole, layout, real=valid))


def _without_holes(rows: Problem, shards: Shards) -> Problem:
    """The problem without the keys that stand for ranks that have none: where pairs are weighed, a
    kernel may count keys.
    """
    q, kept = rows.quadrature, torch.tensor(shards.kept, device=rows.y.device)
    pairs = {
        name: None if x is None else x[..., kept]
        for name, x in (("density", q.density), ("log_density", q.log_density))
    }
    quadrature = replace(
        q,
        mass=q.mass[:, kept],
        key_time=None if q.key_time is None else q.key_time[:, kept],
        valid=None if q.valid is None else q.valid[:, kept],
        clock=None if q.clock is None else q.clock[:, kept],
        **pairs,
    )
    return replace(rows, y=rows.y[:, kept], uy=rows.uy[:, :, kept], quadrature=quadrature)
