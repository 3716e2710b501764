"""The files of the package that one forward enters, in order."""

from __future__ import annotations

import sys
from itertools import groupby
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import torch

import fredholm
from fredholm import Domain, create_operator

PACKAGE = Path(fredholm.__file__).parent

# Options that make the operators small.
OPTIONS: dict[str, dict[str, Any]] = {
    "itnet": {"width": 4, "frequencies": 2},
    "luna": {"channels": 2, "directions": 2, "hidden": 4},
    "ckconv": {"width": 4, "length": 6},
    "infsa": {},
    "softmax": {},
}

# A forward reads its arguments in these files, before the form that answers.
READERS = ("integral/operator.py", "integral/problem.py")


class Call(NamedTuple):
    """A call of one of the package's functions."""

    file: str
    function: str


def calls_of_one_forward(name: str) -> list[Call]:
    """Return the functions that one forward on six points of a line calls, in order.

    A forward before it fills caches and imports what is imported lazily.
    """
    operator = create_operator(name, 8, 2, **OPTIONS[name]).eval()
    u, domain = torch.randn(2, 6, 8), Domain.line(6)
    entered: list[Call] = []

    def note(frame: FrameType, event: str, argument: Any) -> None:
        path = Path(frame.f_code.co_filename)
        if event == "call" and path.is_relative_to(PACKAGE):
            file = path.relative_to(PACKAGE).as_posix()
            entered.append(Call(file, frame.f_code.co_qualname))

    with torch.no_grad():
        operator(u, domain)
        before = sys.getprofile()
        sys.setprofile(note)
        try:
            operator(u, domain)
        finally:
            sys.setprofile(before)
    return entered


def files_of_one_forward(name: str) -> list[str]:
    """Return the files of these functions, in the order in which they are first entered."""
    return list(dict.fromkeys(call.file for call in calls_of_one_forward(name)))


def visits_before_the_form(name: str) -> dict[str, int]:
    """Count how often a forward enters each of :data:`READERS` before the form that answers.

    Functions of one file that are called in a row are one visit.
    """
    calls = calls_of_one_forward(name)
    form = next(call.file for call in calls if call.function.endswith(".respond"))
    files = [file for file, _ in groupby(call.file for call in calls)]
    before = files[: files.index(form)]
    return {file: before.count(file) for file in READERS}


def hops(files: list[str]) -> int:
    """Count the files before the first one of a paper's folder."""
    return next(i for i, path in enumerate(files) if path.startswith("families/"))
