"""Labelled images as torch data sets that hand out whole batches."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int, UInt8
from torch import Tensor

from ....errors import DataError, OptionError, ShapeError, require
from ....pictures import COVER, resized
from ..augment import Augment
from ..summaries import of_images
from .dataset import Indices, LabelledDataset, Transform, check_labels, index_tensor
from .kind import Kind, Page, register_kind
from .picture_files import read_picture

CHANGES = ("crop", "flip", "shift", "area", "color", "randaugment", "erase")
CHUNK = 1024  # images that are resized at a time


class Images(Kind):
    """Images (N, C, H, W): bytes, or floats that are normalised already."""

    name = "images"
    one = "image"
    many = "images"
    encoder = "image"
    pictured = judged = summarised = True
    point = "patch"
    unit = "an image is the unit square"
    always = "borders that are always dark"
    takes = ("image_size", "mixup", "cutmix", *(f"augment.{name}" for name in CHANGES))

    def request(self, name: str, given: Mapping[str, Any]) -> dict[str, Any]:
        super().request(name, given)
        if "image_size" not in given:
            return {}
        return {"image_size": image_sides(given["image_size"])}

    def summarise(self, inputs: Any, *, timed: bool = False) -> np.ndarray:
        return of_images(inputs)

    def fits(self, inputs: Any) -> bool:
        return isinstance(inputs, Tensor) and inputs.dim() == 4

    def described(self, facts: Mapping[str, Any]) -> bool:
        return "mean" in facts

    def prepare(self, inputs: Any, facts: Page) -> tuple[Any, list[Any] | None]:
        return prepare_pictures(inputs, facts.mean, facts.std)

    def made_of(self, encoder: Any) -> str:
        return patches_of(encoder)


IMAGES = register_kind(Images())


class ImageDataset(LabelledDataset):
    """Labelled images: ``raw(indices)`` returns bytes, or floats that are shares of white,
    ``batch(indices)`` normalised floats, ``self[i]`` one such pair.

    x = (pixel / 255 − mean) / std per channel.

    Args:
        name, split: names of the data set and of its part, for errors and reports.
        labels: (N,) class numbers.
        classes: class names, in the order of their numbers.
        mean, std: per channel, in units where white is 1.
        shape: (C, H, W) of an image.

    Raises:
        ShapeError: a mean or std that does not have one value per channel.
        DataError: values by which nothing can be normalised.
    """

    kind = IMAGES

    def __init__(
        self,
        name: str,
        split: str,
        labels: Int[Tensor, " n"] | Float[Tensor, " n"],
        classes: Sequence[str],
        mean: Sequence[float],
        std: Sequence[float],
        shape: tuple[int, int, int],
    ):
        if not len(mean) == len(std) == shape[0]:
            raise ShapeError(
                f"mean and std: expected one value for each of {shape[0]} channels, got "
                f"{len(mean)} and {len(std)}; give as many as the images have channels"
            )
        # A std of 0 would make every pixel infinite.
        if not np.isfinite([*mean, *std]).all() or min(std) <= 0:
            raise DataError(
                f"mean and std: expected finite numbers, std above 0, got {tuple(mean)} and "
                f"{tuple(std)}; compute them from the training images"
            )
        super().__init__(name, split, labels, classes)
        self.mean = tuple(mean)
        self.std = tuple(std)
        self.shape = shape

    def normalisation(self) -> tuple[Sequence[float], Sequence[float]]:
        return self.mean, self.std

    def normalise(
        self,
        images: UInt8[Tensor, "*b c h w"] | Float[Tensor, "*b c h w"],
    ) -> Float[Tensor, "*b c h w"]:
        """Return (pixel / 255 − mean) / std, float32, on the images' device; of floats, which are
        shares of white already, (value − mean) / std.
        """
        if images.is_floating_point():
            return standardised(images, self.mean, self.std)
        # One multiplication and one addition per pixel: pixel · 1 / (255 std) − mean / std.
        scales = [1 / (255 * std) for std in self.std]
        offsets = [mean / std for mean, std in zip(self.mean, self.std)]
        scale = torch.tensor(scales, device=images.device)
        offset = torch.tensor(offsets, device=images.device)
        return torch.addcmul(
            -offset[:, None, None],
            images.float(),
            scale[:, None, None],
        )

    def batch(
        self,
        indices: Indices,
        transform: Transform | None = None,
    ) -> tuple[Float[Tensor, "b c h w"], Tensor]:
        """Return normalised images and labels; ``transform`` (an augmentation) changes the bytes
        first.
        """
        images, labels = self.raw(indices)
        if transform is not None:
            images = transform(images)
        return self.normalise(images), labels

    def encoder(self) -> dict[str, Any]:
        channels, height, width = self.shape
        return {
            **super().encoder(),
            "image_size": (height, width),
            "channels": channels,
        }

    def describe(self) -> dict[str, Any]:
        return {
            **super().describe(),
            "mean": list(self.mean),
            "std": list(self.std),
        }

    def augmentation(self, options: Mapping[str, Any]) -> Augment | None:
        self.refuse(options, CHANGES)
        chosen = {key: value for key, value in options.items() if value}
        if not chosen:
            return None
        return Augment(**chosen)

    def shown(self, indices: Int[Tensor, " b"]) -> dict[str, Any]:
        # A report draws pictures. It normalises bytes itself, and takes floats as normalised.
        images, _ = self.raw(indices)
        if images.is_floating_point():
            images = self.normalise(images)
        return {
            "inputs": images,
            "boxes": self.masks(indices, "box"),
            "masks": self.masks(indices),
        }

    def __repr__(self) -> str:
        size = "x".join(map(str, self.shape))
        what = f"{self.name!r}, {self.split!r}, {len(self)} images {size}"
        return f"{type(self).__name__}({what}, {len(self.classes)} classes)"


class ImagesInMemory(ImageDataset):
    """Images in memory (N, C, H, W): bytes, or floats in the units of ``mean`` and ``std``."""

    def __init__(
        self,
        name: str,
        split: str,
        images: Tensor,
        labels: Tensor,
        classes: Sequence[str],
        mean: Sequence[float],
        std: Sequence[float],
    ):
        _, channels, height, width = images.shape
        shape = (channels, height, width)
        super().__init__(name, split, labels, classes, mean, std, shape)
        self.images = images

    def raw(self, indices: Indices) -> tuple[Tensor, Tensor]:
        indices = index_tensor(indices)
        return self.images[indices], self.labels[indices]


class ArrayDataset(ImagesInMemory):
    """Images in memory: ``images`` (N, C, H, W) uint8, ``labels`` (N,) int64.

    Memory: N·C·H·W bytes (Fashion-MNIST 47 MB, CIFAR-10 154 MB).

    Raises:
        ShapeError: images that are not uint8 (N, C, H, W), or labels that do not fit.
        DataError: labels that have no class.

    Example:
        >>> images = torch.full((2, 1, 3, 3), 255, dtype=torch.uint8)
        >>> labels, scale = torch.tensor([0, 1]), {"mean": (0.5,), "std": (0.5,)}
        >>> data = ArrayDataset("white", "train", images, labels, ("a", "b"), **scale)
        >>> round(data[1][0].mean().item(), 6), len(data)
        (1.0, 2)
    """

    def __init__(
        self,
        name: str,
        split: str,
        images: Tensor,
        labels: Tensor,
        classes: Sequence[str],
        mean: Sequence[float],
        std: Sequence[float],
    ):
        if images.ndim != 4 or images.dtype != torch.uint8:
            raise ShapeError(
                f"images: expected (N, C, H, W) of torch.uint8, got {tuple(images.shape)} of "
                f"{images.dtype}; give bytes, channels before height and width"
            )
        if labels.shape != images.shape[:1] or labels.is_floating_point():
            raise ShapeError(
                f"labels: expected ({len(images)},) of torch.int64, got {tuple(labels.shape)} of "
                f"{labels.dtype}; give one class number per image"
            )
        check_labels(labels, classes)
        super().__init__(name, split, images, labels.long(), classes, mean, std)


class FolderDataset(ImageDataset):
    """Image files that are decoded when a batch needs them, by a few threads: resized until they
    just cover ``image_size``, then centre-cropped.

    Memory: a file name and a label per image.

    Args:
        files, labels: the pictures and their class numbers.
        image_size: (H, W).
        task: ``classification``, or ``regression``: the labels are numbers.
        form: channels and depth that are read, see :mod:`.picture_files`.

    Raises:
        MissingExtraError: Pillow is not installed.
        ShapeError: another number of labels than of files.
    """

    def __init__(
        self,
        name: str,
        split: str,
        files: Sequence[Path],
        labels: Tensor,
        classes: Sequence[str],
        mean: Sequence[float],
        std: Sequence[float],
        image_size: tuple[int, int],
        task: str = "classification",
        form: str = "rgb",
    ):
        # Pillow is needed at the first batch; without it a training should not even begin.
        require("PIL", "train", "reading pictures")
        if len(files) != len(labels):
            raise ShapeError(
                f"files: expected one for each of {len(labels)} labels, got {len(files)}; give as "
                "many"
            )
        if task == "regression":
            labels = labels.float()
        else:
            labels = labels.long()
        shape = (len(mean), *image_size)
        super().__init__(name, split, labels, classes, mean, std, shape)
        self.task = task
        self.form = form
        self.files = list(files)
        self.image_size = image_size
        self._pool: ThreadPoolExecutor | None = None

    def __getstate__(self) -> dict[str, Any]:
        # Threads cannot be pickled; a loader's worker starts its own.
        return {**self.__dict__, "_pool": None}

    def raw(
        self,
        indices: Indices,
    ) -> tuple[UInt8[Tensor, "b c h w"] | Float[Tensor, "b c h w"], Tensor]:
        indices = index_tensor(indices)
        if self._pool is None:
            processors = os.cpu_count() or 1
            self._pool = ThreadPoolExecutor(min(8, processors))
        chosen = [self.files[i] for i in indices.tolist()]
        images = list(self._pool.map(self._read, chosen))
        labels = self.labels[indices]
        if images:
            return torch.stack(images), labels

        # An empty batch still needs the type of the others.
        dtype = torch.uint8
        if self.form.endswith("16"):
            dtype = torch.float32
        return torch.empty((0, *self.shape), dtype=dtype), labels

    def _read(self, file: Path) -> Tensor:
        return read_picture(file, self.image_size, self.form)

    def describe(self) -> dict[str, Any]:
        facts = {**super().describe(), "fit": COVER}
        if self.form != "rgb":
            facts["form"] = self.form
        return facts


# --- pictures in tensors --------------------------------------------------------------------------


def standardised(
    images: Float[Tensor, "*b c h w"],
    mean: Sequence[float],
    std: Sequence[float],
) -> Float[Tensor, "*b c h w"]:
    """Return (value − mean) / std of each channel."""
    return (images - _per_channel(mean)) / _per_channel(std)


def _per_channel(values: Sequence[float]) -> Float[Tensor, "c 1 1"]:
    tensor = torch.tensor(values, dtype=torch.float32)
    return tensor[:, None, None]


def resize(images: UInt8[Tensor, "n c h w"], size: tuple[int, int]) -> UInt8[Tensor, "n c a b"]:
    """Return images at another size: antialiased bilinear, rounded, :data:`CHUNK` at a time so that
    no float copy of all is made.

    Example:
        >>> resize(torch.full((1, 1, 2, 2), 7, dtype=torch.uint8), (4, 4)).unique().tolist()
        [7]
    """
    if tuple(images.shape[-2:]) == tuple(size):
        return images
    out = torch.empty((*images.shape[:2], *size), dtype=torch.uint8)
    for part, target in zip(images.split(CHUNK), out.split(CHUNK)):
        pixels = resized(part.float(), size)
        target.copy_(pixels.round().clamp(0, 255))
    return out


def image_sides(size: Any) -> tuple[int, int]:
    """Return height and width from one number or two.

    Raises:
        OptionError: something else.
    """
    if isinstance(size, int):
        pair = (size, size)
    else:
        pair = tuple(size)
    # ``type`` and not ``isinstance``: True is an int, but not a size.
    positive = all(type(side) is int and side > 0 for side in pair)
    if len(pair) != 2 or not positive:
        raise OptionError(
            "image_size: expected a positive integer, or two for height and width, got "
            f"{size!r}; such as 32 or [32, 48]"
        )
    return pair[0], pair[1]


def patches_of(encoder: Any) -> str:
    """Return what an encoder of pictures makes points of, in words.

    Example:
        >>> from fredholm.encoders import ImageConfig
        >>> patches_of(ImageConfig(patch=7)), patches_of(ImageConfig(patch=(7, 4)))
        ('patches of 7×7 pixels', 'patches of 7×4 pixels')
    """
    patch = getattr(encoder, "patch", None)
    if patch is None:
        return "samples"
    height, width = image_sides(patch)
    return f"patches of {height}×{width} pixels"


def prepare_pictures(
    images: Tensor,
    mean: Sequence[float] | None,
    std: Sequence[float] | None,
) -> tuple[Tensor, list[np.ndarray]]:
    """Return (inputs of the model, pictures (h, w, C) in [0, 1]) from uint8 pixels, or from floats
    that are inputs already.

    Without ``mean`` and ``std`` the pictures of float images are stretched to their own range.

    Raises:
        ShapeError: a normalisation of another number of channels.
    """
    channels = images.shape[1]
    for name, value in (("mean", mean), ("std", std)):
        if value is not None and len(value) != channels:
            raise ShapeError(
                f"{name}: expected one value for each of {channels} channels, got {len(value)}; "
                "give the normalisation of these images"
            )
    shift = _per_channel(mean or [0.0] * channels)
    scale = _per_channel(std or [1.0] * channels)

    if not images.is_floating_point():
        pixels = images.float() / 255
        inputs = (pixels - shift) / scale
        return inputs, _as_pictures(pixels)

    pixels = images.detach().float().cpu()
    pixels = pixels * scale + shift
    # Nobody knows what black and white were in floats without a normalisation.
    if mean is None or std is None:
        low = pixels.amin((1, 2, 3), keepdim=True)
        high = pixels.amax((1, 2, 3), keepdim=True)
        extent = (high - low).clamp(min=1e-9)
        pixels = (pixels - low) / extent
    return images, _as_pictures(pixels)


def _as_pictures(pixels: Float[Tensor, "b c h w"]) -> list[np.ndarray]:
    """Return each image as (H, W, C) in [0, 1]."""
    pixels = pixels.clamp(0, 1).cpu()
    return list(pixels.permute(0, 2, 3, 1).numpy())
