"""Names and units of a user's files, by what a saved model knows of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from ...numbers import readable

if TYPE_CHECKING:
    # A file is described without torch, which the kinds of data import.
    from ..kinds.kind import Signal


@dataclass(frozen=True)
class Column:
    """A column of a table.

    Attributes:
        name: as the file has it.
        channels: which of the model's inputs it fills.
        words: of a column of words, one per channel.
    """

    name: str
    channels: tuple[int, ...]
    words: tuple[str, ...] = ()


@dataclass(frozen=True)
class Terms:
    """Names and units of a user's files; empty where samples were not read from files.

    Attributes:
        label: name of what is asked for.
        columns: of a table.
        channels: names of the values that a model reads.
        mean, std: of each channel, by which the values were scaled.
        clock: name and unit of the time of series.
        step: units of the clock between two steps of the model's time.
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
        reading, scaling = source["reading"], source.get("scaling") or {}
        channels = tuple(source.get("channels") or ())
        columns: tuple[Column, ...] = ()
        if reading["kind"] == "rows":
            columns = tuple(columns_of(reading.get("channels") or (), source.get("words") or {}))

        # Channels that were scaled by each sample's own mean and deviation have no common units.
        moments = {} if reading.get("scale") in ("none", "sample") else scaling
        clock = ""
        if reading["kind"] == "series" and scaling.get("clocked"):
            clock = reading.get("time") or "time"
            clock += " since the first point" + (" (s)" if source.get("dated") else "")
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
        return values * np.array(self.std) + np.array(self.mean)

    def cells(self, row: np.ndarray) -> list[str]:
        """Return a row of a table (channels,), as a model reads it, as the file had it; a cell
        that was empty is "".

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
            values = np.where(np.abs(values) < 1e-6 * np.array(self.std), 0.0, values)
        return [_cell(values[list(column.channels)], column.words) for column in self.columns]

    def signal(self, found: Signal) -> Signal:
        """Return a series with its channels' names, units and clock."""
        names = self.channels or tuple(f"channel {i + 1}" for i in range(found.values.shape[1]))
        clock = self.clock or "step"
        values = self.unscaled(found.values)
        return replace(found, x=found.x * self.step, values=values, names=names, clock=clock)


def columns_of(names: Sequence[str], words: Mapping[str, Sequence[str]]) -> Iterator[Column]:
    """Yield the columns of a table; one of words fills a channel for each of them."""
    place = 0
    for name in names:
        found = tuple(words.get(name, ()))
        count = len(found) if name in words else 1
        yield Column(name, tuple(range(place, place + count)), found)
        place += count


def _cell(values: np.ndarray, words: Sequence[str]) -> str:
    if np.isnan(values).any():
        return ""
    if not words:
        return readable(float(values[0]), 5)
    best = int(values.argmax())
    return words[best] if values[best] > 0.5 else "another word"
