"""Pixels as points, for stages that begin with a convolution."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from jaxtyping import Float
from torch import Tensor

from ...domain import Domain
from ...errors import ShapeError
from ...ops.backend import at_least_single
from .encoder import Axis, Encoder, part_of_grid, register_encoder
from .image import PictureConfig


@register_encoder("pixels")
@dataclass(frozen=True)
class PixelConfig(PictureConfig):
    """Pictures with one point per pixel; see :class:`PixelEncoder`.

    Attributes:
        image_size, channels: of a picture.
    """

    data = "image"
    own_width = True

    def build(
        self,
        dim: int | None,
        *,
        dropout: float = 0.0,
        class_token: bool = False,
    ) -> PixelEncoder:
        return PixelEncoder(self.channels)

    @property
    def points(self) -> int:
        height, width = self.sides
        return height * width

    @property
    def axes(self) -> tuple[Axis, ...]:
        return Axis(2, "height"), Axis(3, "width")


class PixelEncoder(Encoder):
    """Images with one point of the grid per pixel, for stages that begin with a convolution.

    Shape: images (B, C, H, W) to (B, H·W, C) and the grid of pixels.

    Example:
        >>> PixelEncoder(3)(torch.zeros(2, 3, 4, 5))[0].shape
        torch.Size([2, 20, 3])
    """

    position_dim = 2
    axis = 2

    def __init__(self, channels: int):
        super().__init__()
        self.channels = self.dim = channels

    def forward(self, images: Float[Tensor, "b c h w"]) -> tuple[Float[Tensor, "b n c"], Domain]:
        place = self._place(images)
        domain = Domain.grid(*images.shape[2:], **place)
        return images.flatten(2).mT, domain

    def part(
        self,
        inputs: Float[Tensor, "b c h w"],
        mesh: Any,
    ) -> tuple[Tensor, Domain]:
        place = self._place(inputs)
        rows, columns = inputs.shape[2:]
        domain = part_of_grid(rows, (columns,), mesh, **place)
        return inputs.flatten(2).mT, domain

    def _place(self, images: Tensor) -> dict[str, Any]:
        if images.dim() != 4 or images.shape[1] != self.channels:
            raise ShapeError(
                f"images: expected shape (B, {self.channels}, H, W), got {tuple(images.shape)}; "
                "reshape them"
            )
        return {
            "device": images.device,
            "dtype": at_least_single(images.dtype),
        }
