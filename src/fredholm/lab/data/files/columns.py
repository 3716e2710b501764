"""What the columns of a table are: as the user says, or guessed from names and first rows."""

from __future__ import annotations

import re
from collections.abc import Collection as Suffixes
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from ....errors import CheckpointError, DataError, suggest
from .collection import looks_continuous
from .head import Head
from .reading import Reading
from .sounds import SUFFIXES as SOUNDS
from .table import SLIPS
from .times import NotATime, is_date, nanoseconds, ticks_of_words
from .writing import is_foreign, is_number, no_number

LABELS = ("label", "class", "target", "y", "category", "outcome", "diagnosis")
IDS = ("id", "series", "series_id", "sample_id", "case", "record", "sequence", "uid", "index")
TIMES = ("time", "t", "timestamp", "date", "datetime", "seconds", "minutes", "hours", "days")
GROUPS = ("patient", "patient_id", "subject", "subject_id", "group", "person", "user", "site")
PICTURES = frozenset({".png", ".jpg", ".jpeg", ".bmp", ".webp", ".ppm", ".pgm", ".tif", ".tiff"})
SHOWN = 60
ENOUGH = 2  # columns of numbers beside one of texts, from where rows are read and not texts
WORDS = 20  # of a column, that become a column each
FEWEST_GROUPS = 5  # of a column by which samples are divided unasked
DATE = re.compile(r"\d{1,4}[-/.]\d{1,2}[-/.]\d{1,4}")  # in whatever order
FORECASTING = (
    "to foretell a column from its own past, forecasting, is not supported yet; where a column is "
    "to be predicted from the others of its row, name it: --label"
)


@dataclass(frozen=True)
class Columns:
    """The reading of a table, settled, and how its columns are to be read.

    Attributes:
        reading: what stands for what.
        long: of series, one row per time; else one row per series.
        roles: of the columns that are read, see :func:`.table.read_table`.
        taken: what was taken for what, in words.
        remarks: columns that are left out, and why.
        words: of the columns of words of rows, where a run knows them.
    """

    reading: Reading
    long: bool
    roles: dict[str, str]
    taken: dict[str, str]
    remarks: list[str]
    words: Mapping[str, Sequence[str]] | None = None

    @property
    def layout(self) -> str | None:
        """How series lie in a table."""
        if self.reading.kind != "series" or self.reading.text is not None:
            return None
        return "long" if self.long else "lists" if "list" in self.roles.values() else "wide"


@dataclass(frozen=True)
class Trained:
    """What a run knows of its tables: further ones are read so, whatever their cells look like.

    Attributes:
        long: of series, a row a time.
        words: of rows, those of each column of words; any other column holds numbers.
        dated: of series, whether times are dates, and not numbers; None where a run does not say.
        lists: of series, a list of numbers in a cell.
    """

    long: bool
    words: Mapping[str, Sequence[str]]
    dated: bool | None = None
    lists: bool = False

    @classmethod
    def of(cls, source: Mapping[str, Any], reading: Reading) -> Trained | None:
        """From the facts of :meth:`.source.Source.facts`; None of files that were no tables.

        Raises:
            CheckpointError: facts that do not belong together.
        """
        names, channels = reading.channels, source.get("channels")
        if reading.text is not None and source:
            return cls(False, {})
        if reading.kind not in ("rows", "series") or not names or not channels:
            return None
        if reading.kind == "series":
            long = "long" if list(names) == list(channels) else "wide"
            layout = source.get("layout", long)
            return cls(layout == "long", {}, source.get("dated"), layout == "lists")
        if "words" in source:
            return cls(False, source["words"])
        return cls(False, _words_of(list(names), list(channels)))


