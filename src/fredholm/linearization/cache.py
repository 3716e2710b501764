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
from ..ops.linear_attention import NEAR_AGE, STORE, STORE_AGE, begins_block
from .heads import LinearHeads
from .interface import SLOT, STATE
from .kept import KEPT, MixedHeads
from .masks import new_tokens
from .rollback import PENDING, RECORDS, Past, added
from .seen import clean
from .state import Tokens, advance, has_state, step, steps_in_place

# The last tokens of a layer with a window, and the dimension along which they lie.
NEAR = {"near_key": 2, "near_value": 2, "near_mass": 1}
# The recurrent states of a layer, by their index. Saved caches have these indices, so new names
# come last: both ages are newer than the rest of a store.
STORE_BEFORE_AGES = tuple(name for name in STORE if name != STORE_AGE)
NAMES = (
    "moment",
    "shift",
    "real",
    *NEAR,
    "sinks_filled",
    *KEPT,
    *STORE_BEFORE_AGES,
    NEAR_AGE,
    STORE_AGE,
)


class LinearState(CacheLayerMixin):
    """A layer of a cache that holds the state of linear attention: the same bytes after any number
    of tokens. To transformers it is a layer of keys, by which masks are made.

    Attributes:
        length: tokens so far, padding included, as the library's masks and positions count them.
        oldest: where the oldest token of the window lies. A single new token replaces it there. One
            number, or one per row, (B,), once a step hid a token in some of them.
        first: how many sinks lie in front of the window.
        watches: whether masks are compared with what the state holds. The first layer of a cache
            does so for all of them.
        hidden: how many tokens so far were padding, (B,), counted where it watches.
        record_past: whether the last tokens can be removed again, see :meth:`crop`.
        past: these tokens, with the state before them.
        replays: whether the tokens in ``past`` are yet to be added to the state: some behind them
            were removed.
        behind_sinks: of a store, visible tokens behind the sinks so far; None where rows differ.
    """

    # The first stretch of tokens makes the state, whose shapes compiled code would have to know.
    is_compileable = False
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
        self.length = 0
        self.pending = 0
        self.oldest = 0
        self.watches = watches
        self.hidden = 0
        self.stepping = False
        self.record_past = False
        self.replays = False
        self.past = None
        self.behind_sinks = None

    # --- what a layer of keys does, without keys --------------------------------------------------

    @property
    def keys(self) -> Any:
        """Refuse to read keys, which are not stored.

        Raises:
            ConversionError: always.
        """
        raise ConversionError(
            "keys and values were asked of a layer with linear attention, which keeps a state in "
            "their place; pass use_cache=False"
        )

    @keys.setter
    def keys(self, value: None) -> None: ...

    values = keys  # type: ignore[assignment]

    def update(
        self,
        key_states: Tensor,
        value_states: Tensor,
        *args: Any,
        **kwargs: Any,
    ) -> tuple[Tensor, Tensor]:
        """Return the new keys and values as they come. The attention function adds them to the
        state, see :meth:`advance`.
        """
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

    # --- the state --------------------------------------------------------------------------------

    def memory(self) -> Memory:
        """Return the state by its names, the last tokens in their order; empty before the first."""
        result = self._tensors()
        if isinstance(self.oldest, int) and not self.oldest:
            return result
        for name, dim in NEAR.items():
            result[name] = self._in_order(result[name], dim, self.first)
        if NEAR_AGE in result:
            # It counts the window's tokens alone, (B, G, w), without the sinks.
            ages = result[NEAR_AGE][..., None]
            result[NEAR_AGE] = self._in_order(ages, 2, 0)[..., 0]
        return result

    def _in_order(self, x: Tensor, dim: int, first: int) -> Tensor:
        """Return a tensor of the sinks and the window with the window in the order of the tokens,
        the oldest first. In memory the window is a ring, in which a new token replaces the oldest.

        Args:
            x: keys, values or ages (B, G, first + w, ·), or masses (B, first + w).
            dim: the dimension of the tokens: 2 or 1.
            first: the number of sinks, which come first along ``dim`` and stay in place.
        """
        window = x.shape[dim] - first
        sinks, ring = x.split([first, window], dim)
        if isinstance(self.oldest, int):
            ring = ring.roll(-self.oldest, dim)
        else:
            # Each row has an oldest token of its own: indices (B, w) into its ring.
            steps = torch.arange(window, device=x.device)
            index = (self.oldest[:, None] + steps) % window
            if dim == 2:
                index = index[:, None, :, None].expand_as(ring)
            ring = ring.gather(dim, index)
        if not first:
            return ring
        return torch.cat([sinks, ring], dim)

    def _tensors(self) -> Memory:
        """Return the state's tensors as they lie; see :meth:`memory` for their order."""
        result = {}
        for index, name in enumerate(NAMES):
            value = self.recurrent_states.get(index)
            if value is not None:
                result[name] = value
        return result

    def _linear_tensors(self) -> Memory:
        """Return :meth:`_tensors` without those of kept groups."""
        return {name: x for name, x in self._tensors().items() if name not in KEPT}

    def advance(
        self,
        heads: LinearHeads | MixedHeads,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        mask: Tensor | None,
        scale: float | None,
    ) -> Tensor:
        """Return the response to the next n tokens, (B, H, n, d), and add them to the state.

        Args:
            mask: which tokens so far are not padding, (B, N), these at its end; None for all.

        Raises:
            ConversionError: another batch than that of the state, a mask of pairs, or a mask that
                hides other tokens of the past than it did when they came.
        """
        batch, _, count, _ = query.shape
        valid = new_tokens(mask, key.shape[2])
        known = self.recurrent_states[NAMES.index("moment")]
        if known is not None and known.shape[0] != batch:
            raise ConversionError(
                f"the cache holds {known.shape[0]} sequences, and the call has {batch}; "
                "pass a new cache"
            )
        if self.watches:
            self._watch(mask, valid, count)
        self.length += count
        if isinstance(heads, LinearHeads):
            return self._advance(heads, query, Tokens(key, value, valid), scale)
        heads.check(query, key)

        # Some groups keep softmax: their keys and values of all tokens lie beside the state.
        q, k, v = heads.points(query, key, value, False)
        out = self._advance(heads.linear, q, Tokens(k, v, valid), scale)
        past = {name: x for name, x in self._tensors().items() if name in KEPT}
        points = heads.points(query, clean(key, valid), clean(value, valid), True)
        beside, past = heads.advance_kept(*points, valid, past, heads.factor(scale))
        self._keep(past)
        return heads.joined(out, beside)

    def _advance(
        self,
        heads: LinearHeads,
        query: Tensor,
        new: Tokens,
        scale: float | None,
    ) -> Tensor:
        """Return the linear groups' part of :meth:`advance`. Where the past is recorded, note the
        last tokens.
        """
        # After a crop the state is that before the noted tokens, which are added again.
        if self.replays and self.past is not None:
            for tokens in self.past.parts:
                memory = added(heads, tokens, self._linear_memory(), scale)
                self._replace(heads, memory)
        self.replays = False
        if not self.record_past:
            self.past = None
            return self._advance_plainly(heads, query, new, scale)

        # Of a long stretch only the last ``limit`` tokens can be removed: those before go into the
        # state for good, and the past begins behind them.
        limit = max(heads.window or 0, PENDING)
        before = max(0, new.count - limit)
        outs = []
        if before:
            first = new.part(slice(0, before))
            out = self._advance_plainly(heads, query[:, :, :before], first, scale)
            outs.append(out)
        if before or self.past is None:
            self.past = Past(self._linear_memory(), limit)

        last = new.part(slice(before, None))
        out = self._advance_plainly(heads, query[:, :, before:], last, scale)
        outs.append(out)
        self.past.add(heads, last, scale)
        if len(outs) == 1:
            return out
        return torch.cat(outs, 2)

    def _linear_memory(self) -> Memory:
        """Return a copy of the state without that of kept groups."""
        copied = {}
        for name, x in self.memory().items():
            if name not in KEPT:
                copied[name] = x.clone()
        return copied

    def _advance_plainly(
        self,
        heads: LinearHeads,
        query: Tensor,
        new: Tokens,
        scale: float | None,
    ) -> Tensor:
        """Add tokens to the state without noting them; a single token in place, where it can be."""
        memory = self._linear_tensors()
        stays = not heads.store or self._stays_in_store(heads, new.valid)
        if stays and steps_in_place(heads, query, new.key, memory):
            slot = self.first + self.oldest
            left = None
            if heads.store and heads.window is not None and self.behind_sinks is not None:
                self.behind_sinks += 1
                left = self.behind_sinks - heads.window
            out = step(heads, query, new, memory, slot, scale=scale, left=left)
            # A hidden token takes no place in the window, whose oldest one then stays.
            moved: int | Tensor = 1
            if new.valid is not None and heads.window is not None:
                moved = new.valid[:, 0].long()
            self.oldest = (self.oldest + moved) % (heads.window or 1)
            return out

        memory = {name: x for name, x in self.memory().items() if name not in KEPT}
        out, memory = advance(heads, query, *new, memory, scale=scale)
        self.device = query.device
        self.dtype = memory["moment"].dtype
        # Clones: a view of a tensor of the whole stretch would keep all of that in memory.
        self._replace(heads, {name: x.clone() for name, x in memory.items()})
        return out

    def _stays_in_store(self, heads: LinearHeads, valid: Tensor | None) -> bool:
        """Whether the next token leaves the store as it is: it begins no block, and all rows have
        counted as many tokens.
        """
        if valid is not None or self.behind_sinks is None or heads.window is None:
            return False
        behind_window = self.behind_sinks + 1 - heads.window
        return not begins_block(behind_window, heads.window)

    def _replace(self, heads: LinearHeads, memory: Memory) -> None:
        """Replace the state of the linear groups."""
        self._count_sinks(heads, memory)
        self._keep(self._nothing_linear() | memory)
        self.oldest = 0
        self.is_initialized = True
        self._count_behind_sinks()

    def _nothing_linear(self) -> dict[str, Tensor | None]:
        """Return None by each name of the linear groups' tensors: it removes them."""
        return {name: None for name in NAMES if name not in KEPT}

    def _keep(self, tensors: Mapping[str, Tensor | None]) -> None:
        """Store tensors by their names; None removes one."""
        for name, x in tensors.items():
            self.recurrent_states[NAMES.index(name)] = x

    def _count_behind_sinks(self) -> None:
        """Note how many tokens the store has counted, where that is the same in all rows."""
        self.behind_sinks = None
        count = self.recurrent_states.get(NAMES.index("store_count"))
        if count is None or torch.compiler.is_compiling():
            return
        counts = set(count.tolist())
        if len(counts) == 1:
            self.behind_sinks = counts.pop()

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

    def _watch(
        self,
        mask: Tensor | None,
        valid: Tensor | None,
        count: int,
    ) -> None:
        """Compare a mask with the tokens that were hidden when they came.

        Args:
            mask: of all tokens so far, (B, N), or None.
            valid: of the new ones, (B, n).
            count: n.

        Raises:
            ConversionError: it hides other tokens of the past; or there is no mask, and some were
                hidden.
        """
        # Of tokens one by one only the first is compared: a GPU would wait for each answer.
        looks = (count > 1 or not self.stepping) and not torch.compiler.is_compiling()
        self.stepping = count == 1
        before: Tensor | None = None
        if mask is None and isinstance(self.hidden, Tensor):
            before = torch.zeros_like(self.hidden)
        elif mask is not None and mask.shape[1] == self.length + count:
            before = (~mask[:, :-count].bool()).sum(1)
        if looks and before is not None and bool((before != self.hidden).any()):
            known = self.hidden
            if isinstance(known, Tensor):
                known = known.tolist()
            what = "attention_mask hides"
            if mask is None:
                what = "a call without a mask hides"
            raise ConversionError(
                f"{what} {before.tolist()} tokens of the past, by sequence, and the mask hid "
                f"{known} when they came: a state of fixed size is a sum, out of which no token "
                "can be taken. Pass the mask of all tokens so far from the first call on, with "
                "padding on the left, or pass use_cache=False"
            )
        if valid is not None:
            self.hidden = self.hidden + (~valid).sum(1)

    # --- what is done to a cache as a whole -------------------------------------------------------

    def reset(self) -> None:
        """Forget all tokens."""
        records = self.record_past
        self.__init__(self.watches)
        self.record_past = records

    def crop(self, tokens_to_remove: int) -> None:
        """Remove the last tokens, ``-tokens_to_remove`` of them; 0 changes nothing.

        The last 64 tokens since :meth:`activate_past_recording` can be removed, and as many as the
        window has where it is longer; sometimes more.

        Raises:
            ConversionError: nothing is recorded, or the tokens lie further back.
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

        # Back to the state before the noted tokens. The next call adds those that are left.
        removed = self.past.remove(-tokens_to_remove)
        self.length -= removed.count
        if isinstance(self.hidden, Tensor) and removed.valid is not None:
            self.hidden = self.hidden - (~removed.valid).sum(1)
        base = {name: x.clone() for name, x in self.past.base.items()}
        if "near_key" in base:
            self.first = base["near_key"].shape[2] - self._window()
        # Kept groups have a key per token, of which the first ``length`` stay.
        kept = {}
        tensors = self._tensors()
        for name, dim in {"kept_key": 2, "kept_value": 2, "kept_valid": 1}.items():
            if name in tensors:
                kept[name] = tensors[name].narrow(dim, 0, self.length)
        self._keep(self._nothing_linear() | base | kept)
        self.oldest = 0
        self.replays = True
        self.stepping = False
        self._count_behind_sinks()

    def activate_past_recording(self) -> None:
        """Record the tokens that come from now on, so that :meth:`crop` can remove them."""
        self.record_past = True
        if self.past is None and self.length:
            limit = max(self._window(), PENDING)
            self.past = Past(self._linear_memory(), limit)

    @property
    def is_croppable(self) -> bool:  # type: ignore[override]
        """Whether :meth:`crop` can remove tokens."""
        return self.past is not None

    def _window(self) -> int:
        """Return how many tokens lie in the window; 0 where there is none."""
        near = self.recurrent_states[NAMES.index("near_key")]
        if near is None:
            return 0
        return near.shape[2] - self.first

    def reorder_cache(self, beam_idx: Tensor) -> None:
        """Reorder the sequences, as a beam search does."""
        self.batch_select_indices(beam_idx)

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Repeat every sequence ``repeats`` times."""
        self._map(lambda x: x.repeat_interleave(repeats, 0))

    def batch_select_indices(self, indices: Tensor) -> None:
        """Select some of the sequences."""
        self._map(lambda x: x[indices.to(x.device)])

    def _map(self, change: Callable[[Tensor], Tensor]) -> None:
        """Apply ``change``, which selects or repeats rows of the batch, to every tensor.

        All tensors have the batch as their first dimension. An entry of ``recurrent_states`` is
        None where the layer has no such state.
        """
        changed = dict(self.recurrent_states)
        for index, tensor in changed.items():
            if tensor is not None:
                changed[index] = change(tensor)
        self.recurrent_states = changed
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

    A user's own module that passes no further arguments on to the attention function keeps keys.
    """
    parameters = inspect.signature(module.forward).parameters.values()
    kinds = {parameter.kind for parameter in parameters}
    if inspect.Parameter.VAR_KEYWORD in kinds:
        module.register_forward_pre_hook(with_state, with_kwargs=True)


def with_state(
    module: Any,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Any:
    """Add its layer of the cache to the arguments of a converted attention module: a hook that runs
    before its forward. None leaves them as they are.

    In training, where models make a cache that nobody reads, keys stay keys.

    Raises:
        ConversionError: a cache that cannot hold a state, by name and reason.
    """
    arguments = (*kwargs.values(), *args)
    cache = next((x for x in arguments if isinstance(x, Cache)), None)
    if isinstance(cache, EncoderDecoderCache):
        cache = cache.self_attention_cache
    if cache is None:
        return None

    heads: Any = getattr(module, SLOT)
    index = module.layer_idx
    known = None
    if index < len(cache.layers):
        known = cache.layers[index]
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
    """Put a state in the place of an empty layer of keys, and return it.

    Args:
        kind: the name of the attention module's class, for messages.

    Raises:
        ConversionError: the layer cannot be replaced.
    """
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
        advice = "Leave the cache out, pass a new transformers.DynamicCache(), or pass"
        # The cache of a hybrid model cannot be another: its other layers need it.
        if isinstance(layer, LinearAttentionLayer):
            advice = "Pass"
        raise ConversionError(
            f"{kind}, layer {index}, keeps a state of fixed size in place of keys; this "
            f"{type(cache).__name__} {why} and cannot hold it. {advice} use_cache=False"
        )

    # The first state of a cache watches the masks for all of them.
    first = not any(isinstance(one, LinearState) for one in cache.layers)
    state = LinearState(watches=first)
    cache.layers[index] = state
    state.record_past = getattr(cache, RECORDS, False)
    return state
