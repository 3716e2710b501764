"""One rank's part of a sharded domain, read as a problem of its own.

:meth:`fredholm.integral.Problem.of` calls :func:`read_part`; it is the only place outside this room
and ``domain.py`` that knows of shards. There are three kinds of parts:

- **all pairs**: the rank has its own keys, weighed by :class:`KeysOfAllRanks`, and an exchange
  brings in the others (:class:`.form.Distributed`).
- **edges**: the rank has the rows of its points, and the keys of all ranks (:func:`gather_keys`).
- **a reach**: the rank has its stretch of the line, and the points near its ends that other ranks
  own (:func:`stretch_in_reach`).

Of the last two the rank's problem is complete: nothing is sent after it is read.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from ..domain import Domain
from ..edges import Edges
from ..errors import DomainError
from ..measures import AllKeys, Times, mass_seen
from ..quadrature import Quadrature
from .collectives import concatenated, gathered, starts, summed
from .halo import fetched
from .shards import Shards


class RankPart(NamedTuple):
    """A rank's problem: its keys, its queries, and their quadrature.

    Attributes:
        u, domain: features (B, N, dim) and where they lie.
        query, query_domain: the same of the queries; ``query_domain`` is None where they are the
            points of ``domain``.
        quadrature: the weights of the queries over the keys.
        shards: which rank has which points, a point of padding on ranks without any included.
        answered: the queries that the caller asked for. There are others: a point of padding where
            a rank has none, and the points of other ranks in a stretch.
    """

    u: Tensor
    domain: Domain
    query: Tensor | None
    query_domain: Domain | None
    quadrature: Quadrature
    shards: Shards
    answered: slice


def read_part(
    u: Tensor,
    domain: Domain,
    query: Tensor | None,
    query_domain: Domain | None,
) -> RankPart:
    """Return this rank's problem. ``query`` is u where the queries are the domain's own points.

    Raises:
        DomainError: queries that are not sharded over the same ranks, or, beside edges or a reach,
            queries on another domain or with features of their own.
    """
    shards = domain.shards
    assert shards is not None
    if domain.sparse and query_domain is not None:
        raise DomainError(
            "expected no query and no query_domain beside edges or a reach in shards, got one; "
            "answer such queries in one process"
        )

    if domain.reach is not None:
        stretch = stretch_in_reach(u, domain)
        quadrature = stretch.domain.quadrature()
        return RankPart(
            stretch.u,
            stretch.domain,
            stretch.u,
            None,
            quadrature,
            shards,
            stretch.owned,
        )

    if domain.sparse:
        both = gather_keys(u, domain)
        quadrature = both.keys.quadrature(both.queries)
        answered = slice(0, domain.size)
        return RankPart(
            both.u,
            both.keys,
            both.query,
            both.queries,
            quadrature,
            shards,
            answered,
        )

    answered = domain if query_domain is None else query_domain
    filled = fill_empty(u, domain, query, query_domain)
    all_shards = filled.domain.shards
    assert all_shards is not None

    # Queries on the domain itself are in the order of its places, also with features of their own.
    target = filled.query_domain
    if query_domain is not None and domain.same_as(query_domain):
        target = None
    return RankPart(
        *filled,
        quadrature=filled.domain._quadrature(target, KeysOfAllRanks(all_shards)),
        shards=all_shards,
        answered=slice(0, answered.size),
    )


class FilledPart(NamedTuple):
    """Features and domains of one rank, each with a point at least.

    Attributes:
        u, domain: features (B, N, dim) and where they lie.
        query, query_domain: the same of the queries; ``query_domain`` is None where they are the
            domain's own points.
    """

    u: Tensor
    domain: Domain
    query: Tensor | None
    query_domain: Domain | None


def fill_empty(
    u: Tensor,
    domain: Domain,
    query: Tensor | None,
    query_domain: Domain | None,
) -> FilledPart:
    """Return the part with a point of padding on each rank that has none.

    With a point at least, all ranks run the same steps and send the same messages.

    Raises:
        DomainError: queries whose domain is not sharded over the same ranks.
    """
    _check_target(domain, query_domain)
    filled = _filled(domain)
    u = _pad_rows(u, filled.size)
    if query_domain is None:
        source = _with_columns(_with_rows(filled, filled.size), domain)
        return FilledPart(u, source, u, None)
    target = _filled(query_domain)
    source = _with_columns(_with_rows(filled, target.size), domain)
    if query is not None:
        query = _pad_rows(query, target.size)
    return FilledPart(u, source, query, target)


class GatheredKeys(NamedTuple):
    """One rank's queries beside the keys of all ranks.

    Attributes:
        u, keys: features and points of the whole.
        query, queries: features and points of this rank, one point of padding where it has none.
    """

    u: Tensor
    keys: Domain
    query: Tensor
    queries: Domain


def gather_keys(u: Tensor, domain: Domain) -> GatheredKeys:
    """Return the keys of all ranks, for a rank that owns the rows of its points.

    O(N) numbers are sent. The edges of a rank stay where they are.
    """
    shards = domain.shards
    edges = domain.pairs
    assert shards is not None
    assert isinstance(edges, Edges)
    valid = _all_valid(domain, shards)
    keys = replace(
        domain,
        positions=concatenated(
            domain.positions,
            shards,
            domain.positions.dim() - 2,
        ),
        measure=concatenated(
            domain.measure,
            shards,
            domain.measure.dim() - 1,
        ),
        valid=valid,
        # The edges of a part already leave out what an order hides, see Domain.shard.
        causal=False,
        shards=None,
    )
    every = concatenated(u, shards, 1)
    queries = replace(domain, pairs=None, shards=None)
    if domain.size:
        return GatheredKeys(every, keys, u, queries)

    # A rank without points answers at one of padding, which sees nothing.
    queries = _one_of_padding(queries)
    nothing = replace(
        edges,
        ptr=edges.ptr.new_zeros(edges.batch + 1),
        queries=1,
    )
    return GatheredKeys(
        every,
        replace(keys, pairs=nothing),
        _pad_rows(u, 1),
        queries,
    )


class Stretch(NamedTuple):
    """A rank's points of a line, and those of other ranks within reach of them.

    Attributes:
        u, domain: features and points of the stretch, in their order.
        owned: the rank's own points among them.
    """

    u: Tensor
    domain: Domain
    owned: slice


def stretch_in_reach(u: Tensor, domain: Domain) -> Stretch:
    """Return the part of the line that this rank's points see, as a domain in one process.

    Each rank sends the ``reach`` points at its ends (more where some are hidden), whatever N is,
    and with ``valid`` one number per point. What a rank's points see is complete, so that their
    masses are normalised as in the whole; the answers at the other ranks' points are not, and are
    left out by the caller.
    """
    shards = domain.shards
    reach = domain.reach
    assert shards is not None
    assert reach is not None
    valid = _all_valid(domain, shards)

    # Every rank lists the places that each rank reads: both sides of a message know its length
    # without asking.
    wanted = []
    for rank in range(shards.count):
        places = _places_in_reach(
            shards,
            rank,
            reach,
            valid,
            causal=domain.causal,
        )
        wanted.append(torch.arange(*places, device=u.device))

    mine = wanted[shards.rank]
    stretch_valid = None
    if valid is not None:
        stretch_valid = valid[:, mine]
    stretch = replace(
        domain,
        positions=fetched(
            domain.positions,
            shards,
            domain.positions.dim() - 2,
            wanted,
        ),
        measure=fetched(
            domain.measure,
            shards,
            domain.measure.dim() - 1,
            wanted,
        ),
        valid=stretch_valid,
        shards=None,
    )
    features = fetched(u, shards, 1, wanted)
    if not domain.size:
        # A rank without points answers at one of padding.
        return Stretch(
            _pad_rows(features, 1),
            _one_of_padding(stretch),
            slice(0, 0),
        )
    first = shards.start - int(mine[0])
    return Stretch(
        features,
        stretch,
        slice(first, first + domain.size),
    )


def _places_in_reach(
    shards: Shards,
    rank: int,
    reach: int,
    valid: Tensor | None,
    *,
    causal: bool,
) -> tuple[int, int]:
    """Return the first and the last place, exclusive, that a rank's points see in the whole."""
    start, stop = starts(shards.sizes)[rank : rank + 2]
    if start == stop:
        return start, stop
    if valid is None:
        first = max(0, start - reach)
        last = min(shards.total, stop + reach)
    else:
        # A reach counts visible points alone. With seen[p] of them before place p, the stretch
        # begins at the last p with seen[p] = seen[start] - reach, in the row where it is first.
        seen_after = valid.long().cumsum(1)
        seen = torch.nn.functional.pad(seen_after, (1, 0))
        behind = seen[:, start, None] - reach
        ahead = seen[:, stop, None] + reach
        firsts = torch.searchsorted(seen, behind, right=True)
        lasts = torch.searchsorted(seen, ahead)
        first = max(0, int(firsts.min()) - 1)
        last = min(shards.total, int(lasts.max()))
    if causal:
        last = stop
    return first, last


