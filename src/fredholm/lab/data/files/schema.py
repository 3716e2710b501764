"""Schema of files: the role of each column, its origin, and the flag that changes it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from .reading import Reading

DECLARED = "declared"
GUESSED = "guessed"
ROLES = ("kind", "label", "time", "id", "group", "text", "channels", "task", "split")
_FLAGS = {"task": "--predict"}
_SIGNS = {"\t": "tab", " ": "space"}


class Entry(NamedTuple):
    """One line of a schema.

    Attributes:
        key: a key of :class:`Reading`, or ``read``.
        value: as its flag takes it.
        origin: ``declared`` by the user, or ``guessed`` from names and first rows.
        flag: command-line flag that sets it.
    """

    key: str
    value: str
    origin: str
    flag: str

    @property
    def mark(self) -> str:
        """Mark behind a guess; "" behind a declaration."""
        if self.origin == DECLARED:
            return ""
        return f" (guessed: {self.flag})"


def schema_of(
    asked: Reading,
    settled: Reading,
    written: Mapping[str, str],
) -> list[Entry]:
    """Return the schema of files.

    Args:
        asked: what the user declared.
        settled: what was read.
        written: how the first table is written.
    """
    entries = []
    for key in ROLES:
        value = getattr(settled, key)
        if value in (None, ()):
            continue
        if not isinstance(value, str):
            value = ",".join(value)
        entries.append(_entry(key, value, getattr(asked, key) is not None))
    # The whole notation is printed: a pasted command then reads later files in the same way.
    declared = asked.writing.said
    for key, value in {**written, **settled.writing.said}.items():
        entries.append(_entry("read", f"{key}={_SIGNS.get(value, value)}", key in declared))
    return entries


def _entry(
    key: str,
    value: str,
    declared: bool,
) -> Entry:
    origin = GUESSED
    if declared:
        origin = DECLARED
    return Entry(key, value, origin, _FLAGS.get(key, f"--{key}"))


def marks(entries: list[Entry]) -> dict[str, str]:
    """Return the marks of guesses, by the words of :attr:`.columns.Columns.taken`."""
    found = {entry.key: entry.mark for entry in entries if entry.key != "read"}
    # Some roles have another word in a summary than as a key of the reading.
    words = {
        "layout": "kind",
        "paths": "text",
        "columns": "channels",
        "times": "channels",
    }
    for word, key in words.items():
        found[word] = found.get(key, "")
    return found
