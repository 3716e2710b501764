"""How a fresh ITNet-S passes its stream on: the size of what leaves each block over what enters the
first, for the paper's formula (W = I) and for the start that leaves W out (W = 0).
"""

from __future__ import annotations

import torch

from fredholm.models import create_model

from ..kit.grid import Table
from ..kit.page import load, spread, table
from ..kit.statistics import Rows
from ..kit.subject import Options

FILE = "itnet-start.json"
TABLE = Table(FILE, ("start", "seed"), ())
STARTS, SEEDS, SIDE, PICTURES = (1.0, 0.0), 10, 64, 4


@torch.inference_mode()
def growth(start: float, seed: int, side: int = SIDE) -> list[float]:
    """Root mean square of the stream behind each of the 12 blocks, over that before the first;
    pictures are white noise.
    """
    torch.manual_seed(seed)
    model = create_model(
        "itnet_s", body={"operator_options": {"width": 128, "start": start}}
    ).eval()
    sizes: list[float] = []
    for block in model.body.blocks:
        block.register_forward_pre_hook(lambda _, given: sizes.append(_size(given[0])))
    model.body.norm.register_forward_pre_hook(lambda _, given: sizes.append(_size(given[0])))
    model(torch.randn(PICTURES, 3, side, side))
    return [size / sizes[0] for size in sizes[1:]]


def _size(stream: torch.Tensor) -> float:
    return float(stream.square().mean().sqrt())


def run(options: Options) -> None:
    """A row per start and seed, those that the file has left as they are."""
    side = 32 if options.small else SIDE
    for start in STARTS:
        for seed in range(options.seeds or SEEDS):
            row = {"start": start, "seed": seed}
            if not TABLE.has(row, options.results):
                TABLE.add([row | {"growth": growth(start, seed, side)}], options.results)


def found() -> Rows:
    """The committed rows."""
    return load(FILE) or []


def section_text() -> str:
    """The part of docs/results/itnet.md."""
    rows, command = found(), "`python -m evidence run itnet start`"
    if not rows:
        return f"Not measured yet: {command}."
    blocks = (1, 3, 6, 12)
    lines = []
    for start in STARTS:
        mine = [row["growth"] for row in rows if row["start"] == start]
        name = "W = I, the formula" if start else "W = 0 (`operator.start=0`)"
        lines.append((name, *(spread([x[b - 1] for x in mine], 1, 2) for b in blocks), len(mine)))
    heads = ("start", *(f"after {b} block{'s' if b > 1 else ''}" for b in blocks), "seeds")
    about = (
        f"Root mean square of the stream over that before the first block; {PICTURES} pictures of "
        f"white noise, {(SIDE // 16) ** 2} patches and the class token, by {command}. "
        "What either start learns is compared by `python -m evidence run itnet sections --only start`."
    )
    return f"{about}\n\n{table(heads, lines)}"
