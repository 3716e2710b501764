r"""A store beside a window: a fixed number of points behind it that softmax still sees, those that
the state answers worst.

Points leave the window in blocks, counted from the first point behind the sinks. As the first point
of a block leaves, the others are still in the window. At this moment all of the block compete with
the points of the store. The state M is asked for each of them by its own key,

.. math:: \epsilon_j = \Big\| \frac{\psi_j^T M_{\cdot, :c}}{\psi_j^T M_{\cdot, c}} - v_j \Big\|,

the mean over the heads of a group, and the points of the largest error get the places. Chosen
points of the block stay in the window until they leave it, and are then seen in the store. Points
of the store that lose their place join the state, as the other points of the block do when they
leave the window. So each point counts once, and it does not matter how a sequence is cut into
calls.

Beside a decay the state has faded when it is asked, and points of the store do not fade. Each has
an *age*, see :mod:`.window_decay`, by which it has faded where it joins the state.
"""

from __future__ import annotations

from typing import Any, NamedTuple, TypeVar

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from ..backend import full_precision
from .band import Points, Sinks, taken_by_group
from .chunked import over_new_factor
from .running import moment_of
from .window_decay import NEAR_AGE
from .window_stretch import Far, WindowAdvance, WindowSizes, advance_stretch, near_points, vanishing

STORE_AGE = "store_age"
"""The memory's ages of a store's points, (B, G, s); only beside a decay."""
STORE = ("store_key", "store_value", "store_number", "store_count", STORE_AGE)
"""The memory's tensors of a store, in the order of the fields of :class:`Store`."""
LARGEST_BLOCK = 64
"""Points that compete at once; fewer where the window is shorter."""
Number = TypeVar("Number", int, Tensor)
EMPTY = 2**31 - 1
"""The number of a point that an empty place of the store holds: it never leaves the window."""


class Store(NamedTuple):
    """The points of a store.

    Attributes:
        key, value: (B, G, s, e) and (B, G, s, c).
        number: which points they are, counted from 1 behind the sinks, (B, G, s) in int32;
            :data:`EMPTY` in empty places.
        count: points behind the sinks that came so far, (B,) in int32.
        age: by how much each point would have faded, (B, G, s); None without a decay.
    """

    key: Tensor
    value: Tensor
    number: Tensor
    count: Tensor
    age: Tensor | None = None

    @classmethod
    def empty(
        cls,
        points: Points,
        size: int,
        decay: Tensor | None = None,
    ) -> Store:
        """Return a store without points, for such keys, values and exponents of a decay."""
        key, value, _ = points
        batch, groups = key.shape[:2]
        number = torch.full(
            (batch, groups, size),
            EMPTY,
            dtype=torch.int32,
            device=key.device,
        )
        age = None
        if decay is not None:
            age = decay.new_zeros(batch, groups, size)
        return cls(
            key=key.new_zeros(batch, groups, size, key.shape[-1]),
            value=value.new_zeros(batch, groups, size, value.shape[-1]),
            number=number,
            count=number.new_zeros(batch),
            age=age,
        )

    @classmethod
    def of(cls, memory: dict[str, Tensor]) -> Store:
        """Return the store of a memory."""
        return cls(*(memory.get(name) for name in STORE))  # type: ignore[arg-type]

    def like(self, points: Points) -> Store:
        """Return the store in the precision of keys and values."""
        key = self.key.to(points.key.dtype)
        value = self.value.to(points.value.dtype)
        return self._replace(key=key, value=value)

    def memory(self) -> dict[str, Tensor]:
        """Return the tensors of a memory."""
        return {name: x for name, x in zip(STORE, self) if x is not None}

    def aged(self, decay: Float[Tensor, "#b _g n"] | None) -> Store:
        """Return the store after the points of some exponents have come."""
        if self.age is None or decay is None:
            return self
        return self._replace(age=self.age + decay.to(self.age.dtype).sum(-1, keepdim=True))

    def seen_from(self, left: Int[Tensor, "b n"]) -> Bool[Tensor, "b g n s"]:
        """Return which points are seen in the store, given how many have left the window."""
        # Compared as (B, G, 1, s) and (B, 1, n, 1).
        return self.number[:, :, None] <= left[:, None, :, None]

    def holds(self, number: Int[Tensor, "b n"]) -> Bool[Tensor, "b g n"]:
        """Return which points, given by their numbers, are in the store."""
        same = self.number[:, :, None] == number[:, None, :, None]
        return same.any(-1)


class Decision(NamedTuple):
    """The store for the next block, and what became of the state.

    Attributes:
        store: the chosen points.
        moment: of the state, with the points that lost their place.
        shift: the common exponent of its keys, or None.
    """

    store: Store
    moment: Tensor
    shift: Tensor | None


