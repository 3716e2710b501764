"""Load a trained run, evaluate it on a split of its data, and write its report."""

from __future__ import annotations

import math
import re
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from ... import models
from ...errors import CheckpointError, DataError, OptionError, StorageError
from ...files import MEASURED, storing, write_json
from ...integral import inference
from ...models.pretrained import WEIGHTS, read_config
from ...progress import steps, working
from ...tensor_files import read_checksum
from .. import data
from ..data import Vocabulary
from ..report.given import read_evaluation
from .build import build_dataset, in_float32
from .folder import RunFolder
from .metrics import baseline_of
from .recipe_files import apply_overrides, load_recipe
from .tasks import Field, Regression, Task, task_of

SPLITS = ("train", "val", "test")


def load_run(
    run: str | Path,
    overrides: Sequence[str] = (),
    *,
    trust_code: bool = False,
) -> tuple[Any, RunFolder]:
    """Return the trained model of a run, in evaluation mode and in float32, and the run's folder.

    Args:
        run: the run folder.
        overrides: changes to the model's configuration that leave the names and shapes of its
            weights alone. ``model.body.steps=12`` replaces a field, ``operator.strategy=exact`` an
            option of its operators.
        trust_code: execute the Python files that the run's recipe imports; read them first. It is
            not needed if this process has imported the same content already, for instance because
            it trained the run.

    Raises:
        TrustError: the run's recipe imports a file, and ``trust_code`` is not given.
        OptionError: an override of something else, or of a field that the model does not have.
        CheckpointError: there is no run, it has not saved a model yet, or the trained weights do
            not fit the change.
    """
    # Comparisons train and evaluate runs, and import this module.
    from ..compare.saved import refuse_comparison

    refuse_comparison(run)
    folder = RunFolder(run)
    recipe = folder.load_recipe(trust_code)
    if not folder.model.is_dir():
        raise _without_model(folder, recipe.training.keep)

    # Weights that were trained in float64 are saved in float64, and data come in float32.
    changes = _model_overrides(overrides, folder)
    model = models.from_pretrained(folder.model, overrides=changes)
    return model.float().eval(), folder


def _model_overrides(overrides: Sequence[str], folder: RunFolder) -> dict[str, Any]:
    """Return the fields of a saved model's configuration that the overrides change, by part.

    Overrides of ``operator`` are merged into the options that the operators were trained with, and
    become the field ``operator_options`` of the part ``body``.

    Raises:
        OptionError: an override of something else, or another operator, which would have other
            weights.
    """
    if not overrides:
        return {}

    # Some bodies have no operators.
    body: Any = read_config(folder.model).body
    trained_options = dict(getattr(body, "operator_options", {}))

    # A strategy is a name or a section. To override a key of the section, a name must become one.
    changes_strategy = any(text.startswith("operator.strategy.") for text in overrides)
    strategy = trained_options.get("strategy")
    if changes_strategy and isinstance(strategy, str):
        trained_options["strategy"] = {"name": strategy}

    trained = {"operator": deepcopy(trained_options)}
    changed = apply_overrides(trained, list(overrides))
    parts = changed.pop("model", {})
    options = changed.pop("operator")

    # What is left in ``changed`` begins with neither ``model`` nor ``operator``. A name
    # would be that of another operator.
    if changed or not isinstance(parts, dict) or "name" in options:
        raise OptionError(
            "override: expected model.PART.KEY=VALUE or operator.KEY=VALUE of a trained model, "
            f"which keeps its operator, got {' '.join(overrides)}; for another operator see "
            "`fredholm compress`"
        )

    body_fields = parts.get("body", {})
    if {"operator", "operator_options"} & set(body_fields):
        raise OptionError(
            "override: expected operator.KEY=VALUE, got the operator as a field of the body"
        )
    if options != trained_options:
        body_fields = {**body_fields, "operator_options": options}
        parts = {**parts, "body": body_fields}
    return parts


