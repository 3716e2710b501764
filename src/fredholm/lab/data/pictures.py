"""The augmentations of vision transformers: crops of any size and shape, colours, RandAugment and
erased rectangles. Each is a function of (seed, epoch, index of the sample), passed as ``key``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Shaped
from torch import Tensor
from torch.nn import functional

from ...errors import require
from .counter import hash64, integers, uniform

# One stream of random numbers for each augmentation; those of :mod:`.augment` are below 6.
_RESIZED, _COLOUR, _RAND, _ERASE = 6, 7, 8, 9
# How often a rectangle is drawn before the whole image is taken.
TRIES = 10
# The weights of red, green and blue in brightness (ITU-R 601, as in Pillow).
GREY = (0.299, 0.587, 0.114)
# The axes of the plane of colours in YIQ, whose third axis is brightness.
YIQ = ((0.596, -0.274, -0.322), (0.211, -0.523, 0.312))


class _Rectangle(NamedTuple):
    """A part of an image, in pixels."""

    top: int
    left: int
    height: int
    width: int

    def of(self, image: Tensor) -> Tensor:
        """Return the part of an image (…, H, W), a view."""
        bottom = self.top + self.height
        right = self.left + self.width
        return image[..., self.top : bottom, self.left : right]


def resized_crop(
    images: Shaped[Tensor, "b c h w"],
    area: tuple[float, float],
    *key: Any,
) -> Shaped[Tensor, "b c h w"]:
    """Cut a rectangle from each image and resize it to the image (bilinear, antialiased).

    Its share of the area is drawn from ``area``, the ratio of its sides from 3/4 to 4/3. ``key``:
    seed, epoch, indices.

    Reference: Szegedy et al., Going deeper with convolutions, 2015.

    Example:
        >>> images, key = torch.rand(2, 3, 8, 8), (0, 0, torch.arange(2))
        >>> resized_crop(images, (0.2, 0.5), *key).shape
        torch.Size([2, 3, 8, 8])
    """
    sides = (images.shape[-2], images.shape[-1])
    parts = _rectangles(sides, area, 4 / 3, (*key, _RESIZED))

    result = []
    for image, part in zip(images, parts):
        crop = part.of(image)[None].float()
        enlarged = functional.interpolate(crop, sides, mode="bilinear", antialias=True)
        result.append(enlarged[0])
    return _like(images, torch.stack(result))


def _rectangles(
    sides: tuple[int, int],
    area: tuple[float, float],
    ratio: float,
    key: tuple[Any, ...],
) -> list[_Rectangle]:
    """Return a random rectangle for each index: the first of ten draws that fits, or else the
    whole image.

    Args:
        sides: height and width of the image.
        area: the least and the largest share of its area.
        ratio: the largest ratio of the rectangle's sides, either way.
        key: seed, epoch, indices, stream.
    """
    height, width = sides
    seed, epoch, indices, stream = key
    draws = torch.arange(TRIES)[:, None]

    least, largest = area
    share = uniform(seed, epoch, indices, stream, 0, draws)
    share = least + (largest - least) * share
    size = share * height * width

    # Ratios are uniform on a logarithmic scale, so that 3/4 is as probable as 4/3. (tries, B)
    low = math.log(1 / ratio)
    high = math.log(ratio)
    shape = uniform(seed, epoch, indices, stream, 1, draws)
    ratios = torch.exp(low + (high - low) * shape)
    w = (size * ratios).sqrt().round().long()
    h = (size * (1 / ratios)).sqrt().round().long()
    fits_width = (w >= 1) & (w <= width)
    fits_height = (h >= 1) & (h <= height)
    fits = fits_width & fits_height

    # argmax of booleans finds the first True; where there is none, it finds the first draw, which
    # does not fit and is replaced.
    first = fits.long().argmax(0, keepdim=True)
    found = fits.gather(0, first)[0]
    w = w.gather(0, first)[0]
    w = torch.where(found, w, width)
    h = h.gather(0, first)[0]
    h = torch.where(found, h, height)

    top = integers(height - h + 1, seed, epoch, indices, stream, 2)
    left = integers(width - w + 1, seed, epoch, indices, stream, 3)
    rows = torch.stack([top, left, h, w], 1)
    return [_Rectangle(*row) for row in rows.tolist()]


def jitter_colours(
    images: Shaped[Tensor, "b c h w"],
    amounts: Sequence[float],
    *key: Any,
) -> Shaped[Tensor, "b c h w"]:
    """Multiply brightness, contrast and saturation by a factor of up to 1 ± amount each, and turn
    the hue by up to ± amount of the circle, in an order drawn for each image.

    Grey pictures keep their hue and saturation.

    Example:
        >>> images, key = torch.rand(2, 3, 4, 4), (0, 0, torch.arange(2))
        >>> bool((jitter_colours(images, (0.4, 0.4, 0.4, 0.1), *key) != images).any())
        True
    """
    seed, epoch, indices = key
    signed = []
    hashes = []
    for k in range(len(_CHANGES)):
        share = uniform(seed, epoch, indices, _COLOUR, k)
        signed.append(share * 2 - 1)
        hashes.append(hash64(seed, epoch, indices, _COLOUR, 4 + k))
    draws = torch.stack(signed, 1).tolist()
    orders = torch.stack(hashes, 1).argsort(1).tolist()

    bytes_ = images.dtype == torch.uint8
    white = _white(images)
    result = []
    for image, draw, order in zip(images.float() / white, draws, orders):
        grey = len(image) != 3
        for k in order:
            if not amounts[k]:
                continue
            if grey and k in _OF_COLOURS:
                continue
            change = _CHANGES[k]
            image = change(image, amounts[k] * draw[k])
            # A byte that leaves the range at one change is cut off before the next.
            if bytes_:
                image = image.clamp(0, 1)
        result.append(image * white)
    return _like(images, torch.stack(result))


def _grey(image: Tensor) -> Tensor:
    """Return one channel of brightness, (1, H, W)."""
    if len(image) != 3:
        return image.mean(0, keepdim=True)
    weights = image.new_tensor(GREY)
    weighted = image * weights[:, None, None]
    return weighted.sum(0, keepdim=True)


def _blended(image: Tensor, with_: Tensor, amount: float) -> Tensor:
    return with_ + (1 + amount) * (image - with_)


def _turned(image: Tensor, turn: float) -> Tensor:
    """Turn the hue by a share of the circle: a rotation about the grey axis in the plane of
    colours, which keeps the brightness.
    """
    angle = 2 * math.pi * turn
    cos = math.cos(angle)
    sin = math.sin(angle)
    # In float64: the inverse of the axes would lose digits that a byte shows.
    axes = torch.tensor([GREY, *YIQ], dtype=torch.float64)
    rows = [
        [1, 0, 0],
        [0, cos, -sin],
        [0, sin, cos],
    ]
    rotation = torch.tensor(rows, dtype=torch.float64)
    matrix = torch.linalg.inv(axes) @ rotation @ axes
    return torch.einsum("dc,chw->dhw", matrix.to(image), image)


def _brightened(image: Tensor, amount: float) -> Tensor:
    return image * (1 + amount)


def _contrasted(image: Tensor, amount: float) -> Tensor:
    mean = _grey(image).mean()
    return _blended(image, mean, amount)


def _saturated(image: Tensor, amount: float) -> Tensor:
    grey = _grey(image)
    return _blended(image, grey, amount)


# The last two need colours.
_CHANGES: tuple[Callable[[Tensor, float], Tensor], ...] = (
    _brightened,
    _contrasted,
    _saturated,
    _turned,
)
_OF_COLOURS = (2, 3)


def erase(
    images: Shaped[Tensor, "b c h w"],
    probability: float,
    *key: Any,
) -> Shaped[Tensor, "b c h w"]:
    """Fill a rectangle of 2 to 33% of the area with random bytes, in a share ``probability`` of
    the images.

    Its sides have a ratio of 0.3 to 3.3. ``key``: seed, epoch, indices.

    Reference: Zhong et al., Random erasing data augmentation, 2020.

    Example:
        >>> images, key = torch.zeros(1, 1, 8, 8, dtype=torch.uint8), (0, 0, torch.arange(1))
        >>> 1 <= int((erase(images, 1.0, *key) > 0).sum()) <= 22
        True
    """
    seed, epoch, indices = key
    sides = (images.shape[-2], images.shape[-1])
    chosen = uniform(seed, epoch, indices, _ERASE, 9) < probability
    parts = _rectangles(sides, (0.02, 0.33), 1 / 0.3, (*key, _ERASE))
    white = _white(images)

    images = images.clone()
    for image, index, yes, part in zip(images, indices, chosen, parts):
        if not yes:
            continue
        # The whole image is what stands for "no rectangle fitted".
        if (part.height, part.width) == sides:
            continue

        target = part.of(image)
        pixels = torch.arange(target.numel())
        noise = uniform(seed, epoch, index, _ERASE, 10, pixels)
        noise = noise.view(target.shape) * white
        target[:] = noise.to(image.dtype)
    return images


# --- RandAugment ----------------------------------------------------------------------------------

# The largest magnitude.
LEVELS = 30


def randaugment(
    images: Shaped[Tensor, "b c h w"],
    count: int,
    magnitude: float,
    *key: Any,
) -> Shaped[Tensor, "b c h w"]:
    """Apply ``count`` of fourteen changes, drawn for each image, each of ``magnitude`` out of 30,
    with Pillow.

    Reference: Cubuk et al., RandAugment, 2020.

    Raises:
        MissingExtraError: Pillow is not installed.

    Example:
        >>> images = torch.arange(96, dtype=torch.uint8).view(2, 3, 4, 4)
        >>> randaugment(images, 2, 9, 0, 0, torch.arange(2)).dtype
        torch.uint8
    """
    pillow: Any = require("PIL.Image", "train", "RandAugment")
    seed, epoch, indices = key
    changes = list(OPERATIONS.values())
    amount = magnitude / LEVELS
    shades = images
    if images.dtype != torch.uint8:
        shades = (images * 255).round().clamp(0, 255)
        shades = shades.to(torch.uint8)

    result = []
    for image, index in zip(shades.cpu().numpy(), indices):
        picture = pillow.fromarray(_pillow_pixels(image))
        for step in range(count):
            number = integers(len(changes), seed, epoch, index, _RAND, step, 0)
            change = changes[int(number)]
            sign = 1
            if float(uniform(seed, epoch, index, _RAND, step, 1)) >= 0.5:
                sign = -1
            picture = change(picture, amount, sign)
        result.append(_channels_first(picture))

    changed = torch.from_numpy(np.stack(result)).to(images.device)
    if images.dtype == torch.uint8:
        return changed
    return changed.to(images.dtype) / 255


# Pillow has channels last, and grey pictures without an axis of channels.
def _pillow_pixels(image: np.ndarray) -> np.ndarray:
    if len(image) == 1:
        return image[0]
    return image.transpose(1, 2, 0)


def _channels_first(picture: Any) -> np.ndarray:
    pixels = np.asarray(picture)
    if pixels.ndim == 2:
        return pixels[None]
    return pixels.transpose(2, 0, 1)


Operation = Callable[[Any, float, int], Any]
"""A change f(picture, amount from 0 to 1, sign) of one of Pillow's pictures."""