def _words_of(names: list[str], channels: list[str]) -> dict[str, list[str]]:
    """The words of columns, from what a model reads: ``column=word`` in the order of the columns.
    Runs of earlier versions say no more.
    """
    words: dict[str, list[str]] = {}
    rest = channels
    for name in names:
        count = 0
        if rest[:1] != [name]:
            while count < len(rest) and rest[count].startswith(f"{name}="):
                count += 1
            words[name] = [channel.removeprefix(f"{name}=") for channel in rest[:count]]
        if rest[:1] != [name] and not count:
            break
        rest = rest[count or 1 :]
    else:
        if not rest:
            return words
    raise CheckpointError(
        f"the run reads {', '.join(channels)}, which are not the columns {', '.join(names)} of its "
        "files; train again"
    )


def settle(
    head: Head, reading: Reading, labelled: bool = True, trained: Trained | None = None
) -> Columns:
    """Recognise a table; one that a run is asked about has the columns of its training.

    Raises:
        DataError: a column that is named and not there, or no column for what must be there.
    """
    if trained is not None:
        return _as_trained(head, reading, trained)
    named = [reading.time, reading.id, reading.text]
    for name in [*named, *([reading.label, reading.group] if labelled else [])]:
        if name is not None and name not in head.names:
            raise DataError(head.absent(name))
    _check_roles(head, reading)
    _check_separator(head)
    free = [name for name in head.names if name not in _said(reading)]
    guessed = _named(free, TIMES)
    time = reading.time or guessed
    series_id = reading.id or _named(free, IDS)
    taken = {*_said(reading), time, series_id}
    label = _label(head, reading, taken) if labelled else reading.label
    _check_channels(head, reading, label, series_id)
    asked = (time, series_id, label, reading.group)
    index = [n for n in head.names if head.counts(n) and n not in (*asked, reading.text)]
    apart = {*asked, *index}
    others = [n for n in head.names if n not in apart]
    kind, long, text = _kind(head, reading, others, series_id, time)
    if long and time is None:
        dates = [name for name in others if _dated(head, name)]
        if len(dates) == 1:
            time = dates[0]
            others.remove(time)
    again = None if long else _no_id(head, reading, series_id)
    plain = (again, None if long else _no_time(head, reading, time))
    series_id, time = (None if name in plain else name for name in (series_id, time))
    if kind == "rows":
        kept = {*others, *plain}
        others = [name for name in head.names if name in kept]
    grouped = _Grouped(reading.group, [])
    if not long and labelled:
        grouped = _grouped(head, reading, kind, reading.time or guessed, label, again)
        others = [name for name in others if name != grouped.name]
    if kind in ("texts", "images") or (kind == "series" and text is not None):
        _refuse_channels(head, reading, text)
    if labelled and kind == "rows":
        _refuse_forecasting(head, reading, label, others)
    listed = _series_columns(head, reading) if kind == "series" and not long else ()
    if listed:
        channels, remarks = listed, [_not_read(others, "series are")] if others else []
    else:
        channels, remarks = _channels(head, reading, others, text, kind, again)
    if again is not None and kind != "rows" and again != grouped.name:
        remarks.append(_group(again))
    remarks += grouped.remarks
    unnamed = [name for name in index if name not in channels and text is None]
    remarks += _unread(head, reading, unnamed, listed)
    remarks += _like_dates(head, time)
    settled = reading.settled(
        kind=kind,
        label=label,
        id=series_id,
        time=time,
        group=grouped.name,
        text=text,
        channels=channels if text is None else None,
        split=reading.split or ("group" if grouped.name else "random"),
    )
    if labelled and reading.task is None:
        settled = settled.settled(task=_task(head, settled))
    roles = _roles(head, settled, long, labelled)
    known = taken_of(settled, long)
    if listed:
        known.pop("times")
        known["channels"] = first_of(listed)
    return Columns(settled, long, roles, known, remarks)