def run_dataset(
    model: Any,
    folder: RunFolder,
    split: str,
    changes: list[str] | None = None,
) -> Any:
    """Read a split of a run's data with the vocabulary that its model knows.

    ``changes`` are overrides of the recipe's ``data.options``.
    """
    recipe = folder.load_recipe()
    if changes:
        recipe = load_recipe(recipe.to_dict(), changes)

    vocabulary = None
    if model.extra.get("vocabulary"):
        vocabulary = Vocabulary.from_dict(model.extra["vocabulary"])

    dataset = build_dataset(recipe, split, vocabulary)
    check_unchanged(model.extra, dataset)
    return dataset


def _without_model(folder: RunFolder, keep: str) -> CheckpointError:
    """Return the error for a run without a model: it has not written one yet, or has lost it."""
    epochs = folder.finished_epochs()
    count = "one finished epoch" if epochs == 1 else f"{epochs} finished epochs"
    if epochs == 0:
        reason = "the run has not come to the end of an epoch"
    elif keep == "last" and not folder.finished:
        reason = (
            f"after {count} the run ended early, and with training.keep=last its weights are "
            "written at the end"
        )
    else:
        # The best weights are written from the first epoch on, the last ones at the end.
        return CheckpointError(
            f"{folder.model}: expected the weights of the run, which has written some, got no such "
            "folder; restore it, or train again"
        )
    return CheckpointError(
        f"{folder.root}: no model yet: {reason}; resume the run with the command that began it and "
        "--resume"
    )


def check_unchanged(facts: Mapping[str, Any], dataset: Any) -> None:
    """Refuse the user's own files if they have changed since the training.

    With other files, or with files that another version divided differently, training samples could
    end up in the test split.

    Args:
        facts: the facts about the data that the run saved.
        dataset: the data set as it is read now.

    Raises:
        DataError: files, division, classes, words or scaling differ.
    """
    before = facts.get("source")
    now = dataset.source
    if before is None or now is None:
        return

    path = now.get("path", dataset.name)
    if before.get("files") != now.get("files"):
        raise DataError(
            f"{path}: the files have changed since the run was trained on them, and so have their "
            "splits; restore the files, or train again"
        )
    if before.get("split") != now.get("split"):
        raise DataError(
            f"{path}: expected the split {before['split']}, as in training, got {now['split']}, "
            "which could put training samples into the test split; train again"
        )

    classes = facts.get("classes")
    if classes is not None and list(classes) != list(dataset.classes):
        raise DataError(
            f"{path}: expected the classes {', '.join(classes)} of the training, got "
            f"{', '.join(dataset.classes)}; another version of fredholm read them: train again"
        )

    words = before.get("words")
    if words is not None and words != now.get("words", words):
        raise DataError(
            f"{path}: expected the words of each column as in training, got others; a version of "
            "fredholm that also gave words outside the training split columns read them: train "
            "again"
        )

    column = _first_rescaled(before.get("scaling") or {}, now.get("scaling") or {})
    if column is not None:
        raise DataError(
            f"{path}: expected the mean and deviation of the training in column {column + 1} of "
            "the model's inputs, got others; a version of fredholm that lost digits of large "
            "numbers scaled them: train again"
        )


def _first_rescaled(before: Mapping[str, Any], now: Mapping[str, Any]) -> int | None:
    """Return the first column whose saved mean or deviation is not that of its numbers."""
    both_known = {"mean", "std"} <= set(before) & set(now)
    if not both_known or len(before["mean"]) != len(now["mean"]):
        return None

    old_mean, old_std = np.array(before["mean"]), np.array(before["std"])
    mean, std = np.array(now["mean"]), np.array(now["std"])

    # A hundredth of a deviation changes no prediction noticeably. Float32 inputs of a large mean
    # are rounded by about a millionth of it.
    same_mean = np.abs(mean - old_mean) <= 0.01 * std + 1e-6 * np.abs(mean)
    same_std = np.abs(std - old_std) <= 0.01 * std
    same = same_mean & same_std
    if same.all():
        return None
    return int((~same).argmax())


