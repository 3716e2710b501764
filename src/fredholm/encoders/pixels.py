"""Pixels as points, for stages that begin with a convolution."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ..domain import Domain
from ..errors import ShapeError


class PixelEncoder(nn.Module):
    """Images as they are: a pixel a point of the grid, for stages that begin with a convolution.

    Shape: images (B, C, H, W) to (B, H·W, C) and the grid of pixels.

    Example:
        >>> PixelEncoder(3)(torch.zeros(2, 3, 4, 5))[0].shape
        torch.Size([2, 20, 3])
    """

    position_dim = 2

    def __init__(self, channels: int):
        super().__init__()
        self.channels = channels

    def forward(self, images: Float[Tensor, "b c h w"]) -> tuple[Float[Tensor, "b n c"], Domain]:
        if images.dim() != 4 or images.shape[1] != self.channels:
            raise ShapeError(
                f"images must have shape (B, {self.channels}, H, W), got {tuple(images.shape)}"
            )
        dtype = torch.promote_types(images.dtype, torch.float32)
        return images.flatten(2).mT, Domain.grid(
            *images.shape[2:], device=images.device, dtype=dtype
        )

    def read_out(self, features: Tensor, domain: Domain) -> Tensor:
        """The mean over the grid's points, (B, D)."""
        return features.mean(1)
