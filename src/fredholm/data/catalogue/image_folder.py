"""Image folder: a user's own pictures, laid out as ImageNet is: ``train/<class>/*.png``,
``val/<class>/*.png``.

With a ``test/`` folder the three folders are the three splits. Without one, ``val/`` is the test
set, as is the custom for ImageNet, and ``val`` is a stratified slice of ``train/``, so that no
choice made on ``val`` has seen the test set.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch

from ...errors import DataError, OptionError
from ..boxes import find_annotations
from ..datasets import FolderDataset
from ..registry import Entry, Request
from ..splits import stratified

SUFFIXES = frozenset({".png", ".jpg", ".jpeg", ".bmp", ".webp", ".ppm", ".pgm", ".tif", ".tiff"})


@dataclass(frozen=True)
class FolderOptions:
    """``boxes``: a folder of annotations in ImageNet's XML format, found by the names of the
    pictures.
    """

    boxes: str | None = None


def class_names(train: Path) -> tuple[str, ...]:
    """The names of the folders in ``train/``, sorted.

    Raises:
        DataError: when there is no such folder, or fewer than two classes.
    """
    if not train.is_dir():
        raise DataError(
            f"{train}: no such folder; needs one folder a class in it: train/<class>/*.png"
        )
    names = sorted(
        child.name for child in train.iterdir() if child.is_dir() and not child.name.startswith(".")
    )
    if len(names) < 2:
        raise DataError(
            f"{train}: has {len(names)} class folders; needs two or more: train/<class>/*.png"
        )
    return tuple(names)


def scan(folder: Path, classes: tuple[str, ...]) -> tuple[list[Path], list[int]]:
    """The pictures of a split folder and their class numbers, in a fixed order.

    Raises:
        DataError: for a class that ``train/`` does not have, or a class folder without pictures.
    """
    files, labels = [], []
    found = sorted(
        child.name
        for child in folder.iterdir()
        if child.is_dir() and not child.name.startswith(".")
    )
    unknown = [name for name in found if name not in classes]
    if unknown:
        raise DataError(
            f"{folder}: has the class {unknown[0]!r}, which train/ does not have; needs classes "
            f"among its {len(classes)}"
        )
    for name in found:
        mine = sorted(
            p for p in (folder / name).rglob("*") if p.suffix.lower() in SUFFIXES and p.is_file()
        )
        if not mine:
            raise DataError(
                f"{folder / name}: holds no picture; needs files ending in "
                f"{', '.join(sorted(SUFFIXES))}"
            )
        files += mine
        labels += [classes.index(name)] * len(mine)
    if not files:
        raise DataError(f"{folder}: holds no class folder; needs {folder.name}/<class>/*.png")
    return files, labels


def create(request: Request) -> FolderDataset:
    """The split of a request; files are listed now and read when asked for."""
    name, root, size, split = request.entry.name, request.path, request.image_size, request.split
    if root is None:
        raise OptionError(
            f"{name}: path is missing; needs the folder that holds train/ and val/: path=FOLDER"
        )
    if size is None:
        raise OptionError(
            f"{name}: image_size is missing; needs the size that every picture is brought to, e.g. "
            "image_size=224"
        )
    classes = class_names(root / "train")
    three = (root / "test").is_dir()
    if three and request.val_fraction is not None:
        raise OptionError(
            f"val_fraction: {root} has val/ and test/ of its own; leave val_fraction out, or take "
            "test/ away"
        )
    if not (root / "val").is_dir():
        raise DataError(f"{root}: has no val/; needs train/<class>/*.png and val/<class>/*.png")
    part = split if three else "val" if split == "test" else "train"
    files, labels = scan(root / part, classes)
    numbers = torch.tensor(labels)
    if not three and split != "test":
        fraction = (
            request.entry.val_fraction if request.val_fraction is None else request.val_fraction
        )
        rest, held = stratified(numbers, fraction)
        chosen = held if split == "val" else rest
        files, numbers = [files[i] for i in chosen.tolist()], numbers[chosen]
    given = request.options.boxes
    boxes = None if given is None else find_annotations(Path(given).expanduser())
    if boxes is not None and not any(file.stem in boxes for file in files):
        raise DataError(
            f"boxes: {given} annotates none of the {len(files)} pictures of {part}/; needs files "
            "named as they are"
        )
    constants = request.entry.mean, request.entry.std
    return FolderDataset(name, split, files, numbers, classes, *constants, size, annotations=boxes)


ENTRY = Entry(
    name="image-folder",
    title="Your own pictures, one folder a class",
    source="a folder of yours: path=FOLDER with train/<class>/, val/<class>/",
    licence_package="none",
    licence_data="yours",
    mean=(0.485, 0.456, 0.406),  # ImageNet's
    std=(0.229, 0.224, 0.225),
    create=create,
    notes="needs path= and image_size=; normalised with ImageNet's constants; options: boxes, a "
    "folder of ImageNet's annotations",
    options=FolderOptions,
)
