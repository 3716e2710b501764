"""Rotary positions: queries and keys turn with the positions of their points."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ..errors import OptionError


class Rotary(nn.Module):
    r"""Rotate pairs of features by angles proportional to the position, so that an inner product
    depends only on the displacement.

    .. math:: \langle R_x q, R_y k\rangle = \langle R_{x-y} q, k\rangle,\qquad
        \omega_m = \mathrm{base}^{-2mp/w},\ m < w/2p

    Args:
        width: w, the number of rotated features, the first of each head; the rest are unchanged.
        base: ratio of the fastest to the slowest angle, nearly.
        position_dim: p; each coordinate rotates w / p of the features.
        interleaved: neighbouring features form a pair, as in the paper; otherwise feature m and
            feature m + w / 2p.

    Shape: positions (B, N, p) and features (B, H, N, e), e >= w, to (B, H, N, e). No parameters;
    O(N·w).

    Raises:
        OptionError: a width that does not split into pairs for each coordinate.

    Reference: Su et al. 2021, Eqs. 14, 34.

    Example:
        >>> turn, q, k = Rotary(4), torch.randn(1, 1, 1, 4), torch.randn(1, 1, 1, 4)
        >>> def score(x, y):
        ...     return (turn(torch.full((1, 1, 1), x), q) * turn(torch.full((1, 1, 1), y), k)).sum()
        >>> torch.allclose(score(0.0, 2.0), score(7.0, 9.0), atol=1e-5)
        True
    """

    def __init__(
        self,
        width: int,
        *,
        base: float = 10000.0,
        position_dim: int = 1,
        interleaved: bool = False,
    ):
        super().__init__()
        if width < 1 or position_dim < 1 or width % (2 * position_dim):
            raise OptionError(
                f"width: expected a multiple of {2 * position_dim}, pairs for each of "
                f"{position_dim} coordinates, got {width}; change width or position_dim"
            )
        self.width = width
        self.base = base
        self.position_dim = position_dim
        self.interleaved = interleaved

    def forward(
        self,
        x: Float[Tensor, "#b n p"],
        u: Float[Tensor, "b h n e"],
    ) -> Float[Tensor, "b h n e"]:
        if x.shape[-1] != self.position_dim:
            raise OptionError(
                f"expected positions of dimension {self.position_dim}, got {x.shape[-1]}; build "
                f"Rotary with position_dim={x.shape[-1]}"
            )

        # Each coordinate turns its share of the features, in share / 2 pairs.
        share = self.width // self.position_dim
        powers = torch.arange(0, share, 2, device=x.device, dtype=x.dtype) / share
        # (B, 1, N, p, share / 2)
        angles = (x[..., None] * self.base**-powers)[:, None]
        cos = angles.cos().to(u.dtype)
        sin = angles.sin().to(u.dtype)

        by_coordinate = u[..., : self.width].unflatten(-1, (self.position_dim, share))
        rest = u[..., self.width :]
        if self.interleaved:
            a = by_coordinate[..., ::2]
            b = by_coordinate[..., 1::2]
            turned = torch.stack([a * cos - b * sin, a * sin + b * cos], -1).flatten(-3)
        else:
            a, b = by_coordinate.chunk(2, -1)
            turned = torch.cat([a * cos - b * sin, a * sin + b * cos], -1).flatten(-2)

        if rest.shape[-1] == 0:
            return turned
        return torch.cat([turned, rest], -1)

    def extra_repr(self) -> str:
        return (
            f"{self.width}, base={self.base}, position_dim={self.position_dim}, "
            f"interleaved={self.interleaved}"
        )