@in_float32()
def evaluate(
    run: str | Path,
    split: str = "test",
    overrides: Sequence[str] = (),
    *,
    trust_code: bool = False,
    report: Callable[[str], None] | None = None,
    each: bool = False,
) -> dict[str, Any]:
    """Evaluate a run, or the method that a comparison recommends, on one split.

    The result holds the loss (named by ``loss_name``) and, for classes, the accuracy, the accuracy
    per class, the confusion matrix and examples: ``confusion[i][j]`` counts samples of class i that
    were predicted as j, and ``wrong`` and ``right`` list the first samples of each with index,
    label, prediction and probability, calibrated as that of :func:`predict` is; of a class at every
    point they list points, each with the index of its sample. A correlation that is not defined,
    because all predictions are equal, is None. ``baseline`` has the score of the best constant
    answer: the most frequent class of the split, or the mean of its numbers. ``model_sha256`` is
    the checksum of a run's weights; readers of the file compare it with the weights that the run
    has then.

    It is written to ``evaluation.json``, for other splits to ``evaluation-SPLIT.json``, and with
    overrides to a file that names them. If the folder cannot be written, the result is returned all
    the same, and ``report`` (or a warning) says so.

    Args:
        run: the folder of a run or of a comparison. The method that a comparison recommends was
            trained on the validation samples as well.
        split: ``train``, ``val`` or ``test``.
        overrides: changes to the model, see :func:`load_run`; ``data.options.KEY=VALUE`` changes
            the data set instead, for instance the resolution of its fields.
        trust_code: see :func:`load_run`.
        report: receives a line if the result cannot be written.
        each: add one number per sample, in the order of the split, to the returned result and not
            to the file: ``{"each": {"measure": "accuracy", "values": [1.0, 0.0, ...]}}``. For tasks
            other than classification the measure is ``"loss"``, the sample's own loss.

    Raises:
        TrustError: the run's recipe imports a file, and ``trust_code`` is not given.
        OptionError: an unknown split, or an override that does not fit.
        CheckpointError: no run or no model there.
        DataError: the user's own files have changed since the training.
    """
    from ..compare.saved import is_comparison

    if split not in SPLITS:
        raise OptionError(f"split: expected one of {', '.join(SPLITS)}, got {split!r}")

    folder = RunFolder(run)
    if is_comparison(folder.root):
        refuse_overrides(overrides)
        predictions = _predict_by_pick(folder.root, split, trust_code)
    else:
        predictions = _predict_by_run(folder, split, overrides, trust_code)

    dataset = predictions.dataset
    task = task_of(dataset)
    task.temperature = predictions.temperature
    pairs = (
        (dataset.in_units(outputs), dataset.in_units(labels))
        for outputs, labels in predictions.batches
    )
    recorded = _PerSample(task)
    if each:
        pairs = recorded.passing(pairs)
    scores = task.summary(pairs, dataset.classes)

    result: dict[str, Any] = {
        "run": str(folder.root),
        "dataset": dataset.name,
        "split": split,
    }
    if overrides:
        result["overrides"] = list(overrides)
    if predictions.checksum is not None:
        result[MEASURED] = predictions.checksum
    result |= {"loss_name": task.loss_name, **scores}
    result |= _scores_and_notes(dataset, scores)
    baseline = baseline_of(scores)
    if baseline is not None:
        result["baseline"] = baseline

    path = _evaluation_file(folder, split, overrides)
    try:
        write_json(path, result)
    except StorageError as error:
        line = f"the figures are not written: {error}"
        if report is None:
            warnings.warn(line, stacklevel=2)
        else:
            report(line)

    if each:
        result["each"] = {
            "measure": recorded.measure,
            "values": recorded.values,
        }
    return result