# Pillow is imported by the calls: without it everything else in this file still works.
def _enhanced(name: str) -> Operation:
    def change(picture: Any, amount: float, sign: int) -> Any:
        from PIL import ImageEnhance

        enhancer = getattr(ImageEnhance, name)(picture)
        return enhancer.enhance(1 + sign * 0.9 * amount)

    return change


def _moved(make: Callable[[float, Any], tuple[float, ...]]) -> Operation:
    """Return an affine change; black fills what enters at the border.

    Args:
        make: from the signed amount and the picture to the matrix (a, b, c, d, e, f), by which
            (x, y) of the result is found at (ax + by + c, dx + ey + f).
    """

    def change(picture: Any, amount: float, sign: int) -> Any:
        from PIL import Image

        matrix = make(sign * amount, picture)
        return picture.transform(
            picture.size,
            Image.Transform.AFFINE,
            matrix,
            Image.Resampling.BILINEAR,
        )

    return change


def _op(name: str, picture: Any, *arguments: int) -> Any:
    from PIL import ImageOps

    return getattr(ImageOps, name)(picture, *arguments)


def _rotated(picture: Any, amount: float, sign: int) -> Any:
    degrees = 30 * sign * amount
    return picture.rotate(degrees, resample=2)


def _solarized(picture: Any, amount: float, sign: int) -> Any:
    """Invert the pixels from a threshold on, which is lower the larger the amount."""
    threshold = round(256 * (1 - amount))
    return _op("solarize", picture, threshold)


