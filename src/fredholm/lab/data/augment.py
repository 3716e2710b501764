"""Random changes of training images, drawn from counters so that they do not depend on batch order,
processes or resuming.

:class:`Augment` changes each image by numbers that follow from (seed, epoch, index of the sample).
:func:`mixup` and :func:`cutmix` blend the images of a batch by numbers that follow from (seed,
epoch, step), or from a generator.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor
from torch.nn import functional

from ...errors import OptionError, ShapeError, suggest
from .counter import hash64, integers, permutation, uniform
from .pictures import LEVELS, erase, jitter_colours, randaugment, resized_crop

# One stream of random numbers for each augmentation.
_CROP, _SHIFT, _FLIP, _MIXUP, _CUTMIX = 1, 2, 3, 4, 5
FILLS = {
    "zero": "constant",
    "reflect": "reflect",
    "edge": "replicate",
}
"""Names of paddings, and torch's modes for them."""


@dataclass(frozen=True)
class Augment:
    """Random crop with padding, random shift and horizontal flip of each image, and the
    augmentations of :mod:`fredholm.lab.data.pictures`; shapes are kept.

    With the image I padded by ``fill``, the result is I[y + a, x + b], mirrored or not; a, b
    uniform in {−crop … crop} for the crop, {−shift … shift} for the shift, whose border is zero.
    O(pixels). Works on bytes and floats, on any device.

    Args:
        crop: pixels of padding on each side before a crop of the original size.
        shift: largest shift in pixels, up or down and left or right.
        flip: probability of a left-right mirror image; True means 0.5.
        fill: the crop's padding: zero (black, for bytes), reflect or edge.
        area: the least and the largest share of the image's area that a crop takes, which is then
            resized; applied first.
        color: the largest change of brightness, contrast, saturation and hue; applied after the
            flip.
        randaugment: how many changes, and their magnitude out of 30.
        erase: probability of a rectangle of noise; applied last.

    Raises:
        OptionError: negative or non-integer pixels, a probability outside 0 … 1, an unknown fill,
            or amounts out of their range.

    Example:
        >>> images = torch.arange(32, dtype=torch.uint8).view(2, 1, 4, 4)
        >>> augment = Augment(crop=1, flip=True)
        >>> both = augment(images, torch.tensor([5, 9]), seed=0, epoch=3)
        >>> alone = augment(images[1:], torch.tensor([9]), seed=0, epoch=3)
        >>> torch.equal(both[1:], alone)
        True
    """

    crop: int = 0
    shift: int = 0
    flip: bool | float = False
    fill: str = "zero"
    area: Sequence[float] | None = None
    color: Sequence[float] | None = None
    randaugment: Sequence[float] | None = None
    erase: float = 0.0

    def __post_init__(self):
        for name in ("crop", "shift"):
            value = getattr(self, name)
            whole = isinstance(value, int) and not isinstance(value, bool)
            if not whole or value < 0:
                raise OptionError(
                    f"{name}: expected pixels, an integer of 0 or more, got {value!r}; such as 4"
                )
        # True is a number, too: 1, which is a probability.
        for name in ("flip", "erase"):
            value = getattr(self, name)
            if not isinstance(value, int | float) or not 0 <= value <= 1:
                raise OptionError(
                    f"{name}: expected a probability from 0 to 1, got {value!r}; such as 0.5"
                )
        if self.fill not in FILLS:
            raise OptionError(
                f"fill: expected zero, reflect or edge, got {self.fill!r}"
                f"{suggest(self.fill, FILLS)}"
            )
        for name, (needed, fits) in _AMOUNTS.items():
            value = getattr(self, name)
            if value is None:
                continue
            if not _are_numbers(value) or not fits(value):
                raise OptionError(f"{name}: expected {needed}, got {value!r}")

    def __call__(
        self,
        images: Shaped[Tensor, "b c h w"],
        indices: Int[Tensor, " b"],
        *,
        seed: int,
        epoch: int,
    ) -> Shaped[Tensor, "b c h w"]:
        """Return the changed images.

        Args:
            images: stored pixels, or floats in [0, 1].
            indices: the samples' numbers in their data set, of which the random numbers follow.
            seed, epoch: the rest of their key.

        Raises:
            ShapeError: a reflecting crop as large as the image.
        """
        # Random numbers are drawn on the CPU, so that they are the same for every device.
        key = (seed, epoch, indices.cpu())
        if self.area is not None:
            least, largest = self.area
            images = resized_crop(images, (least, largest), *key)
        if self.crop:
            images = _translate(images, self.crop, self.fill, (*key, _CROP))
        if self.shift:
            images = _translate(images, self.shift, "zero", (*key, _SHIFT))

        probability = float(self.flip)
        if self.flip is True:
            probability = 0.5
        if probability:
            mirrored = uniform(*key, _FLIP) < probability
            mirrored = mirrored.to(images.device)[:, None, None, None]
            images = torch.where(mirrored, images.flip(-1), images)

        if self.color is not None:
            images = jitter_colours(images, self.color, *key)
        if self.randaugment is not None:
            count, magnitude = self.randaugment
            images = randaugment(images, int(count), magnitude, *key)
        if self.erase:
            images = erase(images, self.erase, *key)
        return images


