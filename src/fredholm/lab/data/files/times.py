"""Times as whole numbers of ticks, so that differences keep all digits."""

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
        values: int64, in ticks since ``origin``.
        origin: in ticks since zero, or for dates since 1970 in UTC.
        per_second: ticks per unit of the numbers, or for dates per second.
        dated: whether the times are dates.
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
        """Units since the first time, as float64; differences are taken in integers."""
        return (self.values - self.values[:1]) / self.per_second

    def absolute(self, number: int) -> np.longdouble:
        """Return a time in units, as an extended float: float64 would drop nanoseconds."""
        ticks = self.origin + int(self.values[number])
        return np.longdouble(ticks) / self.per_second

    def text(self, number: int) -> str:
        """Return a time as a person writes it.

        Example:
            >>> ticks_of_words(["2026-03-01 06:01"]).text(0), ticks_of_words(["0.50"]).text(0)
            ('2026-03-01T06:01:00', '0.5')
        """
        ticks = self.origin + int(self.values[number])
        digits = len(str(self.per_second)) - 1
        if not self.dated:
            value = Decimal(ticks).scaleb(-digits)
            return _shortened(f"{value:f}")
        seconds, rest = divmod(ticks, self.per_second)
        date = np.datetime64(seconds, "s")
        return _shortened(f"{date}.{rest:0{digits}d}")


def _shortened(number: str) -> str:
    """Return a number without zeros behind its point."""
    if "." not in number:
        return number
    return number.rstrip("0").rstrip(".")


class NotATime(ValueError):
    """A cell that is not a time: its number among the cells, and why."""

    def __init__(self, number: int, why: str = ""):
        super().__init__(why)
        self.number = number
        self.why = why


# --- numbers --------------------------------------------------------------------------------------


def ticks_of_numbers(cells: Sequence[str]) -> Ticks:
    """Return times that are written as numbers, by their decimal digits.

    Raises:
        NotATime: a cell that is no finite number.
    """
    whole = _cast(cells, "int64")
    if whole is not None:
        return ticks_of_array(whole)
    exact = _decimals(cells)
    if not exact:
        return Ticks(np.zeros(0, np.int64), 0, 1, False)

    # Stamps since 1970 share most of their digits, which need no room in the ticks.
    origin = Decimal(0)
    if max(map(abs, exact)) > 10**9:
        origin = min(exact)
    span = max(abs(value - origin) for value in exact)
    # float64 distinguishes 17 digits of the span; more would not fit into 64 bits.
    room = 17
    if span:
        room -= span.adjusted()
    exponents = [int(value.normalize().as_tuple().exponent) for value in exact]
    needed = -min(exponents)
    digits = max(0, min(needed, room))
    first = int(origin.scaleb(digits))
    ticks = [int(value.scaleb(digits)) - first for value in exact]
    try:
        values = np.array(ticks, np.int64)
    except OverflowError:
        raise NotATime(0, "times must not be further apart than 1e18") from None
    return Ticks(values, first, 10**digits, False)


def _decimals(cells: Sequence[str]) -> list[Decimal]:
    values = []
    for number, cell in enumerate(cells):
        if not is_number(cell):
            raise NotATime(number)
        value = Decimal(cell.strip())
        if not value.is_finite():
            raise NotATime(number, "it is no time, but infinite or missing")
        values.append(value)
    return values


def ticks_of_array(values: np.ndarray) -> Ticks:
    """Return the times of a numeric array (n,).

    Integers and NumPy's dates are exact; floats become the shortest decimals that stand for them.

    Raises:
        NotATime: NaN, NaT or an infinite number.
    """
    kind = values.dtype.kind
    if kind in "mM":
        return _ticks_of_numpy_dates(values)
    if kind not in "iu":
        numbers = values.astype(np.float64).tolist()
        return ticks_of_numbers(list(map(repr, numbers)))
    if not len(values):
        return Ticks(values.astype(np.int64), 0, 1, False)
    # Subtracted in their own type: int64 does not hold all of uint64.
    origin = values.min()
    since = values - origin
    return Ticks(since.astype(np.int64), int(origin), 1, False)


def _ticks_of_numpy_dates(values: np.ndarray) -> Ticks:
    kind = values.dtype.kind
    unit, count = np.datetime_data(values.dtype)
    missing = np.isnat(values)
    if missing.any():
        raise NotATime(int(missing.argmax()))
    # Coarser units, such as days, become seconds; finer ones nanoseconds.
    if unit not in _UNITS or count != 1:
        finer = {"ps": "ns", "fs": "ns", "as": "ns"}
        unit = finer.get(unit, "s")
        values = values.astype(f"{kind}8[{unit}]")
    return Ticks(values.astype(np.int64), 0, _UNITS[unit], kind == "M")


# --- dates ----------------------------------------------------------------------------------------


