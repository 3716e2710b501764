"""How large a decoder's memory of the tokens before is: a state of fixed size, or keys."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from ..errors import OptionError
from .kept import KEPT


@dataclass(frozen=True)
class CacheSize:
    """Size of a cache, with separate numbers for converted layers and layers that keep softmax.

    Attributes:
        tokens: number of tokens so far, including padding.
        linear_layers, linear_bytes: layers with a state, and its bytes, which do not grow.
        softmax_layers, softmax_bytes: layers with keys and values, and theirs, and those of groups
            of heads that keep softmax in layers with a state.
    """

    tokens: int
    linear_layers: int
    linear_bytes: int
    softmax_layers: int
    softmax_bytes: int

    def __str__(self) -> str:
        return (
            f"after {self.tokens:,} tokens: {self.linear_layers} layers with a state of fixed "
            f"size, {self.linear_bytes:,} bytes; {self.softmax_layers} layers with keys, "
            f"{self.softmax_bytes:,} bytes"
        )


def cache_size(cache: Any) -> CacheSize:
    """Return the bytes of a cache of transformers: those of converted layers, and those of layers
    that keep softmax. Cross attention of an encoder-decoder is among the latter.

    Example:
        >>> from transformers import DynamicCache
        >>> cache_size(DynamicCache()).linear_bytes
        0
    """
    # Imported here, because transformers is an extra.
    from transformers import EncoderDecoderCache

    from .cache import LinearState

    caches = [cache]
    if isinstance(cache, EncoderDecoderCache):
        caches = [cache.self_attention_cache, cache.cross_attention_cache]

    linear_layers, linear_bytes, softmax_layers, softmax_bytes = 0, 0, 0, 0
    for layer in [layer for part in caches for layer in part.layers]:
        if not isinstance(layer, LinearState):
            softmax_layers += 1
            softmax_bytes += _bytes(_stored(layer))
            continue

        # Groups of heads that keep softmax have their keys beside the state.
        linear_layers += 1
        memory = layer.memory()
        softmax_bytes += _bytes(x for name, x in memory.items() if name in KEPT)
        linear_bytes += _bytes(x for name, x in memory.items() if name not in KEPT)
        if layer.past is not None:
            linear_bytes += layer.past.bytes
    tokens = cache.get_seq_length()
    return CacheSize(tokens, linear_layers, linear_bytes, softmax_layers, softmax_bytes)


def _stored(layer: Any) -> list[Tensor]:
    """Return keys and values, or the states of a hybrid model's own layer."""
    found = [getattr(layer, "keys", None), getattr(layer, "values", None)]
    for name in ("conv_states", "recurrent_states"):
        found += getattr(layer, name, {}).values()
    return [x for x in found if isinstance(x, Tensor)]


def _bytes(tensors: Any) -> int:
    return sum(x.numel() * x.element_size() for x in tensors)


def smaller_from(
    states: int,
    features: int,
    width: int,
    *,
    groups: int,
    exponential: bool = True,
    window: int = 0,
    sinks: int = 0,
    store: int = 0,
    decay: bool = False,
    state_bytes: int = 4,
    cache_bytes: int = 4,
) -> int:
    r"""Return the number of tokens N from which on a layer's state takes fewer bytes than a cache
    of its keys and values.

    .. math:: \big(S\,(r\,(e + 1) + 1) + m\big)\,s + 2\,(m + t)\,G\,e\,c + 4\,(t\,G + 1)
        \;<\; 2\,N\,G\,e\,c

    without the last term on the left where there is no store, t = 0. Where the state fades, S w
    more numbers are ages, and t G more beside a store.

    Args:
        states: S, heads that keep a state: those of the queries, or of the keys where heads that
            share a key share a map.
        features: r, of a map.
        width: e, of a key and a value.
        groups: G, heads of keys and values.
        exponential: whether a state has the exponent of a common factor, one number more.
        window, sinks: last and first tokens whose keys, values and mass (one number) are kept, m
            together.
        store: t, tokens of each group of heads whose keys, values and number (4 bytes) are kept.
        decay: whether the state fades; each of the last tokens then has an age in every state.
        state_bytes, cache_bytes: s and c, of a number; a state is in float32 at least.

    Raises:
        OptionError: a size below one, or a negative window.

    Example:
        >>> smaller_from(9, 128, 64, groups=3, exponential=False)  # equal at 195
        196
        >>> smaller_from(9, 128, 64, groups=3, window=64)
        260
    """
    sizes = (states, features, width, groups, state_bytes, cache_bytes)
    if min(sizes) < 1:
        raise OptionError(f"heads, features, widths and bytes are at least 1, got {sizes}")
    for name, tokens in (("window", window), ("sinks", sinks), ("store", store)):
        if tokens < 0:
            raise OptionError(f"expected {name} as a number of tokens or 0, got {tokens}")
    near = window + sinks
    numbers = states * (features * (width + 1) + int(exponential)) + near
    if decay:
        numbers += states * window
    token = 2 * groups * width * cache_bytes
    fixed = numbers * state_bytes
    if store:
        # A store also counts the tokens so far.
        fixed += 4 * (store * groups + 1)
        if decay:
            fixed += 4 * store * groups
    return fixed // token + near + store + 1
