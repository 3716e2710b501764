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
from .window_decay import AGE
from .window_stretch import NEAR, Far, Sizes, WindowAdvance, advance_stretch, vanishing

STORE = ("store_key", "store_value", "store_number", "store_count", "store_age")
"""The memory's tensors of a store; the last only beside a decay."""
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
    def empty(cls, points: Points, size: int, decay: Tensor | None = None) -> Store:
        """Return a store without points, for such keys, values and exponents of a decay."""
        key, value, _ = points
        b, groups = key.shape[:2]
        number = torch.full((b, groups, size), EMPTY, dtype=torch.int32, device=key.device)
        age = None
        if decay is not None:
            age = decay.new_zeros(b, groups, size)
        return cls(
            key.new_zeros(b, groups, size, key.shape[-1]),
            value.new_zeros(b, groups, size, value.shape[-1]),
            number,
            number.new_zeros(b),
            age,
        )

    @classmethod
    def of(cls, memory: dict[str, Tensor]) -> Store:
        """Return the store of a memory."""
        return cls(*(memory.get(name) for name in STORE))  # type: ignore[arg-type]

    def like(self, points: Points) -> Store:
        """Return the store in the precision of keys and values."""
        return self._replace(
            key=self.key.to(points.key.dtype), value=self.value.to(points.value.dtype)
        )

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
        return self.number[:, :, None] <= left[:, None, :, None]

    def holds(self, number: Int[Tensor, "b n"]) -> Bool[Tensor, "b g n"]:
        """Return which points, given by their numbers, are in the store."""
        return (self.number[:, :, None] == number[:, None, :, None]).any(-1)


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
    sizes: Sizes,
    valid: Tensor | None,
    sinks: Sinks | None,
) -> WindowAdvance:
    """Return :func:`.advance_stretch` beside a store.

    It goes part by part; within a part the store holds the same points.
    """
    b, n, window = len(points.key), query.shape[2], sizes.window
    band = {name: x for name, x in memory.items() if name not in STORE}
    if memory:
        store = Store.of(memory).like(points)
    else:
        store = Store.empty(points, sizes.store, far.decay)
    comes = torch.ones(b, n, dtype=torch.bool, device=query.device)
    if valid is not None:
        comes = valid.expand(b, -1)

    # How many points have left the window as each query comes, and where a block begins.
    rank = store.count[:, None] + comes.cumsum(1, dtype=torch.int32)
    left = rank - window
    begins = comes & begins_block(left, window)
    boundaries = begins.any(0).nonzero().flatten().tolist()

    outs, starts = [], sorted({0, *boundaries})
    for start, stop in zip(starts, [*starts[1:], n]):
        part = slice(start, stop)
        if start in boundaries:
            ring = Points(*(band[name] for name in NEAR))
            state = decide(store, ring, far, band, begins[:, start], window)
            store, band["moment"] = state.store, state.moment
            if state.shift is not None:
                band["shift"] = state.shift
        some = Points(points.key[:, :, part], points.value[:, :, part], points.mass[:, part])
        real = None if valid is None else valid[:, part]
        beside = _beside(sinks, part, store, store.seen_from(left[:, part]))
        stored = store.holds(left[:, part])
        some_far = far.part(part)
        given = query[:, :, part], some, some_far, band, sizes, real
        out, band = advance_stretch(*given, beside, stored)
        store = store.aged(some_far.decay)._replace(count=rank[:, stop - 1].clone())
        outs.append(out)
    out = outs[0] if len(outs) == 1 else torch.cat(outs, 2)
    return WindowAdvance(out, band | store.memory())


