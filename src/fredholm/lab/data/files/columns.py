"""What the columns of a table are: guessed from its names and first rows, or as the user says."""

from __future__ import annotations

import re
from collections.abc import Collection as Suffixes
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from ....errors import CheckpointError, DataError, suggest
from .collection import looks_continuous
from .reading import Reading
from .sounds import SUFFIXES as SOUNDS
from .table import Head, has_decimal_comma, is_missing, is_number, no_number, seconds

LABELS = ("label", "class", "target", "y", "category", "outcome", "diagnosis")
IDS = ("id", "series", "series_id", "sample_id", "case", "record", "sequence", "uid", "index")
TIMES = ("time", "t", "timestamp", "date", "datetime", "seconds", "minutes", "hours", "days")
GROUPS = ("patient", "patient_id", "subject", "subject_id", "group", "person", "user", "site")
PICTURES = frozenset({".png", ".jpg", ".jpeg", ".bmp", ".webp", ".ppm", ".pgm", ".tif", ".tiff"})
SHOWN = 60
SLIPS = (
    0.1  # the share of a column's cells that are slips; where more are no numbers, they are words
)
ENOUGH = 2  # columns of numbers beside one of texts, from where rows are read and not texts
WORDS = 20  # of a column, that become a column each
DATE = re.compile(r"\d{1,4}[-/.]\d{1,2}[-/.]\d{1,4}")  # in whatever order


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


@dataclass(frozen=True)
class Trained:
    """What a run knows of its tables: further ones are read so, whatever their cells look like.

    Attributes:
        long: of series, a row a time.
        words: of rows, those of each column of words; any other column holds numbers.
        dated: of series, whether times are dates, and not numbers; None where a run does not say.
    """

    long: bool
    words: Mapping[str, Sequence[str]]
    dated: bool | None = None

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
            return cls(list(names) == list(channels), {}, source.get("dated"))
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
    free = [name for name in head.names if name not in _said(reading)]
    guessed = _named(free, TIMES)
    time = reading.time or guessed
    series_id = reading.id or _named(free, IDS)
    taken = {*_said(reading), time, series_id}
    label = _label(head, reading, taken) if labelled else reading.label
    _check_channels(head, reading, label, series_id)
    asked = (time, series_id, label, reading.group)
    index = [n for n in head.names if head.counts(n) and n not in (*asked, reading.text)]
    others = [n for n in head.names if n not in (*asked, *index)]
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
        others = [name for name in head.names if name in (*others, *plain)]
    channels, remarks = _channels(head, reading, others, text, kind, again)
    if again is not None and kind != "rows":
        remarks.append(_group(again))
    if text is None:
        remarks += _unread(head, reading, [name for name in index if name not in channels])
    remarks += _like_series(head, kind, reading.time or guessed)
    remarks += _like_dates(head, time)
    settled = reading.settled(
        kind=kind,
        label=label,
        id=series_id,
        time=time,
        text=text,
        channels=channels if text is None else None,
        split=reading.split or ("group" if reading.group else "random"),
    )
    if labelled and reading.task is None:
        settled = settled.settled(task=_task(head, settled))
    roles = _roles(head, settled, long, labelled)
    return Columns(settled, long, roles, taken_of(settled, long), remarks)


def _as_trained(head: Head, reading: Reading, trained: Trained) -> Columns:
    """Nothing is guessed but an id, which no model reads. Times and ids make series of rows; where
    a row is a sample it needs none.
    """
    long = [reading.id, reading.time] if trained.long else []
    needed = [*(reading.channels or ()), reading.text, *long]
    for name in needed:
        if name is not None and name not in head.names:
            raise DataError(
                f"{head.path}: has no column {name!r}, which the run was trained on"
                f"{suggest(name, head.names)}"
            )
    found = reading.id or _named(head.names, IDS)
    known = found in head.names and (found == reading.id or found not in needed)
    settled = reading.settled(
        id=found if known else None, time=reading.time if trained.long else None
    )
    roles = {name: "word" if name in trained.words else "number" for name in settled.channels or ()}
    roles |= {} if settled.text is None else {settled.text: "text"}
    roles |= {} if settled.id is None else {settled.id: "word"}
    roles |= {} if settled.time is None else {settled.time: _CLOCKS[trained.dated]}
    return Columns(settled, trained.long, roles, taken_of(settled, trained.long), [], trained.words)


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
    if not head.named and (head.numeric(first) > head.numeric(last)):
        return last  # the only one of both that holds words
    if not head.named and not looks_continuous(head.known(first)):
        return first
    return last


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
    if not cells or is_number(cells[0]):
        return False
    try:
        for cell in cells:
            seconds(cell)
    except ValueError:
        return False
    return True


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


