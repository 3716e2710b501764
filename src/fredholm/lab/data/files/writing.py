"""How cells are written: the signs, words and orders that ``--read KEY=VALUE`` declares."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

from ....errors import OptionError, suggest

# Cells that stand for a missing value, unless `null=` names others; in lower case.
MISSING = frozenset({"", "?", "na", "n/a", "nan", "null", "none", "-", "#n/a"})
DATES = ("yearfirst", "dayfirst", "monthfirst")
CURRENCIES = "€$£¥₹₽₩₺"
_SEPARATORS = {
    "tab": "\t",
    "\\t": "\t",
    "space": " ",
    "comma": ",",
    "semicolon": ";",
    "pipe": "|",
}
_ANSWERS = {"yes": True, "no": False, "true": True, "false": False}


@dataclass(frozen=True)
class Writing:
    """Notation of a table; None is guessed.

    Attributes:
        separator: sign between cells.
        header: whether the first row names the columns.
        decimal: decimal sign: ``.`` or ``,``.
        thousands: sign between thousands, which is dropped.
        dates: order of ``03/01/2026``: ``dayfirst`` or ``monthfirst``.
        null: words for a missing cell, instead of the usual ones; an empty cell is always missing.
        encoding: encoding of the file.

    Raises:
        OptionError: an impossible value.
    """

    separator: str | None = None
    header: bool | None = None
    decimal: str | None = None
    thousands: str | None = None
    dates: str | None = None
    null: tuple[str, ...] | None = None
    encoding: str | None = None

    def __post_init__(self) -> None:
        # `header` and `null` are checked and cast by :meth:`of`; an encoding that Python does not
        # know is refused when the file is opened.
        if self.separator is not None:
            # Signs that are hard to type on a command line have names, such as tab.
            sign = _SEPARATORS.get(self.separator.lower(), self.separator)
            # A quote and line ends already have a meaning of their own in CSV.
            usable = len(sign) == 1 and sign not in '"\r\n'
            _check("separator", sign, usable, "one sign, or space")
            # The class is frozen.
            object.__setattr__(self, "separator", sign)
        if self.decimal is not None:
            _check("decimal", self.decimal, self.decimal in (".", ","), ". or ,")
        if self.thousands is not None:
            usable = len(self.thousands) == 1 and not self.thousands.isalnum()
            _check("thousands", self.thousands, usable, "one sign such as , or .")
            # With a comma as both signs, 1,234 could be 1234 or 1.234.
            _check("thousands", self.thousands, self.thousands != self.point, "another decimal=")
        if self.dates is not None and self.dates not in DATES:
            raise OptionError(
                f"read: expected dates={'|'.join(DATES)}, got {self.dates!r}"
                f"{suggest(self.dates, DATES)}"
            )

    @classmethod
    def of(cls, given: Writing | Mapping[str, Any] | Sequence[str] | str | None) -> Writing:
        """Read declarations: a mapping, or texts ``KEY=VALUE``.

        Example:
            >>> Writing.of(["separator=tab", "decimal=,"]).separator
            '\\t'

        Raises:
            OptionError: another key, or no ``=``.
        """
        if isinstance(given, Writing):
            return given
        if isinstance(given, str):
            given = [given]
        found: dict[str, Any] = {}
        if isinstance(given, Mapping):
            found.update(given)
        else:
            for text in given or ():
                key, sign, value = text.partition("=")
                if not sign:
                    raise OptionError(f"read: expected KEY=VALUE, got {text!r}; e.g. decimal=,")
                found[key] = value

        known = tuple(cls.__dataclass_fields__)
        for key in found:
            if key not in known:
                raise OptionError(
                    f"read: expected one of {', '.join(known)}, got {key!r}{suggest(key, known)}"
                )

        # From the command line, all values are texts.
        header = found.get("header")
        null = found.get("null")
        if isinstance(header, str):
            _check("header", header, header in _ANSWERS, "yes or no")
            found["header"] = _ANSWERS[header]
        if isinstance(null, str):
            found["null"] = tuple(word.strip().lower() for word in null.split(","))
        return cls(**found)

    @property
    def said(self) -> dict[str, Any]:
        """Declarations only, as :meth:`of` and JSON take them."""
        found = {key: value for key, value in asdict(self).items() if value is not None}
        if self.null is not None:
            found["null"] = ",".join(self.null)
        if self.header is not None:
            found["header"] = {True: "yes", False: "no"}[self.header]
        return found

    @property
    def point(self) -> str:
        """Decimal sign. Points between thousands imply decimal commas."""
        if self.decimal is not None:
            return self.decimal
        if self.thousands == ".":
            return ","
        return "."

    @property
    def plain(self) -> bool:
        """Whether numbers are written as Python writes them."""
        return self.point == "." and self.thousands is None

    def is_missing(self, cell: str) -> bool:
        """Return whether a cell stands for a missing value."""
        word = cell.strip().lower()
        if self.null is None:
            return word in MISSING
        return word == "" or word in self.null

    # Read for each cell of JSON Lines.
    @cached_property
    def null_numbers(self) -> tuple[float, ...]:
        """Numbers among the words for a missing cell, for cells that are not text.

        Example:
            >>> Writing.of(["null=unknown,-999"]).null_numbers
            (-999.0,)
        """
        return tuple(float(word) for word in self.null or () if is_number(word))

    def number(self, cell: str) -> str | None:
        """Return the number in a cell in Python's notation; None where there is none.

        Example:
            >>> Writing.of(["thousands=,"]).number("€68,000"), Writing().number("1,5")
            ('68000', None)
        """
        text: str | None = cell
        if not self.plain:
            text = self._normalised(cell)
        if text is None or not is_number(text):
            return None
        return text

    def _normalised(self, cell: str) -> str | None:
        """Return a cell with a decimal point and without currency and signs between thousands."""
        text = _bare(cell)
        if self.thousands is not None and self.thousands in text:
            # Three digits between two signs: 1,23 is not 123, but has another decimal sign.
            sign = re.escape(self.thousands)
            whole = rf"[+-]?\d{{1,3}}({sign}\d{{3}})+({re.escape(self.point)}\d*)?"
            if not re.fullmatch(whole, text):
                return None
            text = text.replace(self.thousands, "")
        if self.point == ".":
            return text
        # A point between digits is not a decimal sign here, and thousands are gone already.
        if "." in text:
            return None
        return text.replace(",", ".")


PLAIN = Writing()  # no declarations


def _check(
    key: str,
    value: Any,
    good: bool,
    needed: str,
) -> None:
    if not good:
        raise OptionError(f"read: expected {key}={needed}, got {value!r}; correct it")


def is_number(cell: str) -> bool:
    """Return whether a cell is a number as files write it; Python's ``1_2`` is not."""
    try:
        float(cell)
    except ValueError:
        return False
    return "_" not in cell


