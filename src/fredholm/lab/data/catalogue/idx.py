"""The four idx files that MNIST and Fashion-MNIST have in common."""

from __future__ import annotations

from pathlib import Path

from ....errors import DataError
from ..create import create_arrays, source_folder
from ..formats import LabelledImages, check_pairs, read_idx
from ..kinds.dataset import LabelledDataset
from ..registry import Request

PREFIX = {"train": "train", "test": "t10k"}


def find(folder: Path, part: str, kind: str) -> Path:
    """Return the idx file of a part (train or test) and kind (images or labels): raw or ``.gz``, in
    the folder or its ``raw/``, where torchvision puts it.

    Raises:
        DataError: there is none.
    """
    stem = f"{PREFIX[part]}-{kind}"
    ndim = {"images": 3, "labels": 1}[kind]
    for place in (folder, folder / "raw"):
        for name in (f"{stem}-idx{ndim}-ubyte", f"{stem}.idx{ndim}-ubyte"):
            for candidate in (place / name, place / f"{name}.gz"):
                if candidate.is_file():
                    return candidate
    raise DataError(
        f"{folder}: expected the four official files train-* and t10k-*, raw or .gz, got no "
        f"{stem}-idx{ndim}-ubyte; put it there"
    )


def read(folder: Path, part: str, classes: int) -> LabelledImages:
    """Return images (N, 1, H, W) and labels of one part.

    Raises:
        DataError: a file that is missing, damaged or of the wrong dimension, or two files of
            different numbers of samples.
    """
    files = {kind: find(folder, part, kind) for kind in ("images", "labels")}
    images = read_idx(files["images"])
    labels = read_idx(files["labels"])
    for kind, array, ndim in (("images", images, 3), ("labels", labels, 1)):
        if array.ndim != ndim:
            raise DataError(
                f"{files[kind]}: expected {kind} of {ndim} dimensions, got {array.ndim}; it is "
                "another file"
            )
    check_pairs(images, labels, classes, files["labels"])
    return images[:, None], labels


def create(request: Request) -> LabelledDataset:
    """Return the data set of a request; only the files of its part are read."""
    prefix = PREFIX[request.official_split]
    folder = source_folder(request, lambda file: file.name.startswith(prefix))
    return create_arrays(request, lambda part: read(folder, part, len(request.entry.classes)))
