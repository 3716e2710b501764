"""Fits of kernels by position networks with different activations.

A position network with a linear readout is fitted to functions on [-1, 1] (CKConv, Figs. 4 and 7)
by Adam at one learning rate, with all points in each step. Every function has mean 0 and variance
1, so the mean squared error is the unexplained share of the variance.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import product
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from fredholm.families.ckconv.position_network import PositionNetwork
from fredholm.lab.training.grid import Cell, Report, safe_name

from ..kit.grid import Row, Table, fill
from ..kit.subject import Options

TABLE = Table("ckconv-kernels.json", ("target", "network", "seed", "steps"), ())
POINTS, RATE = 200, 2e-3
NETWORKS: dict[str, dict[str, Any]] = {
    "sine, omega 10": {"activation": "sine", "omega": 10.0},
    "sine, omega 30": {"activation": "sine", "omega": 30.0},
    "sine, omega 100": {"activation": "sine", "omega": 100.0},
    "sine, omega 30, released": {"activation": "sine", "omega": 30.0, "preset": "released"},
    "random Fourier features": {"activation": "rff", "omega": 10.0},
    **{
        f"{name}, knots {knots}": {"activation": name, "knots": knots}
        for name in ("relu", "leaky_relu", "silu", "gelu")
        for knots in ("zero", "uniform")
    },
}


def _step(z: Tensor) -> Tensor:
    return (z > 0.1).to(z.dtype)


def _sawtooth(z: Tensor) -> Tensor:
    return (4 * z).remainder(1.0)


def _chirp(z: Tensor) -> Tensor:
    return torch.sin(2 * math.pi * (2 + 6 * (z + 1)) * (z + 1))


def _gaussian(z: Tensor) -> Tensor:
    return torch.exp(-0.5 * (z / 0.15).square())


def _random(z: Tensor) -> Tensor:
    return torch.randn(z.shape, generator=torch.Generator().manual_seed(0))


TARGETS: dict[str, Callable[[Tensor], Tensor]] = {
    "gaussian": _gaussian,
    "step": _step,
    "sawtooth": _sawtooth,
    "sine chirp": _chirp,
    "random": _random,
}


def target(name: str) -> tuple[Tensor, Tensor]:
    """Return positions (n, 1) and the values of a function there, with mean 0 and variance 1."""
    z = torch.linspace(-1.0, 1.0, POINTS)[:, None]
    y = TARGETS[name](z)
    return z, (y - y.mean()) / y.std(correction=0)


def fit(name: str, network: str, seed: int, steps: int) -> tuple[float, Tensor]:
    """Fit a network; return the mean squared error after the last step and the fitted values."""
    torch.manual_seed(seed)
    z, y = target(name)
    body = PositionNetwork(**NETWORKS[network])
    model = nn.Sequential(body, nn.Linear(body.width, 1))
    optimizer = torch.optim.Adam(model.parameters(), RATE)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps, RATE / 100)
    for _ in range(steps):
        optimizer.zero_grad(set_to_none=True)
        functional.mse_loss(model(z), y).backward()
        optimizer.step()
        schedule.step()
    with torch.no_grad():
        drawn = model(z)
    return functional.mse_loss(drawn, y).item(), drawn


def run(options: Options) -> None:
    """Fit every function with the networks of ``--only``, or with all."""
    steps = 20 if options.small else 2000
    networks = options.chosen(NETWORKS)
    rows = [
        {"target": name, "network": network, "seed": seed, "steps": steps}
        for seed, name, network in product(range(options.seeds or 3), TARGETS, networks)
    ]

    def cell(row: Row) -> Cell:
        return Cell(row, options.runs / safe_name(" ".join(map(str, row.values()))))

    def work(cell: Cell, report: Report) -> Row:
        settings = cell.settings
        seed = settings["seed"]
        error, drawn = fit(settings["target"], settings["network"], seed, settings["steps"])
        found: Row = {"error": error}
        # The picture shows the fits of one seed.
        if seed == 0:
            found["drawn"] = [round(v, 3) for v in drawn[:, 0].tolist()]
        return {"rows": [found]}

    fill(TABLE, rows, work, cell, options)