def _as_trained(head: Head, reading: Reading, trained: Trained) -> Columns:
    """Nothing is guessed but an id, which no model reads. Times and ids make series of rows; where
    a row is a sample it needs none.
    """
    long = [reading.id, reading.time] if trained.long else []
    needed = [*(reading.channels or ()), reading.text, *long]
    there = {*head.names, *(head.lists if trained.lists else ())}
    for name in needed:
        if name is not None and name not in there:
            raise DataError(
                f"{head.path}: has no column {name!r}, which the run was trained on"
                f"{suggest(name, head.names)}"
            )
    found = reading.id or _named(head.names, IDS)
    known = found in head.names and (found == reading.id or found not in needed)
    settled = reading.settled(
        id=found if known else None, time=reading.time if trained.long else None
    )
    plain = "list" if trained.lists else "number"
    roles = {name: "word" if name in trained.words else plain for name in settled.channels or ()}
    roles |= {} if settled.text is None else {settled.text: "text"}
    roles |= {} if settled.id is None else {settled.id: "word"}
    roles |= {} if settled.time is None else {settled.time: _CLOCKS[trained.dated]}
    return Columns(settled, trained.long, roles, taken_of(settled, trained.long), [], trained.words)


def with_decimals(head: Head, reading: Reading) -> Head:
    """Return the head with decimal commas, where the user names channels whose numbers have them
    all: what is named to be read is not read as words.
    """
    if reading.channels is None or not reading.writing.plain:
        return head
    commas = replace(head, writing=replace(reading.writing, decimal=","))
    names = [name for name in reading.channels if name in head.names and not head.numeric(name)]
    named = [name for name in names if any("," in cell for cell in head.known(name))]
    return commas if named and all(map(commas.numeric, named)) else head


def _check_separator(head: Head) -> None:
    """Refuse a table of one column, which is one that is divided by another sign."""
    name, *others = head.names or [""]
    if not head.delimiter or others:
        return
    spaced = len(name.split()) > 1 and all(" " in row[0].strip() for row in head.rows[:50])
    sign = (
        "is the separator a space? --read separator=space"
        if spaced
        else ("say what stands between the cells: --read separator=SIGN")
    )
    raise DataError(f"{head.path}: has one column only, {name[:SHOWN]!r}; {sign}")


class _Grouped(NamedTuple):
    """The column of groups, and what is said of it."""

    name: str | None
    remarks: list[str]


def _grouped(
    head: Head, reading: Reading, kind: str, time: str | None, label: str | None, again: str | None
) -> _Grouped:
    """Find a column whose values come again beside dates, as of machines or patients: where a row
    is a sample, none of its values lies in two splits.
    """
    known = {time, label, *_said(reading)}
    names = [n for n in head.names if n not in known]
    like = _like_series(head, names, time) if kind == "rows" and time is not None else None
    found = like
    dated = any(_days(head, name) for name in head.names if not head.numeric(name))
    if found is None and dated:
        called = [name for name in names if name.lower() in GROUPS]
        found = next((name for name in (again, *called) if name is not None), None)
    remarks = []
    if like is not None:
        remarks.append(
            f"rows are read one by one; within each {like!r} the times in {time!r} grow: where "
            f"they are the times of a series, --id {like}"
        )
    free = reading.group is None and reading.split is None
    count = 0 if found is None else len(set(head.known(found)))
    repeated = found is not None and count < len(head.known(found))
    if found is None or not free or not repeated or count < FEWEST_GROUPS:
        return _Grouped(reading.group, remarks)
    remarks.append(f"{_group(found)} (guessed, since it comes again; otherwise --split random)")
    return _Grouped(found, remarks)


def _like_series(head: Head, names: Sequence[str], time: str) -> str | None:
    """Return a column within whose every value the times grow, though they do not from row to row,
    or though the rows of each value stand together, one value after the other.
    """
    times = _moments(head, time)
    if times is None:
        return None
    grows = bool((np.diff(times) > 0).all())
    if grows and not _dated(head, time):
        return None
    for name in names:
        if name in IDS or (grows and head.numeric(name)):
            continue
        cells = head.cells(name)
        values, codes = np.unique(cells, return_inverse=True)
        if len(values) < 2 or len(times) < 3 * len(values):
            continue
        order = np.argsort(codes, kind="stable")
        inner = codes[order][1:] == codes[order][:-1]
        if not (np.diff(times[order])[inner] > 0).all():
            continue
        together = int((codes[1:] != codes[:-1]).sum()) == len(values) - 1
        if not grows or (together and len(values) >= FEWEST_GROUPS):
            return name
    return None


