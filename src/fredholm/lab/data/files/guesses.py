"""Guesses from the names and first cells of a table's columns: labels, kinds, times and groups."""

from __future__ import annotations

import re
from collections.abc import Collection as Suffixes
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from ....errors import DataError
from .collection import looks_continuous
from .head import SLIPS, Column, Head
from .reading import Reading
from .sounds import SUFFIXES as SOUNDS
from .times import NotATime, nanoseconds, ticks_of_words
from .writing import is_number

LABELS = ("label", "class", "target", "y", "category", "outcome", "diagnosis")
IDS = ("id", "series", "series_id", "sample_id", "case", "record", "sequence", "uid", "index")
# Words at the end of a name that say that it identifies, as of customer_id, CustomerID, order uuid.
ID_WORDS = ("id", "uid", "uuid", "guid")
# Words behind them, as of id_number.
ID_ENDS = ("number", "no", "nr", "num", "code")
# What tables have a row for: with "id" behind it, one of these is a name without a sign between its
# words. Any other word may end so and mean something else, as paid, void, grid and valid do.
ENTITIES = (
    "account", "case", "client", "customer", "device", "employee", "event", "invoice", "item",
    "loan", "member", "object", "order", "passenger", "patient", "person", "policy", "product",
    "record", "row", "sample", "session", "student", "subject", "ticket", "transaction", "user",
    "visit",
)  # fmt: skip
TIMES = ("time", "t", "timestamp", "date", "datetime", "seconds", "minutes", "hours", "days")
GROUPS = ("patient", "patient_id", "subject", "subject_id", "group", "person", "user", "site")
STEPS = ("t", "time", "step", "sample", "s", "att", "timestep")
PICTURES = frozenset({".png", ".jpg", ".jpeg", ".bmp", ".webp", ".ppm", ".pgm", ".tif", ".tiff"})
# Columns of numbers beside one of texts, from which on rows are read rather than texts.
ENOUGH = 2
# Fewest groups by which samples are divided unasked: fewer leave too little for three splits.
FEWEST_GROUPS = 5
# A word of a name: customer and ID of customerID, CustomerId and CUSTOMER_ID.
WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
FORECASTING = (
    "to predict a column from its own past, forecasting, is not supported yet; where a column is "
    "to be predicted from the others of its row, name it: --label"
)


def called(columns: Sequence[str], names: Sequence[str]) -> str | None:
    """Return the column that has the first of some usual names.

    Example:
        >>> called(["a", "Series ID", "t"], IDS), called(["a"], IDS)
        ('Series ID', None)
    """
    # Reversed, so that of two spellings the first column stays.
    lower = {name.lower().replace(" ", "_"): name for name in reversed(columns)}
    for name in names:
        if name in lower:
            return lower[name]
    return None


def names_an_id(name: str) -> bool:
    """Return whether a column's name says that it identifies the rows, or something that they have.

    Example:
        >>> [name for name in ("CustomerID", "user_id", "id_number", "userid") if names_an_id(name)]
        ['CustomerID', 'user_id', 'id_number', 'userid']
        >>> [name for name in ("paid", "void", "GRID", "valid", "Madrid") if names_an_id(name)]
        []
    """
    words = [word.lower() for word in WORD.findall(name)]
    if not words:
        return False
    first = words[0]
    last = words[-1]
    if last in ID_WORDS:
        return True
    if first in ID_WORDS and last in ID_ENDS:
        return True
    return len(words) == 1 and first.removesuffix("id") in ENTITIES


def identifies(column: Column) -> bool:
    """Return whether a column is called like an id, and holds whole numbers or words."""
    return names_an_id(column.name) and all(map(_is_whole, column.known))


def _is_whole(cell: str) -> bool:
    """Return whether a cell is a whole number, or not a number at all."""
    return not is_number(cell) or float(cell).is_integer()


def id_of(head: Head, free: Sequence[str]) -> str | None:
    """Return the column that identifies series or rows, which has one of the usual names or is
    called like an id.

    Columns of the second sort hold another value in every row: a customer_id that repeats does not
    identify the orders of a table.
    """
    usual = called(free, IDS)
    if usual is not None:
        return usual
    for name in free:
        column = head[name]
        if identifies(column) and differs(column):
            return name
    return None


def differs(column: Column) -> bool:
    """Return whether a column has another value in each of the first rows."""
    return 1 < column.kinds == len(column.cells)


def label_of(head: Head, free: Sequence[str]) -> str:
    """Return the column named like a label, or a guess.

    The guess is the last column: people write what they know before what they ask. Files without
    names, as of UCR, have classes in the first column; there, it is the first one if it holds
    classes, unless the last one alone holds words.

    Raises:
        DataError: no column is free.
    """
    if not free:
        raise DataError(
            f"{head.path}: no column can be the label; has {', '.join(head.names)}; name it: label"
        )
    found = called(free, LABELS)
    if found is not None:
        return found

    first = head[free[0]]
    last = head[free[-1]]
    if head.named:
        return last.name
    if len(set(first.cells)) < 2 or looks_continuous(first.known):
        return last.name
    if first.numeric and not last.numeric:
        return last.name
    return first.name


