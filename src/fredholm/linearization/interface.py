"""transformers' attention interface: one function that every model of the library calls, and what
it is called with.

Nothing is imported before a model of the library is given. The function looks for :class:`Heads` in
the attention module that calls it; a module without them computes the softmax that it had before.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from ..errors import ConversionError, require
from .heads import Heads, Seen
from .masks import additive, pairs_of, problem_of, visible_pairs

NAME = "fredholm_linear"
MIXED = "fredholm_linear_mixed"  # of models that keep softmax somewhere: masks of any kind are made
SLOT = "linear_heads"  # the attribute of an attention module that holds its Heads
STATE = "linear_state"  # the argument by which a layer of a cache comes: see cache.py
SOFTMAX = "softmax_attention"  # the attribute that holds the function of one that has none
EAGER = "eager_attention_forward"  # what modules of the library compute where nothing is chosen
# Arguments by which models ask for more than a softmax of scaled products; harmless where they are
# None.
REFUSED = {
    "sliding_window": "a sliding window",
    "softcap": "capped logits",
    "s_aux": "attention sinks",
    "position_bias": "a relative position bias",
    "head_mask": "a mask of heads",
}


@dataclass(frozen=True)
class Call:
    """What one attention module asked of the interface.

    Attributes:
        name: the module's, in the model.
        heads, groups, width: query heads, key and value heads, features of a query.
        causal: whether its queries see only what came before.
        scale: factor of the products; None for one over the root of the width.
        dropout: rate on the attention weights in training.
        problem: why it cannot be linear, or "".
    """

    name: str
    heads: int
    groups: int
    width: int
    causal: bool
    scale: float | None
    dropout: float
    problem: str = ""


def is_transformers(model: nn.Module) -> bool:
    """Whether a model comes from the library, without importing it."""
    return any(
        f"{c.__module__}.{c.__name__}" == "transformers.modeling_utils.PreTrainedModel"
        for c in type(model).__mro__
    )


def register() -> None:
    """Make the function and its masks known to the library, once a process."""
    modeling: Any = require("transformers.modeling_utils", "hf", "converting a transformers model")
    masking: Any = require("transformers.masking_utils", "hf", "converting a transformers model")
    # Imported here, because the file imports transformers, an extra.
    from .mask_interface import any_mask, padding_mask

    for name, mask in ((NAME, padding_mask), (MIXED, any_mask)):
        if name not in modeling.ALL_ATTENTION_FUNCTIONS:
            modeling.AttentionInterface.register(name, attend)
            masking.AttentionMaskInterface.register(name, mask)


# --- the function ---------------------------------------------------------------------------------

_calls: list[tuple[nn.Module, Call]] | None = None


def attend(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    scaling: float | None = None,
    dropout: float = 0.0,
    is_causal: bool | None = None,
    **options: Any,
) -> tuple[Tensor, Tensor | None]:
    """The library's attention function: (B, Nq, H, d), and the weights, where softmax gave some or
    ``output_attentions`` asks for those of a converted layer, O(N²).

    Raises:
        ConversionError: an argument that changes the attention and is not understood.
    """
    causal = bool(getattr(module, "is_causal", True) if is_causal is None else is_causal)
    asked = next((what for name, what in REFUSED.items() if options.get(name) is not None), "")
    if _calls is not None:
        sizes = (query.shape[1], key.shape[1], query.shape[-1])
        problem = asked or _problem(query, key, attention_mask)
        problem = f"asks for {problem}" if problem else ""
        call = Call("", *sizes, causal, scaling, _rate(module), problem)
        _calls.append((module, call))
    heads: Heads | None = getattr(module, SLOT, None)
    if heads is None:
        given = options | {"scaling": scaling, "dropout": dropout}
        if is_causal is not None:
            given["is_causal"] = is_causal
        return _kept(module, query, key, value, attention_mask, causal, given)
    if asked:
        raise ConversionError(
            f"{type(module).__name__} asks for {asked}, which linear attention does not have"
        )
    state, shown = options.get(STATE), _shows_weights(module, options)
    if state is not None:
        given, state.pending = state.pending, 0  # a call that is refused leaves its cache usable
        if shown and state.length:
            raise ConversionError(
                f"expected output_attentions with all tokens in one call, got it after "
                f"{state.length} tokens, of which a state of fixed size keeps no weights; ask for "
                "them on the first call with a new cache, or pass all tokens with use_cache=False"
            )
        if not given:
            raise ConversionError(
                f"{type(module).__name__} asks its attention function more than once a pass, and a "
                "state would take the same tokens again; pass use_cache=False"
            )
        out = state.advance(heads, query, key, value, attention_mask, scaling)
        weights = None
        if shown:
            seen = _seen(attention_mask, causal, query, key)
            weights = heads.weights(query, key, seen, scale=scaling, value=value)
        return out.transpose(1, 2).contiguous(), weights
    seen = _seen(attention_mask, causal, query, key)
    out = heads(query, key, value, seen, scale=scaling, dropout=dropout)
    weights = heads.weights(query, key, seen, scale=scaling, value=value) if shown else None
    return out.transpose(1, 2).contiguous(), weights


def _shows_weights(module: nn.Module, options: dict[str, Any]) -> bool:
    """Whether a call asks for attention weights: by its argument, or by the configuration alone.

    Some models (GPT-2) keep the argument from their layers. What the library collects then tells.
    """
    shown = options.get("output_attentions")
    if shown is None and _collects_weights():
        return True
    if shown is None:
        shown = getattr(getattr(module, "config", None), "output_attentions", False)
    return bool(shown)


def _collects_weights() -> bool:
    """Return whether transformers collects attention weights in the call that it makes."""
    capturing = sys.modules.get("transformers.utils.output_capturing")
    collector = getattr(capturing, "_active_collector", None)
    collected = None if collector is None else collector.get()
    return collected is not None and any(key.endswith("attentions") for key in collected)


def _seen(mask: Tensor | None, causal: bool, query: Tensor, key: Tensor) -> Seen:
    queries, keys = query.shape[2], key.shape[2]
    if causal and 1 < queries < keys:  # a stretch of tokens over a cache of keys
        mask = visible_pairs(mask, causal, query, key)
    if mask is not None and mask.dim() == 4:
        return Seen(pairs=pairs_of(mask))
    # one query over more keys is a step of a decoder, which sees all that its cache holds
    return Seen(
        valid=None if mask is None else mask.bool(),
        causal=causal and queries == keys and queries > 1,
    )


def _problem(query: Tensor, key: Tensor, mask: Tensor | None) -> str:
    """What stands between a call and linear attention, or ""."""
    if query.shape[2] != key.shape[2]:
        return "cross attention, keys of other tokens than its queries"
    if query.shape[1] % key.shape[1]:
        return f"{key.shape[1]} heads of keys that do not divide {query.shape[1]} heads of queries"
    return problem_of(mask)


def _rate(module: nn.Module) -> float:
    """The rate of dropout on a module's attention weights, which the library's models keep in
    several places.
    """
    for name in ("attention_dropout", "attn_dropout", "dropout", "dropout_prob"):
        result = getattr(module, name, None)
        rate = getattr(result, "p", result)
        if isinstance(rate, int | float):
            return float(rate)
    return 0.0


@contextmanager
def recorded() -> Iterator[list[tuple[nn.Module, Call]]]:
    """The calls made inside, in order."""
    global _calls
    before, _calls = _calls, []
    try:
        yield _calls
    finally:
        _calls = before


# --- layers that keep their softmax ---------------------------------------------------------------


def keep_softmax(model: nn.Module) -> None:
    """Let every attention module remember the function that it computes now: torch's fused one, or
    its library's plain one.
    """
    sdpa = require("transformers.integrations.sdpa_attention", "hf", "keeping softmax")
    for module in model.modules():
        if not uses_interface(module) or hasattr(module, SOFTMAX):
            continue
        fused = module.config._attn_implementation == "sdpa"  # type: ignore[union-attr]
        plain = inspect.unwrap(type(module).forward).__globals__.get(EAGER)
        setattr(module, SOFTMAX, sdpa.sdpa_attention_forward if fused or plain is None else plain)


def uses_interface(module: nn.Module) -> bool:
    """Whether a module computes its attention by the interface, as its code says."""
    code = getattr(inspect.unwrap(type(module).forward), "__code__", None)
    return code is not None and "get_interface" in code.co_names and hasattr(module, "config")


def _kept(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    causal: bool,
    options: dict[str, Any],
) -> tuple[Tensor, Tensor | None]:
    known: Callable[..., Any] | None = getattr(module, SOFTMAX, None)
    if known is None:
        raise ConversionError(
            f"{type(module).__name__} has no linear attention and does not know its softmax: "
            f"{NAME!r} is set by replace_attention, and not by set_attn_implementation"
        )
    softmax = known
    plain = inspect.unwrap(type(module).forward).__globals__.get(EAGER)
    if plain is not None and _shows_weights(module, options):
        softmax = plain  # the fused one has no weights to give
    fused = softmax.__name__ != EAGER
    # The fused one knows the order by itself, where queries and keys are the same tokens.
    if mask is not None or not fused or query.shape[2] != key.shape[2]:
        mask = visible_pairs(mask, causal, query, key)
    return softmax(module, query, key, value, mask if fused else additive(mask, query), **options)


# --- which function a model calls -----------------------------------------------------------------

Implementations = list[tuple[Any, Any]]  # configurations, and the implementation of each


def implementations(model: nn.Module) -> Implementations:
    """The attention implementation of every configuration in a model."""
    result = {id(c): c for m in model.modules() if (c := getattr(m, "config", None)) is not None}
    return [(config, config._attn_implementation) for config in result.values()]


@contextmanager
def implementation(model: Any, wanted: str | Implementations) -> Iterator[None]:
    """The model with another attention implementation for a while."""
    before = implementations(model)
    try:
        if isinstance(wanted, str):
            model.set_attn_implementation(wanted)
        else:
            _set(wanted)
        yield
    finally:
        _set(before)


def _set(wanted: Implementations) -> None:
    for config, name in wanted:
        config._attn_implementation_internal = name
