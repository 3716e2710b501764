"""A training step on a domain in shards: peak memory by the number of processes."""

from __future__ import annotations

from typing import Any

import torch

from ..kit.machine import describe
from ..kit.page import load, save
from ..kit.ranks import over
from ..kit.subject import Options

FILE = "parallel.json"
COUNTS = (1, 2, 4)
# name -> (preset, its changes, points)
CASES: dict[str, tuple[str, dict[str, Any], int]] = {
    "InfViT, linear": (
        "infvit_linear_pico",
        {"body": {"dim": 64, "depth": 2, "heads": 4}, "head": {"outputs": 4}},
        32768,
    ),
    "ITNet, low rank": (
        "itnet_nano",
        {
            "encoder": {"kind": "points", "channels": 3, "neighbours": 0},
            "body": {
                "dim": 64,
                "depth": 2,
                "heads": 4,
                "operator": "itnet_low_rank",
                "operator_options": {"width": 32, "frequencies": 16},
            },
            "head": {"outputs": 4},
        },
        16384,
    ),
    "CKCNN": (
        "ckcnn_small",
        {"body": {"widths": [16, 16], "operator_options": {"width": 16}}, "head": {"outputs": 4}},
        65536,
    ),
    "ITNet, exact": (
        "itnet_nano",
        {
            "encoder": {"kind": "points", "channels": 3, "neighbours": 0},
            "body": {
                "dim": 64,
                "depth": 2,
                "heads": 4,
                "operator_options": {"width": 16, "frequencies": 8},
            },
            "head": {"outputs": 4},
        },
        2048,
    ),
}


def run_memory(options: Options) -> None:
    """Peak memory of a training step of each model over 1, 2 and 4 processes."""
    for name in options.chosen(CASES):
        rows = []
        for count in COUNTS:
            ranks = over(count, train, name, points(name, options))
            peak = max(rank["megabytes"] for rank in ranks)
            row = {"case": name, "points": points(name, options), "processes": count}
            row |= {"megabytes": peak, "numbers": max(rank["numbers"] for rank in ranks)}
            row["loss"] = ranks[0]["loss"]
            rows.append(row)
            print(row, flush=True)
        found = load(FILE, options.results) or {}
        kept = [row for row in found.get("memory", []) if row["case"] != name]
        save({**found, "machine": describe(), "memory": kept + rows}, FILE, options.results)


def points(name: str, options: Options) -> int:
    return 256 if options.small else CASES[name][2]


def train(mesh: Any, name: str, n: int) -> dict[str, Any]:
    """A rank's own points, made here and nowhere else, and one training step on them."""
    from fredholm.distributed import count_traffic
    from fredholm.lab.training.machine import peak_megabytes

    model = make(name)
    step(model, mesh, 64)  # loads what a first step loads
    found: dict[str, Any] = {}
    with count_traffic() as traffic:
        found["megabytes"] = peak_megabytes(lambda: found.update(loss=step(model, mesh, n)))
    return {**found, "numbers": traffic.numbers}


def make(name: str) -> Any:
    """One of the models, the same on every rank."""
    from fredholm.models import create_model

    torch.manual_seed(0)
    preset, changes, _ = CASES[name]
    return create_model(preset, **changes).eval()


def step(model: Any, mesh: Any, n: int) -> float:
    """One training step on n points, of which this rank makes its share, without a mesh all; the
    loss.
    """
    from fredholm.distributed import sum_gradients
    from fredholm.domain import Domain

    rank, count = (0, 1) if mesh is None else (mesh.get_local_rank(), mesh.size())
    start, stop = rank * n // count, (rank + 1) * n // count
    place = torch.arange(start, stop)[:, None] / n
    dim, width = model.encoder.position_dim, getattr(model.encoder, "dim", 1)
    positions = place if dim == 1 else torch.cat([place * (7.0 + k) % 1.0 for k in range(dim)], 1)
    causal = model.config.encoder.causal
    part = Domain.points(positions, causal=causal)
    shape = (n,) if dim == 1 else None
    part = part.replace(shape=shape) if mesh is None else Domain.from_shard(part, mesh, shape=shape)
    u = torch.sin(place * torch.arange(1.0, width + 1))[None]
    loss = torch.nn.functional.cross_entropy(model.answer(u, part), torch.tensor([1]))
    model.zero_grad()
    (loss / count).backward()
    if part.shards is not None:
        sum_gradients(model, part.shards)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.grad is not None:
                parameter -= 1e-3 * parameter.grad
    return float(loss.detach())
