"""The schema of files: what stands for what, who says so, and the flag that changes it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from .reading import Reading

DECLARED, GUESSED = "declared", "guessed"
ROLES = ("kind", "label", "time", "id", "group", "text", "channels", "task", "split")
_FLAGS = {"task": "--predict"}
_SIGNS = {"\t": "tab", " ": "space"}


class Entry(NamedTuple):
    """One line of a schema.

    Attributes:
        key: a key of :class:`Reading`, or ``read``.
        value: as its flag takes it.
        origin: ``declared`` by the user, or ``guessed`` from names and first rows.
        flag: that says it.
    """

    key: str
    value: str
    origin: str
    flag: str

    @property
    def mark(self) -> str:
        """The mark behind a guess."""
        return f" (guessed: {self.flag})" if self.origin == GUESSED else ""


def schema_of(asked: Reading, settled: Reading, written: Mapping[str, str]) -> list[Entry]:
    """Return the schema of what was read as ``settled``, where the user said ``asked``;
    ``written``: how the first table is written.
    """
    entries = []
    for key in ROLES:
        value = getattr(settled, key)
        if value is None or value == ():
            continue
        text = value if isinstance(value, str) else ",".join(value)
        origin = GUESSED if getattr(asked, key) is None else DECLARED
        entries.append(Entry(key, text, origin, _FLAGS.get(key, f"--{key}")))
    declared = asked.writing.said
    for key, value in {**written, **settled.writing.said}.items():
        origin = DECLARED if key in declared else GUESSED
        entries.append(Entry("read", f"{key}={_SIGNS.get(value, value)}", origin, "--read"))
    return entries


def as_facts(entries: list[Entry]) -> list[dict[str, Any]]:
    """Return a schema as JSON takes it."""
    return [entry._asdict() for entry in entries]


def marks(entries: list[Entry]) -> dict[str, str]:
    """Return the marks of what was taken for what, by its words there."""
    found = {entry.key: entry.mark for entry in entries if entry.key != "read"}
    for word, key in (
        ("layout", "kind"),
        ("paths", "text"),
        ("columns", "channels"),
        ("times", "channels"),
    ):
        found[word] = found.get(key, "")
    return found
