"""Darcy flow: map the coefficient of a medium to the pressure in it.

Training is on a 16 × 16 grid, and tests may be on finer ones.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from fredholm.errors import DataError, OptionError
from fredholm.lab.data.clients import PIP
from fredholm.lab.data.create import source_folder
from fredholm.lab.data.kinds.fields import FIELDS, FieldDataset
from fredholm.lab.data.registry import Entry, Request, register_dataset
from fredholm.lab.data.sources import Package, PinnedFile

from .checks import check_integers
from .darcy_equation import random_coefficients, solve_darcy

FINE = 32
"""Side of the grid on which generated media are solved. Coarser fields are averages."""


@dataclass(frozen=True)
class DarcyOptions:
    """Options of the fetched fields.

    Attributes:
        resolution: of the test fields, 16 or 32. Training and validation are always at 16.

    Raises:
        OptionError: another resolution.
    """

    resolution: int = 16

    def __post_init__(self) -> None:
        if self.resolution not in (16, 32):
            raise OptionError(f"resolution: expected 16 or 32, got {self.resolution!r}")


@dataclass(frozen=True)
class GeneratedOptions:
    """Options of the generated fields.

    Attributes:
        resolution: of the test fields: 8, 16 or 32.
        training: resolution of the other fields.
        train, val, test: numbers of samples.
        seed: of the media.

    Raises:
        OptionError: another resolution, or a count below 1.
    """

    resolution: int = 16
    training: int = 16
    train: int = 1000
    val: int = 100
    test: int = 200
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("resolution", "training"):
            value = getattr(self, name)
            if value not in (8, 16, 32):
                raise OptionError(f"{name}: expected 8, 16 or 32, got {value!r}")
        check_integers(self, 1, "train", "val", "test")


def _read(path: Path) -> tuple[Tensor, Tensor]:
    """Read media and pressures of a file, (N, 1, n, n) each."""
    try:
        result = torch.load(path, weights_only=True)
        a, u = result["x"].float(), result["y"].float()
    except FileNotFoundError as error:
        raise DataError(
            f"{path}: expected a file, got none; fetch darcy, or put the original file there"
        ) from error
    # Unpickling a damaged file may raise any exception.
    except Exception as error:
        raise DataError(
            f"{path}: expected tensors x and y, got others ({error}); it is truncated or of "
            f"another format"
        ) from error
    if a.dim() != 3 or a.shape != u.shape:
        raise DataError(
            f"{path}: expected two fields (N, n, n), got {tuple(a.shape)} and {tuple(u.shape)}; "
            f"fetch darcy again"
        )
    return a[:, None], u[:, None]


def _dataset(
    request: Request, train: tuple[Tensor, Tensor], chosen: tuple[Tensor, Tensor]
) -> FieldDataset:
    """Return a data set whose scales are those of the training fields."""
    a, u = train
    scales = {
        "input_shift": (float(a.mean()),),
        "input_scale": (float(a.std()),),
        "scale": (float(u.std()),),
    }
    return FieldDataset(request.entry.name, request.split, *chosen, ("pressure",), **scales)


def create(request: Request) -> FieldDataset:
    """Return the fetched fields; the validation set is the end of the training file."""
    folder = source_folder(request, lambda file: True)
    a, u = _read(folder / "darcy_train_16.pt")
    fraction = float(request.share)
    cut = len(a) - round(fraction * len(a))
    train = a[:cut], u[:cut]
    if request.split == "train":
        chosen = train
    elif request.split == "val":
        chosen = a[cut:], u[cut:]
    else:
        chosen = _read(folder / f"darcy_test_{request.options.resolution}.pt")
    return _dataset(request, train, chosen)


@cache
def _solved(count: int, seed: int, part: int) -> tuple[np.ndarray, np.ndarray]:
    """Return media and their pressures on the fine grid."""
    media = random_coefficients(FINE, count, seed, part)
    return media, np.stack([solve_darcy(a) for a in media])


def generate(resolution: int, count: int, seed: int, part: int) -> tuple[Tensor, Tensor]:
    """Return media and pressures, (count, 1, n, n) each.

    They are solved at 32 × 32 and averaged over blocks, so a medium is the same at all resolutions.
    """
    block = FINE // resolution

    def averaged(field: np.ndarray) -> Tensor:
        cells = field.reshape(count, resolution, block, resolution, block).mean((2, 4))
        return torch.from_numpy(cells).float()[:, None]

    media, pressures = _solved(count, seed, part)
    return averaged(media), averaged(pressures)


def create_generated(request: Request) -> FieldDataset:
    """Return the generated fields of a request."""
    options, split = request.options, request.split
    train = generate(options.training, options.train, options.seed, 0)
    part = ("train", "val", "test").index(split)
    size = options.resolution if split == "test" else options.training
    chosen = generate(size, getattr(options, split), options.seed, part)
    return _dataset(request, train, chosen)


_FILES = (
    (
        "darcy_train_16.pt",
        1280999,
        "0be662acdb1dab7dfd1a1da0b140e97f75cc94f98a14edcf768abe6968b3b418",
    ),
    ("darcy_test_16.pt", 64999, "d2b19af9d4a6ae04ba2de54b8ecccc8b89766472faf6ce7f506c0b2a60f69a4c"),
    (
        "darcy_test_32.pt",
        256999,
        "bcbd10622373e94df84a17fcdb72ac4317d76e024c2499d21fd1fd34d0742cfd",
    ),
)
ENTRY = Entry(
    name="darcy",
    title="Darcy flow at 16 x 16, with a test set at 32 x 32 (Li et al., 2021)",
    licence_package="MIT",
    licence_data="MIT (neuraloperator developers)",
    samples={"train": 1000, "test": 50},
    classes=("pressure",),
    read=create,
    sources=(
        Package(
            client=PIP,
            name="neuraloperator",
            version="0.3.0",
            archive_bytes=3955522,
            archive_sha256="483b358f2d9823c2ccb5dd0c1af8d21f879fd103806ad42959ebb975260e6ec4",
            files=tuple(
                PinnedFile(name, f"neuralop/datasets/data/{name}", size, digest)
                for name, size, digest in _FILES
            ),
        ),
    ),
    official="darcy_train_16.pt, darcy_test_16.pt and darcy_test_32.pt of neuraloperator 0.3.0",
    notes="options: resolution of the test fields (16, or 32 for super-resolution)",
    kind=FIELDS,
    options=DarcyOptions,
)
register_dataset(ENTRY)
GENERATED = Entry(
    name="darcy-generated",
    title="Darcy flow in random media of two values, solved by finite volumes at 32 x 32",
    source="generated",
    licence_package="none needed",
    licence_data="none needed",
    samples={"train": 1000, "val": 100, "test": 200},
    classes=("pressure",),
    read=create_generated,
    notes="options: resolution of the test fields (8, 16, 32), training resolution, train, val, "
    "test, seed",
    kind=FIELDS,
    options=GeneratedOptions,
)
register_dataset(GENERATED)
