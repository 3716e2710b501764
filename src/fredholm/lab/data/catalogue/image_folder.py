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

from ....errors import DataError, OptionError
from ..boxes import find_annotations
from ..files.folders import files_below, look_at
from ..files.guesses import PICTURES
from ..kinds.images import FolderDataset
from ..registry import Entry, Request, register_dataset
from ..splits import stratified


@dataclass(frozen=True)
class FolderOptions:
    """``boxes``: a folder of annotations in ImageNet's XML format, found by the names of the
    pictures.
    """

    boxes: str | None = None


def class_folders(part: Path) -> list[str]:
    """The names of the class folders in ``train/``, ``val/`` or ``test/``, sorted.

    Raises:
        DataError: pictures that lie beside the class folders or in their stead, as in the archive
            of ImageNet's validation set; nothing would read them.
    """
    children = [child for child in part.iterdir() if not child.name.startswith(".")]
    loose = sorted(child.name for child in children if _is_picture(child))
    result = sorted(child.name for child in children if child.is_dir())
    if loose:
        held = f"beside its {len(result)} class folders" if result else "and no class folder"
        raise DataError(
            f"{part}: holds {len(loose):,} pictures in itself ({loose[0]}) {held}; needs "
            f"{part.name}/<class>/{loose[0]}: move each into the folder of its class"
        )
    if not result:
        raise DataError(f"{part}: holds no class folder; needs {part.name}/<class>/*.png")
    return result


def check_layout(root: Path) -> tuple[str, ...]:
    """The classes of an image folder, which all of its splits have.

    Every split is looked at, whichever is asked for: what is wrong with the test set is said
    before hours of training, not after.

    Raises:
        DataError: a missing folder, fewer than two classes, a class that one split has and another
            has not, a class without pictures.
    """
    train = root / "train"
    if not train.is_dir():
        raise DataError(f"{train}: no such folder; {_instead(root)}")
    if not (root / "val").is_dir():
        raise DataError(f"{root}: has no val/; needs train/<class>/*.png and val/<class>/*.png")
    parts = [root / name for name in ("train", "val", "test") if (root / name).is_dir()]
    names = class_folders(train)
    if len(names) < 2:
        raise DataError(
            f"{train}: has {len(names)} class folders; needs two or more: train/<class>/*.png"
        )
    for part in parts[1:]:
        result = class_folders(part)
        for name in [name for name in result if name not in names]:
            raise DataError(
                f"{part}: has the class {name!r}, which train/ does not have; needs classes "
                f"among its {len(names)}"
            )
        for name in [name for name in names if name not in result]:
            raise DataError(
                f"{part}: has no folder of the class {name!r}, which train/ has; put pictures of "
                f"it into {part.name}/{name}/, or remove train/{name}/"
            )
    for folder in (part / name for part in parts for name in names):
        if not any(_is_picture(path) for path in folder.rglob("*")):
            raise DataError(
                f"{folder}: holds no picture; needs files ending in {', '.join(sorted(PICTURES))}"
            )
    return tuple(names)


def _is_picture(path: Path) -> bool:
    return path.suffix.lower() in PICTURES and path.is_file()


def _instead(root: Path) -> str:
    """What a folder without ``train/`` holds, and what to do with it."""
    need = "needs one folder per class in it: train/<class>/*.png, and val/<class>/*.png beside it"
    if not root.is_dir():
        return f"{root} is not there either; {need}"
    children = sorted(child for child in root.iterdir() if not child.name.startswith("."))
    folders = [
        child.name
        for child in children
        if child.is_dir() and any(_is_picture(path) for path in child.iterdir())
    ]
    if folders:
        return (
            f"{need}; {root} has folders of pictures itself ({', '.join(folders[:3])}): move most "
            f"pictures of {folders[0]}/ to train/{folders[0]}/ and the rest to val/{folders[0]}/"
        )
    loose = sum(map(_is_picture, children))
    return f"{need}; {root} holds {loose:,} pictures whose class nothing tells" if loose else need


def scan(folder: Path, classes: tuple[str, ...]) -> tuple[list[Path], list[int]]:
    """The pictures of a split folder and their class numbers, in a fixed order.

    Raises:
        DataError: as :func:`fredholm.lab.data.files.folders.look_at`.
    """
    files, labels = [], []
    for number, name in enumerate(classes):
        mine = files_below(folder / name, PICTURES)
        files += mine
        labels += [number] * len(mine)
    look_at(files)
    return files, labels


def create(request: Request) -> FolderDataset:
    """The split of a request; files are listed now and read when asked for."""
    name, root, split, size = request.entry.name, request.folder, request.split, request.image_size
    assert size is not None  # the entry needs it
    classes = check_layout(root)
    three = (root / "test").is_dir()
    if three and request.val_fraction is not None:
        raise OptionError(
            f"val_fraction: {root} has val/ and test/ of its own; leave val_fraction out, or take "
            "test/ away"
        )
    part = split if three else "val" if split == "test" else "train"
    files, labels = scan(root / part, classes)
    if split == "train":  # what cannot be read in the others is said now, not after training
        for other in ("val", "test") if three else ("val",):
            scan(root / other, classes)
    numbers = torch.tensor(labels)
    if not three and split != "test":
        fraction = request.share
        rest, held = stratified(numbers, fraction)
        chosen = held if split == "val" else rest
        if fraction and not len(held):
            raise DataError(
                f"{root / 'train'}: {len(files)} pictures of {len(classes)} classes leave none to "
                f"validate with at val_fraction={fraction:g}; add pictures, or take a larger "
                "val_fraction"
            )
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
    needs={
        "path": "the folder that holds train/ and val/",
        "image_size": "the size that every picture is brought to",
    },
    licence_package="none",
    licence_data="yours",
    mean=(0.485, 0.456, 0.406),  # ImageNet's
    std=(0.229, 0.224, 0.225),
    read=create,
    notes="needs path= and image_size=; normalised with ImageNet's constants; options: boxes, a "
    "folder of ImageNet's annotations",
    options=FolderOptions,
)
register_dataset(ENTRY)
