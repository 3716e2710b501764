r"""One time step of the continuous transformer as the paper writes it: the page to open first.

The equation (10), and its splitting into M = 4 + J substeps with Δt = 1:

.. math::
    u_t = \int \gamma(x, \cdot; u)\,V(\cdot, y; u) - \partial I_{S_1}(u)
        + \sum_j \big(\langle W_j(\cdot, y), u\rangle + b_j\big) - \partial I_{S_2}(u)

.. math::
    u^{1/M} &= u^0 + \mathrm{Att}(u^0) &(16)\\
    u^{2/M} &= P_{S_1}(u^{1/M}) &(17)\\
    u^{(2+j)/M} &= P_{S_2}(W_j u^{(1+j)/M} + b_j),\quad j < J &(18)\\
    u^{(2+J)/M} &= W_J u^{(1+J)/M} + b_J &(19)\\
    u^{(3+J)/M} &= \tfrac12 (u^{(2+J)/M} + u^{2/M}) &(20)\\
    u^1 &= P_{S_1}(u^{(3+J)/M}) &(21)

P projects: on S1, functions with a given mean and variance over the features, it is the layer
normalisation (Theorem 3.1); on S2, non-negative functions, it is the rectifier (Eqs. 31, 32). With
J = 2 one step is one layer of the post-norm encoder: the relaxation (20) is the skip connection of
the network. It belongs to Δt = 1, because it halves term III; the sequential splitting that
converges as Δt → 0 is :func:`lie_step_naive`, of which Δt = 1 is the same encoder but for ε.

Two readings differ from print: constraints enter with the sign that makes them projections, and W_j
stands for the paper's I + W_j, so that the widths of the layers may differ.

Letters of the einsums: b batch, h head, q and k tokens, d and e features.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor


class Layer(NamedTuple):
    """One linear layer over the features."""

    weight: Float[Tensor, "e d"]
    bias: Float[Tensor, " e"]

    def __call__(self, u: Float[Tensor, "b n d"]) -> Float[Tensor, "b n e"]:
        mapped = torch.einsum("ed,bnd->bne", self.weight, u)
        return mapped + self.bias


class Attention(NamedTuple):
    """Q, K, V of Eq. 10 and the map of all heads' outputs together."""

    query: Layer
    key: Layer
    value: Layer
    output: Layer
    heads: int


class Moments(NamedTuple):
    """S1: standard deviation σ2 and mean σ1, here per feature; ε keeps the projection smooth."""

    std: Float[Tensor, " d"]
    mean: Float[Tensor, " d"]
    eps: float


def attention(
    u: Float[Tensor, "b n d"],
    mass: Float[Tensor, " n"],
    maps: Attention,
) -> Float[Tensor, "b n d"]:
    """Return term I, ∫ γ V over the tokens with γ the softmax of ⟨Q, K⟩ / √d_h, Eqs. 10 and 50."""

    def split(layer: Layer) -> Float[Tensor, "b h n e"]:
        mapped = layer(u)
        by_head = mapped.unflatten(-1, (maps.heads, -1))
        return by_head.transpose(1, 2)

    query = split(maps.query)
    key = split(maps.key)
    value = split(maps.value)
    scale = query.shape[-1] ** -0.5
    scores = torch.einsum("bhqe,bhke->bhqk", query, key) * scale

    # The softmax against the measure: each token counts by its mass.
    gamma = scores.exp() * mass
    gamma = gamma / gamma.sum(-1, keepdim=True)
    attended = torch.einsum("bhqk,bhke->bhqe", gamma, value)

    # Heads side by side, (B, N, H·e), through the map that they share.
    side_by_side = attended.transpose(1, 2).flatten(2)
    return maps.output(side_by_side)


def project_moments(
    u: Float[Tensor, "b n d"],
    to: Moments,
) -> Float[Tensor, "b n d"]:
    """Return P on S1: the layer normalisation, Theorem 3.1."""
    mean = u.mean(-1, keepdim=True)
    centred = u - mean
    variance = centred.square().mean(-1, keepdim=True)
    std = (variance + to.eps).sqrt()
    return to.std * centred / std + to.mean


def project_positive(u: Tensor) -> Tensor:
    """Return P on S2: the rectifier, Eqs. 31 and 32."""
    return u.clamp(min=0)


def network(
    u: Float[Tensor, "b n d"],
    layers: Sequence[Layer],
) -> Float[Tensor, "b n d"]:
    """Return N(u), the J layers of (18) and (19): explicit in W_j, implicit in S2."""
    for layer in layers[:-1]:
        u = project_positive(layer(u))
    return layers[-1](u)


def paper_step_naive(
    u: Float[Tensor, "b n d"],
    mass: Float[Tensor, " n"],
    *,
    maps: Attention,
    first: Moments,
    layers: Sequence[Layer],
    second: Moments,
) -> Float[Tensor, "b n d"]:
    """Return one step of the scheme (16)-(21) from u⁰ to u¹ over Δt = 1.

    Args:
        u, mass: features of the tokens, and their masses, any total.
        maps: of the attention.
        first, second: the constraints of (17) and (21).
        layers: the J layers W_j, b_j of (18) and (19).

    Cost: O(N²·d + N·d·d_ff).

    Reference: continuous transformer, Eqs. 10, 16-21, 31, 32, Theorem 3.1.

    Example:
        >>> zero, unit = torch.zeros(2), Moments(torch.ones(2), torch.zeros(2), 0.0)
        >>> nothing = Layer(torch.zeros(2, 2), zero)
        >>> maps = Attention(nothing, nothing, nothing, nothing, 1)
        >>> options = {"maps": maps, "first": unit, "layers": [nothing], "second": unit}
        >>> paper_step_naive(torch.tensor([[[1.0, 5.0]]]), torch.ones(1), **options).tolist()
        [[[-1.0, 1.0]]]
    """
    # (16) explicit and (17) implicit.
    attended = u + attention(u, mass, maps)
    normed = project_moments(attended, first)

    # (18)-(20), and (21) implicit.
    relaxed = (network(normed, layers) + normed) / 2
    return project_moments(relaxed, second)


def lie_step_naive(
    u: Float[Tensor, "b n d"],
    mass: Float[Tensor, " n"],
    dt: float,
    *,
    maps: Attention,
    first: Moments,
    layers: Sequence[Layer],
    second: Moments,
) -> Float[Tensor, "b n d"]:
    """Return one step of sequential splitting, Eq. 74, over any Δt: terms I and III by explicit
    Euler, the constraints by projection, which does not depend on Δt.

    Args: as of :func:`paper_step_naive`, and ``dt``: Δt.

    Reference: continuous transformer, Eqs. 10, 73, 74.

    Example:
        >>> zero, unit = torch.zeros(2), Moments(torch.ones(2), torch.zeros(2), 0.0)
        >>> nothing = Layer(torch.zeros(2, 2), zero)
        >>> maps = Attention(nothing, nothing, nothing, nothing, 1)
        >>> options = {"maps": maps, "first": unit, "layers": [nothing], "second": unit}
        >>> lie_step_naive(torch.tensor([[[1.0, 5.0]]]), torch.ones(1), 0.5, **options).tolist()
        [[[-1.0, 1.0]]]
    """
    attended = u + dt * attention(u, mass, maps)
    u = project_moments(attended, first)
    changed = u + dt * network(u, layers)
    return project_moments(changed, second)
