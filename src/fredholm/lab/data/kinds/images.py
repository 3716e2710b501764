"""Labelled images as torch data sets that hand out whole batches."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int, UInt8
from torch import Tensor
from torch.nn import functional

from ....errors import DataError, OptionError, ShapeError, require
from ..augment import Augment
from ..boxes import box_mask, read_annotation
from ..formats import opened_picture
from ..summaries import of_images
from .dataset import LabelledDataset, Transform, check_labels
from .kind import Kind, Page, register_kind

COVER = "cover"  # of a picture: resized until it covers the sample's size, then cut
CHANGES = ("crop", "flip", "shift", "area", "color", "randaugment", "erase")
ORIENTATION = 0x0112  # of EXIF: how a camera was held


class Images(Kind):
    """Images (N, C, H, W): bytes, or floats that are normalised already."""

    name, one, many, encoder = "images", "image", "images", "image"
    rooms = (("encoder.token", "encoder.token"), ("encoder.", "picture."))
    pictured = judged = summarised = True
    point, unit, always = "patch", "an image is the unit square", "borders that are always dark"
    takes = ("image_size", "mixup", "cutmix", *(f"augment.{name}" for name in CHANGES))

    def request(self, name: str, given: Mapping[str, Any]) -> dict[str, Any]:
        super().request(name, given)
        return {"image_size": image_sides(given["image_size"])} if "image_size" in given else {}

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
    """Labelled images: ``raw(indices)`` gives bytes, ``batch(indices)`` normalised floats,
    ``self[i]`` one such pair.

    x = (pixel / 255 − mean) / std per channel.

    Args:
        name, split: what this is.
        labels: (N,) class numbers.
        classes: class names, in the order of their numbers.
        mean, std: per channel, in units where white is 1.
        shape: (C, H, W) of an image.
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
                f"mean and std: received {len(mean)} and {len(std)} values; needs one for each of "
                f"{shape[0]} channels"
            )
        if not all(np.isfinite(mean)) or not all(np.isfinite(std)) or min(std) <= 0:
            raise DataError(
                f"mean and std: received {tuple(mean)} and {tuple(std)}; needs finite numbers, std "
                "above 0"
            )
        super().__init__(name, split, labels, classes)
        self.mean, self.std = tuple(mean), tuple(std)
        self.shape = shape

    def normalisation(self) -> tuple[Sequence[float], Sequence[float]]:
        return self.mean, self.std

    def normalise(self, images: UInt8[Tensor, "*b c h w"]) -> Float[Tensor, "*b c h w"]:
        """(pixel / 255 − mean) / std, float32, on the images' device."""
        scale = torch.tensor([1 / (255 * s) for s in self.std], device=images.device)[:, None, None]
        offset = torch.tensor(
            [m / s for m, s in zip(self.mean, self.std, strict=True)], device=images.device
        )[:, None, None]
        return torch.addcmul(-offset, images.float(), scale)

    def batch(
        self, indices: Int[Tensor, " b"] | Sequence[int], transform: Transform | None = None
    ) -> tuple[Float[Tensor, "b c h w"], Tensor]:
        """Normalised images and labels of ``indices``; ``transform`` changes the bytes first (an
        augmentation).
        """
        images, labels = self.raw(indices)
        return self.normalise(images if transform is None else transform(images)), labels

    def encoder(self) -> dict[str, Any]:
        channels, height, width = self.shape
        return {**super().encoder(), "image_size": (height, width), "channels": channels}

    def describe(self) -> dict[str, Any]:
        return {**super().describe(), "mean": list(self.mean), "std": list(self.std)}

    def augmentation(self, options: Mapping[str, Any]) -> Augment | None:
        self.refuse(options, CHANGES)
        chosen = {key: value for key, value in options.items() if value}
        return Augment(**chosen) if chosen else None

    def shown(self, indices: Int[Tensor, " b"]) -> dict[str, Any]:
        where = {"boxes": self.masks(indices, "box"), "masks": self.masks(indices)}
        return {"inputs": self.raw(indices)[0], **where}

    def select(self, chosen: Int[Tensor, " m"]) -> Any:
        """The same data set with some of its images, and the masks of those; nothing is copied."""
        result = super().select(chosen)
        result.masks = _Masks(self, chosen)
        return result

    def __repr__(self) -> str:
        size = "x".join(map(str, self.shape))
        what = f"{self.name!r}, {self.split!r}, {len(self)} images {size}"
        return f"{type(self).__name__}({what}, {len(self.classes)} classes)"


