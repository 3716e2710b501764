"""Pictures at two or more patch sizes as one signal."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ..domain import Domain
from ..errors import OptionError
from .image import ImageEncoder


class MultiScaleImageEncoder(nn.Module):
    r"""The patches of several sizes, each at its own centre of the unit square, in one domain; no
    fusion but the kernel's own.

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

    Reference: ITNet App. J.2, Eq. 264. A learned embedding a scale is ours: it tells scales apart,
    as modality embeddings do.

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
                f"scales: received {tuple(scales)}; needs two or more different patch sizes"
            )
        if measure not in ("uniform", "balanced"):
            raise OptionError(
                f"measure: received {measure!r}; of several scales needs uniform or balanced"
            )
        self.measure = measure
        options = {"channels": channels, "dim": dim, "frequencies": frequencies, "sigma": sigma}
        self.encoders = nn.ModuleList(ImageEncoder(patch=patch, **options) for patch in scales)
        self.scale = nn.Parameter(torch.empty(len(scales), dim))
        self.dropout = nn.Dropout(dropout)
        nn.init.normal_(self.scale, std=0.02)

    def forward(self, images: Float[Tensor, "b c h w"]) -> tuple[Float[Tensor, "b n d"], Domain]:
        parts = [encoder(images) for encoder in self.encoders]
        features = torch.cat([tokens + scale for (tokens, _), scale in zip(parts, self.scale)], 1)
        domain = parts[0][1]
        for number, (_, other) in enumerate(parts[1:], 1):
            shares = (float(number), 1.0) if self.measure == "balanced" else None
            domain = Domain.join(domain, other, balance=shares)
        return self.dropout(features), domain

    def read_out(self, features: Tensor, domain: Domain) -> Tensor:
        """The image's one feature vector (B, D): the mean against the measure."""
        weights = domain.quadrature().weights()[:, 0, 0, :, None].to(features.dtype)
        return (weights * features).sum(1)