def _are_numbers(value: Any) -> bool:
    """Whether it is a list of finite numbers."""
    if not isinstance(value, (list, tuple)):
        return False
    for x in value:
        # True is an int, but not an amount.
        if isinstance(x, bool) or not isinstance(x, int | float):
            return False
    return all(map(math.isfinite, value))


def _fits_area(amounts: Sequence[float]) -> bool:
    if len(amounts) != 2:
        return False
    least, largest = amounts
    return 0 < least <= largest <= 1


def _fits_color(amounts: Sequence[float]) -> bool:
    if len(amounts) != 4:
        return False
    hue = amounts[3]
    return all(0 <= amount <= 1 for amount in amounts) and hue <= 0.5


def _fits_randaugment(amounts: Sequence[float]) -> bool:
    if len(amounts) != 2:
        return False
    count, magnitude = amounts
    if count < 1 or count != int(count):
        return False
    return 0 <= magnitude <= LEVELS


# What an option needs, and whether a list of numbers meets it.
_AMOUNTS: dict[str, tuple[str, Callable[[Any], bool]]] = {
    "area": (
        "the least and the largest share of the area, such as [0.08, 1.0]",
        _fits_area,
    ),
    "color": (
        "brightness, contrast and saturation from 0 to 1, and hue up to 0.5, such as "
        "[0.4, 0.4, 0.4, 0.1]",
        _fits_color,
    ),
    "randaugment": (
        "how many changes and their magnitude up to 30, such as [2, 9]",
        _fits_randaugment,
    ),
}


def _translate(
    images: Tensor,
    reach: int,
    fill: str,
    key: tuple[Any, ...],
) -> Tensor:
    """Return a window of each padded image, its corner drawn by ``key``: seed, epoch, indices,
    stream.
    """
    height, width = images.shape[-2:]
    if fill == "reflect" and reach >= min(height, width):
        raise ShapeError(
            f"crop: expected less than {min(height, width)} pixels to reflect at the border of "
            f"{height}x{width} images, got {reach}; take a smaller crop, or fill=zero"
        )
    pad = (reach,) * 4
    if fill == "zero":
        padded = functional.pad(images, pad)
    else:
        # torch pads bytes with a constant only.
        padded = functional.pad(images.float(), pad, mode=FILLS[fill])
        padded = padded.to(images.dtype)
    places = 2 * reach + 1
    top = integers(places, *key, 0).to(images.device)
    left = integers(places, *key, 1).to(images.device)

    # All windows, as a view (B, C, 2r + 1, 2r + 1, H, W); one of each image is copied.
    windows = padded.unfold(2, height, 1)
    windows = windows.unfold(3, width, 1)
    rows = torch.arange(len(images), device=images.device)
    return windows[rows, :, top, left]


def one_hot(labels: Tensor, num_classes: int) -> Float[Tensor, "b k"]:
    """Return labels as probabilities: class numbers (B,) become one-hot rows, rows (B, K) stay.

    Raises:
        ShapeError: labels of another shape, or outside 0 … K − 1.
    """
    if labels.ndim == 2 and labels.shape[1] == num_classes and labels.is_floating_point():
        return labels
    if labels.ndim != 1 or labels.is_floating_point():
        raise ShapeError(
            f"labels: expected (B,) integers or (B, {num_classes}) probabilities, got "
            f"{tuple(labels.shape)} of {labels.dtype}; give class numbers"
        )
    wrong = labels[(labels < 0) | (labels >= num_classes)]
    if len(wrong):
        raise ShapeError(
            f"labels: expected class numbers from 0 to {num_classes - 1}, got {int(wrong[0])}; "
            "number the classes from 0"
        )
    return functional.one_hot(labels.long(), num_classes).float()


