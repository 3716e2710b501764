"""What a model reads of a table, and what is said of the columns that are left out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from ....errors import DataError
from .collection import looks_continuous
from .guesses import GROUPS, TIMES, called
from .head import SLIPS, WORDS, Column, Head
from .reading import Reading
from .writing import no_number

SHOWN = 60


class Channels(NamedTuple):
    """The columns that are read, and remarks on the others."""

    names: tuple[str, ...]
    remarks: list[str]


def channels_of(
    head: Head, reading: Reading, others: list[str], kind: str, again: str | None
) -> Channels:
    """Choose among ``others``; ``again``: a column that is called like an id, whose numbers are
    those of groups.

    Raises:
        DataError: a column that is not there, or almost one of numbers; none that can be read.
    """
    if reading.channels is not None:
        for name in reading.channels:
            if name not in head.names:
                raise DataError(head.absent(name))
        return Channels(tuple(reading.channels), list(_many_words(head, reading.channels, kind)))
    names, remarks = [], []
    for name in others:
        column = head[name]
        if name.lower() in GROUPS or (name == again and column.numeric):
            remarks.append(group_remark(name))
        elif _readable(column, kind):
            names.append(name)
            remarks += [*_almost_numbers(head, column), *_marks(column)]
        elif column.slips and not reading.strict:
            names.append(name)
        else:
            _refuse_almost_numbers(head, column)
            what = "dates" if column.days else "words"
            remarks.append(
                f"column {name!r} is left out: its cells are {what} ({column.known[0][:SHOWN]!r})"
            )
    if not names:
        raise DataError(
            f"{head.path}: no column is left for a model to read; has {', '.join(head.names)}"
        )
    return Channels(tuple(names), remarks)


def task_of(head: Head, label: str, series_id: str | None) -> str:
    """Return what the first labels look like.

    Raises:
        DataError: numbers with decimal commas.
    """
    column = head[label]
    if column.odd and column.foreign == len(column.odd):
        raise DataError(
            f"{_place(head, column)}: {no_number(column.odd[0][1])}; where they are names of "
            "classes: task classification"
        )
    cells = column.cells
    if series_id is not None:  # one of each series
        cells = [*dict(zip(reversed(head[series_id].cells), reversed(cells))).values()]
    number = column.writing.number
    known = [number(cell) or cell for cell in cells if not column.writing.is_missing(cell)]
    return "regression" if looks_continuous(known) else "classification"


def unread(
    head: Head, reading: Reading, index: Sequence[str], series: Sequence[str]
) -> Iterator[str]:
    """Say what is left out: an index, and lists and structs that are no ``series``."""
    for name in index:
        yield (
            f"{name!r} is left out: it has no name, and another whole number in every row, as an "
            "index has; to read it, name it with --channels, or in the file"
        )
    for name, kind in {**head.lists, **head.nested}.items():
        if reading.channels is None and name not in series:
            yield f"column {name!r} is left out: it holds {kind}"


def group_remark(name: str) -> str:
    """Return what is said of a column of groups that nobody named."""
    return f"column {name!r} is left out; so that no {name} is in two splits: --group {name}"


def not_read(names: Sequence[str], instead: str) -> str:
    """Return what is said of columns beside those that are read.

    Example:
        >>> not_read(["a"], "texts are"), not_read(["a", "b"], "series are")
        ("column 'a' is not read: texts are", "columns 'a', 'b' are not read: series are")
    """
    shown = first_of([*map(repr, names)])
    columns = f"column {shown} is" if len(names) == 1 else f"columns {shown} are"
    return f"{columns} not read: {instead}"


def first_of(names: Sequence[str], most: int = 6) -> str:
    """The first ones of many names, and how many there are.

    Example:
        >>> first_of(["a", "b"]), first_of(["a", "b", "c"], 2)
        ('a, b', 'a, b, … (3)')
    """
    more = f", … ({len(names)})" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def _many_words(head: Head, names: Sequence[str], kind: str) -> Iterator[str]:
    """Say of columns that are asked for that they become many."""
    for column in (head[name] for name in names) if kind == "rows" else ():
        if not column.numeric and column.kinds > WORDS:
            yield (
                f"column {column.name!r} is read as words, of which the first rows have "
                f"{column.kinds:,}: each becomes a column of its own; to read it as something "
                "else, leave it out of --channels"
            )


def _readable(column: Column, kind: str) -> bool:
    """Numbers; in rows also words of a few kinds, which the days in a column of times are not."""
    if not column.odd:
        return True
    clock = column.days and called([column.name], TIMES) is not None
    return kind == "rows" and column.kinds <= WORDS and not clock


def _almost_numbers(head: Head, column: Column) -> Iterator[str]:
    """Say of a column of numbers that a few cells make one of words.

    Raises:
        DataError: numbers with decimal commas.
    """
    if 2 * column.foreign > len(column.known):
        _refuse_almost_numbers(head, column)
    if column.odd and 2 * (len(column.odd) - column.foreign) <= len(column.known):
        row, cell = column.odd[0]
        yield (
            f"column {column.name!r} is read as {column.kinds} words, not as numbers: row "
            f"{head.spots[row].number} has {cell[:SHOWN]!r}"
        )


def _refuse_almost_numbers(head: Head, column: Column) -> None:
    """Refuse a column of numbers where a few cells are none, or all have decimal commas: a slip,
    which would cost the column.
    """
    few = len(column.odd) <= SLIPS * len(column.known)
    if few or 2 * column.foreign > len(column.known):
        raise DataError(
            f"{_place(head, column)}: {no_number(column.odd[0][1])}; or name the columns to read "
            "without it: channels"
        )


def _place(head: Head, column: Column) -> str:
    """Where the first cell is that holds no number."""
    return f"{head.path}, row {head.spots[column.odd[0][0]].number}, column {column.name!r}"


def _marks(column: Column) -> Iterator[str]:
    """Say of a column of words that some are taken for missing ones."""
    cells = [] if column.numeric else [cell for cell in column.cells if cell]
    missing = [cell for cell in cells if column.writing.is_missing(cell)]
    if missing:
        yield (
            f"column {column.name!r}: {', '.join(map(repr, sorted(set(missing))))} counts as "
            f"missing ({len(missing):,} of the first {len(cells):,} cells); where it is a value, "
            "write another word"
        )
