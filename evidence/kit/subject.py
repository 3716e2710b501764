"""A subject: a paper or a layer of the library, what is timed and what is run of it, and its pages.

A module or folder of :mod:`evidence` is a subject by having ``SUBJECT``; nothing else lists it.
"""

from __future__ import annotations

import importlib
import math
import pkgutil
import re
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


@dataclass
class Options:
    """What the command line was told, the same for every part.

    Attributes:
        only: sections, variants, families or operators, by name; none: all of them.
        seeds: of trained runs; None: each section's own.
        minutes: after which nothing new is begun.
        runs, results: folders of trained runs and of the files of results.
        changes: further overrides of every recipe, for a trial.
        small: sizes that show that it runs, not how fast, nor how well.
        primary: the subject's primary claims, which a new file of results keeps.
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

    @property
    def images(self) -> Path:
        """Where pictures of a part are drawn: the documentation's, or beside a trial's numbers."""
        return self.results if self.small else IMAGES

    @property
    def trial(self) -> tuple[str, ...]:
        """What every recipe is overridden with last."""
        return (*(SMALL if self.small else ()), *self.changes)

    def chosen(self, known: Iterable[str]) -> list[str]:
        """Those of ``only``, or all.

        Raises:
            SystemExit: a name that is not known.
        """
        names = list(known)
        unknown = [name for name in self.only if name not in names]
        if unknown:
            raise SystemExit(f"--only {unknown[0]!r}: not known; needs one of {', '.join(names)}")
        return [name for name in names if not self.only or name in self.only]


@dataclass(frozen=True)
class Subject:
    """What there is of one subject. Functions are named ``module:function``, relative to the
    subject, and imported when they are first called.

    Attributes:
        package: the subject's module, ``__name__``.
        times: part to a function of :class:`Options` that measures time or memory.
        runs: part to a function of :class:`Options` that trains or computes evidence.
        pages: a file of the documentation to the function that gives its whole text.
        draw: a function that draws the pages' pictures.
        cases: a function of :class:`Options` that gives the rows of timed cases again,
        ratios: and one that gives the committed ones, for ``check``.
        claims: the list of its claims.
        history: whether ``check`` keeps the ratios.
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
        """Call one of the functions."""
        return self.find(function)(*arguments)

    def find(self, function: str) -> Any:
        module, _, name = function.rpartition(":")
        place = f"{self.package}.{module}" if module else self.package
        return getattr(importlib.import_module(place), name)


def subject_names() -> list[str]:
    """All subjects, by the names of their files."""
    import evidence

    names = []
    for module in pkgutil.iter_modules(evidence.__path__):
        folder = Path(module.module_finder.path) / module.name  # type: ignore[union-attr]
        file = folder / "__init__.py" if module.ispkg else folder.with_suffix(".py")
        if re.search("^SUBJECT = ", file.read_text(encoding="utf-8"), re.MULTILINE):
            names.append(module.name.replace("_", "-"))
    return names


def find_subject(name: str) -> Subject:
    """A subject by its name.

    Raises:
        SystemExit: there is none of this name.
    """
    name = name.replace("_", "-")
    if name not in subject_names():
        raise SystemExit(f"{name!r}: no subject; needs one of {', '.join(subject_names())}")
    return importlib.import_module(f"evidence.{name.replace('-', '_')}").SUBJECT
