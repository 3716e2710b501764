"""Rolling back the last tokens of a state: the state before them, and the tokens themselves.

A state is a sum, out of which no token can be taken without rounding. Where a cache records its
past, a layer therefore keeps the state from before the last tokens. To remove some of them, it goes
back there and adds the others again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from ..errors import ConversionError
from ..integral import Memory
from .heads import LinearHeads
from .state import Tokens, advance

# The attribute of a cache that asks states made in it to record: the library asks before there is
# a state.
RECORDS = "fredholm_record_past"

# Tokens that can be removed where the window is narrower, or where there is none.
PENDING = 64


def joined(parts: Sequence[Tokens]) -> Tokens:
    """Return several stretches of tokens as one."""
    key = torch.cat([x.key for x in parts], 2)
    value = torch.cat([x.value for x in parts], 2)
    if all(x.valid is None for x in parts):
        return Tokens(key, value, None)

    masks = []
    for x in parts:
        mask = x.valid
        if mask is None:
            mask = x.key.new_ones(1, x.count, dtype=torch.bool)
        masks.append(mask.expand(len(x.key), -1))
    return Tokens(key, value, torch.cat(masks, 1))


@dataclass(eq=False)
class Past:
    """The last tokens of a state that can be removed again.

    Attributes:
        base: the state before them.
        parts: the tokens, a stretch for each call.
        limit: at least so many of the last tokens are kept here, at most twice as many.
    """

    base: Memory
    limit: int
    parts: list[Tokens] = field(default_factory=list)

    @property
    def count(self) -> int:
        return sum(part.count for part in self.parts)

    @property
    def bytes(self) -> int:
        """The bytes that recording takes beside the state."""
        tensors = list(self.base.values())
        for part in self.parts:
            tensors += [x for x in part if x is not None]
        return sum(x.nbytes for x in tensors)

    def add(self, heads: LinearHeads, tokens: Tokens, scale: float | None) -> None:
        """Append the next tokens; beyond ``2 * limit`` of them, fold the oldest into ``base``.

        Folding leaves ``limit`` tokens. It happens once per ``limit`` single tokens, not at each.

        Args:
            heads, scale: the layer and the factor on its scores, by which tokens enter the state.
        """
        # Clones: views would keep the tensors of the whole call in memory.
        self.parts.append(tokens.map(torch.clone))
        if self.count <= 2 * self.limit:
            return

        recorded = joined(self.parts)
        folded = self.count - self.limit
        oldest = recorded.part(slice(0, folded))
        latest = recorded.part(slice(folded, None))
        self.base = added(heads, oldest, self.base, scale)
        self.parts = [latest]

    def remove(self, count: int) -> Tokens:
        """Remove the last ``count`` tokens, and return them.

        Raises:
            ConversionError: more tokens than are kept here.
        """
        if count > self.count:
            raise ConversionError(
                f"expected at most {self.count} tokens to crop, of the last {self.limit} or more "
                f"since recording began, got {count}: older ones are in a sum, out of which none "
                "can be taken; copy the cache (copy.deepcopy) before the tokens that may have to go"
            )
        rest = self.count - count
        whole = joined(self.parts)
        self.parts = []
        if rest:
            self.parts = [whole.part(slice(0, rest))]
        return whole.part(slice(rest, None))

    def map(self, change: Callable[[Tensor], Tensor]) -> None:
        """Change the sequences of the batch."""
        self.base = {name: change(x) for name, x in self.base.items()}
        self.parts = [part.map(change) for part in self.parts]


def added(
    heads: LinearHeads,
    tokens: Tokens,
    memory: Memory,
    scale: float | None,
) -> Memory:
    """Return the state after more tokens, without their response."""
    key = tokens.key
    # The queries do not enter the state.
    query = key.new_zeros(len(key), heads.heads, tokens.count, heads.width)
    _, memory = advance(heads, query, *tokens, memory, scale=scale)
    return {name: x.clone() for name, x in memory.items()}


def record_past(cache: Any) -> None:
    """Ask a cache for states that record their past, also where it has none yet."""
    for one in (cache, getattr(cache, "self_attention_cache", None)):
        if one is not None:
            setattr(one, RECORDS, True)
