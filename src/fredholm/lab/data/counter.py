"""Random numbers from a counter: a value is a function of its keys, not of what was drawn before.

A shuffled order, a split or an augmentation drawn this way is the same whatever the batch order,
the number of processes or the point at which a run was resumed. The mixing function is
SplitMix64's, in wrapping 64-bit integers (:mod:`.mixing`).
"""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor

from .mixing import folded, shift, signed


def hash64(*keys: int | Tensor) -> Int[Tensor, "..."]:
    """Return 64 well-mixed bits for every combination of ``keys`` (integers or int64 tensors that
    broadcast).

    h₀ = 0, h_{i+1} = mix(h_i ⊕ key_i); O(number of elements · number of keys).

    Example:
        >>> bool((hash64(7, torch.arange(3))[1] == hash64(7, 1)).item())
        True
    """
    state = folded(keys)
    # Of integers alone, the bits are one of Python's numbers.
    if isinstance(state, int):
        return torch.tensor(signed(state))
    return state


def uniform(*keys: int | Tensor) -> Float[Tensor, "..."]:
    """Return uniform float64 numbers in [0, 1), from the upper 53 bits of :func:`hash64`.

    Example:
        >>> x = uniform(0, torch.arange(10000))
        >>> bool(abs(x.mean() - 0.5) < 0.01)
        True
    """
    return shift(hash64(*keys), 11).double() * 2.0**-53


def integers(high: int | Tensor, *keys: int | Tensor) -> Int[Tensor, "..."]:
    """Return uniform integers in [0, high).

    Example:
        >>> integers(3, 0, torch.arange(100)).unique().tolist()
        [0, 1, 2]
    """
    return (uniform(*keys) * high).long()


def permutation(n: int, *keys: int) -> Int[Tensor, " n"]:
    """Return a permutation of 0 … n − 1: the order of the hashes of its elements. O(n log n).

    Example:
        >>> sorted(permutation(4, 0, 1).tolist())
        [0, 1, 2, 3]
    """
    return torch.argsort(hash64(*keys, torch.arange(n)), stable=True)
