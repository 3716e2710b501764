"""SplitMix64: random bits that are a function of their keys, without torch.

The same operators work on whole numbers, on numpy's arrays and on tensors of int64, which wrap.
:mod:`.counter` draws tensors by these bits.

Reference: Steele, Lea and Flood, "Fast splittable pseudorandom number generators" (2014).
"""

from __future__ import annotations

from typing import Any

import numpy as np

_MASK = (1 << 64) - 1
# SplitMix64's increment (2⁶⁴ divided by the golden ratio) and its two multipliers.
_STEP = 0x9E3779B97F4A7C15
_FIRST = 0xBF58476D1CE4E5B9
_SECOND = 0x94D049BB133111EB


def signed(value: int) -> int:
    """Return the int64 with the lowest 64 bits of a whole number.

    Example:
        >>> signed(2**64 - 1), signed(7)
        (-1, 7)
    """
    # Subtract 2⁶⁴ where the highest bit, the sign, is set.
    value &= _MASK
    return value - (value >> 63 << 64)


def shift(x: Any, bits: int) -> Any:
    """Shift int64 right and fill with zeros; ``>>`` of signed numbers repeats the sign."""
    lowest = (1 << (64 - bits)) - 1
    return (x >> bits) & lowest


def folded(keys: tuple[Any, ...]) -> Any:
    """Return 64 well-mixed bits for every combination of ``keys``.

    h₀ = 0, h_{i+1} = mix(h_i ⊕ key_i). A whole number below 2⁶⁴ if all keys are whole numbers, else
    an array or tensor of int64, to which arrays among the keys broadcast.
    """
    state: Any = 0
    for key in keys:
        if isinstance(key, int):
            key = signed(key)
        if isinstance(state, int) and isinstance(key, int):
            state = _mix_whole((state ^ key) & _MASK)
            continue
        # From the first array on, the state is an array of int64.
        if isinstance(state, int):
            state = signed(state)
        state = _mix(state ^ key)
    return state


def shares(n: int, *keys: int) -> np.ndarray:
    """Return n uniform float64 numbers in [0, 1), from the upper 53 bits."""
    hashes = folded((*keys, np.arange(n)))
    return shift(hashes, 11) * 2.0**-53


def permuted(n: int, *keys: int) -> np.ndarray:
    """Return a permutation of 0 … n − 1: the order of the hashes of its elements. O(n log n).

    Example:
        >>> sorted(permuted(4, 0, 1).tolist())
        [0, 1, 2, 3]
    """
    hashes = folded((*keys, np.arange(n)))
    return np.argsort(hashes, kind="stable")


def _mix_whole(x: int) -> int:
    """Mix one whole number; array operations on it would take a hundred times as long."""
    x = (x + _STEP) & _MASK
    x = (x ^ (x >> 30)) * _FIRST & _MASK
    x = (x ^ (x >> 27)) * _SECOND & _MASK
    return x ^ (x >> 31)


def _mix(x: Any) -> Any:
    x = x + signed(_STEP)
    x = (x ^ shift(x, 30)) * signed(_FIRST)
    x = (x ^ shift(x, 27)) * signed(_SECOND)
    return x ^ shift(x, 31)