def _refuse_forecasting(
    head: Head, reading: Reading, label: str | None, others: Sequence[str]
) -> None:
    """Refuse a label that nobody named, in a table of numbers by date: what is wanted of it is the
    next number.
    """
    if label is None or reading.label is not None or reading.channels is not None:
        return
    if label.lower() in LABELS or not head.named or not head.numeric(label):
        return
    dates = [name for name in head.names if _dated(head, name)]
    if len(dates) != 1:
        return
    times = _moments(head, dates[0])
    if times is None or len(times) < 3:
        return
    alone = not [name for name in others if name != dates[0]] and bool((np.diff(times) > 0).all())
    names = [
        name for name in head.names if name not in (label, dates[0]) and not head.numeric(name)
    ]
    panel = len(names) == 1 and _like_series(head, names, dates[0]) is not None
    if alone or panel:
        raise DataError(f"{head.path}: {FORECASTING} (has {', '.join(head.names)})")


def _series_columns(head: Head, reading: Reading) -> tuple[str, ...]:
    """Return the columns of lists that are the channels of series."""
    if reading.channels is not None:
        return tuple(reading.channels) if set(reading.channels) <= set(head.lists) else ()
    return tuple(head.lists)


def _said(reading: Reading) -> set[str | None]:
    """The columns of which the user says what they are: none is guessed to be another thing."""
    roles = (reading.label, reading.time, reading.id, reading.group, reading.text)
    return {*roles, *(reading.channels or ())}


def _named(columns: Sequence[str], names: Sequence[str]) -> str | None:
    lower = {name.lower().replace(" ", "_"): name for name in reversed(columns)}
    return next((lower[name] for name in names if name in lower), None)


def _label(head: Head, reading: Reading, taken: set[str | None]) -> str:
    """The column named like a label; in a file without names the last one where it holds words and
    the first does not, the first one where it holds classes, else the last.
    """
    if reading.label is not None:
        return reading.label
    free = [name for name in head.names if name not in taken]
    if not free:
        raise DataError(
            f"{head.path}: no column can be the label; has {', '.join(head.names)}; name it: label"
        )
    found = _named(free, LABELS)
    if found is not None:
        return found
    first, last = free[0], free[-1]
    if head.named or len(set(head.cells(first))) < 2:
        return last
    if head.numeric(first) > head.numeric(last):
        return last  # the only one of both that holds words
    return last if looks_continuous(head.known(first)) else first


def _check_channels(head: Head, reading: Reading, label: str | None, series_id: str | None) -> None:
    """DataError for a column that is both a channel and what no model reads."""
    for name in reading.channels or ():
        if name in (label, series_id):
            what = "label" if name == label else "id"
            raise DataError(
                f"{head.path}: channels: {name!r} is the {what}, which no model reads; leave it "
                "out of them"
            )


ALLOWED = ({"id", "group"}, {"label", "channels"}, {"id", "channels"})


def _check_roles(head: Head, reading: Reading) -> None:
    """DataError for a column that is said to be two things; an id may tell groups too, and of a
    label or an id among the channels :func:`_check_channels` speaks.
    """
    roles: dict[str, str] = {}
    said = [(key, getattr(reading, key)) for key in ("label", "time", "id", "text", "group")]
    for key, name in [*said, *(("channels", name) for name in reading.channels or ())]:
        if name is None:
            continue
        before = roles.setdefault(name, key)
        if before != key and {before, key} not in ALLOWED:
            raise DataError(
                f"{head.path}: column {name!r} is said to be {before} and {key}; it is one of both"
            )
    channels = list(reading.channels or ())
    twice = next((name for name in channels if channels.count(name) > 1), None)
    if twice is not None:
        raise DataError(f"{head.path}: channels: {twice!r} comes twice; once is enough")