def advance_with_store(
    query: Tensor,
    points: Points,
    far: Far,
    memory: dict[str, Tensor],
    sizes: WindowSizes,
    valid: Tensor | None,
    sinks: Sinks | None,
) -> WindowAdvance:
    """Return :func:`.advance_stretch` beside a store.

    It goes part by part; within a part the store holds the same points.
    """
    batch = len(points.key)
    n = query.shape[2]
    band = {name: x for name, x in memory.items() if name not in STORE}
    if memory:
        store = Store.of(memory).like(points)
    else:
        store = Store.empty(points, sizes.store, far.decay)
    if valid is None:
        visible = torch.ones(
            batch,
            n,
            dtype=torch.bool,
            device=query.device,
        )
    else:
        visible = valid.expand(batch, -1)

    # How many points have left the window as each query comes, and where a block begins.
    rank = store.count[:, None] + visible.cumsum(1, dtype=torch.int32)
    left = rank - sizes.window
    begins = visible & begins_block(left, sizes.window)
    boundaries = begins.any(0).nonzero().flatten().tolist()

    # A part begins at each boundary, where the store changes and the state with it. Parts go in
    # order, because each starts from the memory that the one before it has left.
    outs = []
    starts = sorted({0, *boundaries})
    for start, stop in zip(starts, [*starts[1:], n]):
        part = slice(start, stop)
        if start in boundaries:
            ring = near_points(band)
            state = decide(
                store,
                ring,
                far,
                band,
                begins[:, start],
                sizes.window,
            )
            store = state.store
            band["moment"] = state.moment
            if state.shift is not None:
                band["shift"] = state.shift

        left_of_part = left[:, part]
        beside = _beside(
            sinks,
            part,
            store,
            store.seen_from(left_of_part),
        )
        stored = store.holds(left_of_part)
        far_part = far.part(part)
        valid_part = None
        if valid is not None:
            valid_part = valid[:, part]
        out, band = advance_stretch(
            query[:, :, part],
            points.part(part),
            far_part,
            band,
            sizes,
            valid_part,
            beside,
            stored,
        )
        outs.append(out)
        store = store.aged(far_part.decay)._replace(count=rank[:, stop - 1].clone())

    out = outs[0]
    if len(outs) > 1:
        out = torch.cat(outs, 2)
    return WindowAdvance(out, band | store.memory())


def _beside(
    sinks: Sinks | None,
    part: slice,
    store: Store,
    seen: Tensor,
) -> Sinks:
    """Return the sinks and the store as keys that queries see beside the window.

    Args:
        sinks: of all queries, or None.
        part: the queries.
        store: the store.
        seen: which of its points these queries see, (B, G, n, s).
    """
    # All masses beside a store are 1.
    mass = torch.ones(
        store.number.shape,
        dtype=store.key.dtype,
        device=store.key.device,
    )
    if sinks is None:
        return Sinks(store.key, store.value, mass, seen)

    # The sinks come first. Their masses and marks, shared by rows or groups, are repeated for each.
    batch, groups = seen.shape[:2]
    sink_key = sinks.key.to(store.key.dtype)
    sink_value = sinks.value.to(store.value.dtype)
    sink_mass = sinks.mass.expand(-1, groups, -1)
    sink_seen = sinks.seen[:, :, part].expand(batch, groups, -1, -1)
    return Sinks(
        torch.cat([sink_key, store.key], 2),
        torch.cat([sink_value, store.value], 2),
        torch.cat([sink_mass, mass.to(sink_mass.dtype)], 2),
        torch.cat([sink_seen, seen], 3),
    )


def block_of(window: int) -> int:
    """Return how many points compete at once.

    Example:
        >>> block_of(64), block_of(3), block_of(100)
        (64, 3, 64)
    """
    return min(LARGEST_BLOCK, window)


def begins_block(left: Number, window: int) -> Any:
    """Return whether a point, given its number, is the first one of a block to leave the window.

    Example:
        >>> [begins_block(left, 3) for left in (0, 1, 2, 4)]
        [False, True, False, True]
    """
    return (left > 0) & ((left - 1) % block_of(window) == 0)


