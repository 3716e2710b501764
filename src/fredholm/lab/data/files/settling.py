"""The columns of a table recognised: as the user says, as a run knows it, or guessed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from ....errors import DataError
from . import guesses
from .channels import (
    SHOWN,
    Channels,
    channels_of,
    group_remark,
    not_read,
    task_of,
    unread,
)
from .columns import Columns, Trained, as_trained, roles_of
from .guesses import called
from .head import Head
from .reading import Reading

# Roles that one column may have at once; :func:`_by_names` speaks of labels and ids as channels.
ALLOWED = ({"id", "group"}, {"label", "channels"}, {"id", "channels"})


@dataclass
class _Found:
    """Roles of columns, while a table is being recognised.

    Attributes:
        time, id, label, group: their columns.
        index: columns that count the rows.
        others: columns without any of these roles.
        again: a column that is called like an id, whose values come again though a row is a sample.
        remarks: what is said of these.
    """

    time: str | None
    id: str | None
    label: str | None
    group: str | None
    index: list[str]
    others: list[str]
    again: str | None = None
    remarks: list[str] = field(default_factory=list)


def settle(
    head: Head, reading: Reading, labelled: bool = True, trained: Trained | None = None
) -> Columns:
    """Recognise a table; one that a run is asked about has the columns of its training.

    Raises:
        DataError: a column that is named and not there, or no column for what must be there.
    """
    if trained is not None:
        return as_trained(head, reading, trained, labelled)
    _check_declared(head, reading, labelled)
    found = _by_names(head, reading, labelled)
    kind = guesses.kind_of(head, reading, found.others, found.id, found.time)
    if kind.text is not None:
        _refuse_channels(head, reading, kind.text)
    if kind.long:
        _take_dates(head, found)
    else:
        _one_row_per_sample(head, reading, found, kind.kind, labelled)
    lists = guesses.lists_of(head, reading) if kind.kind == "series" and not kind.long else ()
    channels = _channels(head, reading, found, kind, lists)
    settled = reading.settled(
        kind=kind.kind,
        label=found.label,
        id=found.id,
        time=found.time,
        group=found.group,
        text=kind.text,
        channels=channels.names if kind.text is None else None,
        split=reading.split or ("group" if found.group else "random"),
    )
    if labelled and reading.task is None:
        settled = settled.settled(task=task_of(head, found.label or "", found.id))
    index = [name for name in found.index if name not in channels.names and kind.text is None]
    remarks = [
        *channels.remarks,
        *found.remarks,
        *unread(head, reading, index, lists),
        *_like_dates(head, found.time),
    ]
    return Columns(settled, kind.long, roles_of(head, settled, kind.long, labelled), remarks)


# --- what is declared -----------------------------------------------------------------------------


def _declared(reading: Reading) -> dict[str, str | None]:
    keys = ("label", "time", "id", "text", "group")
    return {key: getattr(reading, key) for key in keys}


def _check_declared(head: Head, reading: Reading, labelled: bool) -> None:
    """Refuse columns that are not there, or are said to be two things, and a table of one column.

    An id may tell groups too; of a label or an id among the channels :func:`_by_names` speaks.
    """
    for key, name in _declared(reading).items():
        needed = labelled or key not in ("label", "group")
        if needed and name is not None and name not in head.names:
            raise DataError(head.absent(name))
    roles: dict[str, str] = {}
    channels = list(reading.channels or ())
    for key, name in [*_declared(reading).items(), *(("channels", name) for name in channels)]:
        before = key if name is None else roles.setdefault(name, key)
        if before != key and {before, key} not in ALLOWED:
            raise DataError(
                f"{head.path}: column {name!r} is said to be {before} and {key}; it is one of both"
            )
    twice = next((name for name in channels if channels.count(name) > 1), None)
    if twice is not None:
        raise DataError(f"{head.path}: channels: {twice!r} comes twice; once is enough")
    if head.delimiter and len(head.names) < 2:
        _refuse_one_column(head)


def _refuse_channels(head: Head, reading: Reading, text: str) -> None:
    """Refuse columns to read beside that of texts, or of paths of files."""
    if reading.channels is not None:
        raise DataError(
            f"{head.path}: channels: expected none, got {','.join(reading.channels)!r}; "
            f"the column {text!r} alone is read: leave it out, or name another with --text"
        )


def _refuse_one_column(head: Head) -> None:
    """A table of one column is one that is divided by another sign."""
    name = next(iter(head.names), "")
    sign = "say what stands between the cells: --read separator=SIGN"
    if len(name.split()) > 1 and all(" " in row[0].strip() for row in head.rows[:50]):
        sign = "is the separator a space? --read separator=space"
    raise DataError(f"{head.path}: has one column only, {name[:SHOWN]!r}; {sign}")


# --- what is found --------------------------------------------------------------------------------


def _by_names(head: Head, reading: Reading, labelled: bool) -> _Found:
    """Take columns by their usual names for what nobody names."""
    channels = reading.channels or ()
    declared = {*_declared(reading).values(), *channels}
    free = [name for name in head.names if name not in declared]
    time = reading.time or called(free, guesses.TIMES)
    series_id = reading.id or called(free, guesses.IDS)
    label = reading.label
    if labelled and label is None:
        label = guesses.label_of(head, [name for name in free if name not in (time, series_id)])
    for what, name in (("label", label), ("id", series_id)):
        if name is not None and name in channels:
            raise DataError(
                f"{head.path}: channels: {name!r} is the {what}, which no model reads; leave it "
                "out of them"
            )
    roles = {time, series_id, label, reading.group}
    index = [n for n in head.names if head.counts(n) and n not in roles and n != reading.text]
    others = [n for n in head.names if n not in roles and n not in index]
    return _Found(time, series_id, label, reading.group, index, others)


def _take_dates(head: Head, found: _Found) -> None:
    """Take the only column of dates for the times of series."""
    dates = [name for name in found.others if head[name].dated]
    if found.time is None and len(dates) == 1:
        found.time = dates[0]
        found.others.remove(dates[0])


def _one_row_per_sample(
    head: Head, reading: Reading, found: _Found, kind: str, labelled: bool
) -> None:
    """Give up an id that comes again, and a time by which nothing is divided: they are columns like
    the others. Find groups.
    """
    clock, series_id = found.time, found.id
    plain: set[str | None] = {*found.others}
    if reading.id is None and series_id is not None and guesses.comes_again(head[series_id]):
        found.again, found.id = series_id, None
        plain.add(series_id)
    undivided = clock is not None and (reading.split != "time" or head[clock].numeric)
    if reading.time is None and undivided:
        found.time = None
        plain.add(clock)
    if kind == "rows":
        found.others = [name for name in head.names if name in plain]
    if not labelled:
        return
    _find_groups(head, reading, found, kind, clock)
    found.others = [name for name in found.others if name != found.group]
    if kind == "rows" and reading.label is None and reading.channels is None:
        guesses.refuse_forecasting(head, found.label or "", found.others)


def _find_groups(head: Head, reading: Reading, found: _Found, kind: str, clock: str | None) -> None:
    declared = {clock, found.label, *_declared(reading).values(), *(reading.channels or ())}
    names = [name for name in head.names if name not in declared]
    like = None
    if kind == "rows" and clock is not None:
        like = guesses.like_series(head, names, clock)
    if like is not None:
        found.remarks.append(
            f"each row is one sample; if the rows of a {like!r} form one time series, pass "
            f"--id {like} (the times in {clock!r} grow within it)"
        )
    group = guesses.group_of(head, names, like, found.again)
    if group is not None and reading.group is None and reading.split is None:
        found.group = group
        found.remarks.append(
            f"{group_remark(group)} (guessed, since it comes again; otherwise --split random)"
        )


def _channels(
    head: Head, reading: Reading, found: _Found, kind: guesses.Kind, lists: tuple[str, ...]
) -> Channels:
    if kind.text is not None:
        channels = Channels((), [])
        beside = [name for name in found.others if name != kind.text]
        if beside and reading.kind is None:
            read = "sounds are" if kind.kind == "series" else f"{kind.kind} are"
            remark = f"{not_read(beside, read)}; for the columns instead: --kind rows"
            channels = Channels((), [remark])
    elif lists:
        remarks = [not_read(found.others, "series are")] if found.others else []
        channels = Channels(lists, remarks)
    else:
        channels = channels_of(head, reading, found.others, kind.kind, found.again)
    if found.again not in (None, found.group) and kind.kind != "rows":
        channels.remarks.append(group_remark(found.again or ""))
    return channels


def _like_dates(head: Head, time: str | None) -> Iterator[str]:
    """Say that times are whole numbers such as 20240131."""
    if time is not None and guesses.bare_dates(head[time]):
        yield (
            f"the times in {time!r} are read as plain numbers, of which 20240131 and 20240201 are "
            "70 apart; where they are dates, write 2024-01-31"
        )
