"""One point of causal attention with a window, its memory changed in place: decoding repeats it."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from ..backend import at_least_single, cast, full_precision
from .band import taken_by_row
from .chunked import over_new_factor
from .windowed import Far, vanishing


def step_window(
    query: Float[Tensor, "b h 1 e"],
    key: Float[Tensor, "b g 1 e"],
    value: Float[Tensor, "b g 1 c"],
    mass: Float[Tensor, "#b 1"],
    far: Far,
    memory: dict[str, Tensor],
    slot: int | Int[Tensor, " b"],
    valid: Bool[Tensor, "b 1"] | None = None,
) -> Float[Tensor, "b h 1 c"]:
    r"""The next point of :func:`advance_window`: what it receives; the memory's tensors are those
    after it, and stay where they are.

    The last w points are a ring, since neither part of the sum asks for their order: the point in
    ``slot``, the oldest, is added to the moment, and the new one takes its place. Both parts meet
    in one softmax over w + 1 scores, the last of which is the logarithm of all before the window:

    .. math:: p = \mathrm{softmax}\big(q\cdot k_j + \log m_j \;\big|\; a + c + \log z\big), \qquad
        y = \sum_{j} p_j v_j + p_{w+1}\, s / z, \qquad (s, z) = \phi\,M

    Args:
        query, key, value, mass, far: see :func:`advance_window`; no gradients are recorded.
        memory: of the points before, in the dtypes that :func:`advance_window` gives it.
        slot: of the oldest point; one per row where hidden points came, whose rows did not move on.
            Sinks lie in front of the ring and stay.
        valid: rows whose point is visible; a hidden one changes nothing. None for all.

    Cost: O(w·(e + c) + r·c) time; nothing that grows is allocated.

    Example:
        >>> x = torch.ones(1, 1, 1, 2)
        >>> far = Far(x, None, lambda key, real, least: (key, None))
        >>> memory = {"moment": torch.zeros(1, 1, 2, 3), "near_mass": torch.zeros(1, 3)}
        >>> memory |= {name: torch.zeros(1, 1, 3, 2) for name in ("near_key", "near_value")}
        >>> out = [step_window(x, x, x, torch.ones(1, 1), far, memory, i % 3) for i in range(5)]
        >>> out[4][0, 0, 0].tolist(), memory["moment"][0, 0].tolist()
        ([1.0, 1.0], [[2.0, 2.0, 2.0], [2.0, 2.0, 2.0]])
    """
    (b, h, _, e), groups = query.shape, key.shape[1]
    keys, values, masses = (memory[name] for name in ("near_key", "near_value", "near_mass"))
    moment, dtype = memory["moment"], at_least_single(query.dtype)
    states, window = moment.shape[1], keys.shape[2]
    if valid is None and isinstance(slot, int):
        old = keys.narrow(2, slot, 1), values.narrow(2, slot, 1), masses.narrow(1, slot, 1)
    else:
        old = _old_by_row(keys, values, masses, slot, valid)
    features, shift = far.keys(old[0], old[2] > 0, memory.get("shift"))
    with full_precision(query):
        if shift is not None:
            moment.mul_(over_new_factor(memory["shift"], shift))
            memory["shift"].copy_(shift)
        heavy = old[2][:, None, :, None]
        left = torch.cat([cast(old[1], dtype) * heavy, heavy.expand(-1, groups, -1, -1)], -1)
        # heads of a group share a value: their moments lie above one another
        rows = moment.view(b * groups, -1, left.shape[-1])
        rows.baddbmm_(features.reshape(b * groups, -1, 1), left.view(b * groups, 1, -1))
        if valid is None and isinstance(slot, int):
            for place, new in zip(old, (key, value, mass)):
                place.copy_(new)
        else:
            _put_by_row((keys, values, masses), (key, value, mass), slot, valid)
        rest = far.query.reshape(b * states, h // states, -1) @ moment.flatten(0, 1)
        rest = rest.view(b, h, 1, -1)
        sums, whole = rest[..., :-1], rest[..., -1:]
        beyond = whole.log()
        for part in (far.exponent, shift):
            if part is not None:
                part = part.reshape(-1, part.shape[1], 1, 1)
                shared = h // part.shape[1]
                part = part if shared == 1 else part.repeat_interleave(shared, 1)
                beyond = beyond + cast(part, dtype)
        # no number below it: where nothing at all is seen, the empty sum is what remains
        beyond = beyond.clamp_min(torch.finfo(dtype).min)
        near = cast(query, dtype).reshape(b * groups, h // groups, e)
        bias = masses.log()[:, None].repeat_interleave(groups, 0) if b > 1 else masses.log()[None]
        scores = torch.baddbmm(bias, near, cast(keys, dtype).flatten(0, 1).mT)
        share = torch.cat([scores.view(b, h, 1, window), beyond], -1).softmax(-1)
        nearby = share[..., :-1].reshape(b * groups, h // groups, window)
        out = (nearby @ cast(values, dtype).flatten(0, 1)).view(b, h, 1, -1)
        return out.addcmul_(share[..., -1:], sums / whole.clamp_min(vanishing(dtype)))


def _index(slot: int | Tensor, batch: int, like: Tensor) -> Tensor:
    """The place of each row's oldest point, (B, 1)."""
    if isinstance(slot, int):
        return torch.full((batch, 1), slot, device=like.device)
    return slot[:, None]


def _old_by_row(
    keys: Tensor, values: Tensor, masses: Tensor, slot: int | Tensor, valid: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Each row's oldest point; mass zero where a hidden point came, for which none leaves."""
    place = _index(slot, masses.shape[0], masses)
    mass = masses.gather(1, place)
    if valid is not None:
        mass = torch.where(valid, mass, 0.0)
    return taken_by_row(keys, place), taken_by_row(values, place), mass


def _put_by_row(
    memory: tuple[Tensor, ...],
    new: tuple[Tensor, ...],
    slot: int | Tensor,
    valid: Tensor | None,
) -> None:
    """Write each row's new point in the place of its oldest, where it is visible."""
    keys, values, masses = memory
    place = _index(slot, len(masses), masses)
    for held, x in zip(
        (keys, values, masses[:, None, :, None]), (*new[:2], new[2][:, None, :, None])
    ):
        x = x.to(held.dtype).expand(len(held), -1, -1, -1)
        index = place[:, None, :, None].expand_as(x)
        if valid is not None:
            x = torch.where(valid[:, None, :, None], x, held.gather(2, index))
        held.scatter_(2, index, x)
