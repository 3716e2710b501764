"""Fields on a grid as signals at every grid point, for operators from fields to fields."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ..domain import Domain
from ..errors import ShapeError
from ..integral import FourierFeatures


class FieldEncoder(nn.Module):
    r"""Values at the cells of a grid over the unit cube: features :math:`E\,a(x) + P\,\gamma(x)` at
    the cells' centres x.

    The same weights serve every resolution: a finer grid is another domain, of total measure 1 as
    well.

    Args:
        channels: values of a field at a point.
        dim: width D of the features.
        position_dim: of the cube.
        frequencies, sigma: of γ. A σ far beyond the training grid's resolution does not carry over
            to a finer one.
        dropout: after the embedding.

    Shape: fields (B, C, n1, …, np) to features (B, n1·…·np, D) and their grid.

    Raises:
        ShapeError: fields of other channels or dimension.

    Reference: ITNet §3.4 (positions are raw coordinates); Li et al. 2020 for the task.

    Example:
        >>> features, domain = FieldEncoder(channels=1, dim=8)(torch.zeros(2, 1, 4, 6))
        >>> features.shape, domain.shape
        (torch.Size([2, 24, 8]), (4, 6))
    """

    def __init__(
        self,
        *,
        channels: int,
        dim: int,
        position_dim: int = 2,
        frequencies: int = 16,
        sigma: float = 1.0,
        dropout: float = 0.0,
    ):
        super().__init__()
        self.channels, self.position_dim = channels, position_dim
        self.embed = nn.Linear(channels, dim)
        self.fourier = FourierFeatures(position_dim, frequencies, sigma)
        self.position = nn.Linear(2 * frequencies, dim, bias=False)
        self.dropout = nn.Dropout(dropout)
        for layer in (self.embed, self.position):
            nn.init.xavier_uniform_(layer.weight)
        nn.init.zeros_(self.embed.bias)

    def forward(self, fields: Float[Tensor, "b c *n"]) -> tuple[Float[Tensor, "b m d"], Domain]:
        if fields.dim() != 2 + self.position_dim or fields.shape[1] != self.channels:
            need = (
                f"(B, {self.channels}, {', '.join(f'n{i + 1}' for i in range(self.position_dim))})"
            )
            raise ShapeError(f"fields must have shape {need}, got {tuple(fields.shape)}")
        dtype = torch.promote_types(self.embed.weight.dtype, torch.float32)
        domain = Domain.grid(*fields.shape[2:], device=fields.device, dtype=dtype)
        features = self.embed(fields.flatten(2).mT)
        return self.dropout(
            features + self.position(self.fourier(domain.positions).to(features.dtype))
        ), domain

    def read_out(self, features: Tensor, domain: Domain) -> Tensor:
        """The features at every point, (B, N, D)."""
        return features
