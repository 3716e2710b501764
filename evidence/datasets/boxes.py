"""Boxes of objects in pictures, in the official format of ImageNet's annotations (that of PASCAL
VOC): one XML file per picture.
"""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree
from dataclasses import dataclass
from pathlib import Path

from fredholm.errors import DataError

Corners = tuple[float, float, float, float]


@dataclass(frozen=True)
class Annotation:
    """The boxes of one picture.

    Attributes:
        size: (width, height) of the annotated picture, in pixels.
        objects: class name and corners (left, top, right, bottom) of each, in pixels of that
            picture from its left and upper edge.
    """

    size: tuple[int, int]
    objects: tuple[tuple[str, Corners], ...]


def read_annotation(file: Path) -> Annotation:
    """Return one picture's boxes.

    Raises:
        DataError: a file that is missing, not XML, without a size or with a box outside of it, or
            one that declares entities.
    """
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(
            f"{file}: expected an annotation in XML, got a file that cannot be read ({error})"
        ) from error
    # A few entities that contain each other can expand to gigabytes.
    if re.search(r"<!\s*(DOCTYPE|ENTITY)", text, re.IGNORECASE):
        raise DataError(
            f"{file}: expected an annotation, got XML that declares entities, which is not read; "
            "remove the declarations"
        )
    try:
        root = ElementTree.fromstring(text)
        size = int(_text(root, "size/width")), int(_text(root, "size/height"))
        objects = tuple(
            (_text(item, "name").strip(), _corners(item)) for item in root.iter("object")
        )
    except (ElementTree.ParseError, ValueError) as error:
        raise DataError(
            f"{file}: expected <size> and <object> elements with <bndbox>, got another file "
            f"({error}); restore the annotation"
        ) from error
    for name, (left, top, right, bottom) in objects:
        if not (0 <= left <= right <= size[0] and 0 <= top <= bottom <= size[1]) or min(size) < 1:
            raise DataError(
                f"{file}: expected boxes inside the picture of {size}, got "
                f"{left, top, right, bottom} of {name}; correct the annotation"
            )
    return Annotation(size, objects)


def _corners(item: ElementTree.Element) -> Corners:
    left, top, right, bottom = (
        float(_text(item, f"bndbox/{key}")) for key in ("xmin", "ymin", "xmax", "ymax")
    )
    return left, top, right, bottom


def _text(element: ElementTree.Element, path: str) -> str:
    result = element.findtext(path)
    if result is None:
        raise ValueError(f"no <{path.replace('/', '><')}>")
    return result
