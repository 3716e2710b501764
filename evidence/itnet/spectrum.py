"""Singular values of trained kernels: the share of the matrix of all pairs that its best
approximation of each rank has, per layer, on test pictures of digits.
"""

from __future__ import annotations

import statistics
from dataclasses import replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from fredholm.lab.training.build import build_dataset
from fredholm.lab.training.evaluation import load_run
from fredholm.lab.training.grid import Cell, Report, recipe_cell, trained
from fredholm.training import load_recipe

from ..kit.grid import Row, Table, fill, label_of
from ..kit.page import load, spread, table
from ..kit.statistics import Rows
from ..kit.subject import Options
from .sections import SECTIONS

FILE = "itnet-spectrum.json"
TABLE = Table(FILE, ("seed",))
RANKS = (1, 2, 4, 8, 16, 32)
PICTURES = 32
SEEDS = 10


def shares(kernel: Float[Tensor, "b h q k i j"]) -> Float[Tensor, "b h r"]:
    """Return the share of the squared Frobenius norm in the first r singular values, r = 1, 2, ….

    Example:
        >>> shares(torch.eye(2).view(1, 1, 1, 1, 2, 2)).tolist()
        [[[0.5, 1.0]]]
    """
    b, h, q, k, i, j = kernel.shape
    matrix = kernel.permute(0, 1, 2, 4, 3, 5).reshape(b, h, q * i, k * j)
    squares = torch.linalg.svdvals(matrix.double()).square()
    return squares.cumsum(-1) / squares.sum(-1, keepdim=True)


@torch.inference_mode()
def measure(model: Any, inputs: Tensor) -> list[dict[str, Any]]:
    """Return a row per layer: the matrix's side, and the share at each rank.

    Shares are means over pictures and heads.
    """
    rows = []
    for operator, u, domain in model.trace(inputs):
        found = shares(operator.kernel_matrix(u, domain)).mean((0, 1))
        rows.append({"side": len(found), "shares": {str(r): float(found[r - 1]) for r in RANKS}})
    return rows


def work(cell: Cell, report: Report) -> Row:
    """Train the reference of the digits, unless it was trained already, and measure its kernels."""
    facts = trained(cell, report)
    model, _ = load_run(cell.place)
    inputs, _ = build_dataset(cell.given, "test").batch(range(PICTURES))
    return facts | {"layers": measure(model, inputs)}


def run(options: Options) -> None:
    """Measure the reference of the section of digits, seed by seed."""
    section = SECTIONS["digits"]

    def cell(row: Row) -> Cell:
        run = section.row("reference") | row
        label = label_of("digits", run)
        changes = [*run["overrides"], *options.trial, f"seed={row['seed']}", f"name={label}"]
        one = recipe_cell(load_recipe(section.recipe, changes), options.runs / label)
        return replace(one, settings=one.settings | {"stage": "spectrum"})

    rows = [{"seed": seed} for seed in range(options.seeds or SEEDS)]
    fill(TABLE, rows, work, cell, options)


def found() -> Rows:
    """Return the committed rows."""
    return (load(FILE) or {"runs": []})["runs"]


def shown(results: dict[str, Rows]) -> str:
    """Print the mean share at each rank over all layers and seeds, for the claim."""
    rows = results.get("spectrum", [])
    if not rows:
        return "not run"
    layers = [layer for row in rows for layer in row["layers"]]
    means = []
    for rank in RANKS:
        mean = statistics.mean(layer["shares"][str(rank)] for layer in layers)
        means.append(f"{100 * mean:.1f}% at rank {rank}")
    return f"of a side of {layers[0]['side']}: {', '.join(means)} ({len(rows)} seeds)"


def section_text() -> str:
    """Return the part of docs/results/itnet.md."""
    rows = found()
    command = "`python -m evidence run itnet spectrum`"
    if not rows:
        return f"Not measured yet: {command}."
    lines = []
    for layer in range(len(rows[0]["layers"])):
        seeds = [row["layers"][layer] for row in rows]
        cells = [spread(seed["shares"][str(r)] for seed in seeds) for r in RANKS]
        lines.append((layer + 1, seeds[0]["side"], *cells, len(seeds)))
    heads = "layer", "side of the matrix", *(f"rank {r}" for r in RANKS), "seeds"
    return f"{command}\n\n{table(heads, lines)}"