class _PerSample:
    """Record one number per sample of the batches that pass through :meth:`passing`."""

    def __init__(self, task: Task):
        self.task = task
        self.measure = "accuracy" if task.each_mode == "max" else "loss"
        self.values: list[float] = []

    def passing(self, batches: Iterable[tuple[Tensor, Tensor]]) -> Iterator[tuple[Tensor, Tensor]]:
        for outputs, labels in batches:
            pairs = self.task.pairs(outputs, labels)
            values = self.task.each(*pairs)

            # A task without such a number, or with one per point, has a loss per sample.
            if values is None or values.shape != (len(labels),):
                self.measure = "loss"
                samples = zip(outputs, labels)
                losses = [_sample_loss(self.task, output, label) for output, label in samples]
                values = torch.tensor(losses)

            self.values.extend(values.tolist())
            yield outputs, labels


def _sample_loss(task: Task, outputs: Tensor, labels: Tensor) -> float:
    """Return the loss of one sample, given without the batch axis; NaN if none of its points has a
    label.
    """
    outputs = outputs[None]
    labels = labels[None]
    if not task.weight(labels):
        return math.nan
    return float(task.loss(outputs, labels))


class _Predictions(NamedTuple):
    """The predictions of a split.

    Attributes:
        dataset: the split.
        batches: (outputs, labels) on the CPU, computed while they are iterated.
        temperature: divides the logits of classes where probabilities are reported.
        checksum: the checksum of the weights; None for a method of a comparison.
    """

    dataset: Any
    batches: Iterator[tuple[Tensor, Tensor]]
    temperature: float
    checksum: str | None = None


def _predict_by_run(
    folder: RunFolder,
    split: str,
    overrides: Sequence[str],
    trust_code: bool,
) -> _Predictions:
    """Predict a split by the trained model of a run.

    Overrides of ``data.options`` change how the split is read, all others the model.
    """
    # A training at work may replace the weights at any time. The checksum is read first: if they
    # are replaced in between, the evaluation names older weights than it used and is repeated
    # later. In the other order it would seem to belong to the new weights.
    checksum = read_checksum(folder.model / WEIGHTS)

    data_overrides = [text for text in overrides if text.startswith("data.options.")]
    model_overrides = [text for text in overrides if text not in data_overrides]
    model, _ = load_run(folder.root, model_overrides, trust_code=trust_code)

    recipe = folder.load_recipe()
    dataset = run_dataset(model, folder, split, data_overrides)
    loader = data.make_loader(
        dataset,
        recipe.data.eval_batch_size,
        seed=recipe.seed,
        shuffle=False,
    )
    outputs = _outputs(model, loader, split)
    return _Predictions(dataset, outputs, folder.read_temperature(), checksum)


def _predict_by_pick(folder: Path, split: str, trust_code: bool) -> _Predictions:
    """Predict by the method that a comparison recommends."""
    from ..compare.saved import load_pick, splits_of

    pick = load_pick(folder)
    splits = splits_of(folder, pick, trust_code)
    dataset = getattr(splits, split)
    check_unchanged(pick.facts, dataset)
    return _Predictions(dataset, pick.outputs(dataset), pick.temperature)


def refuse_overrides(overrides: Sequence[str]) -> None:
    """Refuse changes to a method that a comparison recommends.

    Raises:
        OptionError: there are some.
    """
    if overrides:
        raise OptionError(
            "override: expected none for a method that a comparison recommends, which has no "
            f"options, got {' '.join(overrides)}; leave them out"
        )


def _scores_and_notes(dataset: Any, summary: dict[str, Any]) -> dict[str, Any]:
    """Select the measures that judge the recipe and its data set, and add notes on its files."""
    scores = select_scores(dataset.metric, dataset.measures, summary)
    result: dict[str, Any] = {}
    if scores:
        result["scores"] = scores
    # Training has noted how it read the user's own files, and they are unchanged.
    if dataset.notes and dataset.source is None:
        result["notes"] = list(dataset.notes)
    return result


def select_scores(
    metric: str | None,
    measures: Sequence[str],
    summary: Mapping[str, Any],
) -> dict[str, Any]:
    """Return the scores to list first: the recipe's metric, then the measures of the data set.

    Beside a metric of the recipe, the measure of a data set without any is the accuracy. The loss
    is in the summary anyway.
    """
    if not measures and metric is not None:
        measures = ("accuracy",)
    first = () if metric is None else (metric,)
    names = dict.fromkeys((*first, *measures))
    names.pop("loss", None)
    return {name: summary[name] for name in names if name in summary}


