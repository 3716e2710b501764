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

# Role of a column of times, by whether they are dates; None: the cells tell.
CLOCKS = {None: "time", False: "clock", True: "date"}


@dataclass(frozen=True)
class Columns:
    """Columns of one table: the role of each, and how its cells are cast.

    Attributes:
        reading: the column of each role (label, time, id, ...), with nothing left to guess.
        long: one row per time of a series; otherwise one row per sample.
        roles: casts of the columns that are read, see :func:`.table.read_table`.
        remarks: columns that are left out, and why.
        words: in files to predict, the training's words of each column of words.
        text_is_guessed: the column of texts or paths was recognised, not declared.
    """

    reading: Reading
    long: bool
    roles: dict[str, str]
    remarks: list[str]
    words: Mapping[str, Sequence[str]] | None = None
    text_is_guessed: bool = False

    @property
    def otherwise(self) -> str:
        """The remedy of a wrong guess of the column of texts or paths, for the end of an error;
        empty if the column was declared.
        """
        if not self.text_is_guessed:
            return ""
        return (
            f"; {self.reading.text!r} is a guess: name another column with --text, or read the "
            "columns of numbers and words with --kind rows"
        )

    @property
    def labelled(self) -> bool:
        """Whether the label is read, as of samples to learn from or to evaluate."""
        return self.reading.label in self.roles

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
        if "list" in self.roles.values():
            return "lists"
        return "wide"

    @property
    def taken(self) -> dict[str, str]:
        """The column of each role, in words."""
        reading = self.reading
        layout = self.layout
        taken = {}
        if self.long:
            taken["layout"] = "one row per time"
        elif layout is not None:
            taken["layout"] = "one row per series"
        for key in ("id", "time", "text", "label", "group"):
            column = getattr(reading, key)
            # Of pictures and sounds, the column of "texts" holds paths.
            if key == "text" and reading.kind != "texts":
                key = "paths"
            if column is not None:
                taken[key] = f"column {column!r}"

        names = reading.channels or ()
        if not names:
            return taken
        if layout == "wide":
            taken["times"] = f"{len(names)} columns, {names[0]!r} first"
        elif layout is None:
            taken["columns"] = first_of(names)
        else:
            taken["channels"] = first_of(names)
        return taken

    def settled(self, *remarks: str, **found: Any) -> Columns:
        """Return the same with what was recognised from the whole table."""
        reading = self.reading.settled(**found)
        return replace(self, reading=reading, remarks=[*self.remarks, *remarks])


@dataclass(frozen=True)
class Trained:
    """Casts of a run's columns.

    New tables are read in the same way, whatever their cells look like: a prediction must not
    depend on the other rows of its file.

    Attributes:
        long: one row per time of a series.
        words: the known words of each column of words; any other column holds numbers.
        dated: whether times are dates, not numbers; None where a run does not say.
        lists: one list of numbers per cell.
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
        is_long = layout == "long"
        if reading.kind == "series" and layout is None:
            is_long = list(reading.channels) == list(source["channels"])
        return cls(
            long=is_long,
            words=source.get("words", {}),
            dated=source.get("dated"),
            lists=layout == "lists",
        )


def as_trained(
    head: Head,
    reading: Reading,
    trained: Trained,
    labelled: bool = False,
) -> Columns:
    """Return the columns of a table that a run reads; nothing is guessed but an id.

    No model reads an id, so that a guess does no harm. Tables with one row per time need the times
    and ids of training; if one row is one sample, they may be missing. The label is read to
    evaluate samples, not to predict them.

    Raises:
        DataError: a column is missing that the run needs.
    """
    channels = reading.channels or ()
    needed = [*channels, reading.text]
    if trained.long:
        needed += [reading.id, reading.time]
    if labelled:
        needed.append(reading.label)
    there = {None, *head.names}
    if trained.lists:
        there |= {*head.lists}
    for name in needed:
        if name not in there:
            raise DataError(
                f"{head.path}: has no column {name!r}, which the run was trained on"
                f"{suggest(str(name), head.names)}"
            )

    series_id = reading.id or called(head.names, IDS)
    taken = series_id in needed and series_id != reading.id
    if taken or series_id not in head.names:
        series_id = None
    plain = "number"
    if trained.lists:
        plain = "list"
    roles: dict[Any, str] = dict.fromkeys(channels, plain)
    roles |= {name: "word" for name in channels if name in trained.words}
    roles |= {reading.text: "text", series_id: "word"}
    time = None
    if trained.long:
        time = reading.time
        roles[time] = CLOCKS[trained.dated]
    if labelled:
        roles[reading.label] = _label_role(reading)
    roles.pop(None, None)

    # New samples are not split, so that their files need no column of groups.
    settled = reading.settled(id=series_id, time=time, group=None, split=None)
    return Columns(settled, trained.long, roles, [], trained.words)


def _label_role(reading: Reading) -> str:
    if reading.task == "regression":
        return "number"
    return "word"


def roles_of(
    head: Head,
    reading: Reading,
    long: bool,
    labelled: bool,
) -> dict[str, str]:
    """Return the cast of each column; None, the column of a role without one, has none."""
    roles: dict[Any, str] = {}
    for name in reading.channels or ():
        if name in head.lists:
            roles[name] = "list"
            continue
        roles[name] = "number"
        # Only rows can have words as features.
        if reading.kind == "rows" and head[name].odd and not head[name].slips:
            roles[name] = "word"
    roles |= {reading.text: "text", reading.id: "word"}
    if reading.time is not None:
        # A split by time needs an order only: there, each cell may tell what it is.
        roles[reading.time] = "time"
        if long and head[reading.time].numeric:
            roles[reading.time] = "clock"
        elif long and head[reading.time].dated:
            roles[reading.time] = "date"
    if labelled:
        roles[reading.group] = "word"
        roles[reading.label] = _label_role(reading)
    roles.pop(None, None)
    return roles
