"""LUNA as the paper writes it: plain einsums, every hidden unit of every network in memory.

The page to open first. Nothing here is fast and nothing is shared with the fast forms, so that
they can be tested against it (``tests/operators/test_luna.py``).

Letters of the shapes: b samples, n tokens, c features of a token, h heads, d features of a head's
queries, keys and values, m directions, l channels, j hidden units of a channel's network. Weight
matrices are (h, d, c), one per head. The response is (b, h, n, d); the layer joins the heads and
multiplies with its output matrix.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

ACTIVATIONS = {
    "relu": torch.relu,
    "gelu": torch.nn.functional.gelu,
    "tanh": torch.tanh,
}


class Networks(NamedTuple):
    r"""The scalar networks ψ_1 … ψ_l, :math:`\psi(t) = \mathrm{ReLU}(r \cdot \sigma(w t + b) + s)`:
    w, b, r (l, j) and s (l).
    """

    weight: Tensor
    bias: Tensor
    readout: Tensor
    shift: Tensor


def channels(
    t: Float[Tensor, "b h n m"],
    networks: Networks,
    *,
    activation: str = "relu",
    nonneg: bool = True,
) -> Float[Tensor, "b h n m l"]:
    """ψ_l at every scalar t. ``nonneg``: the last ReLU, by which no denominator is negative."""
    scaled = torch.einsum("bhnm,lj->bhnmlj", t, networks.weight)
    units = ACTIVATIONS[activation](scaled + networks.bias)
    psi = torch.einsum("bhnmlj,lj->bhnml", units, networks.readout)
    psi = psi + networks.shift
    return torch.relu(psi) if nonneg else psi


def feature_map(
    x: Float[Tensor, "b h n d"],
    directions: Float[Tensor, "m d"],
    offsets: Float[Tensor, " m"],
    networks: Networks,
    *,
    envelope: Float[Tensor, "b h n #l"] | None = None,
    **options,
) -> Float[Tensor, "b h n ml"]:
    r""":math:`\phi(x) = \frac{h(x)}{\sqrt m}\,[\psi_l(w_i \cdot x + b_i)]_{i,l}` (11).

    ``envelope`` holds the values h(x), 1 if not given; ``options`` are those of :func:`channels`.
    The offsets b are the listing's. Column i·l + c is channel c of direction i.
    """
    projections = torch.einsum("md,bhnd->bhnm", directions, x)
    t = projections + offsets
    psi = channels(t, networks, **options)
    psi = psi / math.sqrt(directions.shape[0])
    if envelope is not None:
        psi = psi * envelope[:, :, :, None]
    return psi.flatten(3)


def attention(
    query_features: Float[Tensor, "b h n f"],
    key_features: Float[Tensor, "b h k f"],
    value: Float[Tensor, "b h k d"],
) -> Float[Tensor, "b h n d"]:
    r""":math:`\phi(Q)(\phi(K)^\top V) \,/\, \phi(Q)(\phi(K)^\top 1)` (9): two sums over the keys,
    which all queries share, O(n + k) time. The kernel is :math:`\phi(x)\cdot\phi(y)` (10).

    Example:
        >>> one = torch.ones(1, 1, 3, 1)
        >>> attention(one, one, torch.tensor([3.0, 4.0, 8.0]).view(1, 1, 3, 1)).flatten().tolist()
        [5.0, 5.0, 5.0]
    """
    moments = torch.einsum("bhkf,bhkd->bhfd", key_features, value)
    totals = torch.einsum("bhkf->bhf", key_features)
    above = torch.einsum("bhnf,bhfd->bhnd", query_features, moments)
    below = torch.einsum("bhnf,bhf->bhn", query_features, totals)
    return above / below[..., None]


def luna(
    u: Float[Tensor, "b n c"],
    query: Float[Tensor, "h d c"],
    key: Float[Tensor, "h d c"],
    value: Float[Tensor, "h d c"],
    directions: Float[Tensor, "m d"],
    offsets: Float[Tensor, " m"],
    networks: Networks,
    **options,
) -> Float[Tensor, "b h n d"]:
    """LUNA's response: all heads share one map, without an envelope."""
    q = torch.einsum("bnc,hdc->bhnd", u, query)
    k = torch.einsum("bnc,hdc->bhnd", u, key)
    v = torch.einsum("bnc,hdc->bhnd", u, value)
    phi_q = feature_map(
        q,
        directions,
        offsets,
        networks,
        **options,
    )
    phi_k = feature_map(
        k,
        directions,
        offsets,
        networks,
        **options,
    )
    return attention(phi_q, phi_k, v)
