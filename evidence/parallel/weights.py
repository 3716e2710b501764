"""Memory of a model and its optimizer when both are sharded over the processes (FSDP2)."""

from __future__ import annotations

from typing import Any

import torch

from ..kit.machine import describe
from ..kit.page import load, save
from ..kit.ranks import over
from ..kit.subject import Options
from .memory import COUNTS, FILE

# 25 million parameters.
MODEL = {
    "encoder": {"kind": "image", "patch": 4},
    "body": {"operator": "softmax", "dim": 512, "depth": 8, "heads": 8},
}
MEGABYTE = 1 << 20


def run_weights(options: Options) -> None:
    """Measure weights, gradients and AdamW's state in megabytes with 1, 2 and 4 processes."""
    rows = []
    for count in COUNTS:
        ranks = over(count, memory_of_rank, options.small)
        row = {"processes": count, "parameters": ranks[0]["whole"]}
        parts = ("weights", "gradients", "optimizer", "step")
        row |= {part: max(rank[part] for rank in ranks) for part in parts}
        rows.append(row)
        print(row, flush=True)
    found = load(FILE, options.results) or {}
    save({**found, "machine": describe(), "weights": rows}, FILE, options.results)


def memory_of_rank(mesh: Any, small: bool) -> dict[str, float]:
    """Measure this rank's memory after two steps with ``training.strategy=fsdp2``.

    ``step`` is the peak of the second step above the memory before it.
    """
    from fredholm.lab.training.machine import peak_megabytes
    from fredholm.lab.training.sharding import shard
    from fredholm.models import create_model

    size = {"dim": 16, "depth": 1} if small else {}
    torch.manual_seed(0)
    changes = {**MODEL, "body": {**MODEL["body"], **size}, "head": {"outputs": 10}}
    model = create_model("backbone_nano", **changes)
    whole = sum(parameter.numel() for parameter in model.parameters())
    if mesh.size() > 1:
        shard(model, mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    images, labels = torch.randn(4, 1, 32, 32), torch.tensor([0, 1, 2, 3])

    def step() -> None:
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(images), labels).backward()
        optimizer.step()

    step()
    optimizer.zero_grad()
    # The peak has the gradients, which the step allocates.
    peak = peak_megabytes(step) or 0.0
    states = [value for state in optimizer.state.values() for value in state.values()]
    return {
        "whole": whole,
        "weights": megabytes(model.parameters()),
        "gradients": megabytes(parameter.grad for parameter in model.parameters()),
        "optimizer": megabytes(states),
        "step": peak,
    }


def megabytes(tensors: Any) -> float:
    """Return the megabytes of this rank's parts of the tensors."""
    from torch.distributed.tensor import DTensor

    parts = (x.to_local() if isinstance(x, DTensor) else x for x in tensors)
    return sum(x.numel() * x.element_size() for x in parts) / MEGABYTE