def has_decimal_comma(cell: str) -> bool:
    """Return whether a cell is a number with a decimal comma, or with a point."""
    return is_number(cell.replace(",", "."))


def is_foreign(cell: str) -> bool:
    """Return whether a cell is a number with a currency, decimal commas or signs between thousands.

    Example:
        >>> is_foreign("€68,000"), is_foreign("1,5"), is_foreign("kg")
        (True, True, False)
    """
    bare = _bare(cell)
    return has_decimal_comma(bare) or is_number(bare.replace(",", ""))


def _bare(cell: str) -> str:
    return cell.strip().strip(CURRENCIES).strip()


def no_number(cell: str) -> str:
    """Return the end of an error about a cell that should be a number.

    Example:
        >>> no_number("kg")
        "expected a number, or an empty cell if it is missing, got 'kg'; correct the cell"
    """
    bare = _bare(cell)
    needed = "a number"
    flags = []
    if re.fullmatch(r"[+-]?[1-9]\d{0,2}(,\d{3})+(\.\d*)?", bare):
        needed += " (commas between thousands are left out, decimal ones written as points)"
        flags.append("--read thousands=,")
    # 68,000 may be either: the reader is told both.
    if "," in bare and has_decimal_comma(bare):
        if not flags:
            needed += " (decimal commas are written as points)"
        flags.append("--read decimal=,")
    if bare != cell.strip() and is_foreign(cell):
        sign = next(sign for sign in CURRENCIES if sign in cell)
        needed += f" without the currency {sign}"
        # Any declaration of thousands also drops currencies.
        flags = flags or ["--read thousands=,"]
    fix = "correct the cell"
    if flags:
        fix = f"to read it as it is: {' or '.join(flags)}"
    return f"expected {needed}, or an empty cell if it is missing, got {cell[:40]!r}; {fix}"
