"""Calibrated probabilities: one temperature, fitted on validation.

Reference: Guo, Pleiss, Sun and Weinberger, "On calibration of modern neural networks" (2017).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
from scipy.optimize import minimize_scalar
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.nn.functional import cross_entropy

from ... import models
from ...distributed import Shards, concatenated
from ...files import write_json
from ...progress import steps
from .evaluation import on_device
from .folder import RunFolder
from .tasks import Classification, Task, Tokens, concatenate_pairs

# Bounds of the temperature.
LOWEST = 0.05
HIGHEST = 20.0


def fit_temperature(logits: Tensor, labels: Tensor, weights: Tensor | None = None) -> float:
    r"""Return the temperature T that minimises the mean of
    :math:`-\log \mathrm{softmax}(z / T)_y` over logits z (N, C) and labels y (N,).

    The loss is convex in 1 / T, whose minimum Brent's method finds. ``weights`` (N,) weight the
    samples.

    Labels are smoothed by 1 / (N + 2), as Platt's targets are. Without smoothing, a few samples
    that are all predicted correctly would drive T to its lower bound.

    Example:
        >>> logits = torch.tensor([[8.0, 0.0]] * 400)
        >>> wrong = torch.arange(400) % 4 == 0  # three of four are predicted correctly
        >>> round(fit_temperature(logits, wrong.long()), 1)
        7.3
    """
    logits = logits.double()
    smoothing = 1 / (len(labels) + 2)

    def loss(inverse: float) -> float:
        if weights is None:
            mean = cross_entropy(logits * inverse, labels, label_smoothing=smoothing)
            return float(mean)

        losses = cross_entropy(
            logits * inverse,
            labels,
            label_smoothing=smoothing,
            reduction="none",
        )
        weighted_sum = (weights * losses).sum()
        return float(weighted_sum / weights.sum())

    # A minimum in float64 has no more than seven digits.
    found: Any = minimize_scalar(
        loss,
        bounds=(1 / HIGHEST, 1 / LOWEST),
        method="bounded",
        options={"xatol": 1e-9},
    )
    return 1 / float(found.x)


class Predictions(NamedTuple):
    """Logits (N, C) and labels (N,) of validation samples."""

    logits: Tensor
    labels: Tensor


def calibrate(folder: RunFolder, task: Task, validation: Any) -> dict[str, Any] | None:
    """Fit the temperature of a run's kept model on validation batches, and write it.

    Returns: the content of ``calibration.json``; None if the task has no classes.
    """
    if not calibrates(task):
        return None

    model = kept_model(folder)
    device = on_device(model)

    def predict(inputs: Any) -> Tensor:
        outputs = model(inputs.to(device))
        return outputs.cpu()

    logits, labels = _predict(predict, task, validation)
    return write_temperature(folder, logits, labels)


def calibrates(task: Task) -> bool:
    """Tell whether a task has classes whose probabilities a temperature can calibrate."""
    return isinstance(task, Classification) and not isinstance(task, Tokens)


def kept_model(folder: RunFolder) -> Any:
    """Load a run's kept model in float32; its weights may have been trained in float64."""
    return models.from_pretrained(folder.model).float()


def logits_on_shards(
    model: Any,
    task: Task,
    parts: Any,
    mesh: DeviceMesh,
) -> Predictions:
    """Compute the logits of samples whose points are distributed over the ranks of ``mesh``.

    Logits at points are gathered from all ranks. Logits of samples are the same on each rank.
    """
    local = _predict(partial(model, mesh=mesh), task, parts)
    if task.points is None:
        return local

    shards = Shards.of_parts(mesh, len(local.labels))
    logits = concatenated(local.logits, shards, 0)
    labels = concatenated(local.labels, shards, 0)
    return Predictions(logits, labels)


@torch.no_grad()
def _predict(predict: Callable[[Any], Tensor], task: Task, batches: Any) -> Predictions:
    pairs = []
    for inputs, labels in steps("calibrate", batches, unit="batches"):
        outputs = predict(inputs).float()
        pairs.append(task.pairs(outputs, labels))
    return Predictions(*concatenate_pairs(pairs))


def write_temperature(folder: RunFolder, logits: Tensor, labels: Tensor) -> dict[str, Any]:
    """Fit the temperature of logits (N, C), and write it to the run folder."""
    temperature = fit_temperature(logits, labels)
    before = cross_entropy(logits, labels)
    after = cross_entropy(logits / temperature, labels)
    result = {
        "temperature": temperature,
        "n": len(labels),
        "loss_before": float(before),
        "loss_after": float(after),
    }
    write_json(folder.calibration, result)
    return result
