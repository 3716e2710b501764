"""Crowns of trees in four aerial photographs, each in a box: a test set for explanations."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Int
from torch import Tensor

from fredholm.errors import DataError, OptionError
from fredholm.lab.data.clients import PIP
from fredholm.lab.data.create import source_folder
from fredholm.lab.data.kinds.images import ArrayDataset
from fredholm.lab.data.kinds.picture_files import decoded
from fredholm.lab.data.registry import Entry, Request, register_dataset
from fredholm.lab.data.sources import Package, PinnedFile

from .boxes import read_annotation
from .composed import check_kind

SIZE = (224, 224)
FOLDER = "deepforest/data"
# Size in bytes and sha256 of each photograph and of its boxes.
PHOTOGRAPHS = {
    "2019_YELL_2_528000_4978000_image_crop2": (
        (15333493, "a9bdb0f4447fdd899d22f567e0e20ba8320c5413b2ad0cd0ac8d9f3b6e0f9767"),
        (193359, "bd431af6a5086d721eb731b22f5ea28cd8a8eab06883efc1c665391acbc68e11"),
    ),
    "2019_YELL_2_541000_4977000_image_crop": (
        (2889166, "178e58a23cc2642226a364a30f71bd9258ddc1b012c826f12250914a90c7a131"),
        (93452, "cefe4b96888bacbf8af1674f000082e549aa707aa6590d545effb23e43f26631"),
    ),
    "OSBS_029": (
        (412520, "d9477c6a00e4902c7bee487d4c5582c3b8b9a2f77f3908a29628b816b291e6ee"),
        (20526, "1f68c4011d7b351c29ca755072e77f3d16e6fd1f995bd05a9dd4eb952b55373c"),
    ),
    "SOAP_061": (
        (369701, "256508f1a62149bec4a80879077a865caf50e8cace095e6564c76befa480d424"),
        (12556, "4833280af75fd9c47965a93e38945282835e9e725cac412bdb9469d63480947c"),
    ),
}


class TileDataset(ArrayDataset):
    """Tiles of photographs with filled boxes (N, H, W), without masks."""

    def __init__(self, *arguments: Any, boxes: Bool[Tensor, "n h w"], **scale: Sequence[float]):
        super().__init__(*arguments, **scale)
        self.boxes = boxes

    def masks(
        self, indices: Int[Tensor, " b"] | Sequence[int], kind: str = "mask"
    ) -> Bool[Tensor, "b h w"] | None:
        if check_kind(kind) == "mask":
            return None
        return self.boxes[torch.as_tensor(indices, dtype=torch.int64)]


def tiles(
    picture: np.ndarray, boxes: Sequence[tuple[float, float, float, float]], size: tuple[int, int]
) -> tuple[np.ndarray, np.ndarray]:
    """Cut a photograph into tiles (N, H, W, C), and its filled boxes into (N, H, W).

    Strips at the right and bottom edges that are smaller than a tile are left out.

    Example:
        >>> picture = np.arange(24, dtype=np.uint8).reshape(4, 6, 1)
        >>> found, inside = tiles(picture, [(0, 0, 2, 1)], (2, 3))
        >>> found[1, :, :, 0].tolist(), inside.sum((1, 2)).tolist()
        ([[3, 4, 5], [9, 10, 11]], [2, 0, 0, 0])
    """
    height, width = size
    rows, columns = picture.shape[0] // height, picture.shape[1] // width
    marked = np.zeros(picture.shape[:2], dtype=bool)
    for left, top, right, bottom in boxes:
        marked[round(top) : round(bottom), round(left) : round(right)] = True

    # The boxes are cut as a further channel.
    stacked = np.concatenate([picture, marked[..., None]], -1)[: rows * height, : columns * width]
    depth = stacked.shape[2]
    cut = stacked.reshape(rows, height, columns, width, depth).swapaxes(1, 2)
    cut = cut.reshape(rows * columns, height, width, depth)
    return cut[..., :-1], cut[..., -1].astype(bool)


def create(request: Request) -> TileDataset:
    """Return all tiles with a crown, as ``test``.

    Raises:
        OptionError: another split.
        DataError: tiles of this size do not have a crown.
    """
    if request.split != "test":
        raise OptionError(
            f"split: expected test, the only one of tree-crowns, got {request.split!r}"
        )
    entry, size = request.entry, request.image_size or SIZE
    folder = source_folder(request, lambda file: file.name.endswith((".png", ".xml")))
    found, inside = [], []
    for name in PHOTOGRAPHS:
        picture = np.asarray(decoded(folder / f"{name}.png", "RGB"))
        objects = read_annotation(folder / f"{name}.xml").objects
        pieces, boxes_inside = tiles(picture, [box for _, box in objects], size)
        found.append(pieces)
        inside.append(boxes_inside)
    pixels = torch.from_numpy(np.concatenate(found))
    boxes = torch.from_numpy(np.concatenate(inside))
    with_crown = boxes.flatten(1).any(1)
    if not bool(with_crown.any()):
        raise DataError(
            f"image_size: expected a side with a tile in the photographs, got {size}; take less"
        )
    images = pixels[with_crown].permute(0, 3, 1, 2).contiguous()
    labels = torch.zeros(len(images), dtype=torch.int64)
    return TileDataset(
        entry.name,
        "test",
        images,
        labels,
        entry.classes,
        boxes=boxes[with_crown],
        mean=entry.mean,
        std=entry.std,
    )


def _pinned() -> tuple[PinnedFile, ...]:
    found = []
    for name, pins in PHOTOGRAPHS.items():
        for suffix, (size, digest) in zip((".png", ".xml"), pins):
            file = f"{name}{suffix}"
            found.append(PinnedFile(file, f"{FOLDER}/{file}", size, digest))
    return tuple(found)


ENTRY = Entry(
    name="tree-crowns",
    title="Crowns of trees in four aerial photographs, each in a box; to look at, not to train on",
    licence_package="MIT",
    licence_data="MIT (deepforest; photographs of the National Ecological Observatory Network)",
    read=create,
    sources=(
        Package(
            client=PIP,
            name="deepforest",
            version="2.1.0",
            archive_bytes=20639595,
            archive_sha256="8c2798d8e9be7f0004b194fe207b76c1d9fff6e711b3db67b9508dcd5d00ae54",
            files=_pinned(),
        ),
    ),
    official="the four .png and .xml of deepforest's data folder",
    classes=("trees",),
    shape=(3, *SIZE),
    mean=(0.5098, 0.5653, 0.4726),
    std=(0.2358, 0.2176, 0.1563),
    notes="951 boxes; tiles of image_size (default 224) without overlap, those with a crown, of "
    "photographs that hold one; test alone, boxes and no masks",
)
register_dataset(ENTRY)
