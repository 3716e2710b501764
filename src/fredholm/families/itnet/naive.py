r"""ITNet's operator as the paper writes it, in plain einsums: the page to open first.

Eq. 1 for head h, with its slice u_h of the features, and Eq. 4 around the heads:

.. math::
    (Tu)(x) = W u(x) + W_O \Big[\int K_h(x, y, u_h(x), u_h(y))\,u_h(y)\,d\mu(y)\Big]_h

Nothing here is fast: every pair of points has its own d_h × d_h matrix. The operators equal these
functions in values and gradients, and reach them hidden units first (``tiled.py``, ``pooled.py``).

Letters of the einsums: b batch, h head, q query, k key, c input of the network, w hidden unit,
o and i output and input feature of a head, r rank.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor


class Network(NamedTuple):
    """Two layers, Eqs. 196-198: the first is shared by the heads, the second is per head.

    ``weight2`` and ``bias2`` already have the shape of the matrix that Eq. 198 reshapes to.
    """

    weight1: Float[Tensor, "w c"]
    bias1: Float[Tensor, " w"]
    weight2: Float[Tensor, "h o i w"]
    bias2: Float[Tensor, "h o i"]


class Mixing(NamedTuple):
    """The linear maps around the integral: W of Eq. 1, and W_O of Eq. 4 with a bias."""

    residual: Float[Tensor, "e d"]
    projection: Float[Tensor, "e d"]
    bias: Float[Tensor, " e"]


def fourier(
    x: Float[Tensor, "*s p"],
    frequencies: Float[Tensor, "m p"],
) -> Tensor:
    """Return γ(x) = [cos 2πBx, sin 2πBx], Eq. 199: (*s, 2m)."""
    phase = torch.einsum("...p,mp->...m", x, frequencies)
    angle = 2 * math.pi * phase
    return torch.cat([angle.cos(), angle.sin()], -1)


def heads_of(
    u: Float[Tensor, "b n d"],
    heads: int,
) -> Float[Tensor, "b h n i"]:
    """Return the slices u_h of Eq. 4."""
    by_head = u.unflatten(-1, (heads, -1))
    return by_head.transpose(1, 2)


def kernel_inputs(
    u: Float[Tensor, "b h n i"],
    x: Float[Tensor, "n p"],
    frequencies: Float[Tensor, "m p"],
) -> Float[Tensor, "b h q k c"]:
    """Return z of every pair: the seven groups of Eq. 3 one after the other."""
    b, h, n, _ = u.shape
    gamma = fourier(x, frequencies)
    difference = x[:, None] - x[None, :]
    distance = torch.linalg.vector_norm(difference, dim=-1, keepdim=True)
    of_query = u[:, :, :, None]
    of_key = u[:, :, None, :]
    groups = [
        gamma[:, None],  # γ(x)
        gamma[None, :],  # γ(y)
        fourier(difference, frequencies),  # γ(x - y)
        distance,  # |x - y|
        of_query,  # u(x)
        of_key,  # u(y)
        of_query * of_key,  # u(x) ⊙ u(y)
    ]
    pairs = [group.expand(b, h, n, n, -1) for group in groups]
    return torch.cat(pairs, -1)


def itnet_naive(
    u: Float[Tensor, "b n d"],
    x: Float[Tensor, "n p"],
    measure: Float[Tensor, "#n n"],
    *,
    network: Network,
    frequencies: Float[Tensor, "m p"],
    mixing: Mixing,
) -> Float[Tensor, "b n e"]:
    r"""Return ITNet's operator applied to N points, Eqs. 1-4: O(N²·H·w·(c + d_h²)) time and memory.

    Args:
        u, x: features and positions.
        measure: μ_j of key j; one row for all queries, or a row per query where an order or a mask
            hides keys.
        network: the kernel's, from the c = 6m + 1 + 3 d_h inputs of Eq. 3 to d_h × d_h.
        frequencies: B of γ.
        mixing: W and W_O.

    Reference: ITNet Eqs. 1-4, 196-199.

    Example:
        >>> one = torch.ones(1, 1)
        >>> weight2 = torch.zeros(1, 1, 1, 3)
        >>> constant = Network(torch.zeros(3, 10), torch.zeros(3), weight2, one[None])
        >>> mixing = Mixing(0 * one, one, 0 * one[0])
        >>> options = {"network": constant, "frequencies": one, "mixing": mixing}
        >>> u = torch.tensor([[[1.0], [5.0]]])  # the constant kernel K = 1 is the mean
        >>> itnet_naive(u, torch.rand(2, 1), torch.tensor([[0.5, 0.5]]), **options).tolist()
        [[[3.0], [3.0]]]
    """
    slices = heads_of(u, network.weight2.shape[0])
    z = kernel_inputs(slices, x, frequencies)

    # h = GELU(W1 z + b1) and K = W2 h + b2, Eqs. 196-198.
    units = torch.einsum("bhqkc,wc->bhqkw", z, network.weight1)
    units = units + network.bias1
    hidden = F.gelu(units)
    kernel = torch.einsum("bhqkw,hoiw->bhqkoi", hidden, network.weight2)
    kernel = kernel + network.bias2[:, None, None]
    return mix(u, integrate(kernel, measure, slices), mixing)


def integrate(
    kernel: Float[Tensor, "b h q k o i"],
    measure: Float[Tensor, "#n n"],
    u: Float[Tensor, "b h k i"],
) -> Float[Tensor, "b h q o"]:
    """Return Σ_k K(x_q, y_k) u(y_k) μ_k, the integral of Eq. 1."""
    n = u.shape[2]
    masses = measure.expand(n, n)
    return torch.einsum("bhqkoi,qk,bhki->bhqo", kernel, masses, u)


def low_rank_naive(
    u: Float[Tensor, "b n d"],
    x: Float[Tensor, "n p"],
    measure: Float[Tensor, "#n n"],
    *,
    query: Network,
    key: Network,
    frequencies: Float[Tensor, "m p"],
    mixing: Mixing,
) -> Float[Tensor, "b n e"]:
    r"""Return the operator with :math:`K_h(x, y) = \Phi_h(x, u_h(x))\,\Psi_h(y, u_h(y))^T`, §3.3.

    Φ and Ψ are networks of [γ(x), u(x)] to d_h × r; here their product is formed for every pair.

    Args:
        u, x, measure, frequencies, mixing: as in :func:`itnet_naive`.
        query, key: Φ and Ψ; the last axis but one of ``weight2`` is the rank.

    Reference: ITNet §3.3, App. H.12.

    Example:
        >>> one = torch.ones(1, 1)
        >>> factor = Network(torch.zeros(3, 3), torch.zeros(3), torch.zeros(1, 1, 1, 3), one[None])
        >>> mixing = Mixing(0 * one, one, 0 * one[0])
        >>> options = {"query": factor, "key": factor, "frequencies": one, "mixing": mixing}
        >>> u = torch.tensor([[[1.0], [5.0]]])
        >>> low_rank_naive(u, torch.rand(2, 1), torch.tensor([[0.5, 0.5]]), **options).tolist()
        [[[3.0], [3.0]]]
    """
    slices = heads_of(u, query.weight2.shape[0])
    batch, heads, n, _ = slices.shape
    gamma = fourier(x, frequencies)
    gamma = gamma.expand(batch, heads, n, -1)
    inputs = torch.cat([gamma, slices], -1)

    # K = Φ Ψᵀ of every pair.
    left = _factor(inputs, query)
    right = _factor(inputs, key)
    kernel = torch.einsum("bhqor,bhkir->bhqkoi", left, right)
    return mix(u, integrate(kernel, measure, slices), mixing)


def _factor(
    inputs: Float[Tensor, "b h n c"],
    network: Network,
) -> Float[Tensor, "b h n o r"]:
    units = torch.einsum("bhnc,wc->bhnw", inputs, network.weight1)
    units = units + network.bias1
    hidden = F.gelu(units)
    factor = torch.einsum("bhnw,horw->bhnor", hidden, network.weight2)
    return factor + network.bias2[:, None]


def mix(
    u: Float[Tensor, "b n d"],
    integral: Float[Tensor, "b h n o"],
    mixing: Mixing,
) -> Float[Tensor, "b n e"]:
    """Return W u + W_O [integral of head 1, 2, …] + bias, Eqs. 1 and 4."""
    heads = integral.transpose(1, 2).flatten(2)
    residual = torch.einsum("ed,bnd->bne", mixing.residual, u)
    projected = torch.einsum("ed,bnd->bne", mixing.projection, heads)
    return residual + projected + mixing.bias
