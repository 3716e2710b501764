"""Names and units of a user's files, as a saved model knows them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from ...numbers import readable
from .collection import numbered

if TYPE_CHECKING:
    # A file is described without torch, which the kinds of data import.
    from ..kinds.kind import Signal


@dataclass(frozen=True)
class Column:
    """A column of a table.

    Attributes:
        name: name in the file.
        channels: numbers of the model's inputs that it fills.
        words: the word of each channel, if it is a column of words.
    """

    name: str
    channels: tuple[int, ...]
    words: tuple[str, ...] = ()


@dataclass(frozen=True)
class Terms:
    """Names and units of a user's files; empty if samples were not read from files.

    Attributes:
        label: name of the label.
        columns: columns of a table of rows.
        channels: names of the values that a model reads.
        mean, std: moments of each channel, by which the values were scaled.
        clock: name and unit of the time of series.
        step: units of the clock per step of the model's time.
    """

    label: str = ""
    columns: tuple[Column, ...] = ()
    channels: tuple[str, ...] = ()
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()
    clock: str = ""
    step: float = 1.0

    @classmethod
    def of(cls, facts: Mapping[str, Any]) -> Terms:
        """Return the names in what :meth:`fredholm.data.LabelledDataset.describe` has saved."""
        source = facts.get("source")
        if not source:
            return cls()
        reading = source["reading"]
        scaling = source.get("scaling") or {}
        channels = tuple(source.get("channels") or ())
        columns: tuple[Column, ...] = ()
        if reading["kind"] == "rows":
            names = reading.get("channels") or ()
            words = source.get("words") or {}
            columns = tuple(columns_of(names, words))

        # Channels that were scaled by each sample's own mean and deviation have no common units.
        moments: Mapping[str, Any] = scaling
        if reading.get("scale") in ("none", "sample"):
            moments = {}
        clock = ""
        if reading["kind"] == "series" and scaling.get("clocked"):
            clock = f"{reading.get('time') or 'time'} since the first point"
            if source.get("dated"):
                clock += " (s)"
        return cls(
            label=reading.get("label") or "",
            columns=columns,
            channels=channels,
            mean=tuple(moments.get("mean", ())),
            std=tuple(moments.get("std", ())),
            clock=clock,
            step=float(scaling.get("step", 1.0)),
        )

    def unscaled(self, values: np.ndarray) -> np.ndarray:
        """Return values (…, channels) in the units of the files."""
        if len(self.mean) != values.shape[-1]:
            return values
        std = np.array(self.std)
        mean = np.array(self.mean)
        return values * std + mean

    def cells(self, row: np.ndarray) -> list[str]:
        """Return the cells of the file for a row (channels,) as a model reads it; a cell that was
        empty is "".

        Example:
            >>> columns = Column("area", (0,)), Column("heating", (1, 2), ("gas", "oil"))
            >>> terms = Terms(columns=columns, mean=(10.0, 0.5, 0.5), std=(2.0, 0.5, 0.5))
            >>> terms.cells(np.array([1.5, -1.0, 1.0]))
            ['13', 'oil']
            >>> terms.cells(np.array([-4.9999999, -1.0, 1.0]))[0]
            '0'
        """
        values = self.unscaled(row)
        if len(self.std) == len(row):
            # Single precision leaves 5e-9 of a zero.
            zero = np.abs(values) < 1e-6 * np.array(self.std)
            values = np.where(zero, 0.0, values)

        cells = []
        for column in self.columns:
            inputs = values[list(column.channels)]
            cells.append(_cell(inputs, column.words))
        return cells

    def signal(self, found: Signal) -> Signal:
        """Return a series with its channels' names, units and clock."""
        return replace(
            found,
            x=found.x * self.step,
            values=self.unscaled(found.values),
            names=self.channels or numbered("channel", found.values.shape[1]),
            clock=self.clock or "step",
        )


def columns_of(names: Sequence[str], words: Mapping[str, Sequence[str]]) -> Iterator[Column]:
    """Yield the columns of a table; a column of words fills one channel per word."""
    place = 0
    for name in names:
        found = tuple(words.get(name, ()))
        count = 1
        if name in words:
            count = len(found)
        end = place + count
        yield Column(name, tuple(range(place, end)), found)
        place = end


def _cell(values: np.ndarray, words: Sequence[str]) -> str:
    if np.isnan(values).any():
        return ""
    if not words:
        return readable(float(values[0]), 5)
    # A word that the training did not have is 0 in all of its columns.
    best = int(values.argmax())
    if values[best] <= 0.5:
        return "another word"
    return words[best]