def decide(
    store: Store,
    oldest: Points,
    far: Far,
    memory: dict[str, Tensor],
    due: Bool[Tensor, " b"],
    window: int,
) -> Decision:
    """Choose the points of the store as the first point of a block leaves the window.

    Args:
        store: the points so far; its ``count`` points have all come.
        oldest: the window's points from the oldest on, the block among them.
        far: ψ.
        memory: of the band before, whose moment, shift and ages are read.
        due: rows in which a block begins; others stay as they are.
        window: w.
    """
    size = store.number.shape[2]
    moment = memory["moment"]
    shift = memory.get("shift")
    key, value, number = _candidates(store, oldest, due, window)

    # All groups have equally many points, and their empty places behind them.
    is_point = number < EMPTY
    features, new_shift = far.keys(key, is_point[:, 0], shift)
    with full_precision(key):
        if shift is not None and new_shift is not None:
            ratio = over_new_factor(shift, new_shift)
            moment = moment * ratio.to(moment.dtype)
        error = _errors(features, value, moment).masked_fill(~is_point, -torch.inf)
        # The sort is stable: of two points with the same error the older stays.
        order = error.argsort(dim=-1, descending=True, stable=True)[..., :size]
        stays = torch.zeros_like(error, dtype=torch.bool).scatter(-1, order, True)

        # Points of the store that lose their place join the state, which has faded up to now, and
        # so have they. Those of the block do so later, when they leave the window.
        loses = (is_point & ~stays & due[:, None, None])[..., :size].to(features.dtype)
        if store.age is not None:
            loses = loses * (-store.age).exp().to(loses.dtype)
        moment = moment + _moment_of(features[:, :, :size], store.value, loses)

    chosen = Store(
        key=taken_by_group(key, order),
        value=taken_by_group(value, order),
        number=number.gather(2, order),
        count=store.count,
        age=_ages_of(
            store,
            memory,
            block_of(window),
            order,
        ),
    )
    return Decision(_in_rows(due, chosen, store), moment, new_shift)


class _Candidates(NamedTuple):
    """Points that compete for the store: its own, then those of the block, (B, G, s + block)."""

    key: Tensor
    value: Tensor
    number: Tensor


def _candidates(
    store: Store,
    oldest: Points,
    due: Tensor,
    window: int,
) -> _Candidates:
    """Return the points that compete, with :data:`EMPTY` as number where there is none."""
    block = block_of(window)
    groups = store.number.shape[1]

    # The block has the first points that are still in the window.
    left = store.count[:, None] - window
    number = left + torch.arange(1, block + 1, device=left.device, dtype=left.dtype)
    is_point = due[:, None] & (oldest.mass[:, :block] > 0)
    number = torch.where(is_point, number, EMPTY)[:, None].expand(-1, groups, -1)

    key = oldest.key[:, :, :block].to(store.key.dtype)
    value = oldest.value[:, :, :block].to(store.value.dtype)
    return _Candidates(
        torch.cat([store.key, key], 2),
        torch.cat([store.value, value], 2),
        torch.cat([store.number, number], 2),
    )


def _in_rows(due: Tensor, chosen: Store, before: Store) -> Store:
    """Return the new store in the rows where it was due, the one before in the others."""
    due_point = due[:, None, None]
    due_feature = due_point[..., None]
    age = None
    if chosen.age is not None and before.age is not None:
        age = torch.where(due_point, chosen.age, before.age)
    return Store(
        key=torch.where(due_feature, chosen.key, before.key),
        value=torch.where(due_feature, chosen.value, before.value),
        number=torch.where(due_point, chosen.number, before.number),
        count=before.count,
        age=age,
    )


def _ages_of(
    store: Store,
    memory: dict[str, Tensor],
    block: int,
    order: Int[Tensor, "b g s"],
) -> Tensor | None:
    """Return the ages of chosen points, (B, G, s); None without a decay.

    Args:
        store: the points before.
        memory: of the band, whose oldest points are the block.
        block: how many compete.
        order: the chosen ones among the points of the store and the block.
    """
    if store.age is None:
        return None
    # Heads of a group may have states of their own, which fade alike.
    near = memory[NEAR_AGE].unflatten(1, (store.age.shape[1], -1))[:, :, 0, :block]
    return torch.cat([store.age, near.to(store.age.dtype)], 2).gather(2, order)


@torch.no_grad()
def _errors(
    features: Tensor,
    value: Tensor,
    moment: Tensor,
) -> Float[Tensor, "b g m"]:
    """Return how far the state's answer to each key is from its value.

    A state that holds nothing answers zero. No gradient goes through the choice.
    """
    groups = value.shape[1]
    shared = features.shape[1] // groups
    sums = features.to(moment.dtype) @ moment

    # Where the sum of weights vanishes, the quotient would be 0 / 0.
    total = sums[..., -1:]
    least = vanishing(total.dtype)
    mean = sums[..., :-1] / total.clamp_min(least)
    answer = torch.where(total > least, mean, 0.0)

    wanted = value.to(answer.dtype).repeat_interleave(shared, 1)
    error = (answer - wanted).norm(dim=-1)
    return error.unflatten(1, (groups, shared)).mean(2)


def _moment_of(features: Tensor, value: Tensor, weight: Tensor) -> Tensor:
    """Return the moment of points with weights (B, G, s), (B, S, r, c + 1)."""
    shared = features.shape[1] // value.shape[1]
    mass = weight.repeat_interleave(shared, 1)[..., None]
    value = value.to(features.dtype).repeat_interleave(shared, 1)
    # Which points count differs between groups, so the masses are in the features.
    batch, _, points, _ = value.shape
    ones = torch.ones(
        batch,
        points,
        dtype=features.dtype,
        device=value.device,
    )
    return moment_of(features * mass, value, ones, 1.0)
