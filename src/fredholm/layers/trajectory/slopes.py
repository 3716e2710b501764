"""Slopes that replace a nonlinearity: secants through the origin, which are exact, and tangents,
which are not.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor

# Taylor coefficients of tanh(z)/z in z². They fall by (2/π)² each, so that at |z| < 1/4 the first
# one left out is below 1e-19.
SERIES = (
    1.0,
    -1 / 3,
    2 / 15,
    -17 / 315,
    62 / 2835,
    -1382 / 155925,
    21844 / 6081075,
    -929569 / 638512875,
    6404582 / 10854718875,
    -443861162 / 1856156927625,
    18888466084 / 194896477400625,
    -113927491862 / 2900518163668125,
)
NEAR = 0.25
LINEARIZATIONS = ("secant", "tangent", "gates")


def tanh_secant(z: Float[Tensor, "*s"]) -> Float[Tensor, "*s"]:
    r"""Return the slope of the secant from 0 to z, :math:`S(z) = \tanh(z) / z` with S(0) = 1,
    accurate with its first two derivatives.

    The quotient's derivatives cancel near 0, to nothing at :math:`|z| < 10^{-8}`; there the Taylor
    series stands for it. O(1) per value.

    Example:
        >>> tanh_secant(torch.tensor([0.0, 1.0])).tolist()
        [1.0, 0.7615941762924194]
    """
    near = z.abs() < NEAR
    # Each branch sees only arguments at which it and its gradient are finite.
    square = torch.where(near, z, 0.0).square()
    series = torch.full_like(square, SERIES[-1])
    for coefficient in reversed(SERIES[:-1]):
        series = series * square + coefficient
    apart = torch.where(near, 1.0, z)
    return torch.where(near, series, apart.tanh() / apart)


def _tanh_tangent(z: Tensor) -> Tensor:
    return 1 - z.tanh().square()


def _step(z: Tensor) -> Tensor:
    """Return relu(z)/z, which is relu'(z) as well; at 0 torch takes the slope 0."""
    return (z > 0).to(z.dtype)


def slope(activation: str, linearization: str) -> Callable[[Tensor], Tensor]:
    r"""Return the slope s(z) with which :math:`\sigma(z)` is written as :math:`s(z)\,z`, for
    ``"tanh"`` and ``"relu"``.

    ``"secant"`` makes this an identity; ``"tangent"`` takes σ'(z), as does ``"gates"``, which
    differs in the transition.

    Example:
        >>> z = torch.tensor(2.0)
        >>> float(slope("tanh", "secant")(z) * z - z.tanh())
        0.0
        >>> float(slope("tanh", "tangent")(z) * z - z.tanh()) < -0.8
        True
    """
    if activation == "relu":
        return _step
    if linearization == "secant":
        return tanh_secant
    return _tanh_tangent
