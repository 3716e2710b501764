"""Probabilities that mean what they say: one temperature, fitted on validation.

Reference: Guo, Pleiss, Sun and Weinberger, "On calibration of modern neural networks" (2017).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from ... import models
from ...distributed import Shards, concatenated
from ...files import read_state, unreadable, write_json
from ...progress import steps
from .evaluation import on_device
from .folder import RunFolder
from .tasks import Classification, Task, Tokens

RANGE = (0.05, 20.0)  # of the temperature
STEPS = 60  # of the golden section, enough for seven digits


def fit_temperature(logits: Tensor, labels: Tensor, weights: Tensor | None = None) -> float:
    r"""The T that minimises the mean of :math:`-\log \mathrm{softmax}(z / T)_y`, by the ``weights``
    (N,) of samples: the logits z (N, C) are divided by it. The loss is convex in 1 / T, which a
    golden section finds.

    The labels are smoothed by 1 / (N + 2), as Platt's targets are: few samples that are all right
    would otherwise ask for certainty.

    Example:
        >>> logits = torch.tensor([[8.0, 0.0]] * 400)
        >>> wrong = torch.arange(400) % 4 == 0  # right 3 times of 4
        >>> round(fit_temperature(logits, wrong.long()), 1)
        7.3
    """
    logits, smoothing = logits.double(), 1 / (len(labels) + 2)

    def loss(inverse: float) -> float:
        if weights is None:
            return float(cross_entropy(logits * inverse, labels, label_smoothing=smoothing))
        each = cross_entropy(logits * inverse, labels, label_smoothing=smoothing, reduction="none")
        return float((weights * each).sum() / weights.sum())

    low, high, ratio = 1 / RANGE[1], 1 / RANGE[0], (5**0.5 - 1) / 2
    left, right = high - ratio * (high - low), low + ratio * (high - low)
    at_left, at_right = loss(left), loss(right)
    for _ in range(STEPS):
        if at_left < at_right:
            high, right, at_right = right, left, at_left
            left = high - ratio * (high - low)
            at_left = loss(left)
        else:
            low, left, at_left = left, right, at_right
            right = low + ratio * (high - low)
            at_right = loss(right)
    return 2 / (low + high)


def calibrate(place: RunFolder, task: Task, validation: Any) -> dict[str, Any] | None:
    """Fit the temperature of a run's kept model on batches of validation, and write
    ``calibration.json``; None where the task names no classes.
    """
    if not calibrates(task):
        return None
    model = kept_model(place)
    device = on_device(model)
    found = _logits(lambda inputs: model(inputs.to(device)).cpu(), task, validation)
    return write_temperature(place, *found)


def calibrates(task: Task) -> bool:
    """Whether a task names classes whose probabilities a temperature can mend."""
    return isinstance(task, Classification) and not isinstance(task, Tokens)


def kept_model(place: RunFolder) -> Any:
    """A run's kept model in float32; weights may have been trained in double."""
    return models.from_pretrained(place.model).float()


def logits_on_shards(model: Any, task: Task, parts: Any, mesh: Any) -> tuple[Tensor, Tensor]:
    """What a model says of samples whose points are in shards, and the labels; of answers at points
    those of all ranks.
    """
    answer = partial(model, mesh=mesh)
    logits, labels = _logits(answer, task, parts)
    if task.points is None:
        return logits, labels
    shards = Shards.of_parts(mesh, len(labels))
    return concatenated(logits, shards, 0), concatenated(labels, shards, 0)


@torch.no_grad()
def _logits(answer: Callable[[Any], Tensor], task: Task, batches: Any) -> tuple[Tensor, Tensor]:
    pairs = [
        task.pairs(answer(inputs).float(), labels)
        for inputs, labels in steps("calibrate", batches, unit="batches")
    ]
    logits, labels = (torch.cat(parts) for parts in zip(*pairs, strict=True))
    return logits, labels


def write_temperature(place: RunFolder, logits: Tensor, labels: Tensor) -> dict[str, Any]:
    """Fit the temperature of logits (N, C), and write it into the run."""
    temperature = fit_temperature(logits, labels)
    result = {
        "temperature": temperature,
        "n": len(labels),
        "loss_before": float(cross_entropy(logits, labels)),
        "loss_after": float(cross_entropy(logits / temperature, labels)),
    }
    write_json(place.calibration, result)
    return result


def temperature_of(path: Path) -> float:
    """The temperature of a run, 1 of one that has none.

    Raises:
        FredholmError: a damaged file.
    """
    if not path.is_file():
        return 1.0
    fix = "restore it, or delete it and do without calibrated probabilities"
    try:
        return float(read_state(path, fix)["temperature"])
    except (KeyError, TypeError, ValueError) as error:
        raise unreadable(path, error, fix) from error
