"""Evaluation of a trained run on new labelled files, also at other resolutions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ...errors import OptionError
from ...progress import working
from ..data.files.labelled import read_labelled
from .build import in_float32
from .evaluation import select_scores
from .metrics import baseline_of
from .prediction import Predictor, alike_batches, load_predictor
from .tasks import Field, Pairs, Regression, Task, create_task

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

    The result is that of :func:`evaluate`. The ``index`` of an example counts the samples in the
    order of the files, and the example has its ``file``, and ``row`` or ``id``, as :func:`predict`
    gives them.

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
    task.temperature = predictor.temperature
    if predictor.metric is not None:
        task.judge_by(predictor.metric)
    predictions = _predict_parts(predictor, task, parts, batch_size)
    classes = predictor.facts.get("classes") or ()
    scores = _summary(task, predictions, classes)
    for example in [*scores.get("wrong", ()), *scores.get("right", ())]:
        example |= predictions[example["index"]].place

    by_resolution: dict[str, list[Prediction]] = {}
    for prediction in predictions:
        by_resolution.setdefault(prediction.resolution, []).append(prediction)

    result: dict[str, Any] = {
        "run": str(run),
        "dataset": ", ".join(map(str, files)),
        "split": "new files",
    }
    if overrides:
        result["overrides"] = list(overrides)
    result |= {"loss_name": task.loss_name, **scores}
    first = select_scores(predictor.metric, (), scores)
    if first:
        result["scores"] = first

    baseline = baseline_of(result)
    if baseline is not None:
        result["baseline"] = baseline
    if len(by_resolution) > 1:
        result["resolutions"] = {}
        for resolution, chosen in by_resolution.items():
            summary = _summary(task, chosen, classes)
            result["resolutions"][resolution] = _short(summary)
    return result


class Prediction(NamedTuple):
    """The prediction for one sample.

    Attributes:
        outputs, labels: with a batch axis of 1; numbers in the units of the files, fields scaled
            as those of the training are.
        resolution: of the sample, in words.
        place: its file and what identifies it there.
    """

    outputs: Tensor
    labels: Tensor
    resolution: str
    place: Mapping[str, Any]


def _predict_parts(
    predictor: Predictor,
    task: Task,
    parts: Sequence[Any],
    batch_size: int,
) -> list[Prediction]:
    """Return the predictions for all samples, in the order of the files.

    Args:
        predictor: the trained method.
        task: its task.
        parts: labelled samples, as of :func:`.data.files.labelled.read_labelled`.
        batch_size: samples per batch.
    """
    predictions: list[Prediction] = []
    count = sum(map(len, parts))
    done = 0
    with (
        torch.inference_mode(),
        predictor.context,
        working("evaluate", count, "samples") as progress,
    ):
        for part in parts:
            predicted: dict[int, Prediction] = {}
            # Samples of one resolution share batches, so that they need little padding.
            for resolution, indices in _by_resolution(part.resolutions).items():
                for chosen in alike_batches(part.samples, indices, batch_size):
                    outputs = predictor.predict(part.samples, chosen)
                    labels = part.labels(chosen)
                    outputs, labels = _in_one_unit(task, outputs, labels, predictor.facts)
                    samples = zip(chosen, outputs.split(1), labels.split(1), strict=True)
                    for index, output, label in samples:
                        place = part.samples.places[index]
                        predicted[index] = Prediction(output, label, resolution, place)

                    done += len(chosen)
                    progress.at(done)
            predictions += [predicted[index] for index in range(len(part))]
    return predictions


def _by_resolution(resolutions: Sequence[str]) -> dict[str, list[int]]:
    """Return the indices of the samples of each resolution."""
    result: dict[str, list[int]] = {}
    for index, resolution in enumerate(resolutions):
        indices = result.setdefault(resolution, [])
        indices.append(index)
    return result


def _in_one_unit(
    task: Task,
    outputs: Tensor,
    labels: Tensor,
    facts: Mapping[str, Any],
) -> Pairs:
    """Return the outputs and labels of a batch in the units in which :func:`evaluate` scores a
    split, in float64.

    A model predicts standardised numbers, and labels are in the units of the files. ``facts``
    describe the training data set:

    - regression: ``units`` are (shift, scale), and outputs (B, 1) become (B,) in these units;
    - fields: ``scale`` has one number per answered channel, and labels (B, K, ...) are divided by
      it. A relative error over several channels depends on their scales, so it is that of the
      training's loss, in which every channel counts alike;
    - classes have no units, and their logits are returned as they are.
    """
    if isinstance(task, Regression):
        shift, scale = facts.get("units", (0.0, 1.0))
        standardised = outputs.double().reshape(len(labels))
        return standardised * scale + shift, labels

    if isinstance(task, Field):
        scale = torch.tensor(facts["scale"]).double()
        # One number per channel, the second axis of labels.
        scale = scale.reshape(-1, *[1] * (labels.dim() - 2))
        return outputs.double(), labels / scale
    return outputs, labels


def _summary(
    task: Task,
    predictions: Sequence[Prediction],
    classes: Sequence[str],
) -> dict[str, Any]:
    """Return the scores of samples; their examples are numbered in the order given."""
    batches = [(prediction.outputs, prediction.labels) for prediction in predictions]
    return task.summary(batches, classes)


def _short(summary: Mapping[str, Any]) -> dict[str, Any]:
    """Return the entries of a summary that are plain numbers."""
    return {key: value for key, value in summary.items() if isinstance(value, int | float)}
