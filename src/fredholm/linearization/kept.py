"""Groups of heads that keep full softmax inside a layer whose other groups are linear."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ..errors import ConversionError, OptionError, suggest
from ..integral import Memory
from .heads import Heads, LinearHeads
from .interface import Call
from .seen import Seen, softmax_attention

# Names in a state: all tokens so far of the groups that keep softmax.
KEPT = ("kept_key", "kept_value", "kept_valid")

# The kept groups of each layer, by its name.
Keep = dict[str, tuple[int, ...]]


class MixedHeads(Heads):
    """Linear attention on some groups of heads, full softmax on the others.

    A group is one head of keys and values with the heads of queries that share it.

    Args:
        linear: of the groups that are not kept.
        kept: numbers of the groups that keep softmax.
        groups: heads of keys and values in the layer.

    Shape: as of :class:`LinearHeads`, of all heads.

    Cost: O(N²) time for the kept groups, and O(N) memory in a cache.

    Example:
        >>> heads = MixedHeads(LinearHeads(2, 8, feature_map="hedgehog"), (1,), 2)
        >>> heads(torch.randn(2, 4, 5, 8), *torch.randn(2, 2, 2, 5, 8), Seen()).shape
        torch.Size([2, 4, 5, 8])
    """

    def __init__(self, linear: LinearHeads, kept: Sequence[int], groups: int):
        distinct = set(kept)
        leaves_some = distinct < set(range(groups))
        if not kept or len(distinct) != len(kept) or not leaves_some:
            raise OptionError(f"expected some of {groups} groups, not all, got {tuple(kept)}")
        share = linear.heads // (groups - len(kept))
        super().__init__(share * groups, linear.width)
        self.linear = linear
        self.groups = groups
        self.kept = tuple(sorted(kept))
        self.name = linear.name

    @property
    def window(self) -> int | None:
        return self.linear.window

    @property
    def sinks(self) -> int:
        return self.linear.sinks

    @property
    def store(self) -> int:
        return self.linear.store

    def _places(self, heads: int, kept: bool, device: torch.device) -> Tensor:
        """Return the indices of the kept heads, or of the others, among so many."""
        share = heads // self.groups
        places: list[int] = []
        for group in range(self.groups):
            if (group in self.kept) == kept:
                first = group * share
                places.extend(range(first, first + share))
        return torch.tensor(places, device=device)

    def part(self, x: Tensor, kept: bool) -> Tensor:
        """Return the kept heads of queries, keys or values (B, H | G, …), or the others."""
        places = self._places(x.shape[1], kept, x.device)
        return x.index_select(1, places)

    def points(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        kept: bool,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return :meth:`part` of queries, keys and values."""
        return (
            self.part(query, kept),
            self.part(key, kept),
            self.part(value, kept),
        )

    def joined(self, linear: Tensor, kept: Tensor) -> Tensor:
        """Return all heads in their order, from the linear ones and the kept ones."""
        linear_places = self._places(self.heads, False, kept.device)
        kept_places = self._places(self.heads, True, kept.device)
        order = torch.cat([linear_places, kept_places]).argsort()
        return torch.cat([linear, kept], 1).index_select(1, order)

    def observe(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        seen: Seen,
        scale: float,
    ) -> None:
        self.linear.observe(*self.points(query, key, value, False), seen, scale)

    def calibrate(
        self,
        query: Tensor,
        key: Tensor,
        seen: Seen,
        scale: float,
        value: Tensor | None = None,
    ) -> None:
        if value is not None:
            value = self.part(value, False)
        self.linear.calibrate(
            self.part(query, False),
            self.part(key, False),
            seen,
            scale,
            value,
        )

    def student_weights(
        self,
        query: Tensor,
        key: Tensor,
        seen: Seen,
        scale: float,
        value: Tensor | None = None,
    ) -> Tensor:
        if value is not None:
            value = self.part(value, False)
        linear = self.linear.student_weights(
            self.part(query, False),
            self.part(key, False),
            seen,
            scale,
            value,
        )
        softmax = self.teacher_weights(self.part(query, True), self.part(key, True), seen, scale)

        # Weights that are alike for all queries have one row.
        sizes = query.shape[0], -1, query.shape[2], -1
        return self.joined(linear.expand(sizes), softmax.to(linear.dtype).expand(sizes))

    def _respond(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        seen: Seen,
        scale: float,
    ) -> Tensor:
        """Return the response of all heads in their order, (B, H, Nq, d): linear attention on the
        groups that are not kept, softmax on the kept ones. Keys and values have G heads.
        """
        linear_points = self.points(query, key, value, False)
        linear = self.linear._respond(*linear_points, seen, scale)
        # Softmax takes one head of keys and values per head of queries.
        kept_points = self._alone(*self.points(query, key, value, True))
        kept = softmax_attention(*kept_points, seen, scale)
        return self.joined(linear, kept)

    def _alone(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return kept queries, and keys and values repeated for each of them."""
        share = query.shape[1] // key.shape[1]
        return (
            query,
            key.repeat_interleave(share, 1),
            value.repeat_interleave(share, 1),
        )

    def advance_kept(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        valid: Tensor | None,
        memory: Memory,
        scale: float,
    ) -> tuple[Tensor, Memory]:
        """Return what the next n tokens of the kept groups receive from all tokens so far, (B, Hk,
        n, d), and the keys and values of all of them.

        Args:
            query, key, value: of the kept groups, (B, Hk | Gk, n, ·).
            valid: those that are not padding, (B, n); None for all.
            memory: ``kept_key`` and ``kept_value`` (B, Gk, N, ·), and ``kept_valid`` (B, N) once a
                token was hidden; empty before the first.
        """
        n = query.shape[2]
        past = 0
        if "kept_key" in memory:
            past_key = memory["kept_key"].to(key.dtype)
            past_value = memory["kept_value"].to(value.dtype)
            past = past_key.shape[2]
            key = torch.cat([past_key, key], 2)
            value = torch.cat([past_value, value], 2)

        # Which of all tokens are real, or None while none was hidden.
        known = memory.get("kept_valid")
        if valid is not None or known is not None:
            batch = key.shape[0]
            if known is None:
                known = key.new_ones(batch, past, dtype=torch.bool)
            if valid is None:
                valid = key.new_ones(batch, n, dtype=torch.bool)
            known = torch.cat([known, valid.expand(batch, -1)], 1)

        # Fused attention knows the order of a first stretch, and a single token sees everything.
        mask = None
        if known is not None or (past and n > 1):
            pairs = torch.ones(n, past + n, dtype=torch.bool, device=key.device)
            order = pairs.tril(past)
            mask = order[None, None]
            if known is not None:
                mask = order & known[:, None, None]
        out = F.scaled_dot_product_attention(
            *self._alone(query, key, value),
            attn_mask=mask,
            is_causal=mask is None and n > 1,
            scale=scale,
        )
        if mask is not None:
            # The softmax over nothing is NaN. A query that sees nothing gets zero.
            sees_a_key = mask.any(-1, keepdim=True)
            out = torch.where(sees_a_key, out, 0.0)

        after = {"kept_key": key, "kept_value": value}
        if known is not None:
            after["kept_valid"] = known
        return out, after

    def extra_repr(self) -> str:
        return f"heads={self.heads}, groups={self.groups}, kept={self.kept}"


def read_keep(
    keep: Any,
    calls: Sequence[Call],
    indices: Mapping[str, int],
) -> Keep:
    """Return the groups that keep softmax, by layer.

    Args:
        keep: ``"18.2,17.1"``, or a list of such, each a layer's number and a group's; None for
            none.
        calls: of the layers that are converted.
        indices: the number of each layer.

    Raises:
        OptionError: groups that do not exist, or are not written so.
        ConversionError: groups of a layer without causal order.
    """
    if keep is None:
        return {}
    names = keep
    if isinstance(keep, str):
        names = keep.split(",")
    if not isinstance(names, list | tuple) or not all(isinstance(x, str) for x in names):
        raise OptionError(
            f"expected keep as groups such as '18.2,17.1' (layer.group), got {keep!r}; a number "
            "of groups needs the probe of fredholm.linearize, which has texts"
        )
    by_index = {indices[call.name]: call for call in calls}
    known: list[str] = []
    for index, call in by_index.items():
        known += [f"{index}.{group}" for group in range(call.groups)]

    result: dict[str, set[int]] = {}
    for written in names:
        name = written.strip()
        if name not in known:
            raise OptionError(
                f"expected keep as layer.group among {known[0]} … {known[-1]}, got "
                f"{name!r}{suggest(name, known)}"
            )
        layer, group = name.split(".")
        call = by_index[int(layer)]
        if not call.causal:
            raise ConversionError(
                f"expected keep={name} in a causal layer, got {call.name}, which sees all tokens; "
                "leave keep out, or keep whole layers by layers="
            )
        result.setdefault(call.name, set()).add(int(group))
    return {name: tuple(sorted(groups)) for name, groups in result.items()}
