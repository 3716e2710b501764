"""ModelNet40 and ScanObjectNN, read from their official files in a user's folder."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from fredholm.errors import DataError, OptionError
from fredholm.lab.data.counter import permutation
from fredholm.lab.data.formats import read_bytes
from fredholm.lab.data.hdf5 import read_hdf5
from fredholm.lab.data.kinds.points import POINTS, PointDataset
from fredholm.lab.data.meshes import parse_off, sample_surface, unit_ball
from fredholm.lab.data.registry import Entry, Request, register_dataset
from fredholm.lab.data.splits import stratified

STORED = 2048
SCAN_CLASSES = (
    "bag", "bin", "box", "cabinet", "chair", "desk", "display", "door", "shelf", "table", "bed",
    "pillow", "sink", "sofa", "toilet"
)  # fmt: skip


@dataclass(frozen=True)
class CloudOptions:
    """Options of the data sets.

    Attributes:
        points: number of points that a model reads of a cloud, at most 2,048.
        variant: of ScanObjectNN's files, such as ``objectdataset_augmentedrot_scale75``
            (PB_T50_RS).

    Raises:
        OptionError: an impossible number of points.
    """

    points: int = 1024
    variant: str = "objectdataset"

    def __post_init__(self) -> None:
        if not isinstance(self.points, int) or not 1 <= self.points <= STORED:
            raise OptionError(f"points: expected 1 to {STORED}, got {self.points!r}")


def read_h5(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """Read clouds (N, P, 3) and labels (N,) of an HDF5 file with ``data`` and ``label``.

    Raises:
        MissingExtraError: h5py is not installed.
        DataError: the file is missing or damaged, or has other arrays.
    """
    arrays = read_hdf5(path)
    if "data" not in arrays or "label" not in arrays:
        raise DataError(
            f"{path}: expected the arrays data and label, got {sorted(arrays)}; it is another file"
        )
    clouds = np.asarray(arrays["data"], np.float32)
    labels = arrays["label"].reshape(-1)
    if clouds.ndim != 3 or clouds.shape[2] < 3 or len(clouds) != len(labels):
        raise DataError(
            f"{path}: expected data (N, P, 3) and labels (N,), got {clouds.shape} and "
            f"{labels.shape}; it is another file"
        )
    return clouds[..., :3], labels.astype(np.int64)


def read_modelnet(folder: Path, part: str) -> tuple[np.ndarray, np.ndarray, tuple[str, ...]]:
    """Read ModelNet40's ``train`` or ``test``.

    The folder has either the HDF5 files (``shape_names.txt``, ``train_files.txt`` and the files
    that it lists) or the meshes (``CLASS/train/*.off``), whose surfaces are sampled.

    Returns:
        Clouds (N, 2048, 3) in the unit ball, labels (N,), and class names.

    Raises:
        DataError: the folder has neither, or a file is damaged.
    """
    if (folder / "shape_names.txt").is_file():
        classes = tuple(read_bytes(folder / "shape_names.txt").decode().split())
        listed = read_bytes(folder / f"{part}_files.txt").decode().split()
        pairs = [read_h5(folder / Path(name).name) for name in listed]
        if not pairs:
            raise DataError(
                f"{folder}: expected names of files in {part}_files.txt, got none; it is truncated"
            )
        clouds, labels = (np.concatenate(x) for x in zip(*pairs))
        return np.stack([unit_ball(cloud) for cloud in clouds]), labels, classes
    classes = tuple(sorted(p.name for p in folder.iterdir() if (p / "train").is_dir()))
    files = [file for name in classes for file in sorted((folder / name / part).glob("*.off"))]
    if len(classes) < 2 or not files:
        raise DataError(
            f"{folder}: expected shape_names.txt with HDF5 files, or CLASS/{part}/*.off, got "
            f"neither; give the folder of the official files"
        )
    rows = []
    for file in files:
        key = int.from_bytes(hashlib.sha256(file.name.encode()).digest()[:7], "big")
        try:
            vertices, triangles = parse_off(read_bytes(file), file)
            cloud = sample_surface(vertices, triangles, STORED, key)
        except DataError as error:
            raise DataError(f"{file}: {error}") from error
        rows.append(cloud.astype(np.float32))
    labels = np.array([classes.index(file.parts[-3]) for file in files])
    return np.stack(rows), labels, classes


def _dataset(
    request: Request, clouds: np.ndarray, labels: np.ndarray, classes: Sequence[str]
) -> PointDataset:
    """Return the split of a request, with all clouds' points in the same random order."""
    if len(labels) and not 0 <= labels.min() <= labels.max() < len(classes):
        raise DataError(
            f"{request.folder}: expected labels from 0 to {len(classes) - 1}, got {labels.min()} "
            f"to {labels.max()}; they are files of another set"
        )
    result = torch.from_numpy(clouds.astype(np.float32))
    numbers = torch.from_numpy(labels.astype(np.int64))
    chosen = torch.arange(len(result))
    if request.split != "test":
        fraction = request.share
        rest, val = stratified(numbers, fraction)
        chosen = val if request.split == "val" else rest
    order: Tensor = permutation(result.shape[1], 5)
    points = min(request.options.points, result.shape[1])
    shuffled = result[chosen][:, order]
    return PointDataset(
        request.entry.name, request.split, shuffled, numbers[chosen], classes, points
    )


def create_modelnet(request: Request) -> PointDataset:
    """Return ModelNet40 with the official test set; validation is a part of the training set."""
    part = "test" if request.split == "test" else "train"
    return _dataset(request, *read_modelnet(request.folder, part))


def create_scan(request: Request) -> PointDataset:
    """Return ScanObjectNN from ``training_VARIANT.h5`` and ``test_VARIANT.h5``."""
    part = "test" if request.split == "test" else "training"
    clouds, labels = read_h5(request.folder / f"{part}_{request.options.variant}.h5")
    return _dataset(request, np.stack([unit_ball(cloud) for cloud in clouds]), labels, SCAN_CLASSES)


def _entry(name: str, title: str, create, official: str, classes: tuple[str, ...]) -> Entry:
    return Entry(
        name=name,
        title=title,
        source="your folder with the official files",
        needs={"path": "the folder of the official files"},
        licence_package="none",
        licence_data="the data sets' own terms (research)",
        classes=classes,
        read=create,
        official=official,
        notes="needs path=; options: points (1024), variant (of ScanObjectNN)",
        kind=POINTS,
        options=CloudOptions,
    )


MODELNET40 = _entry(
    "modelnet40",
    "ModelNet40: CAD models of 40 kinds as point clouds (Wu et al., 2015)",
    create_modelnet,
    "modelnet40_ply_hdf5_2048 (shape_names.txt, train_files.txt, *.h5) or ModelNet40's "
    "CLASS/{train,test}/*.off",
    (),
)
register_dataset(MODELNET40)
SCANOBJECTNN = _entry(
    "scanobjectnn",
    "ScanObjectNN: scanned objects of 15 kinds (Uy et al., 2019)",
    create_scan,
    "training_objectdataset.h5 and test_objectdataset.h5 (or another variant) of "
    "h5_files/main_split",
    SCAN_CLASSES,
)
register_dataset(SCANOBJECTNN)