def _beside(sinks: Sinks | None, part: slice, store: Store, seen: Tensor) -> Sinks:
    """Return the sinks and the store as keys that queries see beside the window.

    Args:
        sinks: of all queries, or None.
        part: the queries.
        store: the store.
        seen: which of its points these queries see, (B, G, n, s).
    """
    mass = torch.ones(store.number.shape, dtype=store.key.dtype, device=store.key.device)
    stored = Sinks(store.key, store.value, mass, seen)
    if sinks is None:
        return stored
    first = sinks.seen[:, :, part].expand(*seen.shape[:2], -1, -1)
    return Sinks(
        torch.cat([sinks.key.to(store.key.dtype), store.key], 2),
        torch.cat([sinks.value.to(store.value.dtype), store.value], 2),
        torch.cat([sinks.mass.expand(-1, seen.shape[1], -1), mass.to(sinks.mass.dtype)], 2),
        torch.cat([first, seen], 3),
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
    size, block = store.number.shape[2], block_of(window)
    moment, shift = memory["moment"], memory.get("shift")
    first = store.count - window
    numbers = first[:, None] + torch.arange(1, block + 1, device=first.device, dtype=first.dtype)
    real = due[:, None] & (oldest.mass[:, :block] > 0)
    numbers = torch.where(real, numbers, EMPTY)[:, None].expand(-1, store.number.shape[1], -1)

    key = torch.cat([store.key, oldest.key[:, :, :block].to(store.key.dtype)], 2)
    value = torch.cat([store.value, oldest.value[:, :, :block].to(store.value.dtype)], 2)
    number = torch.cat([store.number, numbers], 2)
    # All groups have equally many points, and their empty places behind them.
    features, new_shift = far.keys(key, number[:, 0] < EMPTY, shift)
    with full_precision(key):
        if shift is not None and new_shift is not None:
            moment = moment * over_new_factor(shift, new_shift).to(moment.dtype)
        error = _errors(features, value, moment).masked_fill(number == EMPTY, -torch.inf)
        # The older of two alike stays.
        order = error.argsort(dim=-1, descending=True, stable=True)[..., :size]
        stays = torch.zeros_like(error, dtype=torch.bool).scatter(-1, order, True)

        # The state has faded up to now, and so have the points that join it.
        loses = ((number < EMPTY) & ~stays & due[:, None, None])[..., :size].to(features.dtype)
        if store.age is not None:
            loses = loses * (-store.age).exp().to(loses.dtype)
        moment = moment + _moment_of(features[:, :, :size], store.value, loses)
    chosen = Store(
        taken_by_group(key, order),
        taken_by_group(value, order),
        number.gather(2, order),
        store.count,
        _ages_of(store, memory, block, order),
    )
    return Decision(_in_rows(due, chosen, store), moment, new_shift)


def _in_rows(due: Tensor, chosen: Store, before: Store) -> Store:
    """Return the new store in the rows where it was due, the one before in the others."""
    wide = due[:, None, None]
    age = None
    if chosen.age is not None and before.age is not None:
        age = torch.where(wide, chosen.age, before.age)
    return Store(
        torch.where(wide[..., None], chosen.key, before.key),
        torch.where(wide[..., None], chosen.value, before.value),
        torch.where(wide, chosen.number, before.number),
        before.count,
        age,
    )


def _ages_of(
    store: Store, memory: dict[str, Tensor], block: int, order: Int[Tensor, "b g s"]
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
    near = memory[AGE].unflatten(1, (store.age.shape[1], -1))[:, :, 0, :block]
    return torch.cat([store.age, near.to(store.age.dtype)], 2).gather(2, order)


@torch.no_grad()
def _errors(features: Tensor, value: Tensor, moment: Tensor) -> Float[Tensor, "b g m"]:
    """Return how far the state's answer to each key is from its value.

    A state that holds nothing answers zero. No gradient goes through the choice.
    """
    groups = value.shape[1]
    shared = features.shape[1] // groups
    sums = features.to(moment.dtype) @ moment
    total = sums[..., -1:]
    least = vanishing(total.dtype)
    answer = torch.where(total > least, sums[..., :-1] / total.clamp_min(least), 0.0)
    wanted = value.to(answer.dtype).repeat_interleave(shared, 1)
    return (answer - wanted).norm(dim=-1).unflatten(1, (groups, shared)).mean(2)


def _moment_of(features: Tensor, value: Tensor, weight: Tensor) -> Tensor:
    """Return the moment of points with weights (B, G, s), (B, S, r, c + 1)."""
    shared = features.shape[1] // value.shape[1]
    mass = weight.repeat_interleave(shared, 1)[..., None]
    value = value.to(features.dtype).repeat_interleave(shared, 1)
    ones = torch.ones(value.shape[0], value.shape[2], dtype=features.dtype, device=value.device)
    return moment_of(features * mass, value, ones, 1.0)
