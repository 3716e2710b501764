"""What vision transformers vary their pictures by: crops of any size and shape, colours,
RandAugment and erased rectangles; each a function of (seed, epoch, index of the sample).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Shaped
from torch import Tensor
from torch.nn import functional

from ...errors import require
from .counter import hash64, integers, uniform

# One stream of random numbers each; those of `augment` are below 6.
_RESIZED, _COLOUR, _RAND, _ERASE = 6, 7, 8, 9
TRIES = 10
GREY = (0.299, 0.587, 0.114)  # ITU-R 601, as Pillow has it
YIQ = ((0.596, -0.274, -0.322), (0.211, -0.523, 0.312))  # the plane of colours


def resized_crop(
    images: Shaped[Tensor, "b c h w"], area: tuple[float, float], *key: Any
) -> Shaped[Tensor, "b c h w"]:
    """A rectangle of each image, of a share of its area drawn from ``area`` and a ratio of its
    sides between 3/4 and 4/3, resized to the image (bilinear, antialiased). ``key``: seed, epoch,
    indices.

    Reference: Szegedy et al., Going deeper with convolutions, 2015.

    Example:
        >>> images, key = torch.rand(2, 3, 8, 8), (0, 0, torch.arange(2))
        >>> resized_crop(images, (0.2, 0.5), *key).shape
        torch.Size([2, 3, 8, 8])
    """
    height, width = images.shape[-2:]
    windows = _rectangles(height, width, area, (3 / 4, 4 / 3), (*key, _RESIZED))
    result = [
        functional.interpolate(
            image[None, :, top : top + h, left : left + w].float(),
            (height, width),
            mode="bilinear",
            antialias=True,
        )[0]
        for image, (top, left, h, w) in zip(images, windows)
    ]
    return _as(torch.stack(result), images)


def _rectangles(
    height: int, width: int, area: tuple[float, float], ratio: tuple[float, float], key: Any
) -> list[tuple[int, int, int, int]]:
    """(top, left, height, width) of a rectangle for each index: the first of ten draws that fits,
    or else the whole.
    """
    draws = torch.arange(TRIES)[:, None]
    seed, epoch, indices, stream = key
    share, shape = (uniform(seed, epoch, indices, stream, k, draws) for k in (0, 1))
    size = (area[0] + (area[1] - area[0]) * share) * height * width
    low, high = (math.log(r) for r in ratio)
    sides = torch.exp(low + (high - low) * shape)
    w, h = ((size * s).sqrt().round().long() for s in (sides, 1 / sides))
    fits = (w >= 1) & (w <= width) & (h >= 1) & (h <= height)
    first = fits.long().argmax(0, keepdim=True)
    w, h, fits = (x.gather(0, first)[0] for x in (w, h, fits))
    w, h = torch.where(fits, w, width), torch.where(fits, h, height)
    top = integers(height - h + 1, seed, epoch, indices, stream, 2)
    left = integers(width - w + 1, seed, epoch, indices, stream, 3)
    return list(zip(top.tolist(), left.tolist(), h.tolist(), w.tolist()))


def jitter_colours(
    images: Shaped[Tensor, "b c h w"], amounts: Sequence[float], *key: Any
) -> Shaped[Tensor, "b c h w"]:
    """Brightness, contrast and saturation times a factor of up to 1 ± amount each, and the hue
    turned by up to ± amount of the circle, in an order drawn for each image. Grey pictures keep
    their hue and saturation.

    Example:
        >>> images, key = torch.rand(2, 3, 4, 4), (0, 0, torch.arange(2))
        >>> bool((jitter_colours(images, (0.4, 0.4, 0.4, 0.1), *key) != images).any())
        True
    """
    seed, epoch, indices = key
    draws = torch.stack(
        [uniform(seed, epoch, indices, _COLOUR, k) * 2 - 1 for k in range(len(_CHANGES))], 1
    )
    orders = torch.stack(
        [hash64(seed, epoch, indices, _COLOUR, 4 + k) for k in range(len(_CHANGES))], 1
    ).argsort(1)
    result = []
    scale = 255.0 if images.dtype == torch.uint8 else 1.0
    for image, draw, order in zip(images.float() / scale, draws.tolist(), orders.tolist()):
        for k in order:
            if amounts[k] and (k < 2 or len(image) == 3):
                image = _CHANGES[k](image, amounts[k] * draw[k])
                # As bytes are: what leaves the range at one change is not there for the next.
                image = image.clamp(0, 1) if images.dtype == torch.uint8 else image
        result.append(image * scale)
    return _as(torch.stack(result), images)


def _grey(image: Tensor) -> Tensor:
    """One channel of brightness, (1, H, W)."""
    if len(image) != 3:
        return image.mean(0, keepdim=True)
    return (image * image.new_tensor(GREY)[:, None, None]).sum(0, keepdim=True)


def _turned(image: Tensor, turn: float) -> Tensor:
    """The hue turned by a share of the circle: a rotation about the grey axis in the plane of
    colours, which keeps the brightness.
    """
    angle = 2 * math.pi * turn
    cos, sin = math.cos(angle), math.sin(angle)
    axes = torch.tensor([GREY, *YIQ], dtype=torch.float64)
    turned = torch.tensor([[1, 0, 0], [0, cos, -sin], [0, sin, cos]], dtype=torch.float64)
    matrix = (torch.linalg.inv(axes) @ turned @ axes).to(image)
    return torch.einsum("dc,chw->dhw", matrix, image)


_CHANGES: tuple[Callable[[Tensor, float], Tensor], ...] = (
    lambda image, amount: image * (1 + amount),
    lambda image, amount: _mixed(image, _grey(image).mean(), amount),
    lambda image, amount: _mixed(image, _grey(image), amount),
    _turned,
)


def _mixed(image: Tensor, with_: Tensor, amount: float) -> Tensor:
    return with_ + (1 + amount) * (image - with_)


def erase(
    images: Shaped[Tensor, "b c h w"], probability: float, *key: Any
) -> Shaped[Tensor, "b c h w"]:
    """A rectangle of 2 to 33% of the area, its sides in a ratio of 0.3 to 3.3, filled with random
    bytes, in so many of the images.

    Reference: Zhong et al., Random erasing data augmentation, 2020.

    Example:
        >>> images, key = torch.zeros(1, 1, 8, 8, dtype=torch.uint8), (0, 0, torch.arange(1))
        >>> 1 <= int((erase(images, 1.0, *key) > 0).sum()) <= 22
        True
    """
    seed, epoch, indices = key
    height, width = images.shape[-2:]
    chosen = uniform(seed, epoch, indices, _ERASE, 9) < probability
    windows = _rectangles(height, width, (0.02, 0.33), (0.3, 1 / 0.3), (*key, _ERASE))
    images, top = images.clone(), 255.0 if images.dtype == torch.uint8 else 1.0
    for image, index, yes, (y, x, h, w) in zip(images, indices, chosen, windows):
        if yes and (h, w) != (height, width):
            place = torch.arange(len(image) * h * w)
            noise = uniform(seed, epoch, index, _ERASE, 10, place).view(-1, h, w)
            image[:, y : y + h, x : x + w] = (noise * top).to(image.dtype)
    return images


# --- RandAugment ----------------------------------------------------------------------------------

LEVELS = 30  # of a magnitude


def randaugment(
    images: Shaped[Tensor, "b c h w"], count: int, magnitude: float, *key: Any
) -> Shaped[Tensor, "b c h w"]:
    """``count`` of fourteen changes, drawn for each image, each of ``magnitude`` of 30, with
    Pillow.

    Reference: Cubuk et al., RandAugment, 2020.

    Raises:
        OptionError: Pillow is not installed.

    Example:
        >>> images = torch.arange(96, dtype=torch.uint8).view(2, 3, 4, 4)
        >>> randaugment(images, 2, 9, 0, 0, torch.arange(2)).dtype
        torch.uint8
    """
    image_module: Any = require("PIL.Image", "train", "RandAugment")
    seed, epoch, indices = key
    names = list(OPERATIONS)
    result = []
    for image, index in zip(_bytes(images), indices):
        picture = image_module.fromarray(
            image.squeeze() if len(image) == 1 else image.transpose(1, 2, 0)
        )
        for step in range(count):
            chosen = int(integers(len(names), seed, epoch, index, _RAND, step, 0))
            sign = 1 if float(uniform(seed, epoch, index, _RAND, step, 1)) < 0.5 else -1
            picture = OPERATIONS[names[chosen]](picture, magnitude / LEVELS, sign)
        pixels = np.asarray(picture)
        result.append(pixels[None] if pixels.ndim == 2 else pixels.transpose(2, 0, 1))
    changed = torch.from_numpy(np.stack(result)).to(images.device)
    return changed if images.dtype == torch.uint8 else changed.to(images.dtype) / 255


def _bytes(images: Tensor) -> Any:
    whole = images if images.dtype == torch.uint8 else (images * 255).round().clamp(0, 255)
    return whole.to(torch.uint8).cpu().numpy()


def _enhanced(name: str) -> Callable[[Any, float, int], Any]:
    def change(picture: Any, amount: float, sign: int) -> Any:
        from PIL import ImageEnhance

        return getattr(ImageEnhance, name)(picture).enhance(1 + sign * 0.9 * amount)

    return change


def _moved(make: Callable[[float, Any], tuple[float, ...]]) -> Callable[[Any, float, int], Any]:
    """An affine change, (a, b, c, d, e, f) of the signed amount and the picture; black comes in."""

    def change(picture: Any, amount: float, sign: int) -> Any:
        from PIL import Image

        matrix = make(sign * amount, picture)
        return picture.transform(
            picture.size, Image.Transform.AFFINE, matrix, Image.Resampling.BILINEAR
        )

    return change


def _op(name: str) -> Any:
    from PIL import ImageOps

    return getattr(ImageOps, name)


OPERATIONS: dict[str, Callable[[Any, float, int], Any]] = {
    "identity": lambda picture, amount, sign: picture,
    "autocontrast": lambda picture, amount, sign: _op("autocontrast")(picture),
    "equalize": lambda picture, amount, sign: _op("equalize")(picture),
    "rotate": lambda picture, amount, sign: picture.rotate(30 * sign * amount, resample=2),
    "solarize": lambda picture, amount, sign: _op("solarize")(picture, round(256 * (1 - amount))),
    "posterize": lambda picture, amount, sign: _op("posterize")(picture, 8 - round(4 * amount)),
    "color": _enhanced("Color"),
    "contrast": _enhanced("Contrast"),
    "brightness": _enhanced("Brightness"),
    "sharpness": _enhanced("Sharpness"),
    "shear_x": _moved(lambda amount, picture: (1, 0.3 * amount, 0, 0, 1, 0)),
    "shear_y": _moved(lambda amount, picture: (1, 0, 0, 0.3 * amount, 1, 0)),
    "translate_x": _moved(lambda amount, picture: (1, 0, 0.45 * amount * picture.width, 0, 1, 0)),
    "translate_y": _moved(lambda amount, picture: (1, 0, 0, 0, 1, 0.45 * amount * picture.height)),
}
"""RandAugment's changes: f(picture, amount from 0 to 1, sign)."""


def _as(changed: Tensor, like: Tensor) -> Tensor:
    if like.dtype == torch.uint8:
        changed = changed.round().clamp(0, 255)
    return changed.to(like.dtype)