def _evaluation_file(folder: RunFolder, split: str, overrides: Sequence[str]) -> Path:
    parts = [folder.evaluation.stem]
    if split != "test":
        parts.append(split)
    parts += [re.sub(r"[^A-Za-z0-9._=+-]", "_", text) for text in overrides]
    return folder.root / f"{'-'.join(parts)}.json"


def explain(
    run: str | Path,
    images: int = 1000,
    *,
    trust_code: bool = False,
) -> Path:
    """Write the report of a run to ``run/report``.

    It shows the first ``images`` samples of the test split. The run is evaluated first, unless
    ``evaluation.json`` belongs to its weights already. ``trust_code``: see :func:`load_run`.

    Raises:
        TrustError: the run's recipe imports a file, and ``trust_code`` is not given.
        CheckpointError: no run or no model there.
        MissingExtraError: matplotlib is not installed.
        StorageError: the folder cannot be written.
    """
    from ...explain import Samples, report_run
    from ..report.results.sections import FIELDS

    # The folder is made before the work, which would be lost if there were nowhere to write to.
    model, folder = load_run(run, trust_code=trust_code)
    with storing(folder.root):
        (folder.root / "report").mkdir(exist_ok=True)

    dataset = run_dataset(model, folder, "test")
    if read_evaluation(folder.root) is None:
        evaluate(run, trust_code=trust_code)

    indices = torch.arange(min(images, len(dataset)))
    task = task_of(dataset)
    labels = None
    if task.classifies:
        labels = dataset.labels[indices]

    shown = dataset.shown(indices)

    # Numbers to predict are shown in the units of the training file.
    targets = None
    if isinstance(task, Regression):
        _, numbers = dataset.raw(indices)
        targets = dataset.in_units(numbers)
    elif isinstance(task, Field):
        targets = read_fields(dataset, indices[:FIELDS], shown["inputs"])

    samples = Samples(
        labels=labels,
        targets=targets,
        kind=dataset.kind,
        names=dataset.origins,
        **shown,
    )
    counted = dataset.counted or task.counted
    with storing(folder.root), working("explain"):
        return report_run(folder.root, samples, model=model, counted=counted)


def read_fields(dataset: Any, indices: Tensor, inputs: Tensor) -> Tensor:
    """Return the fields to predict of some samples, (N, K, h, w) or (N, K, P), in the units of the
    files.

    Args:
        dataset: fields on grids, or on points.
        indices: the samples.
        inputs: of these samples and more. Points are padded with NaN to the longest of them.
    """
    _, fields = dataset.raw(indices)
    if fields.dim() == 3:
        missing = inputs.shape[1] - fields.shape[2]
        fields = nn.functional.pad(fields, (0, missing), value=math.nan)
    return fields


def as_weights(model: nn.Module, inputs: Any) -> Any:
    """Move inputs to the device of the model's weights, and real numbers to their precision."""
    weight = next(model.parameters())
    dtype = inputs.dtype
    if inputs.is_floating_point():
        dtype = weight.dtype
    return inputs.to(weight.device, dtype)


def on_device(model: nn.Module) -> torch.device:
    """Move the model to a GPU if there is one, and return its device."""
    device = next(model.parameters()).device
    if device.type == "cpu" and torch.cuda.is_available():
        device = torch.device("cuda")
        model.to(device)
    return device


def _outputs(model: nn.Module, loader: Any, split: str) -> Iterator[tuple[Tensor, Tensor]]:
    """Compute the model's outputs for each batch; yield them and the labels on the CPU."""
    device = on_device(model)
    with inference(model):
        for inputs, labels in steps(f"evaluate on {split}", loader, unit="batches"):
            with torch.inference_mode():
                outputs = model(inputs.to(device))
                outputs = outputs.float().cpu()
            yield outputs, labels.cpu()
