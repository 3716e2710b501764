"""Predicted cost of an operator: FLOPs of its products, evaluations of elementary functions, and
memory traffic in bytes.

The predictions depend only on sizes. They are for the forward of one signal of N points on a line
without order, width d, H heads of width e = d / H. Tests compare the FLOPs with torch's counter
(tests/evidence/test_costs.py). The bytes assume a cache that fits one tile but not a complete
tensor: every tensor of O(N·d) is written once and read once, and pairs of points never leave the
cache.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import log2

from fredholm.families.ckconv.grid_convolution.registration import fast_size

FLOAT = 4


@dataclass(frozen=True)
class Cost:
    """The cost of a forward.

    Attributes:
        flops: of products and transforms.
        functions: number of evaluations of exp, GELU and similar functions.
        bytes: read from and written to memory.
    """

    flops: float
    functions: float
    bytes: float

    def seconds(self, matrix_rate: float, function_rate: float, bandwidth: float) -> float:
        """Return the least time on a machine with these rates per second.

        Products and functions don't overlap with each other, but with memory traffic.
        """
        computing = self.flops / matrix_rate + self.functions / function_rate
        return max(computing, self.bytes / bandwidth)

    @property
    def intensity(self) -> float:
        """FLOPs per byte."""
        return self.flops / self.bytes


def _linears(n: int, d: int, count: int) -> tuple[float, float]:
    """Return FLOPs and bytes of ``count`` linear maps of width d at every point.

    The bytes are those of inputs, outputs and weights.
    """
    return 2.0 * count * n * d * d, FLOAT * count * (2.0 * n * d + d * d)


def softmax(n: int, d: int, heads: int, **_: object) -> Cost:
    flops, moved = _linears(n, d, 4)
    return Cost(flops + 4.0 * n * n * d, heads * n * n, moved + FLOAT * 4 * n * d)


def infsa(n: int, d: int, heads: int, **_: object) -> Cost:
    flops, moved = _linears(n, d, 4)
    return Cost(flops + 4.0 * n * n * d, 0.0, moved + FLOAT * 4 * n * d)


def linear_infsa(n: int, d: int, heads: int, **_: object) -> Cost:
    """Return the cost of queries at every point, their mean, its edges, and each head's sum of u.

    Values and projection are applied to sums only.
    """
    flops, moved = _linears(n, d, 1)
    flops += (2.0 * heads + 4.0) * n * d + 4.0 * d * d
    return Cost(flops, heads * n, moved + FLOAT * (3.0 * n * d + 2.0 * d * d))


def linear_attention(n: int, d: int, heads: int, **_: object) -> Cost:
    """Return the cost of features of width e, their moment with values, and the denominators."""
    flops, moved = _linears(n, d, 4)
    e = d // heads
    return Cost(flops + 4.0 * n * d * (e + 0.5), 2.0 * n * d, moved + FLOAT * 5 * n * d)


def luna(
    n: int, d: int, heads: int, *, directions: int = 8, channels: int = 8, **_: object
) -> Cost:
    """Return the cost of M directions per head, L piecewise linear functions of each for queries
    and keys, and linear attention of width M·L.
    """
    flops, moved = _linears(n, d, 4)
    e, features = d // heads, channels * directions
    flops += 4.0 * n * d * directions + 4.0 * n * heads * features * (e + 1.5)
    moved += FLOAT * (4.0 * n * d + 4.0 * n * heads * features)
    return Cost(flops, 2.0 * n * heads * features, moved)


def itnet(n: int, d: int, heads: int, *, width: int = 128, **_: object) -> Cost:
    """Return the cost of the hidden-first form.

    It has 2·w·e multiply-adds and w functions per pair and head, the contraction of W2 per query,
    and four maps e → w per point.
    """
    flops, moved = _linears(n, d, 2)
    e, pairs = d // heads, heads * n * n
    flops += pairs * 4.0 * width * e + 2.0 * n * heads * width * e * e + 8.0 * n * heads * width * e
    return Cost(flops, pairs * width, moved + FLOAT * (4.0 * n * d + 3.0 * n * heads * width))


def itnet_low_rank(
    n: int, d: int, heads: int, *, width: int = 64, frequencies: int = 64, **_: object
) -> Cost:
    """Return the cost of two networks per point and head.

    Each hidden unit is multiplied by the signal (keys) or by the sum over the keys (queries).
    """
    flops, moved = _linears(n, d, 2)
    flops += 8.0 * n * d * width + 4.0 * n * 2 * frequencies * width
    moved += FLOAT * (4.0 * n * d + 4.0 * n * heads * width)
    return Cost(flops, 2.0 * n * heads * width, moved)


def ckconv(n: int, d: int, heads: int, *, width: int = 32, **_: object) -> Cost:
    """Return the cost of the sine network at 2N - 1 lags, transforms of hidden units (one of them
    the bias) and signals, the spectrum, and its product.
    """
    size, units, e = fast_size(2 * n), width + 1, d // heads
    frequencies, lags = size // 2 + 1, 2 * n - 1
    network = 2.0 * lags * (width + width * width)
    entries = float(frequencies * heads * e * e)
    transforms = 2.5 * size * log2(size) * (2 * d + units)
    moved = (
        2.0 * n * d
        + 2.0 * frequencies * (4.0 * d + 2.0 * units)
        + 3.0 * lags * width
        + d * e * units
    )
    return Cost(network + entries * (4 * units + 8) + transforms, 2.0 * lags * width, FLOAT * moved)


COSTS: dict[str, Callable[..., Cost]] = {
    "softmax": softmax,
    "infsa": infsa,
    "linear_infsa": linear_infsa,
    "linear_attention": linear_attention,
    "luna": luna,
    "itnet": itnet,
    "itnet_low_rank": itnet_low_rank,
    "ckconv": ckconv,
}
