"""Roles of the columns of a table: as the user declares, as a run knows, or guessed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from ....errors import DataError
from . import guesses
from .channels import SHOWN, Channels, channels_of, group_remark, not_read, task_of, unread
from .columns import Columns, Trained, as_trained, roles_of
from .guesses import called
from .head import Head
from .reading import Reading, refuse_columns

# Roles that one column may have at once. Labels and ids as channels have an error of their own, see
# :func:`_by_names`.
ALLOWED = ({"id", "group"}, {"label", "channels"}, {"id", "channels"})


@dataclass
class _Found:
    """Roles of columns, while a table is being recognised.

    Attributes:
        time, id, label, group: the columns of these roles.
        index: columns that count the rows.
        others: columns without any of these roles.
        again: a column that is called like an id and repeats, in a table of one row per sample.
        remarks: notes on these columns.
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
    head: Head,
    reading: Reading,
    labelled: bool = True,
    trained: Trained | None = None,
) -> Columns:
    """Recognise the columns of a table; of files for a run, they are those of its training.

    Raises:
        DataError: a declared column that is not there, or no column for a necessary role.
    """
    if trained is not None:
        return as_trained(head, reading, trained, labelled)
    _check_declared(head, reading, labelled)
    found = _by_names(head, reading, labelled)
    kind = guesses.kind_of(head, reading, found.others, found.id, found.time)
    if kind.text is not None:
        reason = (
            f"the column {kind.text!r} alone is read: leave it out, or name another with --text"
        )
        refuse_columns(head.path, reading, ("channels",), reason)

    lists: tuple[str, ...] = ()
    if kind.long:
        _take_dates(head, found)
    else:
        _one_row_per_sample(head, reading, found, kind.kind, labelled)
        if kind.kind == "series":
            lists = guesses.lists_of(head, reading)
    channels = _channels(head, reading, found, kind, lists)

    rule = "random"
    if found.group:
        rule = "group"
    settled = reading.settled(
        kind=kind.kind,
        label=found.label,
        id=found.id,
        time=found.time,
        group=found.group,
        text=kind.text,
        channels=None,
        split=reading.split or rule,
    )
    index: list[str] = []
    if kind.text is None:
        settled = settled.settled(channels=channels.names)
        index = [name for name in found.index if name not in channels.names]
    if labelled and reading.task is None:
        settled = settled.settled(task=task_of(head, found.label or "", found.id))
    remarks = [
        *channels.remarks,
        *found.remarks,
        *unread(head, reading, index, lists),
        *_like_dates(head, found.time),
    ]
    roles = roles_of(head, settled, kind.long, labelled)
    guessed = kind.text is not None and reading.text is None
    return Columns(settled, kind.long, roles, remarks, text_is_guessed=guessed)


# --- what is declared -----------------------------------------------------------------------------


def _declared(reading: Reading) -> dict[str, str | None]:
    keys = ("label", "time", "id", "text", "group")
    return {key: getattr(reading, key) for key in keys}


def _check_declared(
    head: Head,
    reading: Reading,
    labelled: bool,
) -> None:
    """Refuse columns that are not there or have two roles, and a table of one column.

    A column may be id and group. Labels and ids as channels have an error of their own, see
    :func:`_by_names`.
    """
    channels = list(reading.channels or ())
    roles: dict[str, str] = {}
    pairs = [*_declared(reading).items(), *(("channels", name) for name in channels)]
    for key, name in pairs:
        if name is None:
            continue
        # Samples to predict need neither label nor group; absent channels are found later.
        needed = key != "channels" and (labelled or key not in ("label", "group"))
        if needed and name not in head.names:
            raise DataError(head.absent(name))
    for key, name in pairs:
        if name is None:
            continue
        before = roles.setdefault(name, key)
        if before != key and {before, key} not in ALLOWED:
            raise DataError(
                f"{head.path}: column {name!r}: expected one role, got {before} and {key}; leave "
                "one of the two out"
            )
    for name in channels:
        if channels.count(name) > 1:
            raise DataError(
                f"{head.path}: channels: expected each column once, got {name!r} twice; leave one "
                "out"
            )

    # A table of one column is most likely one with another separator.
    if head.delimiter and len(head.names) < 2:
        name = next(iter(head.names))
        fix = "say what stands between the cells: --read separator=SIGN"
        if len(name.split()) > 1 and all(" " in row[0].strip() for row in head.rows[:50]):
            fix = "is the separator a space? --read separator=space"
        raise DataError(f"{head.path}: has one column only, {name[:SHOWN]!r}; {fix}")


