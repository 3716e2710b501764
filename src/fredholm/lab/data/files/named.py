"""Arrays of a file by their names: what each is usually called, and which one is meant."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ....errors import DataError
from .collection import Collection
from .reading import Reading

# Usual names of each array, in lower case, the more certain ones first. Some names have two roles,
# such as `y`: the kind of the samples decides.
INPUTS = ("x", "inputs", "input", "data", "values", "series", "a")
CLOUDS = ("points", "clouds", "cloud", "pos", "xyz", "vertices")
PLACES = ("coordinates", "coords", "positions", "grid", "locations")
ANSWERS = ("outputs", "output", "answers", "targets", "solution", "u", "y")
LABELS = ("y", "labels", "label", "target", "targets", "classes")
TIMES = ("times", "time", "t", "timestamps")
LENGTHS = ("lengths", "length", "sizes")
GROUPS = ("groups", "group")


@dataclass(frozen=True)
class ArrayFile:
    """Arrays of one file.

    Attributes:
        arrays: by name.
        reading: how they are read, with the kind of the samples.
        labelled: whether labels are read.
    """

    path: Path
    arrays: dict[str, np.ndarray]
    reading: Reading
    labelled: bool

    def __getitem__(self, name: str) -> np.ndarray:
        return self.arrays[name]

    def find(self, names: Sequence[str]) -> str | None:
        """Return the array that has the first of some usual names, in upper or lower case."""
        lower = {key.lower(): key for key in self.arrays}
        for name in names:
            if name in lower:
                return lower[name]
        return None

    def needed(
        self,
        names: Sequence[str],
        said: str | None,
        what: str,
    ) -> str:
        """Return the name of the array that the user names, or that has one of the usual names.

        Raises:
            DataError: there is none, or it is empty, or holds complex numbers.
        """
        found = said
        if said is None:
            found = self.find(names)
        if found is None or found not in self.arrays:
            have = ", ".join(f"{key} {value.shape}" for key, value in self.arrays.items())
            fix = "name one, or rename it"
            # Keras and others save X_train, y_train, X_test and y_test in one file.
            if any(key.lower().endswith(("_train", "_test")) for key in self.arrays):
                fix = "give each part a file of its own: train.npz, test.npz"
            raise DataError(
                f"{self.path}: expected an array of {what} ({said or ', '.join(names)}), got "
                f"{have}; {fix}"
            )

        values = self[found]
        if not values.ndim or not len(values):
            raise self.error(found, "samples", "leave it out, or fill it")
        if np.iscomplexobj(values):
            raise self.error(
                found,
                "real numbers",
                "give real and imaginary parts as two channels, or moduli",
            )
        return found

    def error(
        self,
        key: str,
        expected: str,
        fix: str,
    ) -> DataError:
        """Return the error of an array of another shape or type."""
        values = self[key]
        return DataError(
            f"{self.path}: {key!r}: expected {expected}, got shape {values.shape} of "
            f"{values.dtype}; {fix}"
        )

    def floats(self, key: str) -> np.ndarray:
        """Return an array as float32, or float64 if its type has more digits.

        Large numbers are scaled before they are rounded to float32.

        Raises:
            DataError: the array does not hold numbers.
        """
        values = self[key]
        if values.dtype.kind not in "biuf":
            fix = "if it is a label, name the kind of the samples: series, clouds or fields"
            raise self.error(key, "numbers", fix)
        return values.astype(np.result_type(values.dtype, np.float32))

    def groups(self, count: int) -> np.ndarray | None:
        """Return the group of each of ``count`` samples; None unless the user names the array.

        Raises:
            DataError: an array of another shape, or a sample without a group.
        """
        # New samples are not split.
        if self.reading.group is None or not self.labelled:
            return None
        name = self.needed(GROUPS, self.reading.group, "groups")
        values = self[name]
        if values.shape != (count,):
            raise self.error(name, f"({count},)", "give one group per sample")
        for number, value in enumerate(values.tolist()):
            # NaN is the only value that differs from itself.
            if value in ("", b"") or value != value:
                raise DataError(
                    f"{self.path}: {name!r} of sample {number} is missing; give it a group, or "
                    "leave the sample out"
                )
        return values

    def order(self, count: int) -> np.ndarray | None:
        """Return when each of ``count`` samples was taken; None unless a split goes by time.

        Raises:
            DataError: no such array, or one of another shape or type.
        """
        if self.reading.split != "time" or not self.labelled:
            return None
        name = self.needed(TIMES, self.reading.time, "times, by which the split goes")
        values = self[name]
        if values.shape != (count,) or not np.issubdtype(values.dtype, np.number):
            raise self.error(name, f"numbers ({count},)", "a split by time needs one per sample")
        return values.astype(np.float64)

    def collection(
        self,
        reading: Reading,
        samples: Any,
        labels: Any,
        taken: dict[str, str],
    ) -> Collection:
        """Return samples with the groups and the order of this file."""
        # Samples in arrays have no rows of a spreadsheet: they are counted from 0, as in NumPy.
        place = {"file": str(self.path)}
        return Collection(
            reading,
            samples,
            lambda i: place | {"sample": i},
            labels,
            taken=taken,
            groups=self.groups(len(samples)),
        )


def rule_of(reading: Reading) -> str:
    """Return the rule of the split: by groups, where the user names them."""
    if reading.group and not reading.split:
        return "group"
    return reading.split or "random"


def first_channel(reading: Reading) -> str | None:
    """Return the array of inputs that the user names."""
    if not reading.channels:
        return None
    return reading.channels[0]
