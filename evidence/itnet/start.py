"""Growth of the residual stream through an untrained ITNet-S.

It is compared for the paper's formula, W = I, and for the start with W = 0.
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
STARTS = (1.0, 0.0)
SEEDS = 10
SIDE = 64
"""Side of the pictures, in pixels."""
PICTURES = 4


@torch.inference_mode()
def growth(start: float, seed: int, side: int = SIDE) -> list[float]:
    """Return the stream's root mean square after each of the 12 blocks over that before the first.

    The pictures are white noise.
    """
    torch.manual_seed(seed)
    options = {"width": 128, "start": start}
    model = create_model("itnet_s", body={"operator_options": options}).eval()
    sizes: list[float] = []

    def record(module: torch.nn.Module, arguments: tuple[torch.Tensor, ...]) -> None:
        sizes.append(_size(arguments[0]))

    # The norm after the last block reads that block's output.
    for module in (*model.body.blocks, model.body.norm):
        module.register_forward_pre_hook(record)
    model(torch.randn(PICTURES, 3, side, side))
    return [size / sizes[0] for size in sizes[1:]]


def _size(stream: torch.Tensor) -> float:
    return float(stream.square().mean().sqrt())


def run(options: Options) -> None:
    """Measure the missing rows, one per start and seed."""
    side = 32 if options.small else SIDE
    for start in STARTS:
        for seed in range(options.seeds or SEEDS):
            row = {"start": start, "seed": seed}
            if not TABLE.has(row, options.results):
                TABLE.add([row | {"growth": growth(start, seed, side)}], options.results)


def found() -> Rows:
    """Return the committed rows."""
    return load(FILE) or []


def section_text() -> str:
    """Return the part of docs/results/itnet.md."""
    rows = found()
    command = "`python -m evidence run itnet start`"
    if not rows:
        return f"Not measured yet: {command}."
    blocks = (1, 3, 6, 12)
    lines = []
    for start in STARTS:
        growths = [row["growth"] for row in rows if row["start"] == start]
        name = "W = I, the formula" if start else "W = 0 (`operator.start=0`)"
        cells = [spread([growth[block - 1] for growth in growths], 1, 2) for block in blocks]
        lines.append((name, *cells, len(growths)))
    heads = ("start", "after 1 block", *(f"after {block} blocks" for block in blocks[1:]), "seeds")
    about = (
        f"Root mean square of the untrained residual stream, relative to that before the first block, for {PICTURES} pictures of "
        f"white noise, {(SIDE // 16) ** 2} patches and the class token ({command}). "
        "Trained models with both starts are compared by `python -m evidence run itnet sections --only start`."
    )
    return f"{about}\n\n{table(heads, lines)}"
