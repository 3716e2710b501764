"""Classical layers as integral operators: configurations, errors and times.

A file ``<family>.py`` here has a list ``CONFIGURATIONS``. Tests check the errors of each, and
``python -m evidence run unification`` records them for the documentation.
"""

from __future__ import annotations

import dataclasses
import importlib.util
from typing import Any

import torch

from ..kit.page import DOCS, PAGES
from ..kit.subject import Options, Subject
from .measure import FLOAT32, FLOAT64, Configuration, Errors, configurations, measure

__all__ = ["FLOAT32", "FLOAT64", "Configuration", "Errors", "configurations", "measure"]

SUBJECT = Subject(
    __name__,
    times={"speed": "speed:time"},
    runs={"errors": ":run_errors"},
    pages={PAGES / "unification.md": "table:page", DOCS / "unification.md": "table:blocks"},
    draw="pictures:draw_all",
    cases="speed:cases_again",
    ratios="speed:committed",
)


def errors_of(configuration: Configuration) -> dict[str, Any]:
    """Return a row with the errors in both precisions, or with the missing package."""
    row: dict[str, Any] = {"family": configuration.family, "label": configuration.label}
    if configuration.requires and importlib.util.find_spec(configuration.requires) is None:
        return row | {"requires": configuration.requires}
    for name, dtype in (("float64", torch.float64), ("float32", torch.float32)):
        row[name] = dataclasses.asdict(measure(configuration, dtype))
    return row


def run_errors(options: Options) -> None:
    """Measure every configuration in float64 and float32."""
    from ..kit.machine import describe
    from ..kit.page import rounded, save

    rows = []
    for configuration in configurations():
        rows.append(errors_of(configuration))
        print(rows[-1], flush=True)
    found = {"machine": describe(), "configurations": rows}
    save(rounded(found), "unification.json", options.results)
