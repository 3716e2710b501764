"""Times as whole numbers of ticks, so that differences lose no digits."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import numpy as np

from .writing import is_number

NANO = 10**9
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_PARTS = re.compile(r"(\d{1,4})([-/.])(\d{1,2})\2(\d{1,4})(?:(?:[T ]|, )\s*(.*))?")
_FRACTION = re.compile(r"(.*:\d\d)[.,](\d+)(.*)")
_HALF_DAY = re.compile(r"(\d{1,2})(:.*?)?\s*([AaPp])\.?[Mm]\.?")
_UNITS = {"s": 1, "ms": 10**3, "us": 10**6, "ns": NANO}


@dataclass(frozen=True)
class Ticks:
    """Times of one column or array.

    Attributes:
        values: int64, relative to ``origin``.
        origin: a whole number of ticks.
        per_second: ticks per unit of the numbers, of dates per second.
        dated: whether these are dates, counted since 1970 in UTC.
    """

    values: np.ndarray
    origin: int
    per_second: int
    dated: bool

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, chosen: Any) -> Ticks:
        return Ticks(self.values[chosen], self.origin, self.per_second, self.dated)

    @property
    def seconds(self) -> np.ndarray:
        """Return float64 units since the first time; subtracts in integers."""
        return (self.values - self.values[:1]) / self.per_second

    @property
    def order(self) -> np.ndarray:
        """Return whole numbers that sort as the times do."""
        return self.values

    def absolute(self, number: int) -> np.longdouble:
        """Return a time in units, with the digits that an extended float holds."""
        return np.longdouble(self.origin + int(self.values[number])) / self.per_second

    def gap(self, first: int, second: int) -> float:
        """Return the units between two of them."""
        return int(self.values[second] - self.values[first]) / self.per_second

    def text(self, number: int) -> str:
        """Return a time as a person writes it.

        Example:
            >>> ticks_of_words(["2026-03-01 06:01"]).text(0), ticks_of_words(["0.50"]).text(0)
            ('2026-03-01T06:01:00', '0.5')
        """
        ticks = self.origin + int(self.values[number])
        whole, rest = divmod(ticks, self.per_second)
        digits = len(str(self.per_second)) - 1
        if not self.dated:
            exact = Decimal(ticks).scaleb(-digits) if digits else Decimal(ticks)
            return f"{exact:f}".rstrip("0").rstrip(".") if "." in f"{exact:f}" else f"{exact:f}"
        fraction = f".{rest:0{digits}d}".rstrip("0").rstrip(".") if rest else ""
        return f"{np.datetime64(whole, 's')}{fraction}"


class NotATime(ValueError):
    """A cell that is no time: its number among the cells, and why."""

    def __init__(self, number: int, why: str = ""):
        super().__init__(why)
        self.number, self.why = number, why


# --- numbers --------------------------------------------------------------------------------------


def ticks_of_numbers(cells: Sequence[str]) -> Ticks:
    """Return times that are written as numbers, by their decimal digits.

    Raises:
        NotATime: a cell that is no finite number.
    """
    whole = _cast(cells, "int64")
    if whole is not None:
        return ticks_of_array(whole)
    exact = []
    for number, cell in enumerate(cells):
        if not is_number(cell):
            raise NotATime(number)
        value = Decimal(cell.strip())
        if not value.is_finite():
            raise NotATime(number, "no time")
        exact.append(value)
    digits = max((-value.normalize().as_tuple().exponent for value in exact), default=0)  # type: ignore[operator]
    largest = max((abs(value) for value in exact), default=Decimal(0))
    origin = min(exact, default=Decimal(0)) if largest > 10**9 else Decimal(0)
    span = max((abs(value - origin) for value in exact), default=Decimal(0))
    # float64 distinguishes 17 digits of the span; more would not fit into 64 bits.
    digits = max(0, min(int(digits), 17 - span.adjusted() if span else 17))
    whole = int(origin.scaleb(digits))
    values = [int(value.scaleb(digits)) - whole for value in exact]
    try:
        return Ticks(np.array(values, np.int64), whole, 10**digits, False)
    except OverflowError:
        raise NotATime(0, "times that are further apart than 1e18") from None


def ticks_of_array(values: np.ndarray) -> Ticks:
    """Return the times of a numeric array (of one axis): integers and numpy's dates exactly, floats
    by the shortest decimals that stand for them.

    Raises:
        NotATime: NaN, NaT or an infinite number.
    """
    if values.dtype.kind in "mM":
        unit, count = np.datetime_data(values.dtype)
        missing = np.isnat(values)
        if missing.any():
            raise NotATime(int(missing.argmax()))
        if unit not in _UNITS or count != 1:
            unit = "ns" if unit in ("ps", "fs", "as") else "s"
            values = values.astype(f"{values.dtype.kind}8[{unit}]")
        return Ticks(values.astype(np.int64), 0, _UNITS[unit], values.dtype.kind == "M")
    if values.dtype.kind in "iu":
        origin = int(values.min()) if len(values) else 0
        return Ticks((values - values.dtype.type(origin)).astype(np.int64), origin, 1, False)
    return ticks_of_numbers([repr(value) for value in values.astype(np.float64).tolist()])


# --- dates ----------------------------------------------------------------------------------------


def is_date(cell: str) -> bool:
    """Return whether a cell is a date in any order, and no number."""
    if is_number(cell):
        return False
    for order in ("dayfirst", "monthfirst"):
        try:
            nanoseconds(cell, order)
        except ValueError:
            continue
        return True
    return False


def order_of(cells: Iterable[str]) -> str | None:
    """Return the order of dates such as ``03/01/2026``; None where none are written so.

    Raises:
        ValueError: both orders fit every cell, or neither does.
    """
    seen, first_day, first_month = "", False, False
    for cell in cells:
        found = _PARTS.match(cell.strip())
        if found is None or len(found[1]) == 4:
            continue
        seen = seen or cell.strip()
        first_day |= int(found[1]) > 12
        first_month |= int(found[3]) > 12
    if not seen:
        return None
    if first_day and first_month:
        raise ValueError("some dates have the day first and some the month")
    if first_day or first_month:
        return "dayfirst" if first_day else "monthfirst"
    raise ValueError(
        "day or month may come first; say which: --read dates=dayfirst or --read dates=monthfirst"
    )


def nanoseconds(cell: str, order: str | None = None) -> int:
    """Return a date as nanoseconds since 1970: in UTC, where it names no zone of its own.

    Example:
        >>> nanoseconds("1970-01-01T00:00:00.0000005"), nanoseconds("1970-01-01T01:00+01:00")
        (500, 0)

    Raises:
        ValueError: no date, or one of an order that is not said.
    """
    text = cell.strip()
    if is_number(text):
        raise ValueError("a number")
    found = _PARTS.fullmatch(text)
    if found is not None:
        text = _year_first(found, order)
    fraction = 0
    split = _FRACTION.fullmatch(text)
    if split is not None:
        text = split[1] + split[3]
        fraction = int(split[2][:9].ljust(9, "0"))
    try:
        zoned = datetime.fromisoformat(text)
    except ValueError:  # numpy also knows months
        if not text[:1].isdigit():  # "now" is no time of a file
            raise
        return int(np.datetime64(text.removesuffix("Z"), "s").astype(np.int64)) * NANO + fraction
    zoned = zoned if zoned.tzinfo else zoned.replace(tzinfo=UTC)
    since = zoned - _EPOCH
    whole = since.days * 86400 + since.seconds
    return whole * NANO + since.microseconds * 1000 + fraction


def _year_first(found: re.Match[str], order: str | None) -> str:
    first, _, middle, last, clock = found.groups()
    if len(first) == 4:
        year, month, day = first, middle, last
    elif len(last) != 4:
        raise ValueError("a year of two digits")
    elif order == "dayfirst":
        day, month, year = first, middle, last
    elif order == "monthfirst":
        month, day, year = first, middle, last
    else:
        raise ValueError("day or month may come first")
    date = f"{year}-{int(month):02d}-{int(day):02d}"
    if not clock:
        return date
    half = _HALF_DAY.fullmatch(clock)
    if half is not None:
        hour = int(half[1]) % 12 + 12 * (half[3] in "pP")
        clock = f"{hour}{half[2] or ':00'}"
    hour, colon, rest = clock.partition(":")
    return f"{date}T{hour.zfill(2)}{colon}{rest}"


def ticks_of_dates(cells: Sequence[str], order: str | None = None) -> Ticks:
    """Return dates as nanoseconds since 1970 (UTC, where they name no zone).

    Raises:
        NotATime: a cell that is no date, or whose order is not known.
    """
    if order is None:
        try:
            order = order_of(cells)
        except ValueError as error:
            raise NotATime(0, str(error)) from error
    fast = _cast(cells, "timestamp[ns]")
    if fast is not None:
        origin = int(fast.min())
        return Ticks(fast - origin, origin, NANO, True)
    exact = []
    for number, cell in enumerate(cells):
        try:
            exact.append(nanoseconds(cell, order))
        except ValueError as error:
            raise NotATime(number) from error
    origin = min(exact, default=0)
    try:
        values = np.array([value - origin for value in exact], np.int64)
    except OverflowError:  # centuries apart: microseconds
        origin //= 1000
        return Ticks(np.array([v // 1000 - origin for v in exact], np.int64), origin, 10**6, True)
    return Ticks(values, origin, NANO, True)


def _cast(cells: Sequence[str], kind: str) -> np.ndarray | None:
    """Return all cells as int64 at once; None where one is written otherwise."""
    try:
        import pyarrow as arrow
    except ImportError:  # the slower way knows all that this one does
        return None
    try:
        array = arrow.array(cells, arrow.string()).cast(kind)
    except (arrow.ArrowInvalid, TypeError):
        return None
    if not len(array) or array.null_count:
        return None
    return array.cast("int64").to_numpy()


def ticks_of_words(cells: Sequence[str], order: str | None = None) -> Ticks:
    """Return times that are numbers, or dates, whichever the first cell is.

    Raises:
        NotATime: a cell that is neither, or not as the first is.
    """
    if cells and is_number(cells[0]):
        return ticks_of_numbers(cells)
    return ticks_of_dates(cells, order)


def clock_of(ticks: Ticks, number: int) -> str:
    """Return a hint where a time comes again an hour later, as when clocks are put back."""
    back = -ticks.gap(number - 1, number) if number else 0.0
    if not ticks.dated or not 0 <= back <= 3600:
        return ""
    return (
        "; where clocks were put back that night, write times with their zone: "
        f"{ticks.text(number)}+01:00"
    )
