"""Tile sizes of Triton kernels: from a table of measured sizes, else from the kernel's own rule.

The package comes without a table, because no GPU has timed the kernels. ``python -m evidence run
gpu tune`` measures candidates and writes one, the JSON file ``tiles.json`` beside the kernel. It
maps a case (direction, compute capability, sizes that matter) to tile sizes: ``{"forward sm90 d64
w128": {"rows": 128, ...}}``. Nothing is tuned while a model runs, so that equal calls run equal
kernels.
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

HOPPER = (9, 0)
KILOBYTES = {
    (8, 0): 163,
    (8, 7): 163,
    HOPPER: 227,
    (10, 0): 227,
    (10, 3): 227,
}
"""Shared memory that a program may use, by compute capability."""
FEWEST_KILOBYTES = 99
"""The same for every other capability from 8.0 on."""


def case_name(direction: str, device: torch.device, **sizes: int) -> str:
    """Return a key of the table: direction, compute capability, sizes in the order of the call.

    Without a GPU the capability is ``interpreter``.

    Example:
        >>> case_name("forward", torch.device("cpu"), d=64, w=128)
        'forward interpreter d64 w128'
    """
    machine = "interpreter"
    if device.type == "cuda" and not interpreted():
        major, minor = torch.cuda.get_device_capability(device)
        machine = f"sm{major}{minor}"
    named_sizes = [f"{name}{size}" for name, size in sizes.items()]
    return " ".join([direction, machine, *named_sizes])


def shared_memory(device: torch.device) -> int:
    """Return the bytes of shared memory that a program may plan with: nine tenths of the limit.

    The compiler takes some for itself. Without a GPU the limit is that of compute capability 9.0.

    Example:
        >>> shared_memory(torch.device("cpu"))
        209067
    """
    capability = HOPPER
    if device.type == "cuda":
        capability = torch.cuda.get_device_capability(device)
    # 921 bytes are nine tenths of a kilobyte.
    return 921 * KILOBYTES.get(capability, FEWEST_KILOBYTES)


@cache
def load_table(path: Path) -> dict[str, Tiles]:
    """Read the measured table at ``path``, once; empty where there is no file.

    Example:
        >>> load_table(Path("nowhere.json"))
        {}
    """
    if not path.exists():
        return {}
    return json.loads(path.read_text())


_TRIALS: dict[str, Tiles] = {}
_LOOKED_UP: dict[str, Path] = {}


def choose_tiles(path: Path, case: str, default: Tiles) -> Tiles:
    """Return the measured sizes of ``case`` in the table at ``path``, else those of ``default``.

    Sizes that the table leaves out come from ``default`` as well.

    Example:
        >>> choose_tiles(Path("nowhere.json"), "forward sm90 d64 w128", {"rows": 64})
        {'rows': 64}
    """
    _LOOKED_UP[case] = path
    measured = load_table(path).get(case, {})
    tried = _TRIALS.get(case, {})
    return default | measured | tried


@contextmanager
def cases_chosen() -> Iterator[dict[str, Path]]:
    """Collect the cases that are looked up inside, and their tables: the candidates for tuning.

    The dictionary is filled when the context closes.

    Example:
        >>> with cases_chosen() as cases:
        ...     _ = choose_tiles(Path("nowhere.json"), "forward", {"rows": 64})
        >>> list(cases)
        ['forward']
    """
    _LOOKED_UP.clear()
    cases: dict[str, Path] = {}
    yield cases
    cases.update(_LOOKED_UP)


@contextmanager
def trial(case: str, tiles: Tiles) -> Iterator[None]:
    """Run ``case`` with ``tiles`` inside the context, whatever the table says.

    Example:
        >>> with trial("forward", {"rows": 16}):
        ...     choose_tiles(Path("nowhere.json"), "forward", {"rows": 64})
        {'rows': 16}
    """
    _TRIALS[case] = tiles
    try:
        yield
    finally:
        del _TRIALS[case]


def save_tiles(path: Path, measured: dict[str, Tiles]) -> None:
    """Add measured cases to the table at ``path``."""
    table = load_table(path) | measured
    by_case = dict(sorted(table.items()))
    text = json.dumps(by_case, indent=1)
    path.write_text(text + "\n")
    load_table.cache_clear()


def power_of_two(n: int, least: int = 16) -> int:
    """Return the smallest power of two that is at least ``n`` and ``least``: a block's size.

    Triton's blocks have powers of two, and its matrix products at least 16 rows and columns.

    Example:
        >>> power_of_two(5), power_of_two(65)
        (16, 128)
    """
    bits = max(n - 1, 0).bit_length()
    return max(least, 1 << bits)
