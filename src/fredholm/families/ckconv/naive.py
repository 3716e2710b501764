r"""CKConv as the paper writes it, in plain einsums: the page to open first.

.. math::
    (x * \psi)(t) = \sum_{c} \sum_{\tau} s(\tau)\,x_c(\tau)\,\psi_c(t - \tau) \qquad
    \psi(\delta) = W_L\,h(z(\delta)) + b_L

ψ is a small network of the relative position with sine layers, so that one kernel covers the whole
input at any resolution. The operator equals this function in values and gradients, and reaches it
by FFT on a regular grid, hidden units first (``grid_convolution/fft.py``).

Letters of the einsums: b batch, n and m query and key, p axis of the positions, c and v input and
output unit of a layer, o and i output and input channel, w hidden unit.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor


class WeightNorm(NamedTuple):
    """One layer with weight normalisation: the rows of W are g_i v_i / |v_i|."""

    direction: Float[Tensor, "v c"]
    magnitude: Float[Tensor, " v"]
    bias: Float[Tensor, " v"]

    def __call__(self, z: Float[Tensor, "*s c"]) -> Float[Tensor, "*s v"]:
        length = torch.linalg.vector_norm(self.direction, dim=-1, keepdim=True)
        unit = self.direction / length
        mapped = torch.einsum("...c,vc,v->...v", z, unit, self.magnitude)
        return mapped + self.bias


def kernel(
    displacement: Float[Tensor, "*s p"],
    *,
    layers: Sequence[WeightNorm],
    omega: Float[Tensor, ""] | float,
    extent: Float[Tensor, ""] | float,
    channels: tuple[int, int],
) -> Float[Tensor, "*s o i"]:
    r"""Return ψ at displacements x - y as matrices of (output, input) channels.

    Displacements [0, extent] of the training domain map to z in [-1, 1], displacement 0 to -1. All
    layers but the last are sin(ω0 (W z + b)).
    """
    z = 2 * displacement / extent - 1
    for layer in layers[:-1]:
        z = torch.sin(omega * layer(z))
    entries = layers[-1](z)
    return entries.unflatten(-1, channels)


def ckconv_naive(
    u: Float[Tensor, "b m i"],
    x: Float[Tensor, "m p"],
    measure: Float[Tensor, "#m m"],
    *,
    layers: Sequence[WeightNorm],
    omega: Float[Tensor, ""] | float,
    extent: Float[Tensor, ""] | float,
    bias: Float[Tensor, " o"],
) -> Float[Tensor, "b m o"]:
    r"""Return the convolution with a continuous kernel as a double sum.

    Args:
        u, x: channels and positions of the points.
        measure: s(τ) of Eq. 8, the spacing in steps of the training grid, 1 on that grid; one row
            for all queries, or a row per query where a causal order hides later keys.
        layers: of ψ, the last one linear.
        omega: ω0 of the sine layers.
        extent: length of the training domain in units of position.
        bias: one constant per output channel.

    Cost: O(N²·d_out·d_in) time and memory.

    Reference: CKConv Eqs. 1-4, 8 and §4.2.

    Example:
        >>> one = torch.ones(1, 1)
        >>> constant = WeightNorm(one, 0 * one[0], one[0])  # ψ = 1: the convolution is the sum
        >>> options = {"layers": [constant], "omega": 30.0, "extent": 1.0, "bias": 0 * one[0]}
        >>> past = torch.ones(3, 3).tril()
        >>> u = torch.tensor([[[1.0], [2.0], [4.0]]])
        >>> ckconv_naive(u, torch.rand(3, 1), past, **options).flatten().tolist()
        [1.0, 3.0, 7.0]
    """
    n = u.shape[1]
    displacement = x[:, None] - x[None, :]
    psi = kernel(
        displacement,
        layers=layers,
        omega=omega,
        extent=extent,
        channels=(bias.shape[0], u.shape[-1]),
    )
    masses = measure.expand(n, n)
    integral = torch.einsum("nmoi,nm,bmi->bno", psi, masses, u)
    return integral + bias