def _kind(
    head: Head,
    reading: Reading,
    others: list[str],
    series_id: str | None,
    time: str | None,
) -> tuple[str, bool, str | None]:
    """(kind, whether a row is a time of a series, the column of texts or paths)."""
    kind, text = reading.kind, reading.text
    pictures, sounds = (_of_paths(head, others, reading, known) for known in (PICTURES, SOUNDS))
    if kind == "images" or (kind is None and text is None and pictures is not None):
        if text is None and pictures is None:
            raise DataError(f"{head.path}: no column holds paths of pictures; name it: text")
        return "images", False, text or pictures
    if kind in (None, "series") and sounds is not None:
        return "series", False, sounds
    if kind == "series" and text is not None:
        raise DataError(
            f"{head.path}: text: column {text!r} holds no paths of sounds ({', '.join(SOUNDS)}); "
            "series of numbers have none: leave it out"
        )
    repeated = series_id is not None and _repeats(head, series_id)
    if kind in (None, "series") and repeated:
        return "series", True, None
    listed = text is None and bool(_series_columns(head, reading))
    if kind in (None, "series") and listed:
        return "series", False, None
    if kind == "series" and time is not None and series_id is None:
        raise DataError(
            f"{head.path}: has times ({time!r}) but no column tells which series a row belongs to; "
            f"name it: id (has {', '.join(head.names)})"
        )
    if kind is None and text is None and sum(map(head.numeric, others)) < ENOUGH:
        text = next((name for name in others if _is_text(head, name)), None)
    if kind == "texts" or (kind is None and text is not None):
        words = [name for name in others if not head.numeric(name)]
        if text is None and not words:
            raise DataError(f"{head.path}: no column holds texts; name it: text")
        return "texts", False, text or max(words, key=lambda n: _mean_length(head, n))
    if kind in (None, "series") and (kind == "series" or _wide(head, others)):
        return "series", False, None
    if kind in ("clouds", "fields"):
        raise DataError(f"{head.path}: a table holds no {kind}; needs npz, h5, ply, xyz or off")
    return "rows", False, None


def _dated(head: Head, name: str) -> bool:
    """Whether every cell that is there is a date, and not a number."""
    cells = head.known(name)
    return bool(cells) and is_date(cells[0]) and all(map(is_date, cells))


def _of_paths(
    head: Head, others: Sequence[str], reading: Reading, suffixes: Suffixes[str]
) -> str | None:
    """The column whose cells all end in one of the suffixes: the one that is said to hold texts or
    paths, or any. Where nothing is said and several columns of numbers stand beside it, as numbers
    that were taken of sounds, its first file has to be there.
    """
    beside = reading.kind is None and sum(map(head.numeric, others)) >= ENOUGH
    for name in others if reading.text is None else (reading.text,):
        cells = head.known(name)
        if not cells or any(_suffix(cell) not in suffixes for cell in cells):
            continue
        if reading.text is not None or not beside or (head.path.parent / cells[0]).is_file():
            return name
    return None


def _suffix(cell: str) -> str:
    return f".{cell.rsplit('.', 1)[-1].lower()}" if "." in cell else ""


def _repeats(head: Head, name: str) -> bool:
    """Whether the rows of an id are a series: most ids come more than once."""
    cells = head.cells(name)
    return len(set(cells)) * 2 <= len(cells) or (len(cells) <= 3 and len(set(cells)) < len(cells))


def _no_id(head: Head, reading: Reading, found: str | None) -> str | None:
    """The column, where a row is a sample, that is only called like an id: more than slips of it
    come again.
    """
    if found is None or found == reading.id:
        return None
    cells = head.known(found)
    return found if len(set(cells)) < (1 - SLIPS) * len(cells) else None


def _no_time(head: Head, reading: Reading, found: str | None) -> str | None:
    """The column, where a row is a sample, that is only called like a time: it is a plain number,
    or the split does not go by it.
    """
    if found is None or found == reading.time:
        return None
    return found if reading.split != "time" or head.numeric(found) else None


