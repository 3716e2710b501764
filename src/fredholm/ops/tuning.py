"""Tile sizes of Triton kernels: the kernel's own rule, and before it a table of what measured
fastest, where there is one.

No table comes with the package: no GPU has timed the kernels. ``python -m evidence run gpu tune``
measures candidates and writes one, the JSON file ``tiles.json`` beside the kernel, from a case
(direction, compute capability, sizes that matter) to a choice of sizes: ``{"forward sm90 d64 w128":
{"rows": 128, ...}}``. Nothing is tuned while a model runs, so that equal calls run equal kernels.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import torch

from .backend import interpreted

Tiles = dict[str, int]


def case_name(direction: str, device: torch.device, **sizes: int) -> str:
    """Key of a table: direction, compute capability (``interpreter`` without a GPU) and sizes in
    the order given.

    Example:
        >>> case_name("forward", torch.device("cpu"), d=64, w=128)
        'forward interpreter d64 w128'
    """
    where = "interpreter"
    if device.type == "cuda" and not interpreted():
        major, minor = torch.cuda.get_device_capability(device)
        where = f"sm{major}{minor}"
    return " ".join([direction, where, *(f"{name}{size}" for name, size in sizes.items())])


def shared_memory(device: torch.device) -> int:
    """Bytes of shared memory that a program of a kernel may plan with: nine tenths of what the GPU
    grants one.
    """
    capability = torch.cuda.get_device_capability(device) if device.type == "cuda" else (9, 0)
    return 921 * {(8, 0): 163, (8, 7): 163, (9, 0): 227, (10, 0): 227, (10, 3): 227}.get(
        capability, 99
    )


@cache
def load_table(path: Path) -> dict[str, Tiles]:
    """The measured table at ``path``, read once; empty where there is none yet."""
    return json.loads(path.read_text()) if path.exists() else {}


_TRIALS: dict[str, Tiles] = {}
_SEEN: dict[str, Path] = {}


def choose_tiles(path: Path, case: str, otherwise: Tiles) -> Tiles:
    """The measured sizes of ``case``, or ``otherwise``; sizes that the table leaves out come from
    ``otherwise``.

    Example:
        >>> choose_tiles(Path("nowhere.json"), "forward sm90 d64 w128", {"rows": 64})
        {'rows': 64}
    """
    _SEEN[case] = path
    return otherwise | load_table(path).get(case, {}) | _TRIALS.get(case, {})


@contextmanager
def cases_chosen() -> Iterator[dict[str, Path]]:
    """Collects the cases, and their tables, that are looked up inside: what there is to tune."""
    _SEEN.clear()
    cases: dict[str, Path] = {}
    yield cases
    cases.update(_SEEN)


@contextmanager
def trial(case: str, tiles: Tiles) -> Iterator[None]:
    """``case`` runs with ``tiles`` inside, whatever the table says: how they are measured."""
    _TRIALS[case] = tiles
    try:
        yield
    finally:
        del _TRIALS[case]


def save_tiles(path: Path, measured: dict[str, Tiles]) -> None:
    """Add measured cases to the table at ``path``."""
    table = load_table(path) | measured
    path.write_text(json.dumps(dict(sorted(table.items())), indent=1) + "\n")
    load_table.cache_clear()


def power_of_two(n: int, least: int = 16) -> int:
    """The smallest power of two that is at least ``n`` and at least ``least``: a block's size.

    Example:
        >>> power_of_two(5), power_of_two(65)
        (16, 128)
    """
    return max(least, 1 << max(n - 1, 0).bit_length())
