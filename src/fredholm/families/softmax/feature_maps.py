"""Feature maps: φ with k(x, y) = φ(x)·φ(y), fixed, random and learned. Any of them runs in any
linear operator.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ...errors import OptionError
from ...integral import FeatureMap, answering, prepared, register_feature_map
from ...integral.exponential import ExponentialMap, orthogonal_draws
from ...ops.backend import at_least_single, cast


@register_feature_map("elu")
def elu_plus_one(x: Tensor) -> Tensor:
    """elu(x) + 1, the positive feature map of Katharopoulos et al. 2020, Eq. 7: x + 1 above zero,
    e^x below, whose digits e^x - 1 + 1 would lose.
    """
    x = _full(x)
    positive = torch.relu(x)
    return positive + (x - positive).exp()  # no clamp, whose gradient takes ten times as long


@register_feature_map("softplus")
def softplus(x: Tensor) -> Tensor:
    """log(1 + exp(x)), a positive feature map."""
    return F.softplus(_full(x))


def _full(x: Tensor) -> Tensor:
    """x in float32 at least; contiguous where gradients are recorded: torch traces the backward of
    both with other strides than it returns.
    """
    x = cast(x, at_least_single(x.dtype))
    return x.contiguous() if torch.is_grad_enabled() else x


elu_plus_one.nonnegative = softplus.nonnegative = True


class RandomFeatures(FeatureMap):
    r"""Base of maps with random frequencies, a buffer: ω ~ N(0, I) against :math:`x / e^{1/4}`,
    orthogonal in blocks.

    Args:
        width, heads: see :class:`FeatureMap`; all heads share the draw.
        features: r, default ``width``.
        orthogonal: False for independent draws.
    """

    frequencies: Tensor
    per_head = False
    waves = 1  # features per frequency

    def __init__(
        self, width: int, heads: int = 1, *, features: int | None = None, orthogonal: bool = True
    ):
        super().__init__(width, heads, features=width if features is None else features)
        rest = self.features % self.waves
        if rest:
            own = ", the width of a head" if features is None else ""
            raise OptionError(
                f"features: received {self.features}{own}; {type(self).__name__} has {self.waves} "
                f"per frequency, needs a multiple such as {self.features + self.waves - rest}"
            )
        self.orthogonal = orthogonal
        self.register_buffer("frequencies", torch.empty(self.features // self.waves, width))
        self.redraw()

    @torch.no_grad()
    def redraw(self) -> None:
        """New frequencies from the global generator."""
        shape = self.frequencies.shape
        self.frequencies.copy_(orthogonal_draws(*shape) if self.orthogonal else torch.randn(shape))

    def phases(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """x / e^¼ and its products with ω."""
        x = x * self.width**-0.25
        return x, x @ self.frequencies.to(x.dtype).mT


@register_feature_map("performer")
class PositiveRandomFeatures(RandomFeatures, ExponentialMap):
    r"""Performer's :math:`\phi_i(x) = \exp(\omega_i\cdot\bar x - |\bar x|^2/2)/\sqrt r`,
    :math:`\bar x = x/e^{1/4}`:
    :math:`E[\phi(q)\cdot\phi(k)] = \exp(q\cdot k/\sqrt e)`.

    Reference: Choromanski et al. 2021, Lemma 1; LUNA, Eq. 8.

    Example:
        >>> PositiveRandomFeatures(4, features=16)(torch.zeros(1, 1, 1, 4)).unique().item()
        0.25
    """

    def exponents(self, x: Tensor) -> Tensor:
        x, phase = self.phases(x)
        return phase - x.square().sum(-1, keepdim=True) / 2 - math.log(self.features) / 2


@register_feature_map("rff")
class FourierRandomFeatures(RandomFeatures):
    r"""Random Fourier features
    :math:`[\cos\omega_i\cdot\bar x, \sin\omega_i\cdot\bar x]/\sqrt{r/2}`, of expectation
    :math:`\exp(-|q - k|^2 / (2\sqrt e))`. Not positive: denominators may vanish or be negative, and
    a warning in training says how often. The papers compare with it; for use take ``performer``.

    Reference: Rahimi and Recht 2007; LUNA, Eq. 4 and Table 5.

    Example:
        >>> u = torch.randn(1, 1, 1, 4)
        >>> FourierRandomFeatures(4, features=8)(u).square().sum().round(decimals=5).item()
        1.0
    """

    positive = False
    waves = 2

    def features_of(self, x: Tensor) -> Tensor:
        phase = self.phases(x)[1]
        return torch.cat([phase.cos(), phase.sin()], -1) * (self.features / 2) ** -0.5


class HeadLinear(FeatureMap):
    """Base of maps with one linear layer per head, ``weight`` (H, r', e) and ``bias`` (H, r')."""

    def __init__(self, width: int, heads: int = 1, *, rows: int, features: int):
        super().__init__(width, heads, features=features)
        self.weight = nn.Parameter(torch.empty(heads, rows, width))
        self.bias = nn.Parameter(torch.zeros(heads, rows))

    def mixed(self, x: Tensor) -> Tensor:
        """W x + b, per head."""
        weight, bias = self.weight.to(x.dtype), self.bias.to(x.dtype)
        return x @ weight.mT + bias[:, None]


@register_feature_map("t2r")
class T2RFeatures(HeadLinear):
    """φ(x) = ReLU(W x + b), one layer per head.

    Reference: Kasai et al. 2021, Eq. 6.

    Example:
        >>> T2RFeatures(4, 2, features=6)(torch.randn(1, 2, 3, 4)).shape
        torch.Size([1, 2, 3, 6])
    """

    def __init__(self, width: int, heads: int = 1, *, features: int | None = None):
        features = width if features is None else features
        super().__init__(width, heads, rows=features, features=features)
        nn.init.normal_(self.weight, std=width**-0.5)

    def features_of(self, x: Tensor) -> Tensor:
        return torch.relu(self.mixed(x))


@register_feature_map("hedgehog")
class HedgehogFeatures(HeadLinear, ExponentialMap):
    r"""φ(x) = [exp(W x + b), exp(-W x - b)], one layer per head, W the identity at first.

    Args:
        width, heads: see :class:`FeatureMap`.
        softmax: each half over its sum, as the authors release it, so that no exponential
            overflows.

    Reference: Zhang et al. 2024, Eq. 6.

    Example:
        >>> features = HedgehogFeatures(4, softmax=True)(torch.randn(1, 1, 3, 4))
        >>> features.sum(-1).round(decimals=4).unique().item()
        2.0
    """

    def __init__(self, width: int, heads: int = 1, *, softmax: bool = False):
        super().__init__(width, heads, rows=width, features=2 * width)
        self.softmax = softmax
        with torch.no_grad():
            self.weight.copy_(torch.eye(width))

    def exponents(self, x: Tensor) -> Tensor:
        x = self.mixed(x)
        return torch.cat([x, -x], -1)

    def features_of(self, x: Tensor) -> Tensor:
        if not self.softmax:
            return super().features_of(x)
        if answering(self):
            # both halves in one product: cheaper than two softmaxes side by side, at any length
            weight, bias = prepared(self, ("signed", x.dtype), lambda: self._signed(x.dtype))
            x = torch.baddbmm(bias, x[0], weight)[None] if x.shape[0] == 1 else x @ weight + bias
            return x.unflatten(-1, (2, -1)).softmax(-1).flatten(-2)
        x = self.mixed(x)
        return torch.cat([x.softmax(-1), (-x).softmax(-1)], -1)

    def _signed(self, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        weight, bias = self.weight.to(dtype), self.bias.to(dtype)
        return torch.cat([weight, -weight], 1).mT.contiguous(), torch.cat([bias, -bias], 1)[:, None]

    # Halves of sum one need no common factor: neither overflows, and neither vanishes.

    def parts_of_queries(self, x: Tensor) -> tuple[Tensor, Tensor | None]:
        return (self(x), None) if self.softmax else super().parts_of_queries(x)

    def of_keys(
        self, x: Tensor, valid: Tensor | None = None, least: Tensor | None = None
    ) -> tuple[Tensor, Tensor | None]:
        return (self(x), None) if self.softmax else super().of_keys(x, valid, least)


register_feature_map("relu")(torch.relu)
