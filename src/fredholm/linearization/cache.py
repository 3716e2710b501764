"""A cache of fixed size inside transformers' own: what a converted layer keeps between calls.

This file imports transformers, and is imported when a model of the library is given.

Models and ``generate`` make a ``DynamicCache``, with a layer for each attention. Before a converted
attention runs, its layer becomes a :class:`LinearState`, and is handed to the attention function as
one more argument. A layer that keeps its softmax keeps its own.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from transformers.cache_utils import (
    Cache,
    CacheLayerMixin,
    DynamicLayer,
    EncoderDecoderCache,
    LinearAttentionLayer,
)

from ..errors import ConversionError
from ..integral import Memory
from ..ops.linear_attention import STORE, begins_block
from .heads import LinearHeads, clean
from .interface import SLOT, STATE
from .kept import KEPT, MixedHeads
from .masks import new_tokens
from .rollback import PENDING, RECORDS, Past, Tokens, added
from .state import advance, has_state, step, steps_in_place

# Of a layer with a window its last tokens, and the dimension along which they lie.
NEAR = {"near_key": 2, "near_value": 2, "near_mass": 1}
# The recurrent states of a layer, by their index.
AGE = "near_age"
NAMES = ("moment", "shift", "real", *NEAR, "sinks_filled", *KEPT, *STORE, AGE)


class LinearState(CacheLayerMixin):
    """A layer of a cache that holds the state of linear attention: the same bytes after any number
    of tokens. To the library it is a layer of keys, by which masks are made.

    Attributes:
        length: tokens so far, padding included; so the library's masks and positions count them.
        oldest: of a window, where its oldest token lies: a token of its own replaces it there. One
            number, or one per row, (B,), once a step hid a token in some of them.
        first: how many sinks lie in front of the window.
        watches: whether masks are compared with what the state holds: in the first layer of a
            cache, for all of them.
        hidden: how many tokens so far were padding, (B,), counted where it watches.
        record_past: whether the last tokens can be removed again, see :meth:`crop`.
        past: these tokens, with the state before them.
        behind_sinks: of a store, visible tokens behind the sinks so far; None where rows differ.
        replays: they are noted, and not in the state yet: some behind them were removed.
    """

    is_compileable = False  # the first stretch makes the state
    supports_early_init = False
    watches: bool
    hidden: Tensor | int = 0
    oldest: Tensor | int
    first = 0
    # Absent from caches that earlier versions saved.
    record_past, replays = False, False
    past: Past | None = None
    behind_sinks: int | None = None

    def __init__(self, watches: bool = True) -> None:
        super().__init__()
        self.recurrent_states: dict[int, Tensor | None] = dict.fromkeys(range(len(NAMES)))
        self.length, self.pending, self.oldest = 0, 0, 0
        self.watches, self.hidden, self.stepping = watches, 0, False
        self.record_past, self.replays = False, False
        self.past, self.behind_sinks = None, None

    # what a layer of keys does, with none kept

    @property
    def keys(self) -> Any:
        """ConversionError: somebody wants to read what is not kept."""
        raise ConversionError(
            "keys and values were asked of a layer with linear attention, which keeps a state in "
            "their place; pass use_cache=False"
        )

    @keys.setter
    def keys(self, value: None) -> None: ...

    values = keys  # type: ignore[assignment]

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """The new keys and values as they come: the attention function adds them to the state."""
        self.pending = key_states.shape[2]
        return key_states, value_states

    def get_seq_length(self) -> int:
        return self.length

    def get_max_length(self) -> int:
        return -1

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.length + query_length, 0

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Nothing: the first stretch makes the state."""

    # the state

    def memory(self) -> Memory:
        """The state by its names, the last tokens in their order; empty before the first."""
        result = self._tensors()
        if isinstance(self.oldest, int) and not self.oldest:
            return result
        for name, dim in NEAR.items():
            result[name] = self._in_order(result[name], dim, self.first)
        if AGE in result:  # of the window's tokens alone
            result[AGE] = self._in_order(result[AGE][..., None], 2, 0)[..., 0]
        return result

    def _in_order(self, x: Tensor, dim: int, first: int) -> Tensor:
        """The ``first`` ones, which are sinks, then the window from its oldest token on."""
        window = x.shape[dim] - first
        sinks, ring = x.split([first, window], dim)
        if isinstance(self.oldest, int):
            ring = ring.roll(-self.oldest, dim)
        else:
            index = (self.oldest[:, None] + torch.arange(window, device=x.device)) % window
            if dim == 2:
                index = index[:, None, :, None].expand_as(ring)
            ring = ring.gather(dim, index)
        return torch.cat([sinks, ring], dim) if first else ring

    def _tensors(self) -> Memory:
        result = {name: self.recurrent_states.get(i) for i, name in enumerate(NAMES)}
        return {name: value for name, value in result.items() if value is not None}

    def advance(
        self,
        heads: LinearHeads | MixedHeads,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        mask: Tensor | None,
        scale: float | None,
    ) -> Tensor:
        """What the next tokens receive, (B, H, n, d), after which the state is theirs.

        Args:
            mask: of padding, (B, N), of these tokens at its end; None where there is none.

        Raises:
            ConversionError: another batch than that of the state, a mask of pairs, or one that
                hides tokens of the past other than it did.
        """
        valid = new_tokens(mask, key.shape[2])
        known = self.recurrent_states[NAMES.index("moment")]
        if known is not None and known.shape[0] != query.shape[0]:
            raise ConversionError(
                f"the cache holds {known.shape[0]} sequences, and the call has {query.shape[0]}; "
                "pass a new cache"
            )
        if self.watches:
            self._watch(mask, valid, query.shape[2])
        self.length += query.shape[2]
        if isinstance(heads, LinearHeads):
            return self._advance(heads, query, key, value, valid, scale)
        heads.check(query, key)
        points = heads.points(query, key, value, False)
        out = self._advance(heads.linear, *points, valid, scale)
        past = {name: x for name, x in self._tensors().items() if name in KEPT}
        points = heads.points(query, clean(key, valid), clean(value, valid), True)
        beside, past = heads.advance_kept(*points, valid, past, heads.factor(scale))
        self._keep(past)
        return heads.joined(out, beside)

    def _advance(
        self,
        heads: LinearHeads,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        valid: Tensor | None,
        scale: float | None,
    ) -> Tensor:
        """The linear groups' part of :meth:`advance`; where the past is recorded, the last tokens
        are noted.
        """
        if self.replays and self.past is not None:
            for tokens in self.past.parts:
                self._replace(heads, added(heads, tokens, self._linear_memory(), scale))
        self.replays = False
        if not self.record_past:
            self.past = None
            return self._advance_plainly(heads, query, key, value, valid, scale)

        limit = max(heads.window or 0, PENDING)
        new = Tokens(key, value, valid)
        outs, before = [], max(0, new.count - limit)
        if before:
            first = new.part(slice(0, before))
            outs.append(self._advance_plainly(heads, query[:, :, :before], *first, scale))
        if before or self.past is None:
            self.past = Past(self._linear_memory(), limit)
        new = new.part(slice(before, None))
        outs.append(self._advance_plainly(heads, query[:, :, before:], *new, scale))
        self.past.add(heads, new, scale)
        return outs[0] if len(outs) == 1 else torch.cat(outs, 2)

    def _linear_memory(self) -> Memory:
        """The state without kept groups, in tensors of its own."""
        return {name: x.clone() for name, x in self.memory().items() if name not in KEPT}

    def _advance_plainly(
        self,
        heads: LinearHeads,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        valid: Tensor | None,
        scale: float | None,
    ) -> Tensor:
        memory = {name: x for name, x in self._tensors().items() if name not in KEPT}
        stays = not heads.store or self._stays_in_store(heads, valid)
        if stays and steps_in_place(heads, query, key, memory):
            slot, left = self.first + self.oldest, None
            if heads.store and heads.window is not None and self.behind_sinks is not None:
                self.behind_sinks += 1
                left = self.behind_sinks - heads.window
            out = step(heads, query, key, value, valid, memory, slot, scale=scale, left=left)
            moved = 1 if valid is None or heads.window is None else valid[:, 0].long()
            self.oldest = (self.oldest + moved) % (heads.window or 1)
            return out
        memory = {name: x for name, x in self.memory().items() if name not in KEPT}
        out, memory = advance(heads, query, key, value, valid, memory, scale=scale)
        self.device, self.dtype = query.device, memory["moment"].dtype
        # a part of what the stretch was computed from would keep all of that
        self._replace(heads, {name: x.clone() for name, x in memory.items()})
        return out

    def _stays_in_store(self, heads: LinearHeads, valid: Tensor | None) -> bool:
        """Whether a next token leaves the store as it is: no block begins, and rows are alike."""
        if valid is not None or self.behind_sinks is None or heads.window is None:
            return False
        return not begins_block(self.behind_sinks + 1 - heads.window, heads.window)

    def _replace(self, heads: LinearHeads, memory: Memory) -> None:
        """Put another state of the linear groups in the place of this one."""
        self._count_sinks(heads, memory)
        gone = {name: None for name in NAMES if name not in KEPT}
        self._keep(gone | memory)
        self.oldest, self.is_initialized = 0, True
        self._count_behind_sinks()

    def _keep(self, tensors: Mapping[str, Tensor | None]) -> None:
        for name, x in tensors.items():
            self.recurrent_states[NAMES.index(name)] = x

    def _count_behind_sinks(self) -> None:
        """Note how many tokens the store has counted, where that is the same in all rows."""
        count, self.behind_sinks = self.recurrent_states.get(NAMES.index("store_count")), None
        if count is not None and not torch.compiler.is_compiling():
            rows = set(count.tolist())
            self.behind_sinks = rows.pop() if len(rows) == 1 else None

    def _count_sinks(self, heads: LinearHeads, memory: Memory) -> None:
        """Set ``first``, and drop ``sinks_filled`` from ``memory`` once every row has all sinks.

        Rows with padding fill their sinks at different times, so ``sinks_filled`` (B,) counts them
        per row. While it is there, a single token cannot be added in place (see
        :func:`steps_in_place`).
        """
        if heads.window is None:
            return

        # Along the tokens near_key holds the sinks first, then the window.
        self.first = memory["near_key"].shape[2] - heads.window

        # Compiled code cannot branch on the values of a tensor.
        sinks_per_row = memory.get("sinks_filled")
        if sinks_per_row is None or torch.compiler.is_compiling():
            return
        if bool((sinks_per_row >= heads.sinks).all()):
            del memory["sinks_filled"]

    def _watch(self, mask: Tensor | None, valid: Tensor | None, count: int) -> None:
        """ConversionError for a mask that hides other tokens of the past than it did when they
        came, or for none where some were hidden. Of tokens one by one at the first alone: a GPU
        would wait for each answer.
        """
        looks = (count > 1 or not self.stepping) and not torch.compiler.is_compiling()
        self.stepping = count == 1
        before: Tensor | None = None
        if mask is None and isinstance(self.hidden, Tensor):
            before = torch.zeros_like(self.hidden)
        elif mask is not None and mask.shape[1] == self.length + count:
            before = (~mask[:, :-count].bool()).sum(1)
        if looks and before is not None and bool((before != self.hidden).any()):
            known = self.hidden if isinstance(self.hidden, int) else self.hidden.tolist()
            what = "attention_mask hides" if mask is not None else "a call without a mask hides"
            raise ConversionError(
                f"{what} {before.tolist()} tokens of the past, by sequence, and the mask hid "
                f"{known} when they came: a state of fixed size is a sum, out of which no token "
                "can be taken. Pass the mask of all tokens so far from the first call on, with "
                "padding on the left, or pass use_cache=False"
            )
        if valid is not None:
            self.hidden = self.hidden + (~valid).sum(1)

    # what is done to a cache as a whole

    def reset(self) -> None:
        """Forget all tokens."""
        records = self.record_past
        self.__init__(self.watches)
        self.record_past = records

    def crop(self, tokens_to_remove: int) -> None:
        """Remove the last tokens, ``-tokens_to_remove`` of them; 0 changes nothing.

        Possible are those since :meth:`activate_past_recording`, at least as many of the last ones
        as the window has, and at least 64.

        Raises:
            ConversionError: nothing is recorded, or tokens that lie further back.
        """
        if tokens_to_remove > 0:
            raise ConversionError(
                f"expected a negative number of tokens to crop, got {tokens_to_remove}; give "
                f"{-tokens_to_remove} to remove so many"
            )
        if tokens_to_remove == 0:
            return
        if self.past is None:
            raise ConversionError(
                f"expected a cache that records its past, got crop({tokens_to_remove}) of one that "
                "does not: a state is a sum, out of which no token can be taken. Call "
                "activate_past_recording() before the tokens that may have to go, or copy the cache"
            )
        removed = self.past.remove(-tokens_to_remove)
        self.length -= removed.count
        if isinstance(self.hidden, Tensor) and removed.valid is not None:
            self.hidden = self.hidden - (~removed.valid).sum(1)
        base = {name: x.clone() for name, x in self.past.base.items()}
        if "near_key" in base:
            self.first = base["near_key"].shape[2] - self._window()
        gone = {name: None for name in NAMES if name not in KEPT}
        kept = {name: x for name, x in self._tensors().items() if name in KEPT}
        dims = {"kept_key": 2, "kept_value": 2, "kept_valid": 1}
        kept = {name: x.narrow(dims[name], 0, self.length) for name, x in kept.items()}
        self._keep(gone | base | kept)
        self.oldest, self.replays, self.stepping = 0, True, False
        self._count_behind_sinks()

    def activate_past_recording(self) -> None:
        """Record the tokens that come from now on, so that :meth:`crop` can remove them."""
        self.record_past = True
        if self.past is None and self.length:
            self.past = Past(self._linear_memory(), max(self._window(), PENDING))

    @property
    def is_croppable(self) -> bool:  # type: ignore[override]
        """Whether :meth:`crop` can remove tokens."""
        return self.past is not None

    def _window(self) -> int:
        """How many tokens lie in the window; 0 where there is none."""
        near = self.recurrent_states[NAMES.index("near_key")]
        return 0 if near is None else near.shape[2] - self.first

    def reorder_cache(self, beam_idx: Tensor) -> None:
        """The sequences in another order, of beams."""
        self.batch_select_indices(beam_idx)

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Every sequence so many times."""
        self._map(lambda x: x.repeat_interleave(repeats, 0))

    def batch_select_indices(self, indices: Tensor) -> None:
        """Some of the sequences."""
        self._map(lambda x: x[indices.to(x.device)])

    def _map(self, change: Callable[[Tensor], Tensor]) -> None:
        """Apply ``change``, which selects or repeats rows of the batch, to every tensor.

        All tensors have the batch as their first dimension. An entry of ``recurrent_states`` is
        None where the layer has no such state.
        """
        self.recurrent_states = {
            index: None if tensor is None else change(tensor)
            for index, tensor in self.recurrent_states.items()
        }
        if isinstance(self.hidden, Tensor):
            self.hidden = change(self.hidden)
        if isinstance(self.oldest, Tensor):
            self.oldest = change(self.oldest)
        if self.past is not None:
            self.past.map(change)

        # The remaining rows may agree on a count where the former ones did not.
        self._count_behind_sinks()


# --- in the place of a layer of keys --------------------------------------------------------------


# Users save caches by torch.save, which writes the class by its module: a public one, which stays.
LinearState.__module__ = "fredholm.convert"


def keep_state(module: nn.Module) -> None:
    """Let a converted attention module keep a state wherever it is called with a cache.

    A module of somebody's own that passes no arguments on to the attention function keeps keys.
    """
    kinds = {p.kind for p in inspect.signature(module.forward).parameters.values()}
    if inspect.Parameter.VAR_KEYWORD in kinds:
        module.register_forward_pre_hook(with_state, with_kwargs=True)


def with_state(module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Before a converted attention module runs: its layer of the cache as one more argument.

    In training, where models make a cache that nobody reads, keys stay keys.

    Raises:
        ConversionError: a cache that cannot hold a state, by name and reason.
    """
    cache = next((x for x in (*kwargs.values(), *args) if isinstance(x, Cache)), None)
    if isinstance(cache, EncoderDecoderCache):
        cache = cache.self_attention_cache
    if cache is None:
        return None
    heads, index = getattr(module, SLOT), module.layer_idx
    known = cache.layers[index] if index < len(cache.layers) else None
    linear = heads.mode == "linear"
    if not isinstance(known, LinearState):
        if not linear or heads.training or not has_state(heads):
            return None
        known = _placed(cache, index, type(module).__name__)
    elif not linear:
        raise ConversionError(
            f"layer {index} of this cache holds the state of linear attention, and the mode is "
            f"{heads.mode!r}, which needs keys; pass a new cache"
        )
    elif known.pending:
        raise ConversionError(
            f"{type(module).__name__} gave its keys to the cache, and not its state to the "
            "attention function; pass use_cache=False"
        )
    return args, kwargs | {STATE: known}


def _placed(cache: Cache, index: int, kind: str) -> LinearState:
    """A state in the place of an empty layer of keys."""
    while cache.layer_class_to_replicate is not None and len(cache.layers) <= index:
        cache.layers.append(cache.layer_class_to_replicate())  # type: ignore[arg-type]
    layer = cache.layers[index]
    why = ""
    if cache.offloading:
        why = "is offloaded layer by layer"
    elif type(layer) is not DynamicLayer:
        why = f"has a {type(layer).__name__} there"
    elif layer.get_seq_length() > 0:
        why = f"holds the keys of {layer.get_seq_length()} tokens, from softmax or training,"
    if why:
        own = isinstance(layer, LinearAttentionLayer)  # of a hybrid, whose other half needs it
        advice = "" if own else "Leave the cache out, pass a new transformers.DynamicCache(), or "
        raise ConversionError(
            f"{kind}, layer {index}, keeps a state of fixed size in place of keys; this "
            f"{type(cache).__name__} {why} and cannot hold it. {advice or 'Pass '}use_cache=False"
        )
    first = not any(isinstance(one, LinearState) for one in cache.layers)
    cache.layers[index] = state = LinearState(watches=first)
    state.record_past = getattr(cache, RECORDS, False)
    return state
