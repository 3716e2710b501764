"""Columns that a model reads, and remarks on those that are left out."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from ....errors import DataError
from .collection import looks_continuous
from .guesses import GROUPS, TIMES, called, differs, identifies
from .head import SENTENCE, SLIPS, WORDS, Column, Head
from .reading import Reading
from .writing import no_number

SHOWN = 60  # characters of a cell in a remark


class Channels(NamedTuple):
    """The columns that are read, and remarks on the others."""

    names: tuple[str, ...]
    remarks: list[str]


def channels_of(
    head: Head,
    reading: Reading,
    others: list[str],
    kind: str,
    again: str | None,
) -> Channels:
    """Choose the channels among ``others``, columns without another role.

    Args:
        again: a column that is called like an id and repeats: its numbers are names of groups.

    Raises:
        DataError: a column that is not there, or nearly one of numbers; none that can be read.
    """
    if reading.channels is not None:
        for name in reading.channels:
            if name not in head.names:
                raise DataError(head.absent(name))
        return Channels(tuple(reading.channels), list(_many_words(head, reading.channels, kind)))

    names = []
    left_out = []
    remarks = []
    for name in others:
        column = head[name]
        if _names_a_group(column, again):
            left_out.append(column)
        elif _readable(column, kind):
            names.append(name)
            remarks += [*_almost_numbers(head, column), *_marks(column)]
        elif column.slips and not reading.strict:
            names.append(name)
        else:
            _refuse_almost_numbers(head, column)
            left_out.append(column)

    # The remedy may be a list of all columns to read, which is known only now.
    for column in left_out:
        read = [name for name in others if name in names or name == column.name]
        remarks.append(_left_out_remark(column, kind, again, read))
    if not names:
        why = "; ".join([f"has {', '.join(head.names)}", *remarks])
        raise DataError(f"{head.path}: no column is left for a model to read; {why}")
    return Channels(tuple(names), remarks)


def _names_a_group(column: Column, again: str | None) -> bool:
    """Whether a column holds names of what the rows belong to, often as numbers.

    As a feature, the number of a patient would let a model recognise the patient.
    """
    if column.name.lower() in GROUPS:
        return True
    return column.numeric and (column.name == again or identifies(column))


def _left_out_remark(
    column: Column,
    kind: str,
    again: str | None,
    read: Sequence[str],
) -> str:
    """Return why a column is not read, and the flags that change it.

    Args:
        read: the columns that are read, and this one, in the order of the file.
    """
    name = column.name
    if _names_a_group(column, again):
        if name.lower() in GROUPS or name == again:
            return group_remark(name)
        if differs(column):
            return (
                f"column {name!r} is left out: it has another value in every row, as an id has; to "
                f"read it as the id: --id {shlex.quote(name)}"
            )
        return f"{group_remark(name)}, or to read it: {channels_flag(read)}"
    what = "words"
    remedy = _for_words(column, kind, read)
    if column.days:
        what = "dates"
        remedy = _for_dates(column, kind)
    cell = column.known[0][:SHOWN]
    return f"column {name!r} is left out: its cells are {what} ({cell!r}); {remedy}"


def _for_dates(column: Column, kind: str) -> str:
    """Return what to do with a column of dates, which no model reads as features."""
    flag = f"--time {shlex.quote(column.name)}"
    if kind == "series":
        return f"where they are the times: {flag}"
    remedy = "to learn from them, write them as numbers, such as days since the first"
    # A split by time needs the time of every row.
    if len(column.known) == len(column.cells):
        remedy = f"to test on the latest rows: {flag} --split time; {remedy}"
    return remedy


def _for_words(
    column: Column,
    kind: str,
    read: Sequence[str],
) -> str:
    """Return what to do with a column of words that is not read."""
    if kind != "rows":
        return "to learn from them, write them as numbers"
    # Remarks that come again are no names either: few cells of texts need to differ.
    if column.words >= SENTENCE:
        return f"for a model of these texts alone: --text {shlex.quote(column.name)}"
    return f"to read each of them as a column of its own: {channels_flag(read)}"


def task_of(
    head: Head,
    label: str,
    series_id: str | None,
) -> str:
    """Return the task that the first labels look like.

    Raises:
        DataError: numbers with decimal commas, which would each become a class.
    """
    column = head[label]
    if column.odd and column.foreign == len(column.odd):
        raise DataError(
            f"{_place(head, column)}: {no_number(column.odd[0][1])}; where they are names of "
            "classes: task classification"
        )
    cells = column.cells
    if series_id is not None:
        # One label of each series: long series would make few numbers look like many repetitions.
        cells = dict(zip(reversed(head[series_id].cells), reversed(cells))).values()
    writing = column.writing
    known = [writing.number(cell) or cell for cell in cells if not writing.is_missing(cell)]
    if looks_continuous(known):
        return "regression"
    return "classification"


def unread(
    head: Head,
    reading: Reading,
    index: Sequence[str],
    series: Sequence[str],
) -> Iterator[str]:
    """Yield remarks on an index, and on lists and structs that are not read as ``series``."""
    for name in index:
        yield (
            f"{name!r} is left out: it has no name, and another whole number in every row, as an "
            "index has; to read it, name it with --channels, or in the file"
        )
    if reading.channels is not None:
        return
    for name, kind in head.lists.items():
        if name not in series:
            flag = f"--kind series {channels_flag([name])}"
            yield f"column {name!r} is left out: it holds {kind}; to read it as series: {flag}"
    for name, kind in head.nested.items():
        yield (
            f"column {name!r} is left out: it holds {kind}; to read its values, write each into a "
            "column of its own"
        )


def channels_flag(names: Sequence[str]) -> str:
    """Return the flag that reads these columns, ready to be pasted into a shell.

    Example:
        >>> channels_flag(["a", "width (cm)"])
        "--channels 'a,width (cm)'"
    """
    return f"--channels {shlex.quote(','.join(names))}"


def group_remark(name: str) -> str:
    """Return the remark on a column of groups that nobody named."""
    flag = f"--group {shlex.quote(name)}"
    return f"column {name!r} is left out; so that no {name} is in two splits: {flag}"


def not_read(names: Sequence[str], instead: str) -> str:
    """Return the remark on columns beside those that are read.

    Example:
        >>> not_read(["a"], "texts are"), not_read(["a", "b"], "series are")
        ("column 'a' is not read: texts are", "columns 'a', 'b' are not read: series are")
    """
    shown = first_of([*map(repr, names)])
    if len(names) == 1:
        return f"column {shown} is not read: {instead}"
    return f"columns {shown} are not read: {instead}"


def word_channel(column: str, word: str) -> str:
    """Return the name of the channel that is 1 where a column has this word.

    Example:
        >>> word_channel("town", "Rome")
        'town=Rome'
    """
    return f"{column}={word}"


def first_of(names: Sequence[str], most: int = 6) -> str:
    """Join names; of more than ``most``, the first ones, and how many there are.

    Example:
        >>> first_of(["a", "b"]), first_of(["a", "b", "c"], 2)
        ('a, b', 'a, b, … (3)')
    """
    shown = ", ".join(names[:most])
    if len(names) > most:
        shown += f", … ({len(names)})"
    return shown


def _many_words(
    head: Head,
    names: Sequence[str],
    kind: str,
) -> Iterator[str]:
    """Yield remarks on declared columns of words that become many columns."""
    if kind != "rows":
        return
    for column in (head[name] for name in names):
        if not column.numeric and column.kinds > WORDS:
            yield (
                f"column {column.name!r} is read as words, of which the first rows have "
                f"{column.kinds:,}: each becomes a column of its own; to read it as something "
                "else, leave it out of --channels"
            )


def _readable(column: Column, kind: str) -> bool:
    """Whether a column holds numbers, or in rows a few different words."""
    if not column.odd:
        return True
    # Days in a column of times are few as well, and new samples have others.
    clock = column.days and called([column.name], TIMES) is not None
    return kind == "rows" and column.kinds <= WORDS and not clock


def _almost_numbers(head: Head, column: Column) -> Iterator[str]:
    """Yield a remark on a column of numbers that a few cells turn into one of words.

    Raises:
        DataError: numbers with decimal commas.
    """
    if 2 * column.foreign > len(column.known):
        _refuse_almost_numbers(head, column)
    # A column of words may hold some numerals: only one that is mostly numbers is worth a remark.
    if column.odd and 2 * (len(column.odd) - column.foreign) <= len(column.known):
        row, cell = column.odd[0]
        yield (
            f"column {column.name!r} is read as {column.kinds} words, not as numbers: row "
            f"{head.spots[row].number} has {cell[:SHOWN]!r}"
        )


def _refuse_almost_numbers(head: Head, column: Column) -> None:
    """Refuse a column of numbers but for a few slips, or with decimal commas.

    To leave it out with a remark would cost the whole column for a slip.
    """
    few = len(column.odd) <= SLIPS * len(column.known)
    # With many words and few numbers, a column is one of words.
    if few or 2 * column.foreign > len(column.known):
        raise DataError(
            f"{_place(head, column)}: {no_number(column.odd[0][1])}; or name the columns to read "
            "without it: channels"
        )


def _place(head: Head, column: Column) -> str:
    """Return the place of the first cell that is not a number."""
    return f"{head.path}, row {head.spots[column.odd[0][0]].number}, column {column.name!r}"


def _marks(column: Column) -> Iterator[str]:
    """Yield a remark on a column of words some of which count as missing, such as ``none``."""
    if column.numeric:
        return
    cells = [cell for cell in column.cells if cell]
    missing = [cell for cell in cells if column.writing.is_missing(cell)]
    if missing:
        yield (
            f"column {column.name!r}: {', '.join(map(repr, sorted(set(missing))))} counts as "
            f"missing ({len(missing):,} of the first {len(cells):,} cells); where it is a value, "
            "write another word"
        )
