"""Peak memory of a training step on a distributed domain by the number of processes."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from ..kit.machine import describe
from ..kit.page import load, save
from ..kit.ranks import over
from ..kit.subject import Options

FILE = "parallel.json"
COUNTS = (1, 2, 4)


class Case(NamedTuple):
    """A model by its preset and changes, and the number of points."""

    preset: str
    changes: dict[str, Any]
    points: int


CASES = {
    "InfViT, linear": Case(
        "infvit_linear_pico",
        {"body": {"dim": 64, "depth": 2, "heads": 4}, "head": {"outputs": 4}},
        32768,
    ),
    "ITNet, low rank": Case(
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
    "CKCNN": Case(
        "ckcnn_small",
        {"body": {"widths": [16, 16], "operator_options": {"width": 16}}, "head": {"outputs": 4}},
        65536,
    ),
    "ITNet, exact": Case(
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
    """Measure the peak memory of each model's training step with 1, 2 and 4 processes."""
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
        others = [row for row in found.get("memory", []) if row["case"] != name]
        save({**found, "machine": describe(), "memory": others + rows}, FILE, options.results)


def points(name: str, options: Options) -> int:
    """Return a case's number of points."""
    if options.small:
        return 256
    return CASES[name].points


def train(mesh: Any, name: str, n: int) -> dict[str, Any]:
    """Measure one training step of a rank, which makes its points locally."""
    from fredholm.distributed import count_traffic
    from fredholm.lab.training.machine import peak_megabytes

    model = make(name)
    # A small step first loads libraries and fills caches.
    step(model, mesh, 64)
    found: dict[str, Any] = {}
    with count_traffic() as traffic:
        found["megabytes"] = peak_megabytes(lambda: found.update(loss=step(model, mesh, n)))
    return {**found, "numbers": traffic.numbers}


def make(name: str) -> Any:
    """Make a model of a case, the same on every rank."""
    from fredholm.models import create_model

    torch.manual_seed(0)
    case = CASES[name]
    return create_model(case.preset, **case.changes).eval()


def step(model: Any, mesh: Any, n: int) -> float:
    """Make a training step on n points and return the loss.

    A rank of the mesh has its part of the points; without a mesh this process has all.
    """
    from fredholm.distributed import sum_gradients
    from fredholm.domain import Domain

    rank, count = 0, 1
    if mesh is not None:
        rank, count = mesh.get_local_rank(), mesh.size()
    start, stop = rank * n // count, (rank + 1) * n // count

    # Positions in more than one dimension are scattered by different multiples of the number.
    x = torch.arange(start, stop)[:, None] / n
    dim, width = model.encoder.position_dim, getattr(model.encoder, "dim", 1)
    positions, shape = x, (n,)
    if dim > 1:
        positions, shape = torch.cat([x * (7.0 + k) % 1.0 for k in range(dim)], 1), None

    part = Domain.points(positions, causal=model.config.encoder.causal)
    if mesh is None:
        part = part.replace(shape=shape)
    else:
        part = Domain.from_shard(part, mesh, shape=shape)
    u = torch.sin(x * torch.arange(1.0, width + 1))[None]
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
