"""Roles of the columns of a table, and how each is cast."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ....errors import CheckpointError, DataError, suggest
from .channels import first_of
from .guesses import IDS, called
from .head import Head
from .reading import Reading

CLOCKS = {None: "time", False: "clock", True: "date"}  # roles, by whether times are dates


@dataclass(frozen=True)
class Columns:
    """Columns of one table: the role of each, and how its cells are cast.

    Attributes:
        reading: the column of each role (label, time, id, ...), with nothing left to guess.
        long: of series, one row per time; else one row per series.
        roles: of the columns that are read, see :func:`.table.read_table`.
        remarks: columns that are left out, and why.
        words: of the columns of words of rows, where a run knows them.
    """

    reading: Reading
    long: bool
    roles: dict[str, str]
    remarks: list[str]
    words: Mapping[str, Sequence[str]] | None = None

    @property
    def layout(self) -> str | None:
        """Layout of the series in a table: ``long`` (one row per time), ``lists`` (one row per
        series, each cell a list of numbers), or ``wide`` (one row per series, one column per
        time).

        None where the cells hold no series: another kind of samples, or a ``text`` column with
        paths of files that hold them.
        """
        if self.reading.kind != "series" or self.reading.text is not None:
            return None
        if self.long:
            return "long"
        return "lists" if "list" in self.roles.values() else "wide"

    @property
    def taken(self) -> dict[str, str]:
        """The column of each role, in words."""
        reading, layout, taken = self.reading, self.layout, {}
        if layout is not None:
            taken["layout"] = "one row per time" if self.long else "one row per series"
        for key in ("id", "time", "text", "label", "group"):
            if getattr(reading, key) is not None:
                word = "paths" if key == "text" and reading.kind != "texts" else key
                taken[word] = f"column {getattr(reading, key)!r}"
        names = reading.channels or ()
        if names and layout == "wide":
            taken["times"] = f"{len(names)} columns, {names[0]!r} first"
        elif names:
            taken["columns" if layout is None else "channels"] = first_of(names)
        return taken

    def settled(self, *remarks: str, **found: Any) -> Columns:
        """Return the same with what the whole table tells."""
        reading = self.reading.settled(**found)
        return replace(self, reading=reading, remarks=[*self.remarks, *remarks])


@dataclass(frozen=True)
class Trained:
    """Casts of a run's columns: new tables are read in the same way, whatever their cells look
    like.

    Attributes:
        long: of series, one row per time.
        words: of rows, the known words of each column of words; any other column holds numbers.
        dated: of series, whether times are dates, not numbers; None where a run does not say.
        lists: of series, a list of numbers in each cell.
    """

    long: bool
    words: Mapping[str, Sequence[str]]
    dated: bool | None = None
    lists: bool = False

    @classmethod
    def of(cls, source: Mapping[str, Any], reading: Reading) -> Trained | None:
        """Return the casts of a run's columns; None if the run was not trained on a table.

        Args:
            source: facts that the run saved, see :meth:`.source.Source.facts`.
            reading: that of the run.

        Raises:
            CheckpointError: a run of rows that does not say which columns hold words.
        """
        # A table of texts or of paths has no columns of numbers or words to cast.
        if reading.text is not None and source:
            return cls(long=False, words={})
        if reading.kind not in ("rows", "series") or not reading.channels:
            return None
        if not source.get("channels"):
            return None
        if reading.kind == "rows" and "words" not in source:
            raise CheckpointError(
                "the run does not say which columns of its files hold words, as runs of earlier "
                "versions do not; train again"
            )

        # Where the facts of series lack a layout, the channels tell it: they are the columns of a
        # table with one row per time, but not of one with a row per series.
        layout = source.get("layout")
        if reading.kind == "series" and layout is None:
            layout = "long" if list(reading.channels) == list(source["channels"]) else "wide"
        return cls(
            long=layout == "long",
            words=source.get("words", {}),
            dated=source.get("dated"),
            lists=layout == "lists",
        )


def as_trained(head: Head, reading: Reading, trained: Trained, labelled: bool = False) -> Columns:
    """Nothing is guessed but an id, which no model reads. Times and ids make series of rows; where
    a row is a sample it needs none. The label is read where samples are to be judged.
    """
    channels = reading.channels or ()
    needed = [*channels, reading.text, *([reading.id, reading.time] if trained.long else [])]
    needed += [reading.label] if labelled else []
    there = {None, *head.names, *(head.lists if trained.lists else ())}
    missing = next((name for name in needed if name not in there), None)
    if missing is not None:
        raise DataError(
            f"{head.path}: has no column {missing!r}, which the run was trained on"
            f"{suggest(missing, head.names)}"
        )
    series_id = reading.id or called(head.names, IDS)
    if series_id not in head.names or (series_id in needed and series_id != reading.id):
        series_id = None
    time = reading.time if trained.long else None
    plain = "list" if trained.lists else "number"
    roles: dict[Any, str] = {n: "word" if n in trained.words else plain for n in channels}
    roles |= {reading.text: "text", series_id: "word", time: CLOCKS[trained.dated]}
    if labelled:
        roles[reading.label] = "number" if reading.task == "regression" else "word"
    roles.pop(None, None)

    # Nothing is split any more, so that new files need no column of groups.
    settled = reading.settled(id=series_id, time=time, group=None, split=None)
    return Columns(settled, trained.long, roles, [], trained.words)


def roles_of(head: Head, reading: Reading, long: bool, labelled: bool) -> dict[str, str]:
    """Return how each column is cast."""
    roles: dict[Any, str] = {}
    for name in reading.channels or ():
        worded = reading.kind == "rows" and head[name].odd and not head[name].slips
        roles[name] = "list" if name in head.lists else "word" if worded else "number"
    roles |= {reading.text: "text", reading.id: "word"}
    if reading.time is not None:
        column = head[reading.time]
        dated = False if column.numeric else column.dated or None
        roles[reading.time] = CLOCKS[dated if long else None]
    if labelled:
        roles[reading.group] = "word"
        roles[reading.label] = "number" if reading.task == "regression" else "word"
    roles.pop(None, None)
    return roles
