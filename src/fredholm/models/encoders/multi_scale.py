"""Pictures at two or more patch sizes as one signal."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ...configuration import (
    check_counts,
    check_known,
    check_name,
    check_patch,
    check_positive,
    options_of,
)
from ...domain import Domain
from ...errors import OptionError
from .encoder import Axis, Encoder, register_encoder
from .image import ImageEncoder, PictureConfig

MEASURES = ("uniform", "balanced")


@register_encoder("scales")
@dataclass(frozen=True)
class MultiScaleImageConfig(PictureConfig):
    """Pictures as patches of several sizes; see :class:`MultiScaleImageEncoder`.

    Attributes:
        image_size, channels: of a picture.
        scales: two or more patch sizes.
        measure: ``uniform`` or ``balanced``.
        frequencies, sigma: of the positions.
    """

    data = "image"

    scales: tuple[int, ...] = (4, 7)
    measure: str = "uniform"
    frequencies: int | None = None
    sigma: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check_known(self, measure=MEASURES)
        check_counts(self, "scales", "frequencies")
        check_positive(self, "sigma")
        for patch in self.scales:
            check_patch(self.sides, patch)

    def build(
        self,
        dim: int | None,
        *,
        dropout: float = 0.0,
        class_token: bool = False,
    ) -> MultiScaleImageEncoder:
        assert dim is not None
        return MultiScaleImageEncoder(
            dim=dim,
            dropout=dropout,
            **options_of(self, "image_size"),
        )

    @property
    def points(self) -> int:
        height, width = self.sides
        patches = 0
        for patch in self.scales:
            patches += (height // patch) * (width // patch)
        return patches

    @property
    def axes(self) -> tuple[Axis, ...]:
        # Every patch size must divide the sides.
        multiple = math.lcm(*self.scales)
        return Axis(2, "height", multiple=multiple), Axis(3, "width", multiple=multiple)


class MultiScaleImageEncoder(Encoder):
    r"""Patches of several sizes in one domain, each at its own centre in the unit square. Only the
    kernel combines the scales.

    Args:
        scales: patch sizes, two or more, such as (8, 16): 784 + 196 points of a 224² picture.
        channels, dim, frequencies, sigma: see :class:`ImageEncoder`; each scale has an embedding of
            its own.
        measure: ``uniform``: every patch the same mass, so that the smallest patches hold most of
            it (the paper's default); ``balanced``: every scale the same mass.
        dropout: after the embedding.

    Shape: images (B, C, H, W) to features (B, N, D) and a domain of all patches, those of the first
    scale first.

    Raises:
        OptionError: fewer than two scales, or an unknown measure.
        ShapeError: images that a patch does not divide.

    Reference: ITNet App. J.2, Eq. 264. The learned embedding per scale is ours: it tells scales
    apart, as modality embeddings do.

    Example:
        >>> encoder = MultiScaleImageEncoder(scales=(2, 4), channels=1, dim=8)
        >>> features, domain = encoder(torch.zeros(1, 1, 8, 8))
        >>> features.shape
        torch.Size([1, 20, 8])
    """

    position_dim = 2

    def __init__(
        self,
        *,
        scales: tuple[int, ...],
        channels: int,
        dim: int,
        measure: str = "uniform",
        frequencies: int = 64,
        sigma: float = 10.0,
        dropout: float = 0.0,
    ):
        super().__init__()
        if len(scales) < 2 or len(set(scales)) < len(scales):
            raise OptionError(
                f"scales: expected two or more different patch sizes, got {tuple(scales)}; add one"
            )
        check_name("measure", measure, MEASURES)
        self.measure = measure
        self.dim = dim
        options = {
            "channels": channels,
            "dim": dim,
            "frequencies": frequencies,
            "sigma": sigma,
        }
        encoders = [ImageEncoder(patch=patch, **options) for patch in scales]
        self.encoders = nn.ModuleList(encoders)
        self.scale = nn.Parameter(torch.empty(len(scales), dim))
        self.dropout = nn.Dropout(dropout)
        nn.init.normal_(self.scale, std=0.02)

    def forward(self, images: Float[Tensor, "b c h w"]) -> tuple[Float[Tensor, "b n d"], Domain]:
        parts = [encoder(images) for encoder in self.encoders]

        # Each scale's features and its learned embedding (D,).
        embedded = []
        for (tokens, _), scale in zip(parts, self.scale):
            embedded.append(tokens + scale)
        features = torch.cat(embedded, 1)

        domain, *others = [domain for _, domain in parts]
        for joined, other in enumerate(others, 1):
            shares = None
            if self.measure == "balanced":
                # Mass 1 for each of the scales joined so far, and 1 for the next.
                shares = (float(joined), 1.0)
            domain = Domain.join(domain, other, balance=shares)
        return self.dropout(features), domain
