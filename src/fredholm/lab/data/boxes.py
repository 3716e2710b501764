"""Boxes of objects in pictures, in the official format of ImageNet's annotations (that of PASCAL
VOC): one XML file a picture.
"""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree
from dataclasses import dataclass
from pathlib import Path

import torch
from jaxtyping import Bool
from torch import Tensor

from ...errors import DataError

Corners = tuple[float, float, float, float]


@dataclass(frozen=True)
class Annotation:
    """The ``size`` (width, height) of the annotated picture, and its objects: class name, corners
    (left, top, right, bottom).
    """

    size: tuple[int, int]
    objects: tuple[tuple[str, Corners], ...]


def read_annotation(file: Path) -> Annotation:
    """One picture's boxes.

    Raises:
        DataError: a file that is missing, no XML, or without a size or with a box outside of it.
            Files that declare entities are refused.
    """
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{file}: cannot be read ({error}); needs an annotation in XML") from error
    if re.search(r"<!\s*(DOCTYPE|ENTITY)", text, re.IGNORECASE):
        raise DataError(f"{file}: declares entities, which annotations never do; it is not read")
    try:
        root = ElementTree.fromstring(text)
        size = int(_text(root, "size/width")), int(_text(root, "size/height"))
        objects = tuple(
            (
                _text(item, "name").strip(),
                tuple(
                    float(_text(item, f"bndbox/{key}")) for key in ("xmin", "ymin", "xmax", "ymax")
                ),
            )
            for item in root.iter("object")
        )
    except (ElementTree.ParseError, ValueError) as error:
        raise DataError(
            f"{file}: {error}; needs <size> and <object> elements with <bndbox>"
        ) from error
    for name, (left, top, right, bottom) in objects:  # type: ignore[misc]
        if not (0 <= left <= right <= size[0] and 0 <= top <= bottom <= size[1]) or min(size) < 1:
            raise DataError(
                f"{file}: the box {left, top, right, bottom} of {name} lies outside the picture of "
                f"{size}"
            )
    return Annotation(size, objects)  # type: ignore[arg-type]


def _text(element: ElementTree.Element, path: str) -> str:
    result = element.findtext(path)
    if result is None:
        raise ValueError(f"has no <{path.replace('/', '><')}>")
    return result


def find_annotations(folder: Path) -> dict[str, Path]:
    """Annotations below a folder by the name of their picture without its suffix.

    Raises:
        DataError: no such folder, or none in it.
    """
    result = {path.stem: path for path in sorted(folder.rglob("*.xml"))} if folder.is_dir() else {}
    if not result:
        raise DataError(
            f"{folder}: holds no annotations; needs the folder of ImageNet's bounding boxes, one "
            ".xml a picture"
        )
    return result


def box_mask(annotation: Annotation, image_size: tuple[int, int]) -> Bool[Tensor, "h w"]:
    """The filled boxes of a picture that was resized to just cover ``image_size`` = (H, W) and
    centre-cropped, as loaders here do.

    Example:
        >>> whole = Annotation((4, 2), (("cat", (0, 0, 2, 2)),))
        >>> box_mask(whole, (2, 2)).tolist()  # the left and the right quarter were cut off
        [[True, False], [True, False]]
    """
    height, width = image_size
    scale = max(width / annotation.size[0], height / annotation.size[1])
    cut = (annotation.size[0] * scale - width) / 2, (annotation.size[1] * scale - height) / 2
    x = torch.arange(width) + 0.5
    y = torch.arange(height) + 0.5
    mask = torch.zeros(height, width, dtype=torch.bool)
    for _, (left, top, right, bottom) in annotation.objects:
        across = (x >= left * scale - cut[0]) & (x <= right * scale - cut[0])
        down = (y >= top * scale - cut[1]) & (y <= bottom * scale - cut[1])
        mask |= down[:, None] & across[None]
    return mask