@dataclass(frozen=True)
class _Masks:
    """Masks of ``whole`` by their place in ``chosen``."""

    whole: Any
    chosen: Tensor

    def __call__(self, indices: Tensor | Sequence[int], kind: str = "mask") -> Tensor | None:
        return self.whole.masks(self.chosen[torch.as_tensor(indices, dtype=torch.int64)], kind)


class ArrayDataset(ImageDataset):
    """Images in memory: ``images`` (N, C, H, W) uint8, ``labels`` (N,) int64.

    Memory: N·C·H·W bytes (Fashion-MNIST 47 MB, CIFAR-10 154 MB).

    Raises:
        ShapeError: when images are no uint8 (N, C, H, W) or labels do not fit.

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
                f"images: received {tuple(images.shape)} of {images.dtype}; needs (N, C, H, W) of "
                "torch.uint8"
            )
        if labels.shape != images.shape[:1] or labels.is_floating_point():
            raise ShapeError(
                f"labels: received {tuple(labels.shape)} of {labels.dtype}; needs ({len(images)},) "
                "of torch.int64"
            )
        check_labels(labels, classes)
        _, channels, height, width = images.shape
        super().__init__(name, split, labels.long(), classes, mean, std, (channels, height, width))
        self.images = images

    def raw(
        self, indices: Int[Tensor, " b"] | Sequence[int]
    ) -> tuple[UInt8[Tensor, "b c h w"], Int[Tensor, " b"]]:
        indices = torch.as_tensor(indices, dtype=torch.int64)
        return self.images[indices], self.labels[indices]


class FolderDataset(ImageDataset):
    """Image files read when asked for, by a few threads; every image is RGB, resized to cover
    ``image_size``, centre-cropped.

    Memory: a file name and a label an image.

    Args:
        files, labels: the pictures and their class numbers.
        image_size: (H, W).
        threads: how many files are decoded at once (default: the machine's cores, at most 8).
        annotations: files of boxes by the pictures' names without suffix, see
            :mod:`fredholm.lab.data.boxes`.
        task: ``classification``, or ``regression``: the labels are numbers.
        form: what is read of a file, see :mod:`.picture_files`.
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
        threads: int | None = None,
        annotations: Mapping[str, Path] | None = None,
        task: str = "classification",
        form: str = "rgb",
    ):
        require("PIL", "train", "reading pictures")
        labels = labels.float() if task == "regression" else labels.long()
        super().__init__(name, split, labels, classes, mean, std, (len(mean), *image_size))
        self.task, self.form = task, form
        if len(files) != len(labels):
            raise ShapeError(
                f"files: received {len(files)}; needs one for each of {len(labels)} labels"
            )
        self.files = list(files)
        self.image_size = image_size
        self.annotations = annotations
        self.threads = threads or min(8, os.cpu_count() or 1)
        self._pool: ThreadPoolExecutor | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_pool": None}  # threads do not travel to another process

    def raw(
        self, indices: Int[Tensor, " b"] | Sequence[int]
    ) -> tuple[UInt8[Tensor, "b c h w"] | Float[Tensor, "b c h w"], Tensor]:
        from .picture_files import read_form

        indices = torch.as_tensor(indices, dtype=torch.int64)
        if self._pool is None:
            self._pool = ThreadPoolExecutor(self.threads)
        chosen = [self.files[i] for i in indices.tolist()]
        size, form = self.image_size, self.form
        images = list(self._pool.map(lambda file: read_form(file, size, form), chosen))
        dtype = torch.float32 if form.endswith("16") else torch.uint8
        stacked = torch.stack(images) if images else torch.empty((0, *self.shape), dtype=dtype)
        return stacked, self.labels[indices]

    def normalise(
        self, images: UInt8[Tensor, "*b c h w"] | Float[Tensor, "*b c h w"]
    ) -> Float[Tensor, "*b c h w"]:
        """(share of white − mean) / std."""
        if images.is_floating_point():
            return standardised(images, self.mean, self.std)
        return super().normalise(images)

    def describe(self) -> dict[str, Any]:
        facts = {**super().describe(), "fit": COVER}
        return facts if self.form == "rgb" else facts | {"form": self.form}

    def masks(
        self, indices: Int[Tensor, " b"] | Sequence[int], kind: str = "mask"
    ) -> Bool[Tensor, "b h w"] | None:
        """The filled boxes of annotated pictures, nothing in the others; None without annotations,
        and of masks, which boxes are not.
        """
        if self.annotations is None or kind != "box":
            return None
        files = [
            self.annotations.get(self.files[i].stem) for i in torch.as_tensor(indices).tolist()
        ]
        none = torch.zeros(self.image_size, dtype=torch.bool)
        result = [
            none if file is None else box_mask(read_annotation(file), self.image_size)
            for file in files
        ]
        return torch.stack(result) if result else none[None][:0]


