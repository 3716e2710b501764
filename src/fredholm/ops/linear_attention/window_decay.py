r"""A past behind a window that fades: what has left the window fades, what is in it does not.

A point that leaves the window as query i comes has waited there since it came itself, and enters
the state times :math:`e^{-(\Lambda_i - \Lambda_j)}`. So each point near the window has an *age*,
the sum of the exponents of the points that came after it; sinks have none, since they never leave.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor

from .band import taken_by_row

NEAR_AGE = "near_age"
"""The memory's ages of the last w points, (B, S, w)."""


class Ages(NamedTuple):
    """The ages of the points near the window, as differences of times.

    Attributes:
        decay: exponents of the new points, (B, S, n).
        clock: their sums, from the first new point on.
        birth: the clock as each of the last w points and the new ones came, visible ones first,
            (B, S, w + n); 0 or less for those of the memory.
        window: w.
    """

    decay: Float[Tensor, "b s n"]
    clock: Float[Tensor, "b s n"]
    birth: Float[Tensor, "b s m"]
    window: int

    @classmethod
    def of(
        cls,
        decay: Float[Tensor, "#b _g n"],
        features: Float[Tensor, "b s _ r"],
        memory: dict[str, Tensor],
        valid: Bool[Tensor, "b n"] | None,
        window: int,
    ) -> Ages:
        """Return the ages of a stretch.

        Args:
            decay: see :class:`.window_stretch.Far`.
            features: of keys; S states share them.
            memory: of the points before; empty before the first.
            valid: new points that are visible, and no sinks; None for all.
            window: w.
        """
        decay = for_states(decay, features)
        clock = decay.cumsum(-1)

        # Visible points first, as in :func:`.visible_first`.
        birth = clock
        if valid is not None:
            order = (~valid).long().argsort(dim=1, stable=True)
            birth = _at(clock, order)
        if memory:
            birth = torch.cat(
                [-memory[NEAR_AGE].to(birth.dtype), birth],
                -1,
            )
        else:
            birth = F.pad(birth, (window, 0))
        return cls(decay, clock, birth, window)

    def faded(
        self,
        features: Float[Tensor, "b s q r"],
        rank: Tensor | None,
        queries: slice,
    ) -> Float[Tensor, "b s q r"]:
        """Return features of the points that leave the window as some queries come, faded.

        Args:
            features: of these points.
            rank: visible points up to each new one, where some are hidden, (B, n).
            queries: a span up to the last.
        """
        if rank is None:
            birth = self.birth[..., queries]
        else:
            place = (rank[:, queries.start :] - 1).clamp_min(0)
            birth = _at(self.birth, place)
        age = self.clock[..., queries] - birth
        return _faded(features, age)

    def last(self, rank: Tensor | None) -> Float[Tensor, "b s w"]:
        """Return the ages of the last w visible points, for the memory."""
        if rank is None:
            birth = self.birth[..., -self.window :]
        else:
            place = rank[:, -1:] + torch.arange(self.window, device=rank.device)
            birth = _at(self.birth, place)
        return self.clock[..., -1:] - birth


def _at(times: Float[Tensor, "b s m"], place: Tensor) -> Tensor:
    """Return times of points at places of each row, (B, k)."""
    return taken_by_row(times[..., None], place)[..., 0]


def _faded(
    features: Float[Tensor, "b s q r"],
    age: Float[Tensor, "b s q"],
) -> Tensor:
    """Return features of points times :math:`e^{-age}`."""
    left = (-age).exp()[..., None]
    return features * left.to(features.dtype)


def for_states(
    decay: Float[Tensor, "#b _g n"],
    features: Float[Tensor, "b s _ r"],
) -> Float[Tensor, "b s n"]:
    """Return exponents for every state, in float32 or better; groups share theirs."""
    batch, states = features.shape[:2]
    groups = decay.shape[1]
    if 1 < groups < states:
        decay = decay.repeat_interleave(states // groups, 1)
    dtype = torch.promote_types(features.dtype, torch.float32)
    return decay.to(dtype).expand(batch, states, -1)


def fade_in_place(
    memory: dict[str, Tensor],
    decay: Float[Tensor, "#b _g 1"],
    features: Float[Tensor, "b s 1 r"],
    place: int | Tensor,
    valid: Bool[Tensor, "b 1"] | None,
) -> Float[Tensor, "b s 1 r"]:
    """Let a memory fade as one point comes, and return the features of the point that leaves the
    window for it, faded.

    Args:
        memory: its moment and ages are changed in place.
        decay: exponents of the new point, zero where it is hidden.
        features: of the point that leaves.
        place: of that point in the ring without sinks, or one per row.
        valid: rows whose point is visible; None for all.
    """
    decay = for_states(decay, features)
    age = memory[NEAR_AGE]
    memory["moment"].mul_((-decay).exp()[..., None])
    age.add_(decay)

    # The new point takes the place, with no age yet.
    batch, states, _ = age.shape
    if isinstance(place, int):
        index = torch.full((1, 1, 1), place, device=age.device)
    else:
        index = place[:, None, None]
    index = index.expand(batch, states, 1)
    oldest = age.gather(2, index)
    young = torch.zeros_like(oldest)
    if valid is not None:
        young = torch.where(valid[:, None], young, oldest)
    age.scatter_(2, index, young)
    return _faded(features, oldest)
