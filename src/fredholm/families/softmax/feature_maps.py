"""Feature maps φ of kernels k(x, y) = φ(x)·φ(y): fixed, random and learned. Every linear operator
takes any of them.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ...errors import OptionError
from ...integral import FeatureMap, answering, prepared, register_feature_map
from ...integral.exponential import ExponentialMap, orthogonal_draws
from ...ops.backend import at_least_single, cast


@register_feature_map("elu")
def elu_plus_one(x: Tensor) -> Tensor:
    """Return elu(x) + 1: x + 1 above zero and e^x below.

    Reference: Katharopoulos et al. 2020, Eq. 7.

    Example:
        >>> elu_plus_one(torch.tensor([0.0, 2.0])).tolist()
        [1.0, 3.0]
    """
    x = _at_least_single(x)
    # Not elu(x) + 1: e^x - 1 + 1 loses the digits of a small e^x. And not by ``clamp``, whose
    # gradient takes ten times as long.
    positive = torch.relu(x)
    return positive + (x - positive).exp()


@register_feature_map("softplus")
def softplus(x: Tensor) -> Tensor:
    """Return log(1 + e^x).

    Example:
        >>> softplus(torch.zeros(1)).exp().item()
        2.0
    """
    return F.softplus(_at_least_single(x))


def _at_least_single(x: Tensor) -> Tensor:
    """Return x in float32 or better."""
    x = cast(x, at_least_single(x.dtype))
    # torch traces the backward of both maps with other strides than it returns, unless x is
    # contiguous.
    if torch.is_grad_enabled():
        x = x.contiguous()
    return x


elu_plus_one.nonnegative = softplus.nonnegative = True


class Phases(NamedTuple):
    """Scaled features x̄ (B, H, N, e), and their phases ω·x̄ (B, H, N, frequencies)."""

    scaled: Tensor
    phase: Tensor


class SignedLayer(NamedTuple):
    """A linear layer and its negative side by side: [W, -W]ᵀ (H, e, 2e) and [b, -b] (H, 1, 2e)."""

    weight: Tensor
    bias: Tensor


class RandomFeatures(FeatureMap):
    r"""Base of maps with random frequencies ω ~ N(0, I), which meet :math:`x / e^{1/4}`.

    Frequencies are a buffer, and orthogonal in blocks of ``width``.

    Args:
        width, heads: e and H, see :class:`FeatureMap`; all heads share the draw.
        features: r, default ``width``; a multiple of the features per frequency.
        orthogonal: False for independent draws.

    Raises:
        OptionError: another number of features.
    """

    frequencies: Tensor
    per_head = False
    waves = 1
    """Features per frequency."""

    def __init__(
        self,
        width: int,
        heads: int = 1,
        *,
        features: int | None = None,
        orthogonal: bool = True,
    ):
        origin = ""
        if features is None:
            features = width
            origin = ", the width of a head"
        super().__init__(width, heads, features=features)
        rest = features % self.waves
        if rest:
            next_multiple = features + self.waves - rest
            raise OptionError(
                f"{type(self).__name__}: expected a multiple of {self.waves} features, as many as "
                f"there are per frequency, got {features}{origin}; give features={next_multiple}"
            )
        self.orthogonal = orthogonal
        count = features // self.waves
        self.register_buffer("frequencies", torch.empty(count, width))
        self.redraw()

    def draw(self) -> None:
        self.redraw()

    @torch.no_grad()
    def redraw(self) -> None:
        """Draw new frequencies from the global generator."""
        shape = self.frequencies.shape
        if self.orthogonal:
            frequencies = orthogonal_draws(*shape)
        else:
            frequencies = torch.randn(shape)
        self.frequencies.copy_(frequencies)

    def phases(self, x: Tensor) -> Phases:
        """Return x̄ = x / e^¼, and its inner products with all ω."""
        x = x * self.width**-0.25
        frequencies = self.frequencies.to(x.dtype)
        return Phases(x, x @ frequencies.mT)


@register_feature_map("performer")
class PositiveRandomFeatures(RandomFeatures, ExponentialMap):
    r"""Performer's features, with :math:`\bar x = x/e^{1/4}`:

    .. math:: \phi_i(x) = \exp(\omega_i\cdot\bar x - |\bar x|^2/2)/\sqrt r, \qquad
        E[\phi(q)\cdot\phi(k)] = \exp(q\cdot k/\sqrt e)

    Reference: Choromanski et al. 2021, Lemma 1; LUNA, Eq. 8.

    Example:
        >>> PositiveRandomFeatures(4, features=16)(torch.zeros(1, 1, 1, 4)).unique().item()
        0.25
    """

    def exponents(self, x: Tensor) -> Tensor:
        x, phase = self.phases(x)
        square = x.square().sum(-1, keepdim=True)
        return phase - square / 2 - math.log(self.features) / 2


@register_feature_map("rff")
class FourierRandomFeatures(RandomFeatures):
    r"""Random Fourier features, with :math:`\bar x = x/e^{1/4}`:

    .. math:: \phi(x) = [\cos\omega_i\cdot\bar x, \sin\omega_i\cdot\bar x]_i/\sqrt{r/2}, \qquad
        E[\phi(q)\cdot\phi(k)] = \exp(-|q - k|^2 / (2\sqrt e))

    They are not positive: denominators may vanish or be negative, and a warning in training states
    how often. The map serves for comparison with the papers; otherwise prefer ``performer``.

    Reference: Rahimi and Recht 2007; LUNA, Eq. 4 and Table 5.

    Example:
        >>> u = torch.randn(1, 1, 1, 4)
        >>> FourierRandomFeatures(4, features=8)(u).square().sum().round(decimals=5).item()
        1.0
    """

    positive = False
    waves = 2

    def features_of(self, x: Tensor) -> Tensor:
        _, phase = self.phases(x)
        cosines = phase.cos()
        sines = phase.sin()
        waves = torch.cat([cosines, sines], -1)
        return waves * (self.features / 2) ** -0.5


class HeadLinear(FeatureMap):
    """Base of maps with one linear layer per head.

    Args:
        width, heads: e and H, see :class:`FeatureMap`.
        rows: outputs of each layer: ``weight`` is (H, rows, e), and ``bias`` (H, rows).
        features: r.
    """

    def __init__(
        self,
        width: int,
        heads: int = 1,
        *,
        rows: int,
        features: int,
    ):
        super().__init__(width, heads, features=features)
        self.weight = nn.Parameter(torch.empty(heads, rows, width))
        self.bias = nn.Parameter(torch.zeros(heads, rows))

    def mixed(self, x: Tensor) -> Tensor:
        """Return W x + b for each head."""
        weight = self.weight.to(x.dtype)
        bias = self.bias.to(x.dtype)
        return x @ weight.mT + bias[:, None]


@register_feature_map("t2r")
class T2RFeatures(HeadLinear):
    """φ(x) = ReLU(W x + b), one layer per head.

    Reference: Kasai et al. 2021, Eq. 6.

    Example:
        >>> T2RFeatures(4, 2, features=6)(torch.randn(1, 2, 3, 4)).shape
        torch.Size([1, 2, 3, 6])
    """

    def __init__(
        self,
        width: int,
        heads: int = 1,
        *,
        features: int | None = None,
    ):
        if features is None:
            features = width
        super().__init__(width, heads, rows=features, features=features)
        self.draw()

    def draw(self) -> None:
        """Draw normal weights of variance 1 / e, and set biases to zero."""
        nn.init.normal_(self.weight, std=self.width**-0.5)
        nn.init.zeros_(self.bias)

    def features_of(self, x: Tensor) -> Tensor:
        return torch.relu(self.mixed(x))


@register_feature_map("hedgehog")
class HedgehogFeatures(HeadLinear, ExponentialMap):
    r"""φ(x) = [exp(W x + b), exp(-W x - b)], one layer per head, initially with W the identity.

    Args:
        width, heads: see :class:`FeatureMap`.
        softmax: divide each half by its sum, as the authors release it, so that no exponential
            overflows.

    Reference: Zhang et al. 2024, Eq. 6.

    Example:
        >>> features = HedgehogFeatures(4, softmax=True)(torch.randn(1, 1, 3, 4))
        >>> features.sum(-1).round(decimals=4).unique().item()
        2.0
    """

    def __init__(
        self,
        width: int,
        heads: int = 1,
        *,
        softmax: bool = False,
    ):
        super().__init__(
            width,
            heads,
            rows=width,
            features=2 * width,
        )
        self.softmax = softmax
        self.draw()

    @torch.no_grad()
    def draw(self) -> None:
        """Set each layer to the identity, without bias."""
        self.weight.copy_(torch.eye(self.width))
        self.bias.zero_()

    def exponents(self, x: Tensor) -> Tensor:
        x = self.mixed(x)
        return torch.cat([x, -x], -1)

    def features_of(self, x: Tensor) -> Tensor:
        if not self.softmax:
            return super().features_of(x)
        if answering(self):
            # Both halves in one product, which costs less than two products at any length.
            name = ("signed", x.dtype)
            weight, bias = prepared(self, name, lambda: self._signed(x.dtype))
            if x.shape[0] == 1 and x.shape[1] == len(weight):
                x = torch.baddbmm(bias, x[0], weight)
                x = x[None]
            else:
                x = x @ weight + bias
            halves = x.unflatten(-1, (2, -1))
            softmaxes = halves.softmax(-1)
            return softmaxes.flatten(-2)
        x = self.mixed(x)
        positive = x.softmax(-1)
        negative = (-x).softmax(-1)
        return torch.cat([positive, negative], -1)

    def _signed(self, dtype: torch.dtype) -> SignedLayer:
        weight = self.weight.to(dtype)
        bias = self.bias.to(dtype)
        signed_weight = torch.cat([weight, -weight], 1)
        signed_bias = torch.cat([bias, -bias], 1)
        columns = signed_weight.mT.contiguous()
        return SignedLayer(columns, signed_bias[:, None])

    # Features over their sum need no common factor: neither half overflows, and neither vanishes.

    def parts_of_queries(self, x: Tensor) -> tuple[Tensor, Tensor | None]:
        if self.softmax:
            return self(x), None
        return super().parts_of_queries(x)

    def of_keys(
        self,
        x: Tensor,
        valid: Tensor | None = None,
        least: Tensor | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        if self.softmax:
            return self(x), None
        return super().of_keys(x, valid, least)


register_feature_map("relu")(torch.relu)