def _posterized(picture: Any, amount: float, sign: int) -> Any:
    bits = 8 - round(4 * amount)
    return _op("posterize", picture, bits)


def _shifted_x(amount: float, picture: Any) -> tuple[float, ...]:
    pixels = 0.45 * amount * picture.width
    return (1, 0, pixels, 0, 1, 0)


def _shifted_y(amount: float, picture: Any) -> tuple[float, ...]:
    pixels = 0.45 * amount * picture.height
    return (1, 0, 0, 0, 1, pixels)


# An image's change is drawn by its place in this table, so the order is part of every seed.
OPERATIONS: dict[str, Operation] = {
    "identity": lambda picture, amount, sign: picture,
    "autocontrast": lambda picture, amount, sign: _op("autocontrast", picture),
    "equalize": lambda picture, amount, sign: _op("equalize", picture),
    "rotate": _rotated,
    "solarize": _solarized,
    "posterize": _posterized,
    "color": _enhanced("Color"),
    "contrast": _enhanced("Contrast"),
    "brightness": _enhanced("Brightness"),
    "sharpness": _enhanced("Sharpness"),
    "shear_x": _moved(lambda amount, picture: (1, 0.3 * amount, 0, 0, 1, 0)),
    "shear_y": _moved(lambda amount, picture: (1, 0, 0, 0.3 * amount, 1, 0)),
    "translate_x": _moved(_shifted_x),
    "translate_y": _moved(_shifted_y),
}


def _white(images: Tensor) -> float:
    """Return the value of a white pixel."""
    if images.dtype == torch.uint8:
        return 255.0
    return 1.0


def _like(images: Tensor, changed: Tensor) -> Tensor:
    """Return changed floats in the type of the images that they were."""
    if images.dtype == torch.uint8:
        changed = changed.round().clamp(0, 255)
    return changed.to(images.dtype)
