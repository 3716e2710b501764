"""Point clouds as signals on their own coordinates."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from ..domain import Domain
from ..errors import ShapeError


class PointEncoder(nn.Module):
    r"""Points as they are: features :math:`E x` (linear, Xavier-uniform), positions the raw coordinates, uniform measure.

    Args:
        channels: coordinates p of a point.
        dim: width D of the features.
        dropout: after the embedding.

    Shape: clouds (B, N, p), any N, to features (B, N, D) and their domain. ``valid`` (B, N) marks the real points of padded clouds.

    Raises:
        ShapeError: clouds whose coordinates do not fit.

    Reference: ITNet §3.4, App. J. The local pre-extraction over neighbours (Table 21) is not part of this encoder.

    Example:
        >>> features, domain = PointEncoder(channels=3, dim=8)(torch.zeros(2, 5, 3))
        >>> features.shape, domain.dim
        (torch.Size([2, 5, 8]), 3)
    """

    def __init__(self, *, channels: int = 3, dim: int, dropout: float = 0.0):
        super().__init__()
        self.channels = self.position_dim = channels
        self.embed = nn.Linear(channels, dim)
        self.dropout = nn.Dropout(dropout)
        nn.init.xavier_uniform_(self.embed.weight)
        nn.init.zeros_(self.embed.bias)

    def forward(
        self, clouds: Float[Tensor, "b n p"], valid: Bool[Tensor, "b n"] | None = None
    ) -> tuple[Float[Tensor, "b n d"], Domain]:
        if clouds.dim() != 3 or clouds.shape[-1] != self.channels:
            raise ShapeError(f"point clouds must have shape (B, N, {self.channels}), got {tuple(clouds.shape)}")
        domain = Domain.points(clouds, valid=valid)
        return self.dropout(self.embed(domain.positions)), domain

    def read_out(self, features: Tensor, domain: Domain) -> Tensor:
        """The cloud's one feature vector (B, D): the mean against the measure, padding left out."""
        weights = domain.quadrature().weights()[:, 0, 0, :, None].to(features.dtype)
        if domain.valid is not None:
            features = torch.where(domain.valid[..., None], features, 0.0)
        return (weights * features).sum(1)
