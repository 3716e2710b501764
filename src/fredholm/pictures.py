"""Pixels of opened pictures: how ``fredholm predict`` and transformers' image processor read them.

Callers check :func:`unknown_range` first, and raise errors of their own.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional

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


def fit_of(facts: Mapping[str, Any]) -> str:
    """Return how the pictures of a model's training got its size.

    Runs of earlier versions on picture files did not save it. Their facts have a ``source``, as
    those of pictures in memory do, which were stretched and save the scale of their ``pixels`` in
    it.
    """
    source = facts.get("source") or {}
    from_files = bool(source) and "pixels" not in source
    if facts.get("fit") == COVER or facts.get("form", "rgb") != "rgb" or from_files:
        return COVER
    return STRETCH


def covered(
    picture: Any,
    size: tuple[int, int],
    form: str,
) -> Tensor:
    """Return a picture (C, h, w) that was resized (bicubic) until it just covers ``size``, then
    centre-cropped: bytes, or of a form of 16 bits shares of white in float32.

    Colours beneath full transparency are black, whatever the picture has there.

    Args:
        picture: one of Pillow's, of 2 pixels or more: resized, a single pixel would become a
            uniform area that passes for a picture.
        size: height and width.
        form: a name of :data:`CHANNELS`. ``a`` keeps opacity as a fourth channel, ``16`` keeps the
            depth of a grey picture of 16 bits.
    """
    from PIL import Image, ImageOps

    deep = form.endswith("16")
    height, width = size

    def fitted(image: Any) -> Tensor:
        result = ImageOps.fit(image, (width, height), Image.Resampling.BICUBIC)
        return torch.from_numpy(np.array(result))

    if deep and picture.mode.startswith("I"):
        upright = ImageOps.exif_transpose(picture)
        values = np.asarray(upright).astype(np.float32) / WHITE
        # Such pictures are grey and opaque. Bicubic curves may leave the range.
        grey = fitted(Image.fromarray(values)).clamp(0, 1)
        colours = grey.expand(3, -1, -1)
        opacity = torch.ones(form.count("a"), height, width)
        return torch.cat([colours, opacity])

    # Pillow multiplies colours by their opacity before it resizes.
    mode = form.removesuffix("16").upper()
    image = of_bytes(picture).convert(mode)
    pixels = fitted(image).permute(2, 0, 1)
    if mode == "RGBA":
        pixels[:3, pixels[3] == 0] = 0
    if deep:
        return pixels.float() / 255
    return pixels


def in_shares(pixels: Tensor) -> Tensor:
    """Return bytes as shares of white in [0, 1]; shares stay as they are."""
    if pixels.is_floating_point():
        return pixels
    return pixels.float() / 255


def stretched(
    picture: Any,
    size: tuple[int, int] | None,
    channels: int,
) -> Float[Tensor, "c h w"]:
    """Return a picture in [0, 1] that was stretched to ``size``; with None it keeps its own.

    Args:
        picture: one of Pillow's.
        size: height and width.
        channels: 1 for grey, 3 for RGB.
    """
    mode = "RGB"
    if channels == 1:
        mode = "L"
    pixels = torch.from_numpy(np.array(of_bytes(picture).convert(mode)))
    shares = in_shares(pixels)
    # Pillow's grey pictures have no axis of channels.
    if channels == 1:
        image = shares[None]
    else:
        image = shares.permute(2, 0, 1)
    if size is None:
        return image
    return resized(image[None], size)[0]


def resized(
    images: Float[Tensor, "n c h w"],
    size: tuple[int, int],
) -> Float[Tensor, "n c i j"]:
    """Return images at another size, antialiased bilinear; those that have it stay as they are."""
    if tuple(images.shape[-2:]) == tuple(size):
        return images
    return functional.interpolate(
        images,
        tuple(size),
        mode="bilinear",
        antialias=True,
        align_corners=False,
    )


def of_bytes(picture: Any) -> Any:
    """Return a picture with 8 bits per channel, turned as its camera was held (EXIF's
    orientation).
    """
    from PIL import Image, ImageOps

    image = ImageOps.exif_transpose(picture)
    if not image.mode.startswith(("I", "F")):
        return image

    # Pillow's own conversion would cut off all values above 255. Division by 257, rounded to the
    # nearest, maps 65,535 to 255.
    shades = (np.asarray(image).astype(np.int64) + 128) // 257
    return Image.fromarray(shades.astype(np.uint8))


def unknown_range(picture: Any) -> str | None:
    """Return the range of floating-point pixels, or of integers beyond 16 bits, in words: nothing
    tells which one is white. None for pictures of 8 or 16 bits.
    """
    if not picture.mode.startswith(("I", "F")):
        return None
    pixels = np.asarray(picture)
    if picture.mode != "F" and pixels.min() >= 0 and pixels.max() <= WHITE:
        return None
    return f"pixels from {pixels.min():g} to {pixels.max():g} (Pillow's mode {picture.mode!r})"