def read_picture(file: Path, image_size: tuple[int, int]) -> UInt8[Tensor, "3 h w"]:
    """One picture as RGB bytes: resized (bicubic) until it just covers ``image_size`` = (H, W),
    then centre-cropped.

    Raises:
        DataError: when the file is missing, truncated, no picture or a single pixel.
    """
    from PIL import Image, ImageOps

    height, width = image_size
    with _opened(file) as image:
        plain = of_bytes(image, file).convert("RGB")
        fitted = ImageOps.fit(plain, (width, height), Image.Resampling.BICUBIC)
        pixels = np.array(fitted)
    return torch.from_numpy(pixels).permute(2, 0, 1)


def of_bytes(image: Any, file: Path | str) -> Any:
    """An opened picture with 8 bits a channel, turned as its camera was held (EXIF's orientation).
    One of 16 bits is divided by 257, so that 65,535 is 255: Pillow's own conversion would cut off
    all above 255.

    Raises:
        DataError: floating-point pixels, or integers beyond 16 bits, whose range no file tells.
    """
    from PIL import Image, ImageOps

    image = ImageOps.exif_transpose(image)
    if not image.mode.startswith(("I", "F")):
        return image
    pixels = np.asarray(image)
    if image.mode == "F" or pixels.min() < 0 or pixels.max() > 65_535:
        raise DataError(
            f"{file}: pixels from {pixels.min():g} to {pixels.max():g} (Pillow's mode "
            f"{image.mode!r}); needs 8 or 16 bits a channel, since the range of others is not in "
            "the file: scale them to 0 to 65,535 and save a PNG of 16 bits"
        )
    return Image.fromarray(((pixels.astype(np.int64) + 128) // 257).astype(np.uint8))


def standardised(
    images: Float[Tensor, "*b c h w"], mean: Sequence[float], std: Sequence[float]
) -> Float[Tensor, "*b c h w"]:
    """(value − mean) / std of each channel."""
    shift, scale = (torch.tensor(part, dtype=torch.float32)[:, None, None] for part in (mean, std))
    return (images - shift) / scale


def size_of(image: Any) -> tuple[int, int]:
    """(height, width) of an opened picture, turned as :func:`of_bytes` turns it, by its header."""
    sideways = image.getexif().get(ORIENTATION, 1) >= 5
    return (image.width, image.height) if sideways else (image.height, image.width)


def picture_size(file: Path) -> tuple[int, int]:
    """(height, width) of a picture in a file, by its header alone.

    Raises:
        DataError: as :func:`read_picture`, as far as a header tells.
    """
    with _opened(file) as image:
        return size_of(image)


ENDS = {"JPEG": b"\xff\xd9", "PNG": b"IEND\xaeB`\x82"}  # of files that are whole


def check_picture(file: Path) -> None:
    """Read a picture's header, and all of it where its end is not that of its format.

    Raises:
        DataError: as :func:`read_picture`, as far as header and end tell.
    """
    with _opened(file) as image:
        end = ENDS.get(image.format)
        if end is not None and not _tail(file).endswith(end):
            image.load()


def _tail(file: Path) -> bytes:
    with file.open("rb") as opened:
        opened.seek(max(0, file.stat().st_size - 12))
        return opened.read()


@contextmanager
def _opened(file: Path) -> Iterator[Any]:
    with opened_picture(file) as image:
        if max(image.size) < 2:  # resized, it would be a uniform area that passes for a picture
            raise DataError(
                f"{file}: a picture of 1 x 1 pixel; needs at least 2 pixels: replace or remove it "
                "(such files are often placeholders of a failed download)"
            )
        yield image


def decoded(file: Path | str, mode: str, content: bytes | None = None) -> Any:
    """A picture of Pillow's in a ``mode`` such as RGB; ``content``: of the file, where it
    lies in an archive.

    Raises:
        DataError: no such file, or no picture.
    """
    with opened_picture(file, content) as image:
        return of_bytes(image, file).convert(mode)


def resize(
    images: UInt8[Tensor, "n c h w"], size: tuple[int, int], chunk: int = 1024
) -> UInt8[Tensor, "n c a b"]:
    """Images at another size: antialiased bilinear, rounded, ``chunk`` at a time so that no float
    copy of all is made.

    Example:
        >>> resize(torch.full((1, 1, 2, 2), 7, dtype=torch.uint8), (4, 4)).unique().tolist()
        [7]
    """
    if tuple(images.shape[-2:]) == tuple(size):
        return images
    out = torch.empty((*images.shape[:2], *size), dtype=torch.uint8)
    for start in range(0, len(images), chunk):
        part = functional.interpolate(
            images[start : start + chunk].float(), size=size, mode="bilinear", antialias=True
        )
        out[start : start + chunk] = part.round().clamp(0, 255).byte()
    return out


def image_sides(size: Any) -> tuple[int, int]:
    """Height and width from one number or two.

    Raises:
        OptionError: something else.
    """
    pair = (size, size) if isinstance(size, int) else tuple(size)
    if len(pair) != 2 or not all(
        isinstance(x, int) and not isinstance(x, bool) and x > 0 for x in pair
    ):
        raise OptionError(
            f"image_size: received {size!r}; needs a positive integer or (height, width)"
        )
    return pair[0], pair[1]


# --- pictures without a data set ------------------------------------------------------------------


def read_as_trained(
    file: Path, facts: Mapping[str, Any], channels: int, size: tuple[int, int] | None
) -> Float[Tensor, "c h w"]:
    """One file in [0, 1] for a model that was saved with ``facts``: cut where the pictures of its
    training were. Those of the catalogue never were, so that others are stretched to their size.

    Raises:
        DataError: no such file, or no image.
    """
    from .picture_files import read_form

    form = facts.get("form", "rgb")
    if form != "rgb" and size is not None:
        image = read_form(file, size, form)
        return image if image.is_floating_point() else image.float() / 255
    cut = facts.get("fit") == COVER or facts.get("source")
    if cut and size is not None:
        return read_picture(file, size).float() / 255
    return read_plain(file, channels, size)


def read_plain(path: Path, channels: int, size: tuple[int, int] | None) -> Float[Tensor, "c h w"]:
    """One file as (channels, height, width) in [0, 1], stretched to the size; None leaves it its
    own.

    Raises:
        DataError: no such file, or no image.
    """
    pixels = np.array(decoded(path, "L" if channels == 1 else "RGB"))
    image = torch.from_numpy(pixels).float().div(255)
    image = image.unsqueeze(0) if image.ndim == 2 else image.permute(2, 0, 1)
    if size is None or tuple(image.shape[-2:]) == size:
        return image
    return functional.interpolate(
        image[None], size, mode="bilinear", antialias=True, align_corners=False
    )[0]


def patches_of(encoder: Any) -> str:
    """What an encoder of pictures makes points of, by its configuration.

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
    images: Tensor, mean: Sequence[float] | None, std: Sequence[float] | None
) -> tuple[Tensor, list[np.ndarray]]:
    """(inputs of the model, pictures (h, w, C) in [0, 1]) from uint8 pixels or from floats that are
    inputs already.

    Without ``mean`` and ``std`` the pictures of float images are stretched to their own range.

    Raises:
        ShapeError: a normalisation of another number of channels.
    """
    channels = images.shape[1]
    for name, value in (("mean", mean), ("std", std)):
        if value is not None and len(value) != channels:
            raise ShapeError(
                f"{name} has {len(value)} values and the images {channels} channels; they must be "
                "equal"
            )
    shift = torch.tensor(mean or [0.0] * channels, dtype=torch.float32).view(-1, 1, 1)
    scale = torch.tensor(std or [1.0] * channels, dtype=torch.float32).view(-1, 1, 1)
    if not images.is_floating_point():
        plain = images.float() / 255
        inputs = (plain - shift) / scale
    else:
        inputs = images
        plain = images.detach().float().cpu() * scale + shift
        if mean is None or std is None:
            low, high = plain.amin((1, 2, 3), keepdim=True), plain.amax((1, 2, 3), keepdim=True)
            plain = (plain - low) / (high - low).clamp(min=1e-9)
    return inputs, list(plain.clamp(0, 1).cpu().permute(0, 2, 3, 1).numpy())
