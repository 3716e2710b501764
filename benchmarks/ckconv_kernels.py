"""Which activation can draw which kernel: ``python -m benchmarks.ckconv_kernels [--seeds 3]
[--steps 2000]``.

A position network with a linear readout is fitted to functions on [-1, 1] (CKConv, Figs. 4 and 7),
all points at once, by Adam at one learning rate; every function has mean 0 and variance 1, so the
mean squared error is the share of the variance that was not drawn. Rows are added to
docs/results/ckconv-kernels.json; what is there is not fitted again.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from fredholm.families.ckconv.position_network import PositionNetwork

RESULTS = Path(__file__).parents[1] / "docs" / "results" / "ckconv-kernels.json"
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
    """Positions (n, 1), and the function there with mean 0 and variance 1."""
    z = torch.linspace(-1.0, 1.0, POINTS)[:, None]
    y = TARGETS[name](z)
    return z, (y - y.mean()) / y.std(correction=0)


def fit(name: str, network: str, seed: int, steps: int) -> tuple[float, Tensor]:
    """The mean squared error after the last step, and the fitted function."""
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


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.ckconv_kernels", description=__doc__
    )
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--out", type=Path, default=RESULTS)
    args = parser.parse_args()
    rows: list[dict[str, Any]] = json.loads(args.out.read_text()) if args.out.is_file() else []
    done = {(row["target"], row["network"], row["seed"], row["steps"]) for row in rows}
    for seed in range(args.seeds):
        for name in TARGETS:
            for network in NETWORKS:
                if (name, network, seed, args.steps) in done:
                    continue
                error, drawn = fit(name, network, seed, args.steps)
                row = {
                    "target": name,
                    "network": network,
                    "seed": seed,
                    "steps": args.steps,
                    "error": error,
                }
                if seed == 0:  # for the picture
                    row["drawn"] = [round(v, 3) for v in drawn[:, 0].tolist()]
                rows.append(row)
            print(f"seed {seed}, {name}: {len(rows)} fits", flush=True)
            args.out.write_text(json.dumps(rows) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
