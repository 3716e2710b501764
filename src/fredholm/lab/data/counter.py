"""Random numbers from a counter: a value is a function of its keys, not of what was drawn before.

A shuffled order, a split or an augmentation drawn this way is the same whatever the batch order,
the number of processes or the point at which a run was resumed. The mixing function is
SplitMix64's, in wrapping 64-bit integers.
"""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor

_MASK = (1 << 64) - 1
_STEP, _FIRST, _SECOND = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB


def _signed(value: int) -> int:
    value &= _MASK
    return value - (1 << 64) if value >> 63 else value


def _shift(x: Tensor, bits: int) -> Tensor:
    """Logical right shift (torch's is arithmetic)."""
    return (x >> bits) & ((1 << (64 - bits)) - 1)


def _mix_whole(x: int) -> int:
    """:func:`_mix` of a whole number, 0 … 2⁶⁴ − 1: a few operations on tensors take a hundred times
    as long.
    """
    x = (x + _STEP) & _MASK
    x = (x ^ (x >> 30)) * _FIRST & _MASK
    x = (x ^ (x >> 27)) * _SECOND & _MASK
    return x ^ (x >> 31)


def _mix(x: Tensor) -> Tensor:
    x = x + _signed(_STEP)
    x = (x ^ _shift(x, 30)) * _signed(_FIRST)
    x = (x ^ _shift(x, 27)) * _signed(_SECOND)
    return x ^ _shift(x, 31)


def hash64(*keys: int | Tensor) -> Int[Tensor, "..."]:
    """64 well-mixed bits for every combination of ``keys`` (integers or int64 tensors that
    broadcast).

    h₀ = 0, h_{i+1} = mix(h_i ⊕ key_i); O(number of elements · number of keys).

    Reference: Steele, Lea and Flood, "Fast splittable pseudorandom number generators" (2014), the
    mixer of SplitMix64.

    Example:
        >>> bool((hash64(7, torch.arange(3))[1] == hash64(7, 1)).item())
        True
    """
    state: int | Tensor = 0
    for key in keys:
        if isinstance(state, int) and not isinstance(key, Tensor):
            state = _mix_whole(state ^ (key & _MASK))
        else:
            whole = _signed(state) if isinstance(state, int) else state
            state = _mix(whole ^ (key if isinstance(key, Tensor) else _signed(key)))  # type: ignore[operator]
    return torch.tensor(_signed(state)) if isinstance(state, int) else state


def uniform(*keys: int | Tensor) -> Float[Tensor, "..."]:
    """Uniform float64 numbers in [0, 1) from the upper 53 bits of :func:`hash64`.

    Example:
        >>> x = uniform(0, torch.arange(10000))
        >>> bool(abs(x.mean() - 0.5) < 0.01)
        True
    """
    return _shift(hash64(*keys), 11).double() * 2.0**-53


def integers(high: int | Tensor, *keys: int | Tensor) -> Int[Tensor, "..."]:
    """Uniform integers in [0, high).

    Example:
        >>> integers(3, 0, torch.arange(100)).unique().tolist()
        [0, 1, 2]
    """
    return (uniform(*keys) * high).long()


def permutation(n: int, *keys: int) -> Int[Tensor, " n"]:
    """A permutation of 0 … n − 1: the order of the hashes of its elements. O(n log n).

    Example:
        >>> sorted(permutation(4, 0, 1).tolist())
        [0, 1, 2, 3]
    """
    return torch.argsort(hash64(*keys, torch.arange(n)), stable=True)
