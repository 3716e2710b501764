"""Functions drawn at random from a room, for a reader who has not seen them."""

from __future__ import annotations

import ast
import random
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from .sources import room_of

SHORTEST = 4
"""Smallest number of statements of a function that is drawn. Shorter ones explain themselves."""


class Drawn(NamedTuple):
    """One function of a file; ``name`` has the classes and functions around it in front."""

    path: Path
    line: int
    name: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line} {self.name}"


def draw(package: Path, room: str, count: int, seed: int) -> list[Drawn]:
    """Return ``count`` functions of a room in a random order, or all where it has fewer.

    Raises:
        ValueError: no such room.
    """
    found: list[Drawn] = []
    for path in sorted(package.rglob("*.py")):
        inside = path.relative_to(package)
        if room_of(inside) != room:
            continue
        tree = ast.parse(path.read_text(encoding="utf-8"))
        found += [Drawn(inside, line, name) for line, name in _functions(tree, "")]
    if not found:
        raise ValueError(f"expected a room of {package}, got {room!r}; without it all are counted")
    return random.Random(seed).sample(found, min(count, len(found)))


def _functions(node: ast.AST, around: str) -> Iterator[tuple[int, str]]:
    """Yield line and name of every function that is long enough."""
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield from _functions(child, around)
            continue
        name = f"{around}{child.name}"
        if not isinstance(child, ast.ClassDef) and _statements(child) >= SHORTEST:
            yield child.lineno, name
        yield from _functions(child, f"{name}.")


def _statements(function: ast.AST) -> int:
    return sum(isinstance(node, ast.stmt) for node in ast.walk(function)) - 1