def _all_valid(domain: Domain, shards: Shards) -> Tensor | None:
    """Return which points of the whole domain are real, (B, N), or None where no rank has padding.

    Each rank sends its own to every other.
    """
    if domain.valid is None:
        return None
    # A boolean is sent as a byte.
    return concatenated(domain.valid.to(torch.uint8), shards, 1) > 0


def _one_of_padding(empty: Domain) -> Domain:
    """Return a domain without points with one of padding."""
    return replace(
        empty,
        positions=_pad_rows(empty.positions, 1),
        measure=_pad_rows(empty.measure[..., None], 1)[..., 0],
        valid=torch.zeros(
            1,
            1,
            dtype=torch.bool,
            device=empty.positions.device,
        ),
    )


def _check_target(domain: Domain, target: Domain | None) -> None:
    """Raise a DomainError if the queries' domain is not sharded over the same ranks."""
    if target is None:
        return
    own = domain.shards
    other = target.shards
    if own is None or other is None or (own.count, own.rank) != (other.count, other.rank):
        raise DomainError(
            "query_domain: expected a domain sharded over the same ranks as the keys' domain, "
            "got one that is not sharded or over other ranks; shard it over the same mesh"
        )


def _filled(domain: Domain) -> Domain:
    """Return the domain with one point of padding on each rank that has none.

    If one rank has padding, all ranks get a mask, since forms must choose alike on all of them.
    """
    shards = domain.shards
    assert shards is not None
    if 0 not in shards.sizes:
        return domain
    n = max(1, domain.size)
    valid = domain.valid
    if valid is None:
        valid = torch.ones(
            1,
            domain.size,
            dtype=torch.bool,
            device=domain.positions.device,
        )
    return replace(
        domain,
        positions=_pad_rows(domain.positions, n),
        measure=_pad_rows(domain.measure[..., None], n)[..., 0],
        valid=_pad_rows(valid[..., None], n)[..., 0],
        shards=shards.filled,
    )


