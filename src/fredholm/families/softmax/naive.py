r"""Softmax attention and linear attention against a measure, in plain einsums: the page to open
first.

Both are averages of the values under a density p, :math:`\int p(x, y)\,d\mu(y) = 1`:

.. math::
    (Tu)(x) = W_O \Big[\int p_h(x, y)\,V_h u(y)\,d\mu(y)\Big]_h

With a mass of 1/N per point this is the attention of every library. Where points carry different
masses each key counts by its mass, so that sampling one region more densely moves nothing.

Letters of the einsums: b batch, h head, q query, k key, d and e input and output feature of a
layer, e also feature of a head, r feature of φ.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor


class Layer(NamedTuple):
    """One linear layer."""

    weight: Float[Tensor, "e d"]
    bias: Float[Tensor, " e"]

    def __call__(self, u: Float[Tensor, "b n d"]) -> Float[Tensor, "b n e"]:
        mapped = torch.einsum("ed,bnd->bne", self.weight, u)
        return mapped + self.bias

    def heads(
        self,
        u: Float[Tensor, "b n d"],
        heads: int,
    ) -> Float[Tensor, "b h n e"]:
        """Return the output cut into heads."""
        mapped = self(u)
        by_head = mapped.unflatten(-1, (heads, -1))
        return by_head.transpose(1, 2)


class Projections(NamedTuple):
    """Queries, keys, values, and the output W_O."""

    query: Layer
    key: Layer
    value: Layer
    output: Layer


def softmax_attention_naive(
    u: Float[Tensor, "b n d"],
    measure: Float[Tensor, "#n n"],
    *,
    projections: Projections,
    heads: int,
) -> Float[Tensor, "b n e"]:
    r"""Scaled dot-product attention,
    :math:`p(x, y) \propto \exp(\langle Q u(x), K u(y)\rangle / \sqrt{e})`.

    Args:
        u: features.
        measure: μ_j of key j; one row for all queries, or a row per query where an order or a mask
            hides keys.
        projections, heads: the layers, and H.

    Cost: O(N²·d) time and O(H·N²) memory.

    Reference: Vaswani et al. 2017, Eq. 1; ITNet, Theorem 2.

    Example:
        >>> zero, one = torch.zeros(1, 1), torch.ones(1, 1)
        >>> flat, same = Layer(zero, zero[0]), Layer(one, zero[0])
        >>> layers = Projections(flat, flat, same, same)  # equal scores: the mean by mass
        >>> u, mass = torch.tensor([[[1.0], [5.0]]]), torch.tensor([[0.75, 0.25]])
        >>> softmax_attention_naive(u, mass, projections=layers, heads=1).flatten().tolist()
        [2.0, 2.0]
    """
    query = projections.query.heads(u, heads)
    key = projections.key.heads(u, heads)
    value = projections.value.heads(u, heads)
    scale = query.shape[-1] ** -0.5
    scores = torch.einsum("bhqe,bhke->bhqk", query, key) * scale

    # Less the largest score, which the normaliser takes away again: exp stays finite.
    largest = scores.amax(-1, keepdim=True)
    largest = largest.detach()
    unnormalised = (scores - largest).exp()
    return _average(unnormalised, measure, value, projections.output)


def linear_attention_naive(
    u: Float[Tensor, "b n d"],
    measure: Float[Tensor, "#n n"],
    *,
    projections: Projections,
    heads: int,
    feature_map: Callable[[Tensor], Tensor],
) -> Float[Tensor, "b n e"]:
    r"""Linear attention, :math:`p(x, y) \propto \phi(Q u(x))\cdot\phi(K u(y))`, every pair formed.

    Args:
        u, measure, projections, heads: as in :func:`softmax_attention_naive`.
        feature_map: φ ≥ 0, from (B, H, N, e) to (B, H, N, r).

    Cost: O(N²·(d + H·r)); the operator reaches the same in O(N·d·r), because the product over pairs
    is never formed there.

    Reference: Katharopoulos et al. 2020, Eqs. 4-7.

    Example:
        >>> zero, one = torch.zeros(1, 1), torch.ones(1, 1)
        >>> flat, same = Layer(zero, zero[0]), Layer(one, zero[0])
        >>> layers = Projections(flat, flat, same, same)
        >>> u, mass = torch.tensor([[[1.0], [5.0]]]), torch.tensor([[0.75, 0.25]])
        >>> options = {"projections": layers, "heads": 1, "feature_map": torch.exp}
        >>> linear_attention_naive(u, mass, **options).flatten().tolist()
        [2.0, 2.0]
    """
    query = projections.query.heads(u, heads)
    key = projections.key.heads(u, heads)
    value = projections.value.heads(u, heads)
    query_features = feature_map(query)
    key_features = feature_map(key)
    unnormalised = torch.einsum("bhqr,bhkr->bhqk", query_features, key_features)
    return _average(unnormalised, measure, value, projections.output)


def _average(
    unnormalised: Float[Tensor, "b h n n"],
    measure: Float[Tensor, "#n n"],
    value: Float[Tensor, "b h n e"],
    output: Layer,
) -> Tensor:
    """Return ∫ p V u dμ with p = the unnormalised density over its integral, then W_O."""
    mass = measure.expand(unnormalised.shape[-2:])
    normaliser = torch.einsum("bhqk,qk->bhq", unnormalised, mass)
    integral = torch.einsum("bhqk,qk,bhke->bhqe", unnormalised, mass, value)
    mean = integral / normaliser[..., None]
    joined = mean.transpose(1, 2).flatten(2)
    return output(joined)
