"""The table, row by row; each row is saved when it is measured."""

from __future__ import annotations

import warnings
from typing import Any

from ..kit.page import load, rounded, save
from ..kit.subject import Options
from . import FILE
from .cells import COMPILERS, PROGRAMS, Column, cells
from .models import MODELS

SMALL = ("softmax, causal texts",)
"""The rows of a trial."""


def fill_programs(options: Options) -> None:
    """Fill in the columns without a compiler: eager, export, ONNX, prefill and step.

    The programs stay in the folder of runs, where ``time export`` finds them.
    """
    fill(options, PROGRAMS)


def fill_compilers(options: Options) -> None:
    """Fill in the columns with a compiler: compile and AOTI."""
    fill(options, COMPILERS)


def fill(options: Options, columns: dict[str, Column]) -> None:
    """Fill in the rows of ``--only`` anew, or those that lack one of these columns."""
    warnings.simplefilter("ignore")
    found: dict[str, dict[str, Any]] = load(FILE, options.results) or {}
    names = options.chosen(MODELS)
    if options.small and not options.only:
        names = list(SMALL)
    for name in names:
        known = found.get(name, {})
        # A row that has one of these columns has them all: they are saved together.
        if not options.only and any(column in known for column in columns):
            continue
        if options.is_over:
            break
        row = cells(name, options.runs / folder_name(name), columns)
        # Read again: another process may fill in the other columns.
        found = load(FILE, options.results) or {}
        found[name] = found.get(name, {}) | rounded(row)
        found = {name: found[name] for name in MODELS if name in found}
        save(found, FILE, options.results)
        print(f"{name}: {row}", flush=True)


def folder_name(name: str) -> str:
    """Return the folder of a row's programs.

    Example:
        >>> folder_name("luna, causal texts")
        'luna-causal-texts'
    """
    return name.replace(", ", "-").replace(" ", "-")