# --- what is found --------------------------------------------------------------------------------


def _by_names(
    head: Head,
    reading: Reading,
    labelled: bool,
) -> _Found:
    """Take columns by their usual names for roles without a declared column."""
    channels = reading.channels or ()
    declared = {*_declared(reading).values(), *channels}
    free = [name for name in head.names if name not in declared]
    time = reading.time or called(free, guesses.TIMES)
    series_id = reading.id or _id_of(head, reading, free, time)
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
    free = [name for name in head.names if name not in roles]
    index = [name for name in free if head.counts(name) and name != reading.text]
    others = [name for name in free if name not in index]
    return _Found(time, series_id, label, reading.group, index, others)


def _id_of(
    head: Head,
    reading: Reading,
    free: list[str],
    time: str | None,
) -> str | None:
    # The rows of series with times repeat their id: a number of the rows would not tell which
    # series a row belongs to.
    if reading.kind == "series" and time is not None:
        return called(free, guesses.IDS)
    return guesses.id_of(head, free)


def _take_dates(head: Head, found: _Found) -> None:
    """Take the only column of dates as the times of series, whatever it is called."""
    dates = [name for name in found.others if head[name].dated]
    if found.time is None and len(dates) == 1:
        found.time = dates[0]
        found.others.remove(dates[0])


def _one_row_per_sample(
    head: Head,
    reading: Reading,
    found: _Found,
    kind: str,
    labelled: bool,
) -> None:
    """Drop guessed roles that a table of one row per sample does not need, and find groups.

    An id that repeats, and a time by which nothing is divided, are columns like others.
    """
    clock = found.time
    series_id = found.id
    plain: set[str | None] = {*found.others}
    if reading.id is None and series_id is not None and guesses.comes_again(head[series_id]):
        found.again = series_id
        found.id = None
        plain.add(series_id)
    undivided = clock is not None and (reading.split != "time" or head[clock].numeric)
    if reading.time is None and undivided:
        found.time = None
        plain.add(clock)
    if kind == "rows":
        # In the order of the file, as users expect their columns.
        found.others = [name for name in head.names if name in plain]
    if not labelled:
        return
    _find_groups(head, reading, found, kind, clock)
    found.others = [name for name in found.others if name != found.group]
    if kind == "rows" and reading.label is None and reading.channels is None:
        guesses.refuse_forecasting(head, found.label or "", found.others)


def _find_groups(
    head: Head,
    reading: Reading,
    found: _Found,
    kind: str,
    clock: str | None,
) -> None:
    """Find a column to divide samples by, and note one whose rows look like a series."""
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
    head: Head,
    reading: Reading,
    found: _Found,
    kind: guesses.Kind,
    lists: tuple[str, ...],
) -> Channels:
    """Return the columns to read: of lists, or of numbers and words; none beside texts or paths."""
    channels = Channels(lists, [])
    if kind.text is not None:
        beside = [name for name in found.others if name != kind.text]
        # A declared kind says that the other columns are not meant.
        if beside and reading.kind is None:
            read = f"{kind.kind} are"
            if kind.kind == "series":
                read = "sounds are"
            channels.remarks.append(
                f"{not_read(beside, read)}; for the columns instead: --kind rows"
            )
    elif not lists:
        channels = channels_of(head, reading, found.others, kind.kind, found.again)
    elif found.others:
        channels.remarks.append(
            f"{not_read(found.others, 'series are')}; for the columns instead: --kind rows"
        )
    if found.again not in (None, found.group) and kind.kind != "rows":
        channels.remarks.append(group_remark(found.again or ""))
    return channels


def _like_dates(head: Head, time: str | None) -> Iterator[str]:
    """Yield a remark on times that are whole numbers such as 20240131."""
    if time is not None and guesses.bare_dates(head[time]):
        yield (
            f"the times in {time!r} are read as plain numbers, of which 20240131 and 20240201 are "
            "70 apart; where they are dates, write 2024-01-31"
        )
