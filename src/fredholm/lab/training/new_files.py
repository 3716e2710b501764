"""Evaluation of a trained run on new labelled files, also at other resolutions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ...errors import OptionError
from ...progress import working
from ..data.files.labelled import read_labelled
from .build import in_float32
from .metrics import baseline_of
from .prediction import alike_batches, load_predictor
from .tasks import Field, Regression, Task, create_task

ASKED = ("classification", "regression", "steps", "field")


@in_float32()
def evaluate_files(
    run: str | Path,
    files: Sequence[str | Path],
    overrides: list[str] | tuple[str, ...] = (),
    *,
    batch_size: int = 64,
    trust_code: bool = False,
    strict: bool = False,
    read: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """Return the scores of a run, or of the method that a comparison recommends, on labelled files.

    Samples and labels are read as the training files were: tables with the same columns, arrays of
    the same names, one folder per class. Grids, sampling rates and numbers of points may differ
    from those of the training; ``resolutions`` then has the scores at each.

    Args:
        run: the folder of a run, or of a comparison that recommends a method.
        files: files or folders, evaluated together.
        overrides: changes to the model's configuration, see :func:`load_run`.
        batch_size: samples per batch.
        trust_code: see :func:`load_run`.
        strict: refuse samples without a label, and cells that should hold a number and do not.
        read: how the tables are written, see :func:`predict`.

    Raises:
        TrustError: the run's recipe imports a file, and ``trust_code`` is not given.
        DataError: a file is missing, holds something else or no labels, or has a class that the
            training did not have.
        OptionError: the run's task can be evaluated on its own splits only.
    """
    if not files:
        raise OptionError("files: expected labelled files or folders, got none; name some")
    predictor = load_predictor(run, trust_code, overrides)
    name = predictor.facts.get("task", "classification")
    if name not in ASKED:
        raise OptionError(
            f"files: expected a run that asks for {', '.join(ASKED)}, got one that asks for "
            f"{create_task(name).name}; leave the files out to evaluate it on its own splits"
        )
    parts = [
        read_labelled(file, predictor.facts, predictor.encoder, strict, read) for file in files
    ]
    task = create_task(name)
    found: dict[str, list[tuple[Tensor, Tensor]]] = {}
    count = sum(map(len, parts))
    with torch.inference_mode(), predictor.context, working("evaluate", count, "samples") as show:
        done = 0
        for part in parts:
            for resolution, chosen in _by_resolution(part.resolutions).items():
                pairs = found.setdefault(resolution, [])
                for numbers in alike_batches(part.samples, chosen, batch_size):
                    outputs = predictor.predict(part.samples, numbers)
                    pairs.append(_in_units(task, outputs, part.labels(numbers), predictor.facts))
                    done += len(numbers)
                    show.at(done)
    classes = predictor.facts.get("classes") or ()
    summaries = {key: task.summary(iter(pairs), classes) for key, pairs in found.items()}
    result: dict[str, Any] = {
        "run": str(run),
        "dataset": ", ".join(map(str, files)),
        "split": "new files",
    }
    result |= {"overrides": list(overrides)} if overrides else {}
    result |= {"loss_name": task.loss_name, **_together(task, found, summaries, classes)}
    baseline = baseline_of(result)
    if baseline is not None:
        result["baseline"] = baseline
    if len(summaries) > 1:
        result["resolutions"] = {key: _short(numbers) for key, numbers in summaries.items()}
    return result


def _by_resolution(resolutions: Sequence[str]) -> dict[str, list[int]]:
    """Return the indices of the samples of each resolution."""
    result: dict[str, list[int]] = {}
    for number, resolution in enumerate(resolutions):
        result.setdefault(resolution, []).append(number)
    return result


def _in_units(
    task: Task,
    outputs: Tensor,
    labels: Tensor,
    facts: Mapping[str, Any],
) -> tuple[Tensor, Tensor]:
    """Convert the outputs of a batch to the units of the files; return them in float64, and the
    labels, which are in these units already.

    A model predicts standardised numbers. ``facts`` describe the training data set:

    - regression: ``units`` are (shift, scale), and outputs (B, 1) become (B,);
    - fields: ``scale`` has one number per answered channel, and outputs stay (B, points, K);
    - classes have no units, and their logits are returned as they are.
    """
    if isinstance(task, Regression):
        shift, scale = facts.get("units", (0.0, 1.0))
        return outputs.double().reshape(len(labels)) * scale + shift, labels
    if isinstance(task, Field):
        return outputs.double() * torch.tensor(facts["scale"]).double(), labels
    return outputs, labels


def _together(
    task: Task,
    found: Mapping[str, list[tuple[Tensor, Tensor]]],
    summaries: Mapping[str, dict[str, Any]],
    classes: Sequence[str],
) -> dict[str, Any]:
    """Return the scores on all samples.

    Fields of different grids cannot be concatenated, so their scores are combined.
    """
    if len(summaries) == 1:
        return next(iter(summaries.values()))
    if not isinstance(task, Field):
        return task.summary((pair for pairs in found.values() for pair in pairs), classes)
    count = sum(numbers["n"] for numbers in summaries.values())
    loss = sum(numbers["n"] * numbers["loss"] for numbers in summaries.values()) / count
    worst = max(numbers["worst"] for numbers in summaries.values())
    return {"n": count, "loss": loss, "worst": worst}


def _short(numbers: Mapping[str, Any]) -> dict[str, Any]:
    """Return the entries of a summary that are plain numbers."""
    return {key: value for key, value in numbers.items() if isinstance(value, int | float)}
