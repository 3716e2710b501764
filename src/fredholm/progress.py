"""Progress of long work: a bar on a terminal, and a line every ten seconds elsewhere.

The caller opens a display with :func:`shown`, as every command does. The work inside reports its
progress with :func:`steps` and :func:`working`, without knowing of the display. Without a display
nothing is printed.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sized
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from typing import Any, NamedTuple, TypeVar

EVERY = 10.0
"""Seconds between two lines."""

BLINK = 0.25
"""Seconds between two updates of a bar."""

Item = TypeVar("Item")
Say = Callable[[str], None]


class Progress:
    """Base of displays, which shows nothing: one piece of work at a time, pieces within pieces."""

    def start(
        self,
        label: str,
        total: int = 0,
        unit: str = "",
    ) -> None:
        """Begin a piece of work of a size, 0 where it is not known."""

    def at(self, done: int, also: Callable[[], str] | None = None) -> None:
        """Report how much is done. ``also`` makes further text, and is called only to show it."""

    def end(self) -> None:
        """End the piece of work begun last."""

    def spoke(self) -> None:
        """Put off the next line: other output has just appeared."""

    def note(self, sentence: str) -> None:
        """Show a sentence that a user should read in any case."""
        _to_stderr(sentence)

    @contextmanager
    def piece(
        self,
        label: str,
        total: int = 0,
        unit: str = "",
    ) -> Iterator[Progress]:
        """Begin a piece of work, and end it after the block."""
        self.start(label, total, unit)
        try:
            yield self
        finally:
            self.end()


class _Piece(NamedTuple):
    """A piece of work; ``total`` is 0 where its size is not known, ``task`` is its bar."""

    label: str
    total: int
    unit: str
    task: Any = None

    def text(self, done: int, also: Callable[[], str] | None) -> str:
        """Describe how much is done."""
        text = amount(done, self.total, self.unit)
        if also:
            text += also()
        return text


class Lines(Progress):
    """A display of one line every ten seconds, through ``say``."""

    def __init__(self, say: Say):
        self.say = say
        self.last = time.monotonic()
        self.pieces: list[_Piece] = []

    def start(
        self,
        label: str,
        total: int = 0,
        unit: str = "",
    ) -> None:
        self.pieces.append(_Piece(label, total, unit))
        self._line(label)

    def at(self, done: int, also: Callable[[], str] | None = None) -> None:
        if time.monotonic() - self.last >= EVERY:
            piece = self.pieces[-1]
            self._line(f"{piece.label}: {piece.text(done, also)}")

    def end(self) -> None:
        self.pieces.pop()

    def spoke(self) -> None:
        self.last = time.monotonic()

    def _line(self, line: str) -> None:
        """Print a line where the last one is long enough ago."""
        if time.monotonic() - self.last >= EVERY:
            self.last = time.monotonic()
            self.say(line)


class _Bar(Progress):
    """Bars of rich, on stderr, as long as there is a piece of work."""

    def __init__(self, rich: Any):
        self.rich = rich
        self.bars: Any = None
        self.last = 0.0
        self.pieces: list[_Piece] = []

    def start(
        self,
        label: str,
        total: int = 0,
        unit: str = "",
    ) -> None:
        if self.bars is None:
            self.bars = self._open()
        task = self.bars.add_task(label, total=total or None, text="")
        self.pieces.append(_Piece(label, total, unit, task))

    def at(self, done: int, also: Callable[[], str] | None = None) -> None:
        assert self.bars is not None
        piece = self.pieces[-1]
        self.bars.update(piece.task, completed=done)
        if time.monotonic() - self.last >= BLINK:
            self.last = time.monotonic()
            self.bars.update(piece.task, text=piece.text(done, also))

    def end(self) -> None:
        assert self.bars is not None
        piece = self.pieces.pop()
        self.bars.remove_task(piece.task)
        if not self.pieces:
            self.bars.stop()
            self.bars = None

    def note(self, sentence: str) -> None:
        if self.bars is None:
            super().note(sentence)
        else:
            self.bars.console.print(sentence, markup=False)

    def _open(self) -> Any:
        """Return running bars without a task."""
        # Imported here, because rich takes its time to import and only a terminal shows bars.
        from rich.console import Console

        columns = (
            self.rich.TextColumn("{task.description}", markup=False),
            self.rich.BarColumn(),
            self.rich.TextColumn("{task.fields[text]}", markup=False),
            self.rich.TimeElapsedColumn(),
        )
        console = Console(stderr=True)
        bars = self.rich.Progress(
            *columns,
            console=console,
            transient=True,
            refresh_per_second=1 / BLINK,
        )
        bars.start()
        return bars


def amount(done: int, total: int, unit: str = "") -> str:
    """Describe how much of a piece of work is done.

    Args:
        done: units that are done.
        total: all units, or 0 where their number is not known.
        unit: name of the units. ``"bytes"`` are written as megabytes.

    Example:
        >>> amount(1200, 4000), amount(3_500_000, 12_000_000, "bytes"), amount(7, 0, "rows")
        ('1,200 of 4,000', '3.5 of 12.0 MB', '7 rows')
    """
    numbers = [done]
    if total:
        numbers.append(total)
    if unit == "bytes":
        return " of ".join(f"{number / 1e6:.1f}" for number in numbers) + " MB"
    counts = " of ".join(f"{number:,}" for number in numbers)
    return f"{counts} {unit}".rstrip()


_CURRENT: ContextVar[Progress | None] = ContextVar("fredholm_progress", default=None)


def current() -> Progress:
    """Return the display that is open, or one that shows nothing."""
    return _CURRENT.get() or Progress()


@contextmanager
def shown(say: Say | None = None) -> Iterator[Progress]:
    """Show the progress of the work in this block: a bar where stderr is a terminal and rich is
    installed, else a line every ten seconds through ``say`` (None: onto stderr). Within another
    such block, the outer display is used.

    Example:
        >>> with shown(print):
        ...     total = sum(steps("adding", [1, 2, 3]))  # done within ten seconds: no line
    """
    if _CURRENT.get() is not None:
        yield current()
        return
    display = _display(say or _to_stderr)
    token = _CURRENT.set(display)
    try:
        yield current()
    finally:
        _CURRENT.reset(token)


def _display(say: Say) -> Progress:
    """Return the display that suits stderr."""
    if not sys.stderr.isatty():
        return Lines(say)
    try:
        # Imported here, because rich takes its time to import and only a terminal shows bars.
        from rich import progress as rich
    except ImportError:
        return Lines(say)
    return _Bar(rich)


def _to_stderr(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def working(
    label: str,
    total: int = 0,
    unit: str = "",
) -> AbstractContextManager[Progress]:
    """Return a context for a piece of work, whose block reports its progress by ``at``."""
    return current().piece(label, total, unit)


def steps(
    label: str,
    items: Iterable[Item],
    total: int | None = None,
    unit: str = "",
) -> Iterator[Item]:
    """Yield the items, and report how many of them are done.

    Args:
        total: number of items (default: their ``len``, where they have one).
    """
    if total is None and isinstance(items, Sized):
        total = len(items)
    with working(label, total or 0, unit) as display:
        for done, item in enumerate(items, 1):
            yield item
            display.at(done)
