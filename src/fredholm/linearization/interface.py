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
from .heads import Heads
from .masks import additive, pairs_of, problem_of, visible_pairs
from .seen import Seen

# Names under which transformers knows the attention function. Models that keep softmax in some
# layers have the second: it makes masks of any kind, which those layers may need.
NAME = "fredholm_linear"
MIXED = "fredholm_linear_mixed"

# Attributes of an attention module: its Heads, or the softmax that it computes without them.
SLOT = "linear_heads"
SOFTMAX = "softmax_attention"

# The argument by which the attention function receives a layer of a cache, see cache.py.
STATE = "linear_state"

# What modules of the library compute where no implementation is chosen.
EAGER = "eager_attention_forward"

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
    """Register the function and its masks with the library, once per process."""
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
    """Attention as the library calls it. Return the response, (B, Nq, H, d), and the weights, where
    softmax gave some or ``output_attentions`` asks for those of a converted layer, O(N²).

    Raises:
        ConversionError: an argument that changes the attention and is not understood.
    """
    causal = is_causal
    if causal is None:
        causal = getattr(module, "is_causal", True)
    causal = bool(causal)
    refused = (what for name, what in REFUSED.items() if options.get(name) is not None)
    asked = next(refused, "")

    # Inside `recorded` the call is noted, whatever becomes of it.
    if _calls is not None:
        sizes = (query.shape[1], key.shape[1], query.shape[-1])
        problem = asked or _problem(query, key, attention_mask)
        if problem:
            problem = f"asks for {problem}"
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

    state = options.get(STATE)
    shown = _shows_weights(module, options)
    if state is not None:
        # Reset first: a call that is refused below leaves its cache usable.
        given = state.pending
        state.pending = 0
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
    else:
        seen = _seen(attention_mask, causal, query, key)
        out = heads(query, key, value, seen, scale=scaling, dropout=dropout)

    weights = None
    if shown:
        seen = _seen(attention_mask, causal, query, key)
        weights = heads.weights(query, key, seen, scale=scaling, value=value)
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
    if collector is None:
        return False
    collected = collector.get()
    return collected is not None and any(key.endswith("attentions") for key in collected)


def _seen(
    mask: Tensor | None,
    causal: bool,
    query: Tensor,
    key: Tensor,
) -> Seen:
    """Return which keys a query sees, from the mask that transformers passes.

    Args:
        mask: of pairs, boolean or additive, (B | 1, H | 1, Nq, Nk), which contains any order
            itself; of padding, (B, Nk), nonzero at real tokens; or None.
        causal: whether the module's attention is causal.
        query, key: (B, H, Nq, e) and (B, G, Nk, e), of which only the sizes are read.
    """
    queries, keys = query.shape[2], key.shape[2]
    # Several new tokens after others in a cache: the queries are the last of the keys. ``causal``
    # of Seen means that queries and keys are the same tokens, so the order becomes a mask of pairs.
    if causal and 1 < queries < keys:
        mask = visible_pairs(mask, causal, query, key)
    if mask is not None:
        if mask.dim() == 4:
            return Seen(pairs=pairs_of(mask))
        mask = mask.bool()
    # A single query is the next token of a decoder, which sees every key up to now.
    return Seen(valid=mask, causal=causal and queries == keys and queries > 1)


def _problem(query: Tensor, key: Tensor, mask: Tensor | None) -> str:
    """Return why a call cannot be linear attention, or ""."""
    if query.shape[2] != key.shape[2]:
        return "cross attention, keys of other tokens than its queries"
    if query.shape[1] % key.shape[1]:
        return f"{key.shape[1]} heads of keys that do not divide {query.shape[1]} heads of queries"
    return problem_of(mask)


def _rate(module: nn.Module) -> float:
    """Return the rate of dropout on a module's attention weights."""
    # The library's models keep it under several names, as a number or as a Dropout layer.
    for name in ("attention_dropout", "attn_dropout", "dropout", "dropout_prob"):
        result = getattr(module, name, None)
        rate = getattr(result, "p", result)
        if isinstance(rate, int | float):
            return float(rate)
    return 0.0


@contextmanager
def recorded() -> Iterator[list[tuple[nn.Module, Call]]]:
    """Collect the calls of the attention function inside, in order, with the calling modules."""
    global _calls
    before, _calls = _calls, []
    try:
        yield _calls
    finally:
        _calls = before


# --- layers that keep their softmax ---------------------------------------------------------------


def keep_softmax(model: nn.Module) -> None:
    """Store in every attention module the function that it computes now: torch's fused one, or its
    library's plain one.
    """
    sdpa = require("transformers.integrations.sdpa_attention", "hf", "keeping softmax")
    for module in model.modules():
        if not uses_interface(module) or hasattr(module, SOFTMAX):
            continue
        fused = module.config._attn_implementation == "sdpa"  # type: ignore[union-attr]
        softmax = inspect.unwrap(type(module).forward).__globals__.get(EAGER)
        if fused or softmax is None:
            softmax = sdpa.sdpa_attention_forward
        setattr(module, SOFTMAX, softmax)


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
    """Return the softmax that a module without :class:`Heads` computed before."""
    known = getattr(module, SOFTMAX, None)
    if known is None:
        raise ConversionError(
            f"{type(module).__name__} has no linear attention and does not know its softmax: "
            f"{NAME!r} is set by replace_attention, and not by set_attn_implementation"
        )
    softmax: Callable[..., Any] = known
    # The fused function has no weights to return.
    plain = inspect.unwrap(type(module).forward).__globals__.get(EAGER)
    if plain is not None and _shows_weights(module, options):
        softmax = plain
    fused = softmax.__name__ != EAGER
    # The fused one knows the order by itself, where queries and keys are the same tokens.
    if mask is not None or not fused or query.shape[2] != key.shape[2]:
        mask = visible_pairs(mask, causal, query, key)
    if not fused:
        mask = additive(mask, query)
    return softmax(module, query, key, value, mask, **options)


# --- which function a model calls -----------------------------------------------------------------

# Configurations, and the attention implementation of each.
Implementations = list[tuple[Any, Any]]


def implementations(model: nn.Module) -> Implementations:
    """Return the attention implementation of every configuration in a model."""
    configs = [getattr(module, "config", None) for module in model.modules()]
    # By identity: several modules share one configuration.
    result = {id(config): config for config in configs if config is not None}
    return [(config, config._attn_implementation) for config in result.values()]


@contextmanager
def implementation(model: Any, wanted: str | Implementations) -> Iterator[None]:
    """Run the model with another attention implementation inside."""
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
