"""How cells are written: the signs, words and orders that ``--read KEY=VALUE`` declares."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from ....errors import OptionError, suggest

MISSING = frozenset({"", "?", "na", "n/a", "nan", "null", "none", "-", "#n/a"})
DATES = ("yearfirst", "dayfirst", "monthfirst")
CURRENCIES = "€$£¥₹₽₩₺"
_SEPARATORS = {"tab": "\t", "\\t": "\t", "space": " ", "comma": ",", "semicolon": ";", "pipe": "|"}
_ANSWERS = {"yes": True, "no": False, "true": True, "false": False}


@dataclass(frozen=True)
class Writing:
    """How a table is written; None is guessed.

    Attributes:
        separator: between cells.
        header: whether the first row names the columns.
        decimal: ``.`` or ``,``.
        thousands: the sign between thousands, which is dropped.
        dates: the order of ``03/01/2026``: ``dayfirst`` or ``monthfirst``.
        null: the words that mean a missing cell, instead of the usual ones; an empty cell always
            does.
        encoding: of the file.

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
        if self.separator is not None:
            sign = _SEPARATORS.get(self.separator.lower(), self.separator)
            _check("separator", sign, len(sign) == 1 and sign not in '"\r\n', "one sign, or space")
            object.__setattr__(self, "separator", sign)
        if self.decimal is not None:
            _check("decimal", self.decimal, self.decimal in (".", ","), ". or ,")
        if self.thousands is not None:
            good = len(self.thousands) == 1 and not self.thousands.isalnum()
            _check("thousands", self.thousands, good, "one sign such as , or .")
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
        if given is None or isinstance(given, Mapping):
            found: dict[str, Any] = dict(given or {})
        else:
            odd = next((text for text in given if "=" not in text), None)
            if odd is not None:
                raise OptionError(f"read: expected KEY=VALUE, got {odd!r}; e.g. decimal=,")
            found = dict(text.split("=", 1) for text in given)
        known = tuple(cls.__dataclass_fields__)
        strange = next((key for key in found if key not in known), None)
        if strange is not None:
            raise OptionError(
                f"read: expected one of {', '.join(known)}, got {strange!r}"
                f"{suggest(strange, known)}"
            )
        header, null = found.get("header"), found.get("null")
        if isinstance(header, str):
            _check("header", header, header in _ANSWERS, "yes or no")
            found["header"] = _ANSWERS[header]
        if isinstance(null, str):
            found["null"] = tuple(word.strip().lower() for word in null.split(","))
        return cls(**found)

    @property
    def said(self) -> dict[str, Any]:
        """What is declared, as :meth:`of` takes it and as JSON does."""
        found = {key: value for key, value in asdict(self).items() if value is not None}
        if self.null is not None:
            found["null"] = ",".join(self.null)
        if self.header is not None:
            found["header"] = "yes" if self.header else "no"
        return found

    @property
    def point(self) -> str:
        """The decimal sign."""
        return self.decimal or ("." if self.thousands != "." else ",")

    @property
    def plain(self) -> bool:
        """Whether numbers are written as Python writes them."""
        return self.point == "." and self.thousands is None

    def is_missing(self, cell: str) -> bool:
        """Return whether a cell says that nothing is there."""
        word = cell.strip().lower()
        return word in MISSING if self.null is None else word == "" or word in self.null

    def number(self, cell: str) -> str | None:
        """Return the number in a cell as Python writes it; None where there is none.

        Example:
            >>> Writing.of(["thousands=,"]).number("€68,000"), Writing().number("1,5")
            ('68000', None)
        """
        text = cell if self.plain else self._normalised(cell)
        return text if text is not None and is_number(text) else None

    def _normalised(self, cell: str) -> str | None:
        text = _bare(cell)
        if self.thousands is not None and self.thousands in text:
            sign = re.escape(self.thousands)
            whole = rf"[+-]?\d{{1,3}}({sign}\d{{3}})+({re.escape(self.point)}\d*)?"
            if not re.fullmatch(whole, text):
                return None
            text = text.replace(self.thousands, "")
        if self.point == ",":
            text = None if "." in text else text.replace(",", ".")
        return text


PLAIN = Writing()  # nothing is declared


def _check(key: str, value: Any, good: bool, needed: str) -> None:
    if not good:
        raise OptionError(f"read: expected {key}={needed}, got {value!r}; correct it")


def is_missing(cell: str) -> bool:
    """Return whether a cell says, in the usual words, that nothing is there."""
    return cell.strip().lower() in MISSING


def is_number(cell: str) -> bool:
    """Return whether a cell is a number as files write it: Python's ``1_2`` is none."""
    try:
        float(cell)
    except ValueError:
        return False
    return "_" not in cell


def has_decimal_comma(cell: str) -> bool:
    """Return whether a cell would be a number with a point for its comma."""
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
    """Return what an error says of a cell that should be a number.

    Example:
        >>> no_number("kg")
        "received 'kg'; needs a number, or an empty cell where none was measured"
    """
    bare = _bare(cell)
    why, flags = "", []
    if re.fullmatch(r"[+-]?[1-9]\d{0,2}(,\d{3})+(\.\d*)?", bare):
        why = " (commas between thousands are left out, decimal ones written as points)"
        flags.append("--read thousands=,")
    if "," in bare and has_decimal_comma(bare):
        why = why or " (decimal commas are written as points)"
        flags.append("--read decimal=,")
    if bare != cell.strip() and is_foreign(cell):
        sign = next(sign for sign in CURRENCIES if sign in cell)
        why += f" without the currency {sign}"
        flags = flags or ["--read thousands=,"]
    more = f"; to read it as it is: {' or '.join(flags)}" if flags else ""
    return (
        f"received {cell[:40]!r}; needs a number{why}, or an empty cell where none was measured"
        f"{more}"
    )