def _like_dates(head: Head, time: str | None) -> Iterator[str]:
    """What is said of times that are whole numbers such as 20240131."""
    cells = [] if time is None else head.known(time)
    if cells and all(_is_day(cell) for cell in cells):
        yield (
            f"the times in {time!r} are read as plain numbers, of which 20240131 and 20240201 are "
            "70 apart; where they are dates, write 2024-01-31"
        )


def _is_day(cell: str) -> bool:
    """Whether a cell is a date of these two centuries without a mark between its parts."""
    if not re.fullmatch(r"(19|20)\d{6}", cell):
        return False
    try:
        nanoseconds(f"{cell[:4]}-{cell[4:6]}-{cell[6:]}")
    except ValueError:
        return False
    return True


def grow_from_row_to_row(head: Head, time: str | None) -> bool:
    """Return whether there are times, and each row's is later than that of the row before."""
    name = time or _named(head.names, TIMES)
    if name is None or name not in head.names or len(head.rows) < 3:
        return False
    times = _moments(head, name)
    return times is not None and bool((np.diff(times) > 0).all())


def _moments(head: Head, name: str) -> np.ndarray | None:
    """The first cells of a column as times that can be compared; None where one is none."""
    cells = head.cells(name)
    for order in (head.writing.dates, "dayfirst"):
        try:
            return ticks_of_words(cells, order).values
        except NotATime:
            continue
    return None


def _marks(head: Head, name: str) -> Iterator[str]:
    """What is said of a column of words of which some are taken for missing ones."""
    cells = [] if head.numeric(name) else [cell for cell in head.cells(name) if cell]
    marks = sorted({cell for cell in cells if head.writing.is_missing(cell)})
    if marks:
        count = sum(map(head.writing.is_missing, cells))
        yield (
            f"column {name!r}: {', '.join(map(repr, marks))} counts as missing ({count:,} of the "
            f"first {len(cells):,} cells); where it is a value, write another word"
        )


def first_of(names: Sequence[str], most: int = 6) -> str:
    """The first ones of many names, and how many there are.

    Example:
        >>> first_of(["a", "b"]), first_of(["a", "b", "c"], 2)
        ('a, b', 'a, b, … (3)')
    """
    more = f", … ({len(names)})" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def listed(names: Sequence[str], most: int = 6) -> str:
    """Columns by name, of many the first ones.

    Example:
        >>> listed(["a"]), listed(["a", "b", "c"], 2)
        ("column 'a' is", "columns 'a', 'b', … (3) are")
    """
    shown = first_of([*map(repr, names)], most)
    return f"column {shown} is" if len(names) == 1 else f"columns {shown} are"


def _mean_length(head: Head, name: str) -> float:
    cells = head.known(name)
    return sum(len(cell.split()) for cell in cells) / max(1, len(cells))


def _is_text(head: Head, name: str) -> bool:
    cells = head.known(name)
    if not cells or head.numeric(name):
        return False
    return _mean_length(head, name) >= 3 and len(set(cells)) > len(cells) / 2


def _wide(head: Head, others: Sequence[str]) -> bool:
    """Whether the columns are the times of a series: without names, or named by numbers."""
    if len(others) < 8 or not all(head.numeric(name) or not head.known(name) for name in others):
        return False
    if not head.named or all(is_number(name) for name in others):
        return True
    found = [re.fullmatch(r"([A-Za-z_ ]*?)[_ ]?(\d+)", name) for name in others]
    stems = {match.group(1).strip().lower() for match in found if match}
    return all(found) and stems <= {"t", "time", "step", "sample", "s", "att", "timestep"}


