"""Subjects: papers or layers of the library, each with its timings, its runs and its pages.

A module or folder of :mod:`evidence` is a subject if it has ``SUBJECT``; nothing else lists it.
"""

from __future__ import annotations

import importlib
import math
import pkgutil
import re
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .page import IMAGES, RESULTS

SMALL = (
    "training.epochs=1",
    "schedule.warmup_epochs=0",
    "data.batch_size=16",
    "data.limit=48",
)
"""Overrides of every recipe in a trial with ``--small``."""


@dataclass
class Options:
    """Options of the command line, the same for every part.

    Attributes:
        only: names of sections, variants, families or operators; empty for all of them.
        seeds: number of seeds of trained runs; None for the number of each section.
        minutes: time after which no new work starts.
        threads: number of threads of PyTorch.
        runs, results: folders of trained runs and of the files of results.
        changes: further overrides of every recipe, for a trial.
        small: whether this is a trial with small sizes; its numbers mean nothing.
        primary: the subject's primary claims, which are stored in a new file of results.
        begun: when the command began, by a monotonic clock.
    """

    only: tuple[str, ...] = ()
    seeds: int | None = None
    minutes: float = math.inf
    threads: int = 1
    runs: Path = Path("runs")
    results: Path = RESULTS
    changes: tuple[str, ...] = ()
    small: bool = False
    primary: tuple[str, ...] = ()
    begun: float = field(default_factory=time.monotonic)

    @property
    def is_over(self) -> bool:
        """Whether the command's ``minutes`` have passed, over all of its parts."""
        return time.monotonic() > self.begun + 60 * self.minutes

    @property
    def images(self) -> Path:
        """Folder of pictures: the documentation's, or for a trial that of its numbers."""
        return self.results if self.small else IMAGES

    @property
    def trial(self) -> tuple[str, ...]:
        """Overrides that every recipe gets last."""
        small = SMALL if self.small else ()
        return (*small, *self.changes)

    def chosen(self, known: Iterable[str]) -> list[str]:
        """Return the known names that ``only`` selects, or all, in their known order.

        Raises:
            SystemExit: ``only`` has an unknown name.
        """
        names = list(known)
        unknown = [name for name in self.only if name not in names]
        if unknown:
            raise SystemExit(f"--only: expected one of {', '.join(names)}, got {unknown[0]!r}")
        return [name for name in names if not self.only or name in self.only]


@dataclass(frozen=True)
class Subject:
    """The parts of one subject, as names of functions.

    A name is ``module:function`` relative to the subject. Its module is imported when the function
    is first called.

    Attributes:
        package: the subject's module, ``__name__``.
        times: part to a function of :class:`Options` that measures time or memory.
        runs: part to a function of :class:`Options` that trains or computes evidence.
        pages: a file of the documentation to the function that returns its text.
        draw: a function that draws the pages' pictures.
        cases: a function of :class:`Options` that times the cases of ``check`` again.
        ratios: a function that returns the committed rows of these cases.
        claims: the list of the subject's claims.
        history: whether ``check`` records the ratios in the history.
    """

    package: str
    times: dict[str, str] = field(default_factory=dict)
    runs: dict[str, str] = field(default_factory=dict)
    pages: dict[Path, str] = field(default_factory=dict)
    draw: str = ""
    cases: str = ""
    ratios: str = ""
    claims: str = ""
    history: bool = False

    @property
    def name(self) -> str:
        return self.package.rpartition(".")[2].replace("_", "-")

    def call(self, function: str, *arguments: Any) -> Any:
        """Call one of the functions by its name."""
        return self.find(function)(*arguments)

    def find(self, function: str) -> Any:
        """Import the object that ``module:name`` stands for."""
        module, _, name = function.rpartition(":")
        path = self.package
        if module:
            path += f".{module}"
        return getattr(importlib.import_module(path), name)


def subject_names() -> list[str]:
    """Return the names of all subjects, from the names of their files."""
    import evidence

    names = []
    for module in pkgutil.iter_modules(evidence.__path__):
        folder = Path(module.module_finder.path) / module.name  # type: ignore[union-attr]
        file = folder / "__init__.py" if module.ispkg else folder.with_suffix(".py")
        # The text is searched since importing every subject would take seconds.
        if re.search("^SUBJECT = ", file.read_text(encoding="utf-8"), re.MULTILINE):
            names.append(module.name.replace("_", "-"))
    return names


def find_subject(name: str) -> Subject:
    """Return a subject by its name.

    Raises:
        SystemExit: no subject has this name.
    """
    name = name.replace("_", "-")
    if name not in subject_names():
        raise SystemExit(f"subject: expected one of {', '.join(subject_names())}, got {name!r}")
    return importlib.import_module(f"evidence.{name.replace('-', '_')}").SUBJECT
