"""Measurements on a validation split: a model's score, each layer's divergence from its teacher."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from ...linearization import Replaced
from ...linearization.divergence import ExactDivergence
from ...modes import device_of, evaluating
from ..data import make_loader
from ..training.tasks import Tally, Task
from .stages import check_batch, outputs_of

# Batches on which divergences are measured.
BATCHES = 8


@torch.no_grad()
def evaluate(
    model: nn.Module,
    dataset: Any,
    task: Task,
    precision: str = "32",
    batch_size: int = 32,
    each: list[float] | None = None,
) -> float:
    """Return a model's score on a split, by the task's metric.

    The model is in evaluation mode meanwhile.

    Args:
        precision: ``"32"`` or ``"bf16"`` (autocast). The score is computed from float32 outputs.
        each: a list to which one number per sample is appended, as :meth:`Task.each` defines it.
            It stays as it is if the task has no such number.
    """
    tally = Tally(task)
    for out, target in _forward(model, dataset, precision, batch_size):
        outputs = out.float().cpu()
        labels = target.cpu()
        tally.add(outputs, labels)
        if each is None:
            continue
        numbers = task.each(*task.pairs(outputs, labels))
        if numbers is not None:
            each.extend(numbers.tolist())

    metric, _ = task.metric
    return tally.metrics()[metric]


@torch.no_grad()
def check_head(model: nn.Module, dataset: Any) -> None:
    """Refuse a model without logits, before anything is written or trained.

    Raises:
        ConversionError: see :func:`.stages.outputs_of`.
    """
    for _ in _forward(model, dataset, "32", 1, 1):
        pass


@torch.no_grad()
def divergences(
    replaced: Replaced,
    dataset: Any,
    precision: str = "32",
    batch_size: int = 16,
) -> dict[str, ExactDivergence]:
    """Return each layer's exact divergence from its teacher, over the first batches of a split.

    Every layer reads what the teacher's layer reads.
    """
    with replaced.mode("measure"):
        for _ in _forward(replaced.model, dataset, precision, batch_size, BATCHES):
            pass
        return replaced.exact_divergences()


def _forward(
    model: nn.Module,
    dataset: Any,
    precision: str,
    batch_size: int,
    limit: int | None = None,
) -> Iterator[tuple[Tensor, Tensor]]:
    """Iterate over outputs and labels of the first ``limit`` batches of a split; None: of all."""
    device = device_of(model)
    with evaluating(model):
        loader = make_loader(dataset, batch_size)
        for number, (inputs, labels) in enumerate(loader):
            if limit is not None and number >= limit:
                break
            check_batch(inputs)
            with torch.autocast(device.type, torch.bfloat16, enabled=precision == "bf16"):
                yield outputs_of(model, _to(inputs, device)), labels


def _to(inputs: Any, device: torch.device) -> Any:
    # A model of transformers takes its arguments by name.
    if isinstance(inputs, Mapping):
        return {key: value.to(device) for key, value in inputs.items()}
    return inputs.to(device)
