"""The window of a convolution or a pooling along one axis: the keys that an output reads."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ..errors import OptionError, suggest

MODES = ("zeros", "reflect", "replicate", "circular")


@dataclass(frozen=True)
class Window:
    r"""The keys that the outputs of one axis read: tap t of output q reads key
    :math:`q s + t d - p`.

    A transposed window is the mirror image: key k writes to output :math:`k s + t d - p`.

    Attributes:
        taps: number of taps.
        stride, dilation: s and d.
        before, after: points of padding p at either end; a transposed window cuts as many outputs
            there.
        mode: values of padding: ``zeros``, ``reflect``, ``replicate`` or ``circular``.
        transposed: keys write instead of outputs read.
        ceil: a last window may reach over the end, as in pooling with ``ceil_mode``.

    Raises:
        OptionError: an unknown mode; taps, stride or dilation below 1.

    Example:
        >>> Window(3, stride=2, before=1, after=1).size(8)
        4
        >>> Window(3, before=1, after=1, mode="circular").sources(torch.arange(3), 3).tolist()
        [[2, 0, 1], [0, 1, 2], [1, 2, 0]]
    """

    taps: int
    stride: int = 1
    dilation: int = 1
    before: int = 0
    after: int = 0
    mode: str = "zeros"
    transposed: bool = False
    ceil: bool = False

    def __post_init__(self):
        if self.mode not in MODES:
            raise OptionError(f"unknown padding mode {self.mode!r}{suggest(self.mode, MODES)}")
        for name in ("taps", "stride", "dilation"):
            if getattr(self, name) < 1:
                raise OptionError(
                    f"{name}: expected at least 1, got {getattr(self, name)}; pass a positive "
                    "number"
                )

    @property
    def reach(self) -> int:
        """Distance between the first and the last tap, in points."""
        return self.dilation * (self.taps - 1)

    @property
    def keeps(self) -> bool:
        """Whether every key has an output at its own index."""
        return self.stride == 1 and self.before + self.after == self.reach

    @property
    def offsets(self) -> list[int]:
        """The key that each tap of a window without stride reads, relative to the output's index;
        a negative one is earlier.
        """
        offsets = [t * self.dilation - self.before for t in range(self.taps)]
        if self.transposed:
            return [-offset for offset in offsets]
        return offsets

    def size(self, n):
        """Return the number of outputs for n keys: an integer, or a tensor of integers."""
        if self.transposed:
            return (n - 1) * self.stride + self.reach + 1 - self.before - self.after

        last_start = n + self.before + self.after - self.reach - 1
        if not self.ceil:
            if self.stride == 1:
                return last_start + 1
            return last_start // self.stride + 1

        # Rounded up; but the last window must not start behind the end, in the padding after it.
        outputs = -(-last_start // self.stride) + 1
        behind_the_end = (outputs - 1) * self.stride >= n + self.before
        return outputs - behind_the_end

    def centre(self, outputs, n: int):
        """Return where outputs (a number or a tensor) live, in units of the keys' index: the middle
        of the keys that they read.
        """
        if self.transposed:
            return (outputs + self.before - self.reach / 2) / self.stride
        return outputs * self.stride - self.before + self.reach / 2

    def sources(self, outputs: Int[Tensor, " r"], n: int) -> Int[Tensor, "r taps"]:
        """Return the key that each tap reads, or a number outside 0 … n - 1 where it reads none."""
        taps = torch.arange(self.taps, device=outputs.device) * self.dilation
        if self.transposed:
            # The inverse of k s + t d - p, where that is a whole number.
            at = outputs[:, None] + self.before - taps
            key = at.div(self.stride, rounding_mode="floor")
            return torch.where(at % self.stride == 0, key, -1)

        at = outputs[:, None] * self.stride + taps - self.before
        if self.mode == "circular":
            return at % n
        if self.mode == "replicate":
            return at.clamp(0, n - 1)
        if self.mode == "reflect":
            # A triangle wave with period 2n - 2; one point has no other to reflect.
            return n - 1 - (at % max(2 * n - 2, 1) - (n - 1)).abs()
        return at

    def incidence(
        self,
        outputs: Int[Tensor, " r"],
        n: int,
        dtype: torch.dtype,
    ) -> Float[Tensor, "r n taps"]:
        """Return 1 where a tap of an output reads a key, else 0."""
        keys = torch.arange(n, device=outputs.device)
        return (self.sources(outputs, n)[:, None] == keys[:, None]).to(dtype)

    def refusal(self, n: int) -> str | None:
        """Return why n keys are too few, or None."""
        widest = max(self.before, self.after)
        if self.mode == "reflect" and widest >= n:
            return (
                f"reflect padding by {widest} needs more than {widest} points on the axis, it has "
                f"{n}"
            )
        if self.mode == "circular" and widest > n:
            return (
                f"circular padding by {widest} needs at least {widest} points on the axis, it has "
                f"{n}"
            )
        if self.size(n) < 1:
            return f"a window over {self.reach + 1} points has no output on an axis of {n} points"
        return None
