"""PhysioNet 2019: does a patient in intensive care develop sepsis? Hourly values, most of them
missing, from the challenge's own files.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from jaxtyping import Float
from torch import Tensor

from fredholm.errors import DataError, OptionError
from fredholm.lab.data.files.reading import series_source
from fredholm.lab.data.formats import read_bytes
from fredholm.lab.data.kinds.sequences import SEQUENCES, SequenceDataset, padded
from fredholm.lab.data.registry import Entry, Request, register_dataset
from fredholm.lab.data.splits import stratified

LABEL, HOUR = "SepsisLabel", "ICULOS"
CLASSES = ("no sepsis", "sepsis")
TEST = 0.15  # the challenge's own test set was never published


@dataclass(frozen=True)
class PhysioNetOptions:
    """``hours``: how much of the beginning of a stay is read; what is asked concerns the whole
    stay.

    Raises:
        OptionError: fewer than one hour.
    """

    hours: int = 72

    def __post_init__(self) -> None:
        if not isinstance(self.hours, int) or isinstance(self.hours, bool) or self.hours < 1:
            raise OptionError(f"hours: received {self.hours!r}; needs an integer of 1 or more")


def read_psv(path: Path) -> tuple[Float[Tensor, "hours features"], bool, tuple[str, ...]]:
    """One stay: its values (NaN where nothing was measured), whether sepsis was noted at any hour,
    and the features' names.

    A file is a header of names and one line an hour, divided by ``|``. The hour since admission,
    :data:`HOUR`, is a feature like the others; the last column is :data:`LABEL`.

    Raises:
        DataError: a missing file, no label, lines of another width, or values that are no numbers.
    """
    lines = read_bytes(path).decode("utf-8", "replace").split("\n")
    *names, last = lines[0].strip().split("|")
    if not names or last != LABEL:
        raise DataError(
            f"{path}: its header ends in {last[:40]!r}; needs features divided by | and then "
            f"{LABEL}"
        )
    rows = []
    for number, line in enumerate(lines[1:], 2):
        if not line.strip():
            continue
        cells = line.strip().split("|")
        if len(cells) != len(names) + 1:
            raise DataError(
                f"{path}: line {number} has {len(cells)} values; its header names {len(names) + 1}"
            )
        try:
            rows.append([float(cell) for cell in cells])  # float() reads NaN
        except ValueError as error:
            raise DataError(
                f"{path}: line {number}: {error}; needs numbers or NaN divided by |"
            ) from error
    if not rows:
        raise DataError(f"{path}: holds no hours; it is truncated")
    values = torch.tensor(rows)
    return values[:, :-1], bool((values[:, -1] == 1).any()), tuple(names)


def create(request: Request) -> SequenceDataset:
    """The data set of a request: features scaled by the mean and standard deviation of what was
    measured in the training stays.
    """
    files = sorted(request.folder.rglob("p*.psv"))
    if not files:
        raise DataError(
            f"{request.folder}: holds no p*.psv; unpack the challenge's training sets there"
        )
    stays, labels, names = [], [], None
    for file in files:
        values, sepsis, columns = read_psv(file)
        if names not in (None, columns):
            raise DataError(
                f"{file}: has other columns than {files[0].name}; needs files of one challenge"
            )
        names = columns
        stays.append(values[: request.options.hours])
        labels.append(int(sepsis))
    numbers = torch.tensor(labels)
    rest, test = stratified(numbers, TEST)
    fraction = request.share
    kept, val = stratified(numbers[rest], fraction)
    parts = {"train": rest[kept], "val": rest[val], "test": test}
    if not len(parts["train"]):
        raise DataError(
            f"{request.folder}: {len(files)} stays leave none to train on; needs more of them"
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