def _channels(
    head: Head,
    reading: Reading,
    others: list[str],
    text: str | None,
    kind: str,
    again: str | None,
) -> tuple[tuple[str, ...], list[str]]:
    """What a model reads, and what is said of columns that are left out; ``again``: a column that
    is called like an id, whose numbers are those of groups.
    """
    if text is not None:
        rest = [name for name in others if name != text]
        if not rest or reading.kind is not None:
            return (), []
        read = "sounds" if kind == "series" else kind
        return (), [f"{_not_read(rest, f'{read} are')}; for the columns instead: --kind rows"]
    remarks = []
    if reading.channels is not None:
        for name in reading.channels:
            if name not in head.names:
                raise DataError(head.absent(name))
        return tuple(reading.channels), list(_many_words(head, reading.channels, kind))
    chosen = []
    for name in others:
        if name.lower() in GROUPS or (name == again and head.numeric(name)):
            remarks.append(_group(name))
        elif _readable(head, name, kind):
            chosen.append(name)
            remarks += [*_almost_numbers(head, name), *_marks(head, name)]
        elif _slips(head, name) and not reading.strict:
            chosen.append(name)
        else:
            _refuse_almost_numbers(head, name)
            example = head.known(name)[0][:SHOWN]
            what = "dates" if _days(head, name) else "words"
            remarks.append(f"column {name!r} is left out: its cells are {what} ({example!r})")
    if not chosen:
        raise DataError(
            f"{head.path}: no column is left for a model to read; has {', '.join(head.names)}"
        )
    return tuple(chosen), remarks


def _refuse_channels(head: Head, reading: Reading, text: str | None) -> None:
    """Refuse columns to read beside that of texts, or of paths of files."""
    if reading.channels is not None:
        raise DataError(
            f"{head.path}: channels: expected none, got {','.join(reading.channels)!r}; "
            f"the column {text!r} alone is read: leave it out, or name another with --text"
        )


def _not_read(names: Sequence[str], instead: str) -> str:
    return f"{listed(names)} not read: {instead}"


def _many_words(head: Head, names: Sequence[str], kind: str) -> Iterator[str]:
    """Say of columns that are asked for that they become many."""
    for name in names if kind == "rows" else ():
        count = 0 if head.numeric(name) else len(set(head.known(name)))
        if count > WORDS:
            yield (
                f"column {name!r} is read as words, of which the first rows have {count:,}: each "
                "becomes a column of its own; to read it as something else, leave it out of "
                "--channels"
            )


def _group(name: str) -> str:
    return f"column {name!r} is left out; so that no {name} is in two splits: --group {name}"


def _unread(
    head: Head, reading: Reading, index: Sequence[str], listed: Sequence[str]
) -> Iterator[str]:
    """What is said of columns that hold an index, or lists and structs."""
    for name in index:
        yield (
            f"{name!r} is left out: it has no name, and another whole number in every row, as an "
            "index has; to read it, name it with --channels, or in the file"
        )
    every = {**head.lists, **head.nested}
    deep = {name: kind for name, kind in every.items() if name not in listed}
    for name, kind in deep.items() if reading.channels is None else ():
        yield f"column {name!r} is left out: it holds {kind}"


def _readable(head: Head, name: str, kind: str) -> bool:
    """Numbers; in rows also words of a few kinds, which the days in a column of times are not."""
    if head.numeric(name) or not head.known(name):
        return True
    words = kind == "rows" and len(set(head.known(name))) <= WORDS
    return words and not (name == _named([name], TIMES) and _days(head, name))


def _days(head: Head, name: str) -> bool:
    """Whether cells are dates, in whatever way they are written."""
    return _dated(head, name) or any(DATE.match(cell) for cell in head.known(name))


def _almost_numbers(head: Head, name: str) -> list[str]:
    """What is said of a column of numbers that a few cells make one of words.

    Raises:
        DataError: numbers with decimal commas.
    """
    if head.numeric(name):
        return []
    odd, known = _no_numbers(head, name), len(head.known(name))
    commas = _commas(odd)
    if 2 * commas > known:
        _refuse_almost_numbers(head, name)
    if not odd or 2 * (len(odd) - commas) > known:
        return []
    row, cell = odd[0]
    return [
        f"column {name!r} is read as {len(set(head.known(name)))} words, not as numbers: row "
        f"{head.number(row)} has {cell[:SHOWN]!r}"
    ]


