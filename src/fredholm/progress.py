"""Signs of life: how far a piece of work is, as a bar on a terminal and as a line every ten seconds
elsewhere.

Whoever begins the work says where that is shown (:func:`shown`), as every command does; what runs
inside says how far it is (:func:`steps`, :func:`working`) and need not know of it. Where nobody
shows it, nothing is said.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from typing import Any, TypeVar

EVERY = 10.0  # seconds between two lines
BLINK = 0.25  # seconds between two looks of a bar
Item = TypeVar("Item")
Say = Callable[[str], None]


class Progress:
    """Where nobody looks: one piece of work at a time, pieces within pieces.

    ``start`` names a piece and its size (0: not known), ``at`` says how far it is (``also`` what
    else, where it is shown), ``end`` that it is done; :meth:`piece` is both
    around a block. ``note`` is for what a user should know in any case.
    """

    def start(self, label: str, total: int = 0, unit: str = "") -> None: ...
    def at(self, done: int, also: Callable[[], str] | None = None) -> None: ...
    def end(self) -> None: ...

    def spoke(self) -> None:
        """Somebody else has just said something: no line is due."""

    def note(self, sentence: str) -> None:
        _to_stderr(sentence)

    @contextmanager
    def piece(self, label: str, total: int = 0, unit: str = "") -> Iterator[Progress]:
        self.start(label, total, unit)
        try:
            yield self
        finally:
            self.end()


class Lines(Progress):
    """A line every ten seconds, through ``say``."""

    def __init__(self, say: Say):
        self.say, self.last = say, time.monotonic()
        self.pieces: list[tuple[str, int, str]] = []

    def start(self, label: str, total: int = 0, unit: str = "") -> None:
        self.pieces.append((label, total, unit))
        self._line(label)

    def at(self, done: int, also: Callable[[], str] | None = None) -> None:
        if time.monotonic() - self.last >= EVERY:
            label, total, unit = self.pieces[-1]
            self._line(f"{label}: {amount(done, total, unit)}{also() if also else ''}")

    def end(self) -> None:
        self.pieces.pop()

    def spoke(self) -> None:
        self.last = time.monotonic()

    def _line(self, line: str) -> None:
        if time.monotonic() - self.last >= EVERY:
            self.last = time.monotonic()
            self.say(line)


class _Bar(Progress):
    """Bars of rich, on stderr, as long as there is a piece of work."""

    def __init__(self, rich: Any):
        self.rich, self.bars, self.last = rich, None, 0.0
        self.pieces: list[tuple[Any, int, str]] = []

    def start(self, label: str, total: int = 0, unit: str = "") -> None:
        if self.bars is None:
            self.bars = self._shown()
        self.pieces.append((self.bars.add_task(label, total=total or None, said=""), total, unit))

    def at(self, done: int, also: Callable[[], str] | None = None) -> None:
        task, total, unit = self.pieces[-1]
        assert self.bars is not None
        said = {}
        if time.monotonic() - self.last >= BLINK:
            self.last = time.monotonic()
            said = {"said": amount(done, total, unit) + (also() if also else "")}
        self.bars.update(task, completed=done, **said)

    def end(self) -> None:
        assert self.bars is not None
        self.bars.remove_task(self.pieces.pop()[0])
        if not self.pieces:
            self.bars.stop()
            self.bars = None

    def note(self, sentence: str) -> None:
        if self.bars is None:
            super().note(sentence)
        else:
            self.bars.console.print(sentence, markup=False)

    def _shown(self) -> Any:
        from rich.console import Console

        columns = (
            self.rich.TextColumn("{task.description}", markup=False),
            self.rich.BarColumn(),
            self.rich.TextColumn("{task.fields[said]}", markup=False),
            self.rich.TimeElapsedColumn(),
        )
        console = Console(stderr=True)
        bars = self.rich.Progress(
            *columns, console=console, transient=True, refresh_per_second=1 / BLINK
        )
        bars.start()
        return bars


def amount(done: int, total: int, unit: str = "") -> str:
    """How far a piece of work is, in words.

    Example:
        >>> amount(1200, 4000), amount(3_500_000, 12_000_000, "bytes"), amount(7, 0, "rows")
        ('1,200 of 4,000', '3.5 of 12.0 MB', '7 rows')
    """
    if unit == "bytes":
        return f"{done / 1e6:.1f} of {total / 1e6:.1f} MB" if total else f"{done / 1e6:.1f} MB"
    return (f"{done:,} of {total:,}" if total else f"{done:,}") + (f" {unit}" if unit else "")


_CURRENT: ContextVar[Progress | None] = ContextVar("fredholm_progress", default=None)


def current() -> Progress:
    """What is shown where this is called."""
    return _CURRENT.get() or Progress()


@contextmanager
def shown(say: Say | None = None) -> Iterator[Progress]:
    """Show how far the work in this block is: a bar where stderr is a terminal and rich is
    installed, else a line every ten seconds through ``say`` (None: onto stderr). Within another
    such block that one is used.

    Example:
        >>> with shown(print):
        ...     total = sum(steps("adding", [1, 2, 3]))  # done within ten seconds: no line
    """
    if _CURRENT.get() is not None:
        yield current()
        return
    token = _CURRENT.set(_display(say or _to_stderr))
    try:
        yield current()
    finally:
        _CURRENT.reset(token)


def _display(say: Say) -> Progress:
    if not sys.stderr.isatty():
        return Lines(say)
    try:
        from rich import progress as rich
    except ImportError:
        return Lines(say)
    return _Bar(rich)


def _to_stderr(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def working(label: str, total: int = 0, unit: str = "") -> AbstractContextManager[Progress]:
    """A piece of work whose block says how far it is: ``at``."""
    return current().piece(label, total, unit)


def steps(
    label: str, items: Iterable[Item], total: int | None = None, unit: str = ""
) -> Iterator[Item]:
    """The items, one by one, and how many of them are done.

    Args:
        total: how many there are (default: their ``len``, where they have one).
    """
    count = total if total is not None else len(items) if hasattr(items, "__len__") else 0  # type: ignore[arg-type]
    with working(label, count, unit) as display:
        for done, item in enumerate(items, 1):
            yield item
            display.at(done)
