"""Pixels of opened pictures in [0, 1], read as ``fredholm predict`` reads picture files.

Files are read by :mod:`fredholm.lab`, which nothing here may import; tests compare the two.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional

from ..errors import OptionError

COVER = "cover"
STRETCH = "stretch"
FITS = (COVER, STRETCH)
"""The ways in which a picture gets the model's size: :func:`covered` and :func:`stretched`."""

CHANNELS = {
    "rgb": 3,
    "rgba": 4,
    "rgb16": 3,
    "rgba16": 4,
}
"""The number of channels of each form of :func:`covered`."""

WHITE = 65_535
"""White in 16 bits."""


def covered(
    picture: Any,
    size: tuple[int, int],
    form: str,
) -> Float[Tensor, "c h w"]:
    """Return a picture that was resized (bicubic) until it just covers ``size``, then
    centre-cropped.

    Colours beneath full transparency are black, whatever the picture has there.

    Args:
        picture: one of Pillow's.
        size: height and width.
        form: a name of :data:`CHANNELS`. ``a`` keeps opacity as a fourth channel, ``16`` keeps the
            depth of a grey picture of 16 bits.

    Raises:
        OptionError: a single pixel, or pixels of an unknown range.
    """
    from PIL import Image, ImageOps

    # Resized, a single pixel would become a uniform area that passes for a picture.
    if max(picture.size) < 2:
        raise OptionError(
            "images: expected pictures of 2 pixels or more, got 1 x 1, often the placeholder of a "
            "failed download; replace or remove it"
        )
    height, width = size

    def fitted(image: Any) -> Tensor:
        result = ImageOps.fit(image, (width, height), Image.Resampling.BICUBIC)
        return torch.from_numpy(np.array(result))

    if form.endswith("16") and picture.mode.startswith("I"):
        _check_range(picture)
        upright = ImageOps.exif_transpose(picture)
        values = np.asarray(upright).astype(np.float32) / WHITE
        # Such pictures are grey and opaque. Bicubic curves may leave the range.
        grey = fitted(Image.fromarray(values)).clamp(0, 1)
        colours = grey.expand(3, -1, -1)
        opacity = torch.ones(form.count("a"), height, width)
        return torch.cat([colours, opacity])

    # Pillow multiplies colours by their opacity before it resizes.
    mode = form.removesuffix("16").upper()
    image = _of_bytes(picture).convert(mode)
    pixels = fitted(image).permute(2, 0, 1)
    if mode == "RGBA":
        pixels[:3, pixels[3] == 0] = 0
    return pixels.float() / 255


def stretched(
    picture: Any,
    size: tuple[int, int],
    channels: int,
) -> Float[Tensor, "c h w"]:
    """Return a picture that was stretched to ``size`` (bilinear, antialiased).

    Args:
        picture: one of Pillow's.
        size: height and width.
        channels: 1 for grey, 3 for RGB.

    Raises:
        OptionError: pixels of an unknown range.
    """
    mode = "L"
    if channels == 3:
        mode = "RGB"
    values = np.array(_of_bytes(picture).convert(mode))
    rows, columns = values.shape[:2]
    pixels = torch.from_numpy(values).float() / 255
    # Pillow's grey pictures have no axis of channels.
    pixels = pixels.view(rows, columns, channels).permute(2, 0, 1)
    if (rows, columns) == size:
        return pixels
    return functional.interpolate(
        pixels[None],
        size,
        mode="bilinear",
        antialias=True,
        align_corners=False,
    )[0]


def _of_bytes(picture: Any) -> Any:
    """Return a picture with 8 bits per channel, turned as its camera was held (EXIF's orientation).

    Raises:
        OptionError: pixels of an unknown range.
    """
    from PIL import Image, ImageOps

    image = ImageOps.exif_transpose(picture)
    if not image.mode.startswith(("I", "F")):
        return image

    # Pillow's own conversion would cut off all values above 255. Division by 257, rounded to the
    # nearest, maps 65,535 to 255.
    _check_range(image)
    shades = (np.asarray(image).astype(np.int64) + 128) // 257
    return Image.fromarray(shades.astype(np.uint8))


def _check_range(picture: Any) -> None:
    """Refuse floating-point pixels and integers beyond 16 bits: nothing tells which one is white.

    Raises:
        OptionError: naming their range.
    """
    pixels = np.asarray(picture)
    if picture.mode == "F" or pixels.min() < 0 or pixels.max() > WHITE:
        raise OptionError(
            f"images: expected 8 or 16 bits per channel, got pixels from {pixels.min():g} to "
            f"{pixels.max():g} (Pillow's mode {picture.mode!r}); scale them to 0 to 255 and "
            "convert them to bytes"
        )
