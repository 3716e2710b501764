"""Image folder: a user's own pictures, laid out as ImageNet is: ``train/<class>/*.png``,
``val/<class>/*.png``.

With a ``test/`` folder the three folders are the three splits. Without one, ``val/`` is the test
set, as is usual for ImageNet, and ``val`` is a stratified part of ``train/``, so that no choice
made on ``val`` has seen the test set.
"""

from __future__ import annotations

import math
from pathlib import Path

import torch

from ....errors import DataError, OptionError
from ..files.folders import files_below
from ..files.guesses import PICTURES
from ..kinds.images import FolderDataset
from ..kinds.picture_files import check_picture
from ..registry import Entry, Request, register_dataset
from ..splits import stratified

LOOKED_AT = 1000  # pictures whose headers are read before training: about a second


def class_folders(part: Path) -> list[str]:
    """Return the names of the class folders in ``train/``, ``val/`` or ``test/``, sorted.

    Raises:
        DataError: pictures beside the class folders or instead of them, as in the archive of
            ImageNet's validation set; nothing would read them.
    """
    children = [child for child in part.iterdir() if not child.name.startswith(".")]
    loose = sorted(child.name for child in children if _is_picture(child))
    result = sorted(child.name for child in children if child.is_dir())
    if loose:
        raise DataError(
            f"{part}: expected pictures in class folders, such as {part.name}/<class>/{loose[0]}, "
            f"got {len(loose):,} pictures beside {len(result)} class folders; move each into the "
            "folder of its class"
        )
    if not result:
        raise DataError(f"{part}: expected {part.name}/<class>/*.png, got no class folder; add one")
    return result


def check_layout(root: Path) -> tuple[str, ...]:
    """Return the classes of an image folder, which are the same in all of its splits.

    All splits are checked, whichever is requested: a mistake in the test set should be found before
    hours of training, not after.

    Raises:
        DataError: a missing folder, fewer than two classes, or a class in one split that another
            does not have.
    """
    train = root / "train"
    if not train.is_dir():
        raise DataError(
            f"{train}: expected train/<class>/*.png, and val/<class>/*.png beside it, "
            f"{_found_instead(root)}"
        )
    if not (root / "val").is_dir():
        raise DataError(
            f"{root}: expected train/<class>/*.png and val/<class>/*.png, got no val/; move some "
            "pictures of each class there"
        )
    parts = [root / name for name in ("train", "val", "test") if (root / name).is_dir()]
    names = class_folders(train)
    if len(names) < 2:
        raise DataError(
            f"{train}: expected two classes or more, train/<class>/*.png, got {len(names)}; add "
            "a folder"
        )
    for part in parts[1:]:
        _check_classes(part, names)
    return tuple(names)


def _check_classes(part: Path, names: list[str]) -> None:
    """Refuse a split whose classes are not those of ``train/``."""
    result = class_folders(part)
    unknown = [name for name in result if name not in names]
    missing = [name for name in names if name not in result]
    if unknown:
        raise DataError(
            f"{part}: expected the {len(names)} classes of train/, got {unknown[0]!r} as well; "
            f"remove it, or add train/{unknown[0]}/"
        )
    if missing:
        raise DataError(
            f"{part}: expected the classes of train/, got no {missing[0]!r}; put pictures of it "
            f"into {part.name}/{missing[0]}/, or remove train/{missing[0]}/"
        )


def _is_picture(path: Path) -> bool:
    return path.suffix.lower() in PICTURES and path.is_file()


def _found_instead(root: Path) -> str:
    """Return what is in a folder without ``train/``, and what to do about it."""
    if not root.is_dir():
        return f"got no folder {root} at all; correct the path"
    children = sorted(child for child in root.iterdir() if not child.name.startswith("."))
    for child in children:
        if child.is_dir() and any(map(_is_picture, child.iterdir())):
            return (
                f"got folders of pictures such as {child.name}/; move most pictures of "
                f"{child.name}/ to train/{child.name}/ and the rest to val/{child.name}/"
            )
    loose = sum(map(_is_picture, children))
    if loose:
        return f"got {loose:,} pictures without a class; move each into the folder of its class"
    return "got no such folder; add both"


def scan(folder: Path, classes: tuple[str, ...]) -> tuple[list[Path], list[int]]:
    """Return the pictures of a split folder and their class numbers, in a fixed order.

    The headers of ``LOOKED_AT`` pictures are read, spread evenly; the others are checked when they
    are read.

    Raises:
        DataError: a class without pictures, or a picture that cannot be read, or of a single pixel.
    """
    files = []
    labels = []
    for number, name in enumerate(classes):
        mine = files_below(folder / name, PICTURES)
        if not mine:
            raise DataError(
                f"{folder / name}: expected pictures ending in {', '.join(sorted(PICTURES))}, got "
                "none; add some, or remove the class from all splits"
            )
        files += mine
        labels += [number] * len(mine)
    for file in files[:: max(1, math.ceil(len(files) / LOOKED_AT))]:
        check_picture(file)
    return files, labels


def create(request: Request) -> FolderDataset:
    """Return the split of a request; files are listed now and decoded batch by batch."""
    name = request.entry.name
    root = request.folder
    split = request.split
    size = request.image_size
    # create_dataset refuses a request without the entry's ``needs``.
    assert size is not None
    classes = check_layout(root)
    folders = {"train": "train", "val": "train", "test": "val"}
    if (root / "test").is_dir():
        folders = {part: part for part in folders}
        if request.val_fraction is not None:
            raise OptionError(
                f"val_fraction: expected none for {root}, which has val/ and test/, got "
                f"{request.val_fraction:g}; leave it out, or remove test/"
            )
    files, labels = scan(root / folders[split], classes)
    # A file of another split that cannot be read should be found before training, not after.
    if split == "train":
        for other in {folders["val"], folders["test"]} - {"train"}:
            scan(root / other, classes)

    numbers = torch.tensor(labels)
    if folders[split] == "train" == folders["val"]:
        rest, held = stratified(numbers, request.share)
        chosen = held if split == "val" else rest
        if request.share and not len(held):
            raise DataError(
                f"{root / 'train'}: expected enough pictures to hold some out at "
                f"val_fraction={request.share:g}, got {len(files)} of {len(classes)} classes; add "
                "pictures, or enlarge val_fraction"
            )
        files = [files[i] for i in chosen.tolist()]
        numbers = numbers[chosen]

    constants = request.entry.mean, request.entry.std
    return FolderDataset(name, split, files, numbers, classes, *constants, size)


# Mean and standard deviation are ImageNet's, with which most pretrained weights were trained.
ENTRY = Entry(
    name="image-folder",
    title="Your own pictures, one folder per class",
    source="your folder: path=FOLDER with train/<class>/, val/<class>/",
    needs={
        "path": "the folder that holds train/ and val/",
        "image_size": "the size that every picture is brought to",
    },
    licence_package="none",
    licence_data="yours",
    mean=(0.485, 0.456, 0.406),
    std=(0.229, 0.224, 0.225),
    read=create,
    notes="needs path= and image_size=; normalised with ImageNet's constants",
)
register_dataset(ENTRY)
