"""Images as signals on patch centres."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from ..domain import Domain
from ..errors import OptionError, ShapeError, suggest
from ..integral import FourierFeatures

POSITIONS = ("fourier", "learned")


class ImageEncoder(nn.Module):
    r"""Patches as points of the unit square: features :math:`E\,\mathrm{patch} + p(x)` at the patch
    centres x.

    Args:
        patch: side of a square patch in pixels, or (height, width).
        channels: C.
        dim: width D of the features.
        pool: ``"mean"``, or ``"cls"`` for a class token at the centre of the square with measure 0:
            it reads the image and no patch reads it. It leaves the regular grid, so displacement
            tables no longer apply.
        frequencies, sigma: of γ. Positions lie in [0, 1]².
        dropout: after the embedding.
        positions: ``fourier``: :math:`p(x) = P\,\gamma(x)`, a function of the coordinate;
            ``learned``: a table with a row for every patch of ``grid``, interpolated (bicubic) for
            images of another size.
        grid: rows and columns of patches that the table is made for.

    Shape: images (B, C, H, W), sides divisible by the patch, to features (B, N, D) and a domain of
    N = H·W / patch² points (one more with a class token, which comes first). Any image size works,
    square or not.

    Raises:
        OptionError: an unknown pool or kind of positions, or a table without a grid.
        ShapeError: images whose channels or sides do not fit.

    Reference: ITNet §3.4, App. J; Dosovitskiy et al. 2021 for the table.

    Example:
        >>> features, domain = ImageEncoder(patch=2, channels=1, dim=8)(torch.zeros(3, 1, 8, 8))
        >>> features.shape, domain.shape
        (torch.Size([3, 16, 8]), (4, 4))
    """

    def __init__(
        self,
        *,
        patch: int | tuple[int, int],
        channels: int,
        dim: int,
        pool: str = "mean",
        frequencies: int = 64,
        sigma: float = 10.0,
        dropout: float = 0.0,
        positions: str = "fourier",
        grid: tuple[int, int] | None = None,
    ):
        super().__init__()
        if pool not in ("mean", "cls"):
            raise OptionError(f"pool is 'mean' or 'cls', got {pool!r}")
        if positions not in POSITIONS:
            raise OptionError(
                f"positions: received {positions!r}{suggest(str(positions), POSITIONS)}"
            )
        if positions == "learned" and grid is None:
            raise OptionError(
                "learned positions need grid=(rows, columns), the patches of the images in training"
            )
        self.patch = (patch, patch) if isinstance(patch, int) else tuple(patch)
        self.channels, self.pool, self.position_dim = channels, pool, 2
        self.embed = nn.Linear(channels * self.patch[0] * self.patch[1], dim)
        self.fourier = FourierFeatures(2, frequencies, sigma) if positions == "fourier" else None
        self.position = (
            nn.Linear(2 * frequencies, dim, bias=False) if positions == "fourier" else None
        )
        self.table = (
            nn.Parameter(torch.zeros(dim, *grid)) if positions == "learned" and grid else None
        )
        self.token = nn.Parameter(torch.zeros(dim)) if pool == "cls" else None
        self.dropout = nn.Dropout(dropout)
        nn.init.trunc_normal_(self.embed.weight, std=0.02)
        nn.init.zeros_(self.embed.bias)
        for weight in (self.position.weight if self.position else None, self.token, self.table):
            if weight is not None:
                nn.init.trunc_normal_(weight, std=0.02)

    def forward(self, images: Float[Tensor, "b c h w"]) -> tuple[Float[Tensor, "b n d"], Domain]:
        domain = self.domain(images)
        features = self.embed(self._patches(images))
        if self.table is not None:
            features = features + self._interpolated(self._grid(images)).to(features.dtype)
        if self.token is not None:
            token = self.token.to(features.dtype).expand(images.shape[0], 1, -1)
            features = torch.cat([token, features], 1)
        if self.fourier is not None and self.position is not None:
            features = features + self.position(
                self.fourier(domain.positions).to(self.position.weight.dtype)
            )
        return self.dropout(features), domain

    def _interpolated(self, grid: tuple[int, int]) -> Tensor:
        """The table's rows for a grid of patches, (N, D)."""
        assert self.table is not None
        table = self.table
        if tuple(table.shape[1:]) != grid:
            table = functional.interpolate(table[None], grid, mode="bicubic", align_corners=False)[
                0
            ]
        return table.flatten(1).mT

    def domain(self, images: Tensor) -> Domain:
        """Patch centres of these images, and the class token's point if there is one."""
        grid = self._grid(images)
        dtype = torch.promote_types(self.embed.weight.dtype, torch.float32)
        domain = Domain.grid(*grid, device=images.device, dtype=dtype)
        if self.token is None:
            return domain
        centre = Domain.points(torch.full_like(domain.positions[:1], 0.5))
        return Domain.join(centre, domain, balance=(0.0, 1.0))

    def read_out(self, features: Tensor, domain: Domain) -> Tensor:
        """The image's one feature vector (B, D): the class token, or the mean over patches."""
        return features[:, 0] if self.token is not None else features.mean(1)

    def _grid(self, images: Tensor) -> tuple[int, int]:
        if images.dim() != 4 or images.shape[1] != self.channels:
            raise ShapeError(
                f"images must have shape (B, {self.channels}, H, W), got {tuple(images.shape)}"
            )
        (h, w), (ph, pw) = images.shape[2:], self.patch
        if h % ph or w % pw:
            raise ShapeError(
                f"image sides must be multiples of the patch {ph}x{pw}, got {h}x{w}; resize or pad "
                "the images"
            )
        return h // ph, w // pw

    def _patches(self, images: Tensor) -> Tensor:
        (b, c), (gh, gw), (ph, pw) = images.shape[:2], self._grid(images), self.patch
        tiles = images.reshape(b, c, gh, ph, gw, pw)
        return tiles.permute(0, 2, 4, 1, 3, 5).reshape(b, gh * gw, c * ph * pw)
