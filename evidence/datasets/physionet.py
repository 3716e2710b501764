"""PhysioNet 2019: does a patient in intensive care develop sepsis? Read from the challenge's files,
which have hourly values, most of them missing.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from fredholm.errors import DataError
from fredholm.lab.data.files.reading import series_source
from fredholm.lab.data.formats import read_bytes
from fredholm.lab.data.kinds.sequences import SEQUENCES, SequenceDataset, padded
from fredholm.lab.data.registry import Entry, Request, register_dataset
from fredholm.lab.data.splits import stratified

from .checks import check_integers

LABEL, HOUR = "SepsisLabel", "ICULOS"
CLASSES = ("no sepsis", "sepsis")
TEST = 0.15
"""Share of the stays in our test set. The challenge's test set was never published."""


@dataclass(frozen=True)
class PhysioNetOptions:
    """Options of the data set.

    Attributes:
        hours: number of hours from the beginning of a stay that are read. The label concerns the
            complete stay.

    Raises:
        OptionError: fewer than one hour.
    """

    hours: int = 72

    def __post_init__(self) -> None:
        check_integers(self, 1, "hours")


class Stay(NamedTuple):
    """A patient's stay.

    Attributes:
        values: (hours, features), NaN where nothing was measured.
        sepsis: whether sepsis was noted in any hour.
        names: of the features.
    """

    values: Float[Tensor, "hours features"]
    sepsis: bool
    names: tuple[str, ...]


def read_psv(path: Path) -> Stay:
    """Read one stay.

    A file has a header of names and one line per hour, separated by ``|``. The hour since
    admission, :data:`HOUR`, is a feature like the others; the last column is :data:`LABEL`.

    Raises:
        DataError: the file is missing, has no label, lines of another width, or other values than
            numbers.
    """
    lines = read_bytes(path).decode("utf-8", "replace").split("\n")
    *names, last = lines[0].strip().split("|")
    if not names or last != LABEL:
        raise DataError(
            f"{path}: expected a header of features and then {LABEL}, separated by |, got one that "
            f"ends in {last[:40]!r}; it is another file"
        )
    rows = []
    for number, line in enumerate(lines[1:], 2):
        if not line.strip():
            continue
        cells = line.strip().split("|")
        if len(cells) != len(names) + 1:
            raise DataError(
                f"{path}, line {number}: expected {len(names) + 1} values, got {len(cells)}; the "
                f"file may be damaged"
            )
        # float() reads NaN, which stands for a missing value.
        try:
            rows.append([float(cell) for cell in cells])
        except ValueError as error:
            raise DataError(
                f"{path}, line {number}: expected numbers or NaN separated by |, got others "
                f"({error}); the file may be damaged"
            ) from error
    if not rows:
        raise DataError(f"{path}: expected hourly values, got none; the file may be truncated")
    values = torch.tensor(rows)
    sepsis = bool((values[:, -1] == 1).any())
    return Stay(values[:, :-1], sepsis, tuple(names))


def create(request: Request) -> SequenceDataset:
    """Return the data set of a request.

    Features are standardised by the measured values of the training stays.
    """
    files = sorted(request.folder.rglob("p*.psv"))
    if not files:
        raise DataError(
            f"{request.folder}: expected files p*.psv, got none; unpack the challenge's training "
            "sets there"
        )
    stays, labels = [], []
    names: tuple[str, ...] | None = None
    for file in files:
        stay = read_psv(file)
        if names not in (None, stay.names):
            raise DataError(
                f"{file}: expected the columns of {files[0].name}, got others; give files of one "
                f"challenge"
            )
        names = stay.names
        stays.append(stay.values[: request.options.hours])
        labels.append(int(stay.sepsis))

    numbers = torch.tensor(labels)
    rest, test = stratified(numbers, TEST)
    fraction = request.share
    train, val = stratified(numbers[rest], fraction)
    parts = {"train": rest[train], "val": rest[val], "test": test}
    if not len(parts["train"]):
        raise DataError(
            f"{request.folder}: expected more stays than the {len(files)}, which leave none to "
            f"train on; add files"
        )
    pooled = torch.cat([stays[i] for i in parts["train"].tolist()])
    mean = pooled.nanmean(0).nan_to_num()
    std = (pooled - mean).square().nanmean(0).sqrt().nan_to_num(1.0).clamp(min=1e-6)
    chosen = parts[request.split]
    rows = [(stays[i] - mean) / std for i in chosen.tolist()]
    result = SequenceDataset(
        request.entry.name,
        request.split,
        numbers[chosen],
        CLASSES,
        lambda indices: padded([rows[i] for i in indices.tolist()]),
        shape=(request.options.hours, len(names or ())),
    )
    result.source = series_source(mean.tolist(), std.tolist())
    return result


ENTRY = Entry(
    name="physionet-2019",
    title="PhysioNet 2019: sepsis from the first hours in intensive care, most values missing "
    "(Reyna et al., 2019)",
    source="your folder: the p*.psv files of the challenge's training sets A and B",
    needs={"path": "the folder of p*.psv files of the challenge"},
    licence_package="yours",
    licence_data="CC BY 4.0 (PhysioNet)",
    classes=CLASSES,
    read=create,
    official="p*.psv of training_setA and training_setB",
    val_fraction=0.15 / 0.85,
    notes="path: the folder; options: hours (72); 70/15/15% of the stays, by class. Accuracy says "
    "little here: 7% develop sepsis",
    kind=SEQUENCES,
    options=PhysioNetOptions,
)
register_dataset(ENTRY)
