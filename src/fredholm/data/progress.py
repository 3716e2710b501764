"""Progress of a fetch on the terminal: a bar where rich is installed, plain lines on stderr
otherwise, or nothing.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol, runtime_checkable


@runtime_checkable
class Progress(Protocol):
    """One step at a time: ``start`` names it and its size, ``at`` says how far it is, ``note``
    prints a sentence.
    """

    def start(self, label: str, total: int) -> None: ...
    def at(self, done: int) -> None: ...
    def note(self, sentence: str) -> None: ...


class Lines:
    """A line at the start of a step and every second; with ``silent`` only the notes."""

    def __init__(self, silent: bool = False):
        self.silent = silent
        self.label, self.total, self.last = "", 0, 0.0

    def start(self, label: str, total: int) -> None:
        self.label, self.total, self.last = label, total, time.monotonic()
        if not self.silent:
            print(f"{label} ({total / 1e6:.1f} MB)", file=sys.stderr)

    def at(self, done: int) -> None:
        if not self.silent and time.monotonic() - self.last >= 1:
            self.last = time.monotonic()
            print(f"{self.label}: {done / 1e6:.1f} of {self.total / 1e6:.1f} MB", file=sys.stderr)

    def note(self, sentence: str) -> None:
        print(sentence, file=sys.stderr)


class _Bar:
    def __init__(self, bar):
        self.bar = bar
        self.task = None

    def start(self, label: str, total: int) -> None:
        self.task = self.bar.add_task(label, total=total)

    def at(self, done: int) -> None:
        self.bar.update(self.task, completed=done)

    def note(self, sentence: str) -> None:
        self.bar.console.print(sentence)


@contextmanager
def shown(progress: bool) -> Iterator[Progress]:
    """A progress display for the duration of a ``with`` block."""
    if not progress:
        yield Lines(silent=True)
        return
    try:
        from rich import progress as rich_progress
        from rich.console import Console
    except ImportError:
        yield Lines()
        return
    columns = (
        rich_progress.TextColumn("{task.description}"),
        rich_progress.BarColumn(),
        rich_progress.DownloadColumn(),
        rich_progress.TimeElapsedColumn(),
    )
    with rich_progress.Progress(*columns, console=Console(stderr=True)) as bar:
        yield _Bar(bar)