# --- kinds ----------------------------------------------------------------------------------------


class Kind(NamedTuple):
    """Kind of samples, whether a row is a time of a series, and the column of texts or paths."""

    kind: str
    long: bool = False
    text: str | None = None


def kind_of(
    head: Head,
    reading: Reading,
    others: list[str],
    series_id: str | None,
    time: str | None,
) -> Kind:
    """Return the kind of the samples; ``others`` are the columns without another role.

    Without a declared kind, from the most to the least certain sign: paths of pictures, series,
    texts, columns named like times; else rows.

    Raises:
        DataError: a kind that the table does not hold.
    """
    asked = reading.kind
    text = reading.text
    guessing = asked is None and text is None
    pictures = _of_paths(head, others, reading, PICTURES)
    if asked == "images" or (guessing and pictures is not None):
        if text is None and pictures is None:
            raise DataError(
                f"{head.path}: expected a column of paths of pictures, got none; name it: text"
            )
        return Kind("images", text=text or pictures)
    if asked in (None, "series"):
        sounds = _of_paths(head, others, reading, SOUNDS)
        found = _series(head, reading, sounds, series_id, time)
        if found is not None:
            return found

    numbers = [name for name in others if head[name].numeric]
    if guessing and len(numbers) < ENOUGH:
        # Beside many numbers, a column of texts is a name or a note, as of passengers.
        text = next((name for name in others if head[name].is_text), None)
    if asked is None and text is not None:
        return Kind("texts", text=text)
    if asked == "texts":
        words = [head[name] for name in others if name not in numbers]
        return Kind("texts", text=text or _longest_texts(head, words))
    if asked == "series" or (asked is None and _wide(head, others)):
        return Kind("series")
    if asked in ("clouds", "fields"):
        raise DataError(
            f"{head.path}: kind: expected series, rows, texts or images, which tables can hold, "
            f"got {asked!r}; give npz, h5, ply, xyz or off"
        )
    return Kind("rows")


def _longest_texts(head: Head, columns: Sequence[Column]) -> str:
    """Return the column with the most words per cell."""
    if not columns:
        raise DataError(f"{head.path}: expected a column of texts, got none; name it: text")
    longest = max(columns, key=lambda column: column.words)
    return longest.name


def _series(
    head: Head,
    reading: Reading,
    sounds: str | None,
    series_id: str | None,
    time: str | None,
) -> Kind | None:
    """Return series of sounds, of rows with one id, or of lists; None if there are none."""
    if sounds is not None:
        return Kind("series", text=sounds)
    if reading.kind == "series" and reading.text is not None:
        raise DataError(
            f"{head.path}: text: column {reading.text!r} holds no paths of sounds "
            f"({', '.join(SOUNDS)}); series of numbers have none: leave it out"
        )
    if series_id is not None and _repeats(head[series_id].cells):
        return Kind("series", long=True)
    if reading.text is None and lists_of(head, reading):
        return Kind("series")
    if reading.kind == "series" and time is not None and series_id is None:
        raise DataError(
            f"{head.path}: has times ({time!r}) but no column tells which series a row belongs to; "
            f"name it: id (has {', '.join(head.names)})"
        )
    return None


def lists_of(head: Head, reading: Reading) -> tuple[str, ...]:
    """Return the columns of lists that are the channels of series."""
    if reading.channels is None:
        return tuple(head.lists)
    if set(reading.channels) <= set(head.lists):
        return tuple(reading.channels)
    return ()


def _of_paths(
    head: Head,
    others: Sequence[str],
    reading: Reading,
    suffixes: Suffixes[str],
) -> str | None:
    """Return the declared column of texts, or any column, if its cells all end in a suffix.

    A table may also hold numbers that were measured of sounds or pictures, beside their names.
    Where nothing is declared and several columns of numbers are there, the first file has to exist.
    """
    said = reading.text
    names = others
    if said is not None:
        names = [said]
    beside = False
    if reading.kind is None:
        numbers = [name for name in others if head[name].numeric]
        beside = len(numbers) >= ENOUGH

    for name in names:
        cells = head[name].known
        ends = {_end_of(cell) for cell in cells}
        if not cells or not ends <= set(suffixes):
            continue
        if said is not None or not beside:
            return name
        file = head.path.parent / cells[0]
        if file.is_file():
            return name
    return None


def _end_of(cell: str) -> str:
    """Return the suffix of a path in a cell; "" without one."""
    _, dot, end = cell.rpartition(".")
    if not dot:
        return ""
    return f".{end.lower()}"


def _repeats(cells: Sequence[str]) -> bool:
    """Whether the rows of an id are a series: most ids occur more than once."""
    count = len(set(cells))
    if count * 2 <= len(cells):
        return True
    # Among three rows, a single repetition is enough.
    return len(cells) <= 3 and count < len(cells)


