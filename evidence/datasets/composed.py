"""Images composed of other images, with known positions of their objects."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from jaxtyping import Bool, Int, UInt8
from torch import Tensor

from fredholm.errors import DataError, OptionError
from fredholm.lab.data.kinds.images import ArrayDataset, ImageDataset
from fredholm.lab.data.registry import Request, get_entry

KINDS = ("mask", "box")
KEPT_BYTES = 256 * 2**20
"""Largest size of a set whose composed images are cached."""
Compose = Callable[[Tensor], tuple[Tensor, Tensor]]


class ComposedDataset(ImageDataset):
    """Images that are composed when they are read, with a mask of the object in each.

    An image depends only on its index. If all of them take at most :data:`KEPT_BYTES`, each is
    composed once and cached.

    Args:
        compose: maps indices (B,) to images (B, C, H, W) uint8 and the objects' pixels (B, H, W)
            bool.
        others: see :class:`ImageDataset`.
    """

    def __init__(
        self,
        name: str,
        split: str,
        labels: Int[Tensor, " n"],
        classes: Sequence[str],
        mean: Sequence[float],
        std: Sequence[float],
        shape: tuple[int, int, int],
        compose: Compose,
    ):
        super().__init__(name, split, labels, classes, mean, std, shape)
        self.compose = compose
        count, size = len(labels), math.prod(shape)
        self._made: Tensor | None = None
        if count * size <= KEPT_BYTES:
            # The operating system provides the memory when it is written.
            self._images = torch.empty(count, *shape, dtype=torch.uint8)
            self._made = torch.zeros(count, dtype=torch.bool)

    def raw(
        self, indices: Int[Tensor, " b"] | Sequence[int]
    ) -> tuple[UInt8[Tensor, "b c h w"], Int[Tensor, " b"]]:
        indices = self._within(indices)
        return self._composed(indices), self.labels[indices]

    def masks(
        self, indices: Int[Tensor, " b"] | Sequence[int], kind: str = "mask"
    ) -> Bool[Tensor, "b h w"]:
        _, masks = self.compose(self._within(indices))
        if check_kind(kind) == "box":
            return boxes_of(masks)
        return masks

    def _composed(self, indices: Tensor) -> Tensor:
        if self._made is None:
            images, _ = self.compose(indices)
            return images
        new = indices[~self._made[indices]]
        if len(new):
            self._images[new], _ = self.compose(new)
            self._made[new] = True
        return self._images[indices]

    def _within(self, indices: Any) -> Tensor:
        indices = torch.as_tensor(indices, dtype=torch.int64)
        if len(indices) and not -len(self) <= int(indices.min()) <= int(indices.max()) < len(self):
            raise IndexError(
                f"indices: expected numbers below the {len(self)} samples of {self.name} "
                f"{self.split}, got {indices.tolist()}"
            )
        return indices % len(self)


def check_kind(kind: str) -> str:
    """Return ``kind`` if it is ``mask`` or ``box``.

    Raises:
        OptionError: it is something else.
    """
    if kind not in KINDS:
        raise OptionError(f"kind: expected one of {', '.join(KINDS)}, got {kind!r}")
    return kind


def boxes_of(masks: Bool[Tensor, "b h w"]) -> Bool[Tensor, "b h w"]:
    """Return the filled bounding box of each mask.

    Example:
        >>> boxes_of(torch.eye(3, dtype=torch.bool)[None])[0].all().item()
        True
    """
    sides = []
    for axis in (2, 1):
        hit = masks.any(axis)
        seen = hit.cumsum(1) > 0
        ahead = hit.flip(1).cumsum(1).flip(1) > 0
        sides.append(seen & ahead)
    return sides[0][:, :, None] & sides[1][:, None, :]


def base_images(request: Request) -> ArrayDataset:
    """Return the split of the data set that a composed one is made from, at its original size.

    Raises:
        DataError: its files are missing, or it has fewer than two images.
    """
    base = get_entry(request.entry.base)
    result = base.read(replace(request, entry=base, image_size=None, options=None))
    assert isinstance(result, ArrayDataset)
    if len(result) < 2:
        raise DataError(
            f"{request.entry.name}: expected at least 2 images of {base.name} to compose, got "
            f"{len(result)}; fetch {base.name} again"
        )
    return result


def sample_count(name: str, count: int, images: int) -> int:
    """Return the number of samples of a split, by default one per image.

    Raises:
        OptionError: it is larger than the number of images.
    """
    if count > images:
        raise OptionError(f"{name}: expected at most {images}, one per image, got {count}")
    return count or images