def _like_series(head: Head, kind: str, time: str | None) -> Iterator[str]:
    """What is said of rows that may be times of series: of a column within whose every value the
    times grow, where they do not from row to row.
    """
    if kind != "rows" or time is None:
        return
    times = _seconds(head, time)
    if times is None or _grow(times):
        return
    for name in (n for n in head.names if n != time and n not in IDS):
        parts: dict[str, list[float]] = {}
        for cell, at in zip(head.cells(name), times):
            parts.setdefault(cell, []).append(at)
        if len(times) >= 3 * len(parts) and all(map(_grow, parts.values())):
            yield (
                f"rows are read one by one; within each {name!r} the times in {time!r} grow: where "
                f"they are the times of a series, --id {name}"
            )
            return


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
        seconds(f"{cell[:4]}-{cell[4:6]}-{cell[6:]}")
    except ValueError:
        return False
    return True


def grow_from_row_to_row(head: Head, time: str | None) -> bool:
    """Whether there are times, and each row's is later than that of the row before."""
    name = time or _named(head.names, TIMES)
    if name is None or name not in head.names or len(head.rows) < 3:
        return False
    times = _seconds(head, name)
    return times is not None and _grow(times)


def _seconds(head: Head, name: str) -> list[float] | None:
    """The first cells of a column as times; None where one is none."""
    try:
        return [seconds(cell) for cell in head.cells(name)]
    except ValueError:
        return None


def _grow(times: Sequence[float]) -> bool:
    return all(a < b for a, b in pairwise(times))


def _marks(head: Head, name: str) -> Iterator[str]:
    """What is said of a column of words of which some are taken for missing ones."""
    cells = [] if head.numeric(name) else [cell for cell in head.cells(name) if cell]
    marks = sorted({cell for cell in cells if is_missing(cell)})
    if marks:
        count = sum(map(is_missing, cells))
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
        return (), [f"{listed(rest)} not read: {read} are; for the columns instead: --kind rows"]
    remarks = []
    if reading.channels is not None:
        for name in reading.channels:
            if name not in head.names:
                raise DataError(head.absent(name))
        return tuple(reading.channels), []
    chosen = []
    for name in others:
        if name.lower() in GROUPS or (name == again and head.numeric(name)):
            remarks.append(_group(name))
        elif _readable(head, name, kind):
            chosen.append(name)
            remarks += [*_almost_numbers(head, name), *_marks(head, name)]
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


def _group(name: str) -> str:
    return f"column {name!r} is left out; so that no {name} is in two splits: --group {name}"


def _unread(head: Head, reading: Reading, index: Sequence[str]) -> Iterator[str]:
    """What is said of columns that hold an index, or lists and structs."""
    for name in index:
        yield (
            f"{name!r} is left out: it has no name, and another whole number in every row, as an "
            "index has; to read it, name it with --channels, or in the file"
        )
    for name, kind in head.nested.items() if reading.channels is None else ():
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
        if not is_missing(cell) and not is_number(cell)
    ]


def _commas(odd: list[tuple[int, str]]) -> int:
    """How many would be numbers with a point for the comma."""
    return sum(has_decimal_comma(cell) for _, cell in odd)


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
    known = [cell for cell in cells if not is_missing(cell)]
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
    roles = dict.fromkeys(reading.channels or (), "number")
    if reading.kind == "rows":
        roles |= {n: "word" for n in roles if not head.numeric(n) and head.known(n)}
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
