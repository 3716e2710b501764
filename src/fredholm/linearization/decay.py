r"""A decay of converted layers: the state fades; the window, the sinks, a store and kept groups,
which have softmax, do not.

A converted attention sees queries, keys and values alone, and keys turn with their position. So a
token's own rate is read off its value:

.. math:: \lambda_g(t) = e^{a_g}\,\mathrm{softplus}(w_g\cdot v_g(t) + b_g),

one for each group of heads that share a key, as they share a state.
"""

from __future__ import annotations

import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor

from ..errors import ConversionError, OptionError
from ..integral.decay import Decay
from ..ops.backend import at_least_single, cast, full_precision

# The options that a conversion has; None for a state that keeps everything.
DECAYS = (None, "head", "token")


class GroupDecay(Decay):
    """The rates of groups of heads, one per group or one per token and group.

    Args:
        groups: heads of keys and values.
        width: features of a value.
        gate: ``"head"`` or ``"token"``.

    Example:
        >>> GroupDecay(2, 8, "token").exponents(torch.zeros(1, 2, 3, 8), None).shape
        torch.Size([1, 2, 3])
    """

    def __init__(self, groups: int, width: int, gate: str):
        super().__init__(width, groups, gate=gate)

    def exponents(
        self,
        value: Float[Tensor, "b g n d"],
        valid: Bool[Tensor, "b n"] | None,
    ) -> Float[Tensor, "b g n"]:
        """Return by how much the past fades as each token comes; nothing at padding.

        Raises:
            ConversionError: values of another width than the rates were made for.
        """
        b, _, n, d = value.shape
        dtype = at_least_single(value.dtype)
        with full_precision(value):
            by_group = cast(self.log_rate, dtype).exp()
            rate = by_group[:, None].expand(b, -1, n)
            if self.weight is not None and self.bias is not None:
                width = self.weight.shape[1]
                if width != d:
                    raise ConversionError(
                        f"expected values of width {width} beside decay='token', got {d}; use "
                        "decay='head'"
                    )
                # One linear map per group, (g, d) and (g), of the values (b, g, n, d).
                weight = cast(self.weight, dtype)[:, None]
                bias = cast(self.bias, dtype)[:, None]
                raw = (cast(value, dtype) * weight).sum(-1)
                rate = rate * F.softplus(raw + bias)
            if valid is None:
                return rate
            return rate * valid[:, None].to(dtype)


def fading_of(
    exponents: Float[Tensor, "b g k"],
    heads: int,
    queries: int,
) -> Float[Tensor, "b h q k"]:
    """Return what is left of each key for the last queries, of all heads; 1 where the key comes
    later. O(Nq·Nk).
    """
    # Differences of sums over all keys: in float32 they would lose the digits of near pairs.
    wide = exponents
    if exponents.device.type != "mps":
        wide = exponents.double()
    sums = wide.cumsum(-1)
    first = sums.shape[-1] - queries
    last = sums[..., first:]
    between = (last[..., None] - sums[..., None, :]).clamp_min(0)
    fading = (-between).exp().to(exponents.dtype)
    return fading.repeat_interleave(heads // fading.shape[1], 1)


def check_decay(decay: str | None) -> None:
    """Check the option ``decay`` of a conversion.

    Raises:
        OptionError: an unknown decay.
    """
    if decay not in DECAYS:
        raise OptionError(f"expected decay='head', 'token' or None, got {decay!r}")
