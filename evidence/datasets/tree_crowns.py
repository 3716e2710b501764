"""Crowns of trees in four aerial photographs, each in a box: tiles to look for objects in, not to
train on.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Int
from torch import Tensor

from fredholm.errors import DataError, OptionError
from fredholm.lab.data.boxes import read_annotation
from fredholm.lab.data.clients import PIP
from fredholm.lab.data.create import source_folder
from fredholm.lab.data.kinds.images import ArrayDataset
from fredholm.lab.data.kinds.picture_files import decoded
from fredholm.lab.data.registry import Entry, Request, register_dataset
from fredholm.lab.data.sources import Package, PinnedFile

from .composed import check_kind

SIZE = (224, 224)
FOLDER = "deepforest/data"
# name: bytes and sha256 of the photograph and of its boxes
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
    """Tiles of photographs, and the boxes (N, H, W) in each; no masks are known."""

    def __init__(self, *given: Any, boxes: Bool[Tensor, "n h w"], **scale: Sequence[float]):
        super().__init__(*given, **scale)
        self.boxes = boxes

    def masks(
        self, indices: Int[Tensor, " b"] | Sequence[int], kind: str = "mask"
    ) -> Bool[Tensor, "b h w"] | None:
        known = check_kind(kind) == "box"
        return self.boxes[torch.as_tensor(indices, dtype=torch.int64)] if known else None


def tiles(
    picture: np.ndarray, boxes: Sequence[tuple[float, float, float, float]], size: tuple[int, int]
) -> tuple[np.ndarray, np.ndarray]:
    """Tiles (N, H, W, C) of a photograph side by side, without what is left at its edges, and
    the filled boxes in each (N, H, W).

    Example:
        >>> picture = np.arange(24, dtype=np.uint8).reshape(4, 6, 1)
        >>> found, inside = tiles(picture, [(0, 0, 2, 1)], (2, 3))
        >>> found[1, :, :, 0].tolist(), inside.sum((1, 2)).tolist()
        ([[3, 4, 5], [9, 10, 11]], [2, 0, 0, 0])
    """
    height, width = size
    rows, columns = (whole // side for whole, side in zip(picture.shape, size))
    marked = np.zeros(picture.shape[:2], dtype=bool)
    for left, top, right, bottom in boxes:
        marked[round(top) : round(bottom), round(left) : round(right)] = True
    whole = np.concatenate([picture, marked[..., None]], -1)[: rows * height, : columns * width]
    depth = whole.shape[2]
    cut = whole.reshape(rows, height, columns, width, depth).swapaxes(1, 2)
    cut = cut.reshape(rows * columns, height, width, depth)
    return cut[..., :-1], cut[..., -1].astype(bool)


def create(request: Request) -> TileDataset:
    """All tiles with a crown in them, as ``test``."""
    if request.split != "test":
        raise OptionError(
            f"split: received {request.split!r}; tree-crowns is to look at, four photographs with "
            "test alone"
        )
    entry, size = request.entry, request.image_size or SIZE
    folder = source_folder(request, lambda file: file.name.endswith((".png", ".xml")))
    found, inside = [], []
    for name in PHOTOGRAPHS:
        picture = np.asarray(decoded(folder / f"{name}.png", "RGB"))
        objects = read_annotation(folder / f"{name}.xml").objects
        pieces = tiles(picture, [box for _, box in objects], size)
        found.append(pieces[0])
        inside.append(pieces[1])
    whole, boxes = (torch.from_numpy(np.concatenate(parts)) for parts in (found, inside))
    kept = boxes.flatten(1).any(1)
    if not bool(kept.any()):
        raise DataError(f"image_size: received {size}; no photograph has a tile of that size")
    images = whole[kept].permute(0, 3, 1, 2).contiguous()
    known = images, torch.zeros(len(images), dtype=torch.int64), entry.classes
    scale = {"mean": entry.mean, "std": entry.std}
    return TileDataset(entry.name, "test", *known, boxes=boxes[kept], **scale)


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