def _wide(head: Head, others: Sequence[str]) -> bool:
    """Whether columns are the times of a series: many, of numbers, without names or with numbers
    as names, such as ``t_1``.
    """
    if len(others) < 8 or any(head[name].odd for name in others):
        return False
    if not head.named or all(map(is_number, others)):
        return True
    for name in others:
        found = re.fullmatch(r"([A-Za-z_ ]*?)[_ ]?(\d+)", name)
        if found is None:
            return False
        word = found.group(1).strip().lower()
        if word not in STEPS:
            return False
    return True


# --- times and groups -----------------------------------------------------------------------------


def comes_again(column: Column) -> bool:
    """Return whether more ids repeat than slips would, in a table of one row per sample."""
    return column.kinds < (1 - SLIPS) * len(column.known)


def group_of(
    head: Head,
    names: Sequence[str],
    like: str | None,
    again: str | None,
) -> str | None:
    """Return a column by which samples are divided unasked.

    Its values come again beside dates, as of machines or patients. A random split would put later
    samples of a patient into the training set, and earlier ones into the test set.

    Args:
        names: columns without a declared role.
        like: a column within whose values times grow.
        again: a column that is called like an id, and repeats.
    """
    found = like
    if found is None and _has_days(head):
        usual = [name for name in names if name.lower() in GROUPS]
        found = again or next(iter(usual), None)
    if found is None:
        return None

    column = head[found]
    if not FEWEST_GROUPS <= column.kinds < len(column.known):
        return None
    return found


def _has_days(head: Head) -> bool:
    columns = [head[name] for name in head.names]
    return any(column.days for column in columns if not column.numeric)


def like_series(
    head: Head,
    names: Sequence[str],
    time: str,
) -> str | None:
    """Return a column whose values look like series, within each of which the times grow.

    From row to row they must not grow, unless the rows of each value stand together and the times
    are dates: then any column of words would fit.
    """
    times = _moments(head, time)
    if times is None:
        return None
    grows = bool((np.diff(times) > 0).all())
    if grows and not head[time].dated:
        return None
    for name in names:
        column = head[name]
        if name in IDS or (grows and column.numeric):
            continue
        values, codes = np.unique(column.cells, return_inverse=True)
        # Series of one or two rows tell nothing.
        if len(values) < 2 or len(times) < 3 * len(values):
            continue
        if not _grow_within(times, codes):
            continue
        if not grows:
            return name
        changes = int((codes[1:] != codes[:-1]).sum())
        together = changes == len(values) - 1
        if together and len(values) >= FEWEST_GROUPS:
            return name
    return None


def _grow_within(times: np.ndarray, codes: np.ndarray) -> bool:
    """Return whether times grow from row to row among the rows of each code."""
    order = np.argsort(codes, kind="stable")
    ordered = codes[order]
    inner = ordered[1:] == ordered[:-1]
    gaps = np.diff(times[order])
    return bool((gaps[inner] > 0).all())


def refuse_forecasting(
    head: Head,
    label: str,
    others: Sequence[str],
) -> None:
    """Refuse a label that nobody named, in a table of numbers by date.

    Its owner wants the next numbers. A model of the last column from the others of its row would
    train without complaint, and answer another question.

    Raises:
        DataError: a single series, or one per value of a column of words.
    """
    if label.lower() in LABELS or not head.named or not head[label].numeric:
        return
    dates = [name for name in head.names if head[name].dated]
    if len(dates) != 1 or len(head.rows) < 3:
        return

    date = dates[0]
    alone = set(others) <= {date} and grow_from_row_to_row(head, date)
    names = []
    for name in head.names:
        if name not in (label, date) and not head[name].numeric:
            names.append(name)
    panel = len(names) == 1 and like_series(head, names, date) is not None
    if alone or panel:
        raise DataError(f"{head.path}: {FORECASTING} (has {', '.join(head.names)})")


def grow_from_row_to_row(head: Head, time: str | None) -> bool:
    """Return whether there are times that are later in every row than in the row before."""
    name = time or called(head.names, TIMES)
    if name is None or name not in head.names or len(head.rows) < 3:
        return False
    times = _moments(head, name)
    if times is None:
        return False
    return bool((np.diff(times) > 0).all())


def _moments(head: Head, name: str) -> np.ndarray | None:
    """Return the first cells of a column as times to compare; None if a cell is not a time."""
    # The order of day and month may not be settled by the first rows: any one shows growth.
    cells = head[name].cells
    for order in (head.writing.dates, "dayfirst"):
        try:
            ticks = ticks_of_words(cells, order)
        except NotATime:
            continue
        return ticks.values
    return None


def bare_dates(column: Column) -> bool:
    """Return whether cells are dates since 1900 without signs between their parts, as 20240131."""
    return bool(column.known) and all(map(_is_day, column.known))


def _is_day(cell: str) -> bool:
    if not re.fullmatch(r"(19|20)\d{6}", cell):
        return False
    date = f"{cell[:4]}-{cell[4:6]}-{cell[6:]}"
    try:
        nanoseconds(date)
    except ValueError:
        return False
    return True