def mixup(
    images: Float[Tensor, "b c h w"],
    labels: Tensor,
    num_classes: int,
    alpha: float = 0.2,
    *,
    seed: int = 0,
    epoch: int = 0,
    step: int = 0,
    generator: torch.Generator | None = None,
) -> tuple[Float[Tensor, "b c h w"], Float[Tensor, "b k"]]:
    """Return convex combinations of images and of their labels.

    x̃ = λ x + (1 − λ) x_π, ỹ = λ y + (1 − λ) y_π; λ ~ Beta(α, α), π a permutation of the batch,
    both from (seed, epoch, step), or from ``generator`` where one is given.

    Raises:
        OptionError: α is not finite and positive.
        ShapeError: bytes, or labels that do not fit.

    Reference: Zhang et al., "mixup: Beyond empirical risk minimization" (2018), equation 2.

    Example:
        >>> x, y = mixup(torch.randn(4, 1, 2, 2), torch.tensor([0, 1, 2, 0]), 3, alpha=0.4, seed=1)
        >>> torch.allclose(y.sum(1), torch.ones(4))
        True
    """
    _check_float(images)
    key = _key(_MIXUP, seed, epoch, step, generator)
    share = _beta(alpha, key)
    targets = one_hot(labels, num_classes)
    order = permutation(len(images), key).to(images.device)
    mixed = share * images + (1 - share) * images[order]
    targets = share * targets + (1 - share) * targets[order]
    return mixed, targets


def cutmix(
    images: Float[Tensor, "b c h w"],
    labels: Tensor,
    num_classes: int,
    alpha: float = 1.0,
    *,
    seed: int = 0,
    epoch: int = 0,
    step: int = 0,
    generator: torch.Generator | None = None,
) -> tuple[Float[Tensor, "b c h w"], Float[Tensor, "b k"]]:
    """Replace a rectangle of each image by that of another; labels in proportion to the areas.

    The rectangle has sides √(1 − λ) of the image, λ ~ Beta(α, α), its centre anywhere, cut off at
    the border; λ is then the share of pixels that stayed. One rectangle and one permutation per
    batch, from (seed, epoch, step) or ``generator``.

    Raises:
        OptionError: α is not finite and positive.
        ShapeError: bytes, or labels that do not fit.

    Reference: Yun et al., "CutMix: Regularization strategy to train strong classifiers with
    localizable features" (2019), §3.

    Example:
        >>> x, y = cutmix(torch.randn(4, 1, 8, 8), torch.tensor([0, 1, 2, 0]), 3, seed=1)
        >>> torch.allclose(y.sum(1), torch.ones(4))
        True
    """
    _check_float(images)
    key = _key(_CUTMIX, seed, epoch, step, generator)
    targets = one_hot(labels, num_classes)
    height, width = images.shape[-2:]
    side = math.sqrt(1 - _beta(alpha, key))
    row = int(integers(height, key, 0))
    column = int(integers(width, key, 1))
    top, bottom = _interval(row, int(height * side), height)
    left, right = _interval(column, int(width * side), width)

    order = permutation(len(images), key).to(images.device)
    mixed = images.clone()
    mixed[:, :, top:bottom, left:right] = images[order, :, top:bottom, left:right]

    # Not λ: a rectangle that was cut off at the border covers less.
    covered = (bottom - top) * (right - left)
    share = 1 - covered / (height * width)
    targets = share * targets + (1 - share) * targets[order]
    return mixed, targets


def _interval(middle: int, length: int, size: int) -> tuple[int, int]:
    """Return both ends of an interval about ``middle``, cut off at 0 and ``size``."""
    start = middle - length // 2
    stop = start + length
    return max(start, 0), min(stop, size)


def _check_float(images: Tensor) -> None:
    if not images.is_floating_point():
        raise ShapeError(f"images: expected floats, got {images.dtype}; blend after normalisation")


def _key(
    stream: int,
    seed: int,
    epoch: int,
    step: int,
    generator: torch.Generator | None,
) -> int:
    """Return the one number from which a batch's random numbers follow."""
    if generator is not None:
        drawn = torch.randint(2**62, (), generator=generator, device=generator.device)
        seed = int(drawn)
    return int(hash64(seed, epoch, step, stream))


def _beta(alpha: float, key: int) -> float:
    if not math.isfinite(alpha) or alpha <= 0:
        raise OptionError(
            f"alpha: expected a finite number above 0, got {alpha!r}; leave the blend out to "
            "switch it off"
        )
    return random.Random(key).betavariate(alpha, alpha)