def _no_numbers(head: Head, name: str) -> list[tuple[int, str]]:
    """The cells of a column that are no numbers, and their rows from 0."""
    return [
        (row, cell)
        for row, cell in enumerate(head.cells(name))
        if not head.writing.is_missing(cell) and not head.is_number(cell)
    ]


def _commas(odd: list[tuple[int, str]]) -> int:
    """How many would be numbers with a point for the comma."""
    return sum(is_foreign(cell) for _, cell in odd)


def _slips(head: Head, name: str) -> bool:
    """Whether a column holds numbers but for a few cells, and more different ones than words that
    would become a column each.
    """
    odd, known = _no_numbers(head, name), head.known(name)
    few = 0 < len(odd) <= SLIPS * len(known) and 2 * _commas(odd) <= len(known)
    return few and len(set(known)) > WORDS


def _refuse_almost_numbers(head: Head, name: str) -> None:
    """DataError of a column of numbers where a few cells are none, or all have decimal commas: a
    slip, which would cost the column.
    """
    odd, known = _no_numbers(head, name), len(head.known(name))
    if len(odd) > SLIPS * known and 2 * _commas(odd) <= known:
        return
    row, cell = odd[0]
    raise DataError(
        f"{head.path}, row {head.number(row)}, column {name!r}: {no_number(cell)}; or name the "
        "columns to read without it: channels"
    )


def _task(head: Head, reading: Reading) -> str:
    """What the first labels look like.

    Raises:
        DataError: numbers with decimal commas.
    """
    assert reading.label is not None
    cells = head.cells(reading.label)
    if reading.id is not None:  # one of each series
        firsts = dict(zip(reversed(head.cells(reading.id)), reversed(cells)))
        cells = list(firsts.values())
    known = [cell for cell in cells if not head.writing.is_missing(cell)]
    known = [head.writing.number(cell) or cell for cell in known]
    odd = _no_numbers(head, reading.label)
    if odd and _commas(odd) == len(odd):
        row, cell = odd[0]
        raise DataError(
            f"{head.path}, row {head.number(row)}, column {reading.label!r}: {no_number(cell)}; "
            "where they are names of classes: task classification"
        )
    return "regression" if looks_continuous(known) else "classification"


_CLOCKS = {None: "time", False: "clock", True: "date"}


def _are_dates(head: Head, name: str) -> bool | None:
    """Whether times are dates; None where the first ones are of both kinds."""
    return False if head.numeric(name) else _dated(head, name) or None


def _roles(head: Head, reading: Reading, long: bool, labelled: bool) -> dict[str, str]:
    channels = reading.channels or ()
    roles = {name: "list" if name in head.lists else "number" for name in channels}
    if reading.kind == "rows":
        worded = [n for n in roles if not head.numeric(n) and head.known(n)]
        roles |= {name: "word" for name in worded if not _slips(head, name)}
    if reading.text is not None:
        roles[reading.text] = "text"
    for name in (reading.id, reading.group if labelled else None):
        if name is not None:
            roles[name] = "word"
    if reading.time is not None:
        roles[reading.time] = _CLOCKS[_are_dates(head, reading.time) if long else None]
    if labelled and reading.label is not None:
        roles[reading.label] = "number" if reading.task == "regression" else "word"
    return roles


def taken_of(reading: Reading, long: bool) -> dict[str, str]:
    """What a settled reading takes for what, in words."""
    taken = {}
    if reading.kind == "series" and reading.text is None:
        taken["layout"] = "one row per time" if long else "one row per series"
    for key in ("id", "time", "text", "label", "group"):
        if getattr(reading, key) is not None:
            word = "paths" if key == "text" and reading.kind != "texts" else key
            taken[word] = f"column {getattr(reading, key)!r}"
    if reading.channels and (long or reading.kind == "rows"):
        taken["channels" if long else "columns"] = first_of(reading.channels)
    elif reading.channels:
        taken["times"] = f"{len(reading.channels)} columns, {reading.channels[0]!r} first"
    return taken