def is_date(cell: str) -> bool:
    """Return whether a cell is a date in any order of day and month, and not a number."""
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
    """Return the order of dates such as ``03/01/2026``; None if no date is written so.

    A number above 12 is a day. Without any, half of all dates would be wrong by a guess.

    Raises:
        ValueError: both orders fit every cell, or neither does.
    """
    first = []
    second = []
    for cell in cells:
        found = _PARTS.match(cell.strip())
        if found is None or len(found[1]) == 4:
            continue
        first.append(int(found[1]))
        second.append(int(found[3]))
    if not first:
        return None

    day_first = max(first) > 12
    month_first = max(second) > 12
    if day_first and month_first:
        raise ValueError("some dates have the day first and some the month; write all alike")
    if day_first:
        return "dayfirst"
    if month_first:
        return "monthfirst"
    raise ValueError(
        "day or month may come first; say which: --read dates=dayfirst or --read dates=monthfirst"
    )


def nanoseconds(cell: str, order: str | None = None) -> int:
    """Return a date as nanoseconds since 1970, in UTC unless it names a zone.

    Example:
        >>> nanoseconds("1970-01-01T00:00:00.0000005"), nanoseconds("1970-01-01T01:00+01:00")
        (500, 0)

    Raises:
        ValueError: not a date, or one whose order of day and month is not known.
    """
    text = cell.strip()
    if is_number(text):
        raise ValueError("a number")
    found = _PARTS.fullmatch(text)
    if found is not None:
        text = _year_first(found, order)
    # Python's datetime holds microseconds: finer fractions are added below.
    fraction = 0
    split = _FRACTION.fullmatch(text)
    if split is not None:
        text = split[1] + split[3]
        fraction = int(split[2][:9].ljust(9, "0"))
    try:
        zoned = datetime.fromisoformat(text)
    except ValueError:
        # NumPy also knows months, such as 2026-03, but takes "now" for a time.
        if not text[:1].isdigit():
            raise
        date = np.datetime64(text.removesuffix("Z"), "s")
        seconds = int(date.astype(np.int64))
        return seconds * NANO + fraction
    if zoned.tzinfo is None:
        zoned = zoned.replace(tzinfo=UTC)
    since = zoned - _EPOCH
    seconds = since.days * 86400 + since.seconds
    return seconds * NANO + since.microseconds * 1000 + fraction


def _year_first(found: re.Match[str], order: str | None) -> str:
    """Return a date of :data:`_PARTS` in ISO's notation, with hours of 24."""
    first, _, middle, last, clock = found.groups()
    if len(first) == 4:
        year = first
        month = middle
        day = last
    elif len(last) != 4:
        # 01/02/03 has three readings.
        raise ValueError("a year of two digits")
    elif order == "dayfirst":
        day = first
        month = middle
        year = last
    elif order == "monthfirst":
        month = first
        day = middle
        year = last
    else:
        raise ValueError("day or month may come first")
    date = f"{year}-{int(month):02d}-{int(day):02d}"
    if not clock:
        return date
    half = _HALF_DAY.fullmatch(clock)
    if half is not None:
        # 12 am is 0 o'clock, 12 pm is 12.
        hours = int(half[1]) % 12
        if half[3] in "pP":
            hours += 12
        clock = f"{hours}{half[2] or ':00'}"
    hour, colon, rest = clock.partition(":")
    return f"{date}T{hour.zfill(2)}{colon}{rest}"


def ticks_of_dates(cells: Sequence[str], order: str | None) -> Ticks:
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
    except OverflowError:
        # 64 bits hold 292 years of nanoseconds: centuries are held in microseconds.
        origin //= 1000
        values = np.array([value // 1000 - origin for value in exact], np.int64)
        return Ticks(values, origin, 10**6, True)
    return Ticks(values, origin, NANO, True)


def _cast(cells: Sequence[str], kind: str) -> np.ndarray | None:
    """Return all cells as int64 at once; None if a cell has another notation.

    The slower way knows every notation that this one does.
    """
    try:
        import pyarrow as arrow
    except ImportError:
        return None
    try:
        array = arrow.array(cells, arrow.string()).cast(kind)
    except (arrow.ArrowInvalid, TypeError):
        return None
    if not len(array) or array.null_count:
        return None
    return array.cast("int64").to_numpy()


def ticks_of_words(cells: Sequence[str], order: str | None = None) -> Ticks:
    """Return times that are all numbers or all dates, as the first cell is.

    Raises:
        NotATime: a cell that is neither, or not as the first is.
    """
    if cells and is_number(cells[0]):
        return ticks_of_numbers(cells)
    return ticks_of_dates(cells, order)


def clock_of(ticks: Ticks, number: int) -> str:
    """Return a hint where a time comes again an hour later, as when clocks are put back."""
    between = int(ticks.values[number] - ticks.values[number - 1])
    gap = between / ticks.per_second
    if not ticks.dated or not -3600 <= gap <= 0:
        return ""
    return (
        "; where clocks were put back that night, write times with their zone: "
        f"{ticks.text(number)}+01:00"
    )