def _with_rows(domain: Domain, n: int) -> Domain:
    """Return the domain with one row of ``pairs`` for each of n queries."""
    if domain.pairs is None:
        return domain
    # Domains with edges are read by gather_keys.
    assert isinstance(domain.pairs, Tensor)
    if domain.pairs.shape[-2] == n:
        return domain
    return replace(domain, pairs=_pad_rows(domain.pairs, n))


def _with_columns(filled: Domain, before: Domain) -> Domain:
    """Give ``pairs`` a hidden column for the padding of each rank that had no point."""
    assert before.shards is not None
    if filled.pairs is None or filled is before or filled.shards is before.shards:
        return filled
    assert isinstance(filled.pairs, Tensor)
    columns = []
    for part in filled.pairs.split(list(before.shards.sizes), -1):
        if part.shape[-1] == 0:
            part = part.new_zeros(*part.shape[:-1], 1)
        columns.append(part)
    return replace(filled, pairs=torch.cat(columns, -1))


def _pad_rows(x: Tensor, n: int) -> Tensor:
    """Append rows of zeros to x (..., rows, ·), up to n rows."""
    *others, rows, columns = x.shape
    missing = n - rows
    if missing == 0:
        return x
    zeros = x.new_zeros(*others, missing, columns)
    return torch.cat([x, zeros], -2)


class KeysOfAllRanks(AllKeys):
    """The keys of all ranks, of which a rank has the mass of its own."""

    def __init__(self, shards: Shards):
        super().__init__(shards.total)
        self.shards = shards

    def places(self, device: torch.device) -> Tensor:
        return places(self.shards, self.shards.rank, device)

    def total(self, mass: Tensor) -> Tensor:
        return summed(super().total(mass), self.shards)

    def running_total(self, mass: Tensor) -> Tensor:
        # The mass of the ranks before, and a running sum.
        here = super().running_total(mass)
        own = super().total(mass)
        return here + before_this(own, self.shards)

    def mass_seen(
        self,
        mass: Tensor,
        times: Times,
        log_density: Tensor | None,
        *,
        own_points: bool,
    ) -> Tensor:
        # Each query sees keys of its own: the masses of all ranks are gathered, O(N).
        every_mass = concatenated(mass, self.shards, 1)
        if times.key is not None:
            every_time = all_times(times.key, not own_points, self.shards)
            times = Times(times.query, every_time)
        return mass_seen(every_mass, times, log_density)


def places(shards: Shards, rank: int, device: torch.device) -> Tensor:
    """Return the places of a rank's points in the complete domain, (1, n).

    Floats hold every place exactly up to 2^24 points.
    """
    start = sum(shards.sizes[:rank])
    stop = start + shards.sizes[rank]
    return torch.arange(start, stop, device=device, dtype=torch.float32)[None]


def all_times(key_time: Tensor, crossed: bool, shards: Shards) -> Tensor:
    """Return the times of all ranks' keys, (1 | B, N).

    Across two domains each rank sends its own. Within one domain a time is a place.
    """
    if crossed:
        return concatenated(key_time, shards, 1)
    return torch.arange(shards.total, device=key_time.device, dtype=torch.float32)[None]


def before_this(total: Tensor, shards: Shards) -> Tensor:
    """Return the sum of ``total`` over the ranks before this one, in their order.

    This is an exclusive scan; rank 0 gets zeros. Each rank sends ``total`` to every other.
    """
    every = gathered(total, shards)
    return every[: shards.rank].sum(0)
