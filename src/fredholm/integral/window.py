"""The window of a convolution or a pooling along one axis: which keys an output reads."""

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
        mode: what padding holds: ``zeros``, ``reflect``, ``replicate`` or ``circular``.
        transposed: keys write instead of outputs read.
        ceil: a last window may reach over the end, as in pooling with ``ceil_mode``.

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
                raise OptionError(f"a window needs {name} >= 1, got {getattr(self, name)}")

    @property
    def reach(self) -> int:
        """Distance between the first and the last tap, in points."""
        return self.dilation * (self.taps - 1)

    @property
    def keeps(self) -> bool:
        """Whether every key has an output in its place."""
        return self.stride == 1 and self.before + self.after == self.reach

    @property
    def offsets(self) -> list[int]:
        """Where each tap of a window without stride reads, relative to its output: negative is
        earlier.
        """
        away = [t * self.dilation - self.before for t in range(self.taps)]
        return [-a for a in away] if self.transposed else away

    def size(self, n):
        """Number of outputs for n keys: an integer, or a tensor of integers."""
        if self.transposed:
            return (n - 1) * self.stride + self.reach + 1 - self.before - self.after
        room = n + self.before + self.after - self.reach - 1
        if not self.ceil:
            return room + 1 if self.stride == 1 else room // self.stride + 1
        count = -(-room // self.stride) + 1
        return count - (
            (count - 1) * self.stride >= n + self.before
        )  # a window may not start behind the end

    def centre(self, outputs, n: int):
        """Where outputs (a number or a tensor) live, in units of the keys' index: the middle of
        what they read.
        """
        if self.transposed:
            return (outputs + self.before - self.reach / 2) / self.stride
        return outputs * self.stride - self.before + self.reach / 2

    def sources(self, outputs: Int[Tensor, " r"], n: int) -> Int[Tensor, "r taps"]:
        """The key each tap reads, or a number outside 0 .. n - 1 where it reads nothing."""
        taps = torch.arange(self.taps, device=outputs.device) * self.dilation
        if self.transposed:
            at = outputs[:, None] + self.before - taps
            return torch.where(
                at % self.stride == 0, at.div(self.stride, rounding_mode="floor"), -1
            )
        at = outputs[:, None] * self.stride + taps - self.before
        if self.mode == "circular":
            return at % n
        if self.mode == "replicate":
            return at.clamp(0, n - 1)
        if self.mode == "reflect":
            return n - 1 - (at % max(2 * n - 2, 1) - (n - 1)).abs()
        return at

    def incidence(
        self, outputs: Int[Tensor, " r"], n: int, dtype: torch.dtype
    ) -> Float[Tensor, "r n taps"]:
        """1 where a tap of an output reads a key, else 0."""
        keys = torch.arange(n, device=outputs.device)
        return (self.sources(outputs, n)[:, None] == keys[:, None]).to(dtype)

    def refusal(self, n: int) -> str | None:
        """What n keys lack, or None."""
        widest = max(self.before, self.after)
        if self.mode == "reflect" and widest >= n:
            need = f"more than {widest} points on the axis"
            return f"reflect padding by {widest} needs {need}, it has {n}"
        if self.mode == "circular" and widest > n:
            need = f"at least {widest} points on the axis"
            return f"circular padding by {widest} needs {need}, it has {n}"
        if self.size(n) < 1:
            return f"a window over {self.reach + 1} points has no output on an axis of {n} points"
        return None
