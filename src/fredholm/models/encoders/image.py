"""Images as signals on patch centres."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from ...configuration import (
    check_counts,
    check_known,
    check_name,
    check_patch,
    check_positive,
    image_sides,
    options_of,
)
from ...distributed import Shards
from ...domain import Domain
from ...errors import OptionError, ShapeError
from ...integral import FourierFeatures
from ...ops.backend import at_least_single
from .encoder import (
    TOKENS,
    Axis,
    Encoder,
    EncoderConfig,
    behind_token,
    first_row,
    register_encoder,
    with_token,
)

POSITIONS = ("fourier", "learned")


@dataclass(frozen=True)
class PictureConfig(EncoderConfig):
    """Base of configurations of encoders of pictures.

    Attributes:
        image_size: height and width that the model is built for, or one number for both.
        channels: of a picture.
    """

    of_data = ("image_size", "channels")

    image_size: tuple[int, int] | int = (28, 28)
    channels: int = 1

    def __post_init__(self) -> None:
        object.__setattr__(self, "image_size", image_sides(self.image_size))
        super().__post_init__()
        check_counts(self, "image_size", "channels")

    @property
    def sides(self) -> tuple[int, int]:
        """Height and width of a picture."""
        height, width = image_sides(self.image_size)
        return height, width

    @property
    def input_shape(self) -> tuple[int, ...]:
        return (self.channels, *self.sides)


@register_encoder("image")
@dataclass(frozen=True)
class ImageConfig(PictureConfig):
    """Pictures as patches; see :class:`ImageEncoder`.

    Attributes:
        image_size: height and width that the model is built for, or one number for both; other
            sizes work where the patch divides them.
        channels: of a picture.
        patch: side of a patch in pixels, or (height, width).
        positions: ``fourier``, a function of the coordinates, or ``learned``, a table interpolated
            for other sizes.
        frequencies, sigma: of ``fourier`` positions.
        token: a class token's mass: ``reader`` (zero: it reads the patches, and no patch reads it)
            or ``ordinary`` (that of a patch, as in a vision transformer).
    """

    pools = ("mean", "points", "cls", "every")

    patch: int | tuple[int, int] = 4
    positions: str = "fourier"
    frequencies: int | None = None
    sigma: float | None = None
    token: str = "reader"

    def __post_init__(self) -> None:
        check_known(self, positions=POSITIONS, token=TOKENS)
        super().__post_init__()
        check_counts(self, "patch", "frequencies")
        check_positive(self, "sigma")
        check_patch(self.sides, self.patch)

    @classmethod
    def idle(cls, given: Mapping[str, Any]) -> dict[str, str]:
        if given.get("positions") != "learned":
            return {}
        return dict.fromkeys(("frequencies", "sigma"), "positions='learned'")

    def build(
        self,
        dim: int | None,
        *,
        dropout: float = 0.0,
        class_token: bool = False,
    ) -> ImageEncoder:
        assert dim is not None
        return ImageEncoder(
            dim=dim,
            class_token=class_token,
            dropout=dropout,
            grid=self.grid,
            **options_of(self, "image_size"),
        )

    @property
    def grid(self) -> tuple[int, int]:
        """Rows and columns of patches."""
        h, w = self.sides
        ph, pw = image_sides(self.patch)
        return h // ph, w // pw

    @property
    def points(self) -> int:
        return self.grid[0] * self.grid[1]

    @property
    def axes(self) -> tuple[Axis, ...]:
        height, width = image_sides(self.patch)
        return Axis(2, "height", multiple=height), Axis(3, "width", multiple=width)


class ImageEncoder(Encoder):
    r"""Patches as points of the unit square: features :math:`E\,\mathrm{patch} + p(x)` at the patch
    centres x.

    Args:
        patch: side of a square patch in pixels, or (height, width).
        channels: C.
        dim: width D of the features.
        class_token: whether a token stands at the centre of the square. It leaves the regular
            grid, so displacement tables no longer apply.
        token: ``reader``: it has measure 0, reads the image and no patch reads it; ``ordinary``:
            the measure of a patch.
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
        OptionError: an unknown kind of positions, or a table without a grid.
        ShapeError: images whose channels or sides do not fit.

    Reference: ITNet §3.4, App. J; Dosovitskiy et al. 2021 for the table.

    Example:
        >>> features, domain = ImageEncoder(patch=2, channels=1, dim=8)(torch.zeros(3, 1, 8, 8))
        >>> features.shape, domain.shape
        (torch.Size([3, 16, 8]), (4, 4))
    """

    axis = 2

    def __init__(
        self,
        *,
        patch: int | tuple[int, int],
        channels: int,
        dim: int,
        class_token: bool = False,
        frequencies: int = 64,
        sigma: float = 10.0,
        dropout: float = 0.0,
        positions: str = "fourier",
        grid: tuple[int, int] | None = None,
        token: str = "reader",
    ):
        super().__init__()
        check_name("positions", positions, POSITIONS)
        check_name("token", token, TOKENS)
        if positions == "learned" and grid is None:
            raise OptionError(
                "grid: expected (rows, columns) of patches beside learned positions, got None; "
                "give those of the training images"
            )
        height, width = image_sides(patch)
        self.patch = (height, width)
        self.channels = channels
        self.position_dim = 2
        self.dim = dim
        self.grain = height
        numbers_per_patch = channels * height * width
        self.embed = nn.Linear(numbers_per_patch, dim)
        self.fourier = None
        self.position = None
        self.table = None
        self.token = None
        if positions == "fourier":
            self.fourier = FourierFeatures(2, frequencies, sigma)
            self.position = nn.Linear(2 * frequencies, dim, bias=False)
        elif grid is not None:
            self.table = nn.Parameter(torch.zeros(dim, *grid))
        if class_token:
            self.token = nn.Parameter(torch.zeros(dim))
        self.token_kind = token
        self.dropout = nn.Dropout(dropout)

        # In this order: seeds promise the same weights.
        nn.init.trunc_normal_(self.embed.weight, std=0.02)
        nn.init.zeros_(self.embed.bias)
        if self.position is not None:
            nn.init.trunc_normal_(self.position.weight, std=0.02)
        for weight in (self.token, self.table):
            if weight is not None:
                nn.init.trunc_normal_(weight, std=0.02)

    def forward(self, images: Float[Tensor, "b c h w"]) -> tuple[Float[Tensor, "b n d"], Domain]:
        domain = self.domain(images)
        grid = self._grid(images)
        return self._features(images, domain, grid), domain

    def part(self, inputs: Float[Tensor, "b c h w"], mesh: Any) -> tuple[Tensor, Domain]:
        """Encode this rank's rows of every image: return features (B, n, D) of its patches, and
        this rank's part of the grid of all patches.

        Each rank sends its number of points to every other one, and nothing else.

        Args:
            inputs: (B, C, h, W). Ranks hold consecutive stretches of complete pixel rows, in their
                order; h is divisible by the patch and may differ between ranks, W may not.
            mesh: the device mesh of the ranks, of one dimension.
        """
        rows, columns = self._grid(inputs)
        tokens = int(self.token is not None)
        here = rows * columns
        if mesh.get_local_rank() == 0:
            # The class token comes before all patches, so only the first rank has it.
            here += tokens
        shards = Shards.of_parts(mesh, here)

        # Rows and columns of patches of the complete image. Positions and a learned table depend on
        # it, not on this rank's rows alone.
        complete_rows = (shards.total - tokens) // columns
        grid = (complete_rows, columns)
        domain = self._domain(grid, inputs.device)
        domain = domain.shard(mesh, sizes=shards.sizes)
        return self._features(inputs, domain, grid), domain

    def _features(self, images: Tensor, domain: Domain, grid: tuple[int, int]) -> Tensor:
        """Return the features of the points of ``domain``, (B, N, D); ``images`` are this rank's
        rows of pixels, ``grid`` the rows and columns of patches of the complete image.
        """
        patches = self._patches(images)
        features = self.embed(patches)
        # Of a sharded image only the first part has the class token.
        tokens = domain.size - features.shape[1]
        if self.table is not None:
            start = first_row(domain, self.token is not None)
            stop = start + features.shape[1]
            rows = self._interpolated(grid)[start:stop]
            features = features + rows.to(features.dtype)
        if self.token is not None:
            features = behind_token(features, self.token, tokens)
        features = self.with_positions(features, domain.positions)
        return self.dropout(features)

    def _interpolated(self, grid: tuple[int, int]) -> Tensor:
        """Return the table's rows for a grid of patches, (N, D)."""
        assert self.table is not None
        table = self.table[None]
        if tuple(table.shape[2:]) != grid:
            table = functional.interpolate(
                table,
                grid,
                mode="bicubic",
                align_corners=False,
            )
        by_patch = table[0].flatten(1)
        return by_patch.mT

    def domain(self, images: Tensor) -> Domain:
        """Return the patch centres of these images, and the class token's point if there is one."""
        grid = self._grid(images)
        return self._domain(grid, images.device)

    def _domain(self, grid: tuple[int, int], device: torch.device) -> Domain:
        dtype = at_least_single(self.embed.weight.dtype)
        domain = Domain.grid(*grid, device=device, dtype=dtype)
        if self.token is None:
            return domain
        # The token stands in the middle, where no direction is preferred.
        middle = torch.full_like(domain.positions[:1], 0.5)
        centre = Domain.points(middle)
        return with_token(centre, domain, self.token_kind)

    def _grid(self, images: Tensor) -> tuple[int, int]:
        if images.dim() != 4 or images.shape[1] != self.channels:
            raise ShapeError(
                f"images: expected shape (B, {self.channels}, H, W), got {tuple(images.shape)}; "
                "reshape them"
            )
        h, w = images.shape[2:]
        ph, pw = self.patch
        if h % ph or w % pw:
            raise ShapeError(
                f"images: expected sides that are multiples of the patch {ph}x{pw}, got {h}x{w}; "
                "resize or pad them"
            )
        return h // ph, w // pw

    def _patches(self, images: Tensor) -> Tensor:
        """Return the patches as rows, (B, N, C · ph · pw)."""
        b, c = images.shape[:2]
        rows, columns = self._grid(images)
        height, width = self.patch
        tiles = images.reshape(b, c, rows, height, columns, width)
        tiles = tiles.permute(0, 2, 4, 1, 3, 5)
        return tiles.reshape(b, rows * columns, c * height * width)
