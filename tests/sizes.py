"""Sizes below which other forms run, and a way to run forms for large inputs on small ones.

By convention these sizes are the constants of ``fredholm.ops``, ``fredholm.integral`` and
``fredholm.families`` whose names begin with ``FEW``. A new one is found here without being listed.
"""

from __future__ import annotations

import importlib
import pkgutil
from functools import cache
from types import ModuleType

import fredholm
from fredholm.ops.linear_attention import band, chunked

ROOMS = ("fredholm.ops.", "fredholm.integral.", "fredholm.families.")


@cache
def crossovers() -> list[tuple[ModuleType, str]]:
    """Return every module with such a constant, and its name there."""
    found = []
    for info in pkgutil.walk_packages(fredholm.__path__, "fredholm."):
        if info.name.startswith(ROOMS) and "triton" not in info.name:
            module = importlib.import_module(info.name)
            found += [(module, name) for name in vars(module) if name.startswith("FEW")]
    return found


def many(monkeypatch) -> None:
    """Compute small inputs as large ones, in tiles, transforms, segments, moments and blocks."""
    for module, name in crossovers():
        monkeypatch.setattr(module, name, 0)
    monkeypatch.setattr(chunked, "wants_pairs", lambda *sizes: False)
    monkeypatch.setattr(band, "BLOCK", 2)
