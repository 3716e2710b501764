"""Images composed of others, so that it is known where their object is."""

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
KEPT_BYTES = 256 * 2**20  # of composed images; a set that takes more is composed anew each time
Compose = Callable[[Tensor], tuple[Tensor, Tensor]]


class ComposedDataset(ImageDataset):
    """Images made when asked for, a function of their index alone, with the place of the object in
    each. Where all of them take no more than :data:`KEPT_BYTES`, an image is made once and kept.

    Args:
        compose: indices (B,) to images (B, C, H, W) uint8 and the objects' pixels (B, H, W) bool.
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
            self._images = torch.empty(count, *shape, dtype=torch.uint8)  # no memory until written
            self._made = torch.zeros(count, dtype=torch.bool)

    def raw(
        self, indices: Int[Tensor, " b"] | Sequence[int]
    ) -> tuple[UInt8[Tensor, "b c h w"], Int[Tensor, " b"]]:
        indices = self._within(indices)
        return self._composed(indices), self.labels[indices]

    def masks(
        self, indices: Int[Tensor, " b"] | Sequence[int], kind: str = "mask"
    ) -> Bool[Tensor, "b h w"]:
        result = self.compose(self._within(indices))[1]
        return result if check_kind(kind) == "mask" else boxes_of(result)

    def _composed(self, indices: Tensor) -> Tensor:
        if self._made is None:
            return self.compose(indices)[0]
        new = indices[~self._made[indices]]
        if len(new):
            self._images[new] = self.compose(new)[0]
            self._made[new] = True
        return self._images[indices]

    def _within(self, indices: Any) -> Tensor:
        indices = torch.as_tensor(indices, dtype=torch.int64)
        if len(indices) and not -len(self) <= int(indices.min()) <= int(indices.max()) < len(self):
            raise IndexError(
                f"indices {indices.tolist()}; {self.name} {self.split} has {len(self)} samples"
            )
        return indices % len(self)


def check_kind(kind: str) -> str:
    """``mask`` or ``box``.

    Raises:
        OptionError: anything else.
    """
    if kind not in KINDS:
        raise OptionError(f"kind: received {kind!r}; needs one of {', '.join(KINDS)}")
    return kind


def boxes_of(masks: Bool[Tensor, "b h w"]) -> Bool[Tensor, "b h w"]:
    """The smallest upright rectangle around each mask, filled.

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
    """The split of the data set that a composed one is made from, at its own size.

    Raises:
        DataError: its files are not there.
    """
    base = get_entry(request.entry.base)
    result = base.read(replace(request, entry=base, image_size=None, options=None))
    assert isinstance(result, ArrayDataset)
    if len(result) < 2:
        raise DataError(
            f"{request.entry.name}: needs at least 2 images of {base.name} to compose, found "
            f"{len(result)}"
        )
    return result


def sample_count(name: str, asked: int, there: int) -> int:
    """How many samples a split has: as many as images, or fewer where asked.

    Raises:
        OptionError: more than there are images.
    """
    if asked > there:
        raise OptionError(
            f"{name}: received {asked}; there are {there} images to make one each from"
        )
    return asked or there
