"""What a trained run does on a split."""

from __future__ import annotations

import math
import re
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from copy import deepcopy
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ...errors import CheckpointError, DataError, OptionError, StorageError
from ...files import MEASURED, storing, write_json
from ...integral import inference
from ...models.pretrained import WEIGHTS, read_config
from ...progress import steps, working
from ...tensor_files import read_checksum
from ..data import Vocabulary
from .build import build_dataset, in_float32
from .folder import RunFolder
from .recipe_files import apply_overrides, load_recipe
from .tasks import Task, task_of

SPLITS = ("train", "val", "test")


def load_run(
    run: str | Path,
    overrides: list[str] | tuple[str, ...] = (),
    *,
    trust_code: bool = False,
) -> tuple[Any, RunFolder]:
    """The kept model of a run, in evaluation mode, and its folder; ``overrides`` change its
    configuration.

    ``model.body.steps=12`` replaces a field of the model, ``operator.strategy=exact`` an option of
    its operators: what changes no weight. ``trust_code`` lets the Python files run that the run's
    recipe imports (read them first); where this process has imported the same content already, as
    after training the run, nothing new runs and it is not needed.

    Raises:
        TrustError: the run's recipe imports a file, and ``trust_code`` is not given.
        OptionError: an override of something else, or one that no model has.
        CheckpointError: no run there, it has saved no model yet, or the trained weights do not fit
            the change.
    """
    from ... import models
    from ..compare.saved import refuse_comparison

    refuse_comparison(run)
    place = RunFolder(run)
    recipe = place.load_recipe(trust_code)
    if not place.model.is_dir():
        why = _why_unsaved(place, recipe.training.keep)
        raise CheckpointError(
            f"{place.root}: no model yet: {why}; go on with the command that began it and --resume"
        )
    return models.from_pretrained(
        place.model, overrides=_model_overrides(overrides, place)
    ).float().eval(), place  # weights may have been trained in double


def _model_overrides(overrides: list[str] | tuple[str, ...], place: RunFolder) -> dict[str, Any]:
    """Changed fields of a saved model's configuration; options of its operators are changes to
    those it was trained with.
    """
    if not overrides:
        return {}
    body: Any = read_config(place.model).body
    options = dict(getattr(body, "operator_options", {}))
    if isinstance(options.get("strategy"), str) and any(
        o.startswith("operator.strategy.") for o in overrides
    ):
        options["strategy"] = {"name": options["strategy"]}
    changed = apply_overrides({"operator": deepcopy(options)}, list(overrides))
    parts, operator = changed.pop("model", {}), changed.pop("operator")
    if changed or not isinstance(parts, dict) or "name" in operator:
        raise OptionError(
            f"override: received {' '.join(overrides)}; a trained model takes model.PART.KEY=VALUE "
            "and operator.KEY=VALUE only, "
            "and keeps its operator (but see `fredholm compress`)"
        )
    if {"operator", "operator_options"} & set(parts.get("body", {})):
        raise OptionError("override: received the operator as a field; set operator.KEY=VALUE")
    if operator != options:
        parts = {**parts, "body": {**parts.get("body", {}), "operator_options": operator}}
    return parts


def run_dataset(model: Any, place: RunFolder, split: str, changes: list[str] | None = None) -> Any:
    """The run's data, with some of its options changed, in the numbers that its model knows."""
    words = model.extra.get("vocabulary")
    recipe = place.load_recipe()
    if changes:
        recipe = load_recipe(recipe.to_dict(), changes)
    result = build_dataset(recipe, split, Vocabulary.from_dict(words) if words else None)
    check_unchanged(model.extra, result)
    return result


def _why_unsaved(place: RunFolder, keep: str) -> str:
    """Why a run has no model, by the epochs that it has finished."""
    epochs = place.finished_epochs()
    if not epochs:
        return "the run has not come to the end of an epoch"
    count = f"{epochs} finished epochs" if epochs > 1 else "one finished epoch"
    if keep == "last":
        return (
            f"after {count} the run ended early, and with training.keep=last its weights are "
            "written at the end"
        )
    return f"none of {count} had a validation score that is a number, and the run ended early"


def check_unchanged(facts: Mapping[str, Any], dataset: Any) -> None:
    """Refuse files of the user's that have changed since the training, or that another version
    divided otherwise: what was trained on could be tested on.
    """
    before, now = facts.get("source"), dataset.source
    if before is None or now is None:
        return
    place = now.get("path", dataset.name)
    if before.get("files") != now.get("files"):
        raise DataError(
            f"{place}: has changed since the run was trained on it, so its splits are others"
            "; restore the files, or train again"
        )
    if before.get("split") != now.get("split"):
        raise DataError(
            f"{place}: is divided as {now['split']}; the run was trained on {before['split']}"
            ", so training samples could be in the test: train again"
        )
    classes = facts.get("classes")
    if classes is not None and list(classes) != list(dataset.classes):
        raise DataError(
            f"{place}: its classes are read as {', '.join(dataset.classes)}; the run was trained "
            f"on {', '.join(classes)}, by a version that told them apart otherwise: train again"
        )
    column = _scaled_otherwise(before.get("scaling") or {}, now.get("scaling") or {})
    if column is not None:
        raise DataError(
            f"{place}: column {column + 1} of the model's inputs has another mean or "
            "deviation than the run has saved, of a version that scaled large numbers by fewer "
            "digits: train again"
        )


def _scaled_otherwise(before: Mapping[str, Any], now: Mapping[str, Any]) -> int | None:
    """The first column whose saved mean and deviation are not those of its numbers."""
    if not {"mean", "std"} <= set(before) & set(now) or len(before["mean"]) != len(now["mean"]):
        return None
    (old_mean, old_std), (mean, std) = (
        (np.array(part["mean"]), np.array(part["std"])) for part in (before, now)
    )
    same = np.abs(mean - old_mean) <= 0.01 * std + 1e-6 * np.abs(mean)
    same &= np.abs(std - old_std) <= 0.01 * std
    return None if same.all() else int((~same).argmax())


@in_float32()
def evaluate(
    run: str | Path,
    split: str = "test",
    overrides: list[str] | tuple[str, ...] = (),
    *,
    trust_code: bool = False,
    report: Callable[[str], None] | None = None,
    each: bool = False,
) -> dict[str, Any]:
    """Accuracy, loss (called as ``loss_name`` says), per-class accuracy, confusion matrix and
    examples of a run on one split, also as ``evaluation.json``; or of the method that a comparison
    recommends, which knows the validation samples too. Of a run ``model_sha256`` is the checksum of
    the weights that were measured: what reads the file later looks whether they are still the
    run's.

    ``confusion[i][j]`` counts images of class i called j; ``wrong`` and ``right`` list the first
    examples of each with index, label, prediction and probability; a correlation that is not
    defined, of answers that are all the same, is None. Splits other than test are
    written to ``evaluation-SPLIT.json``, and a model changed by ``overrides`` (see
    :func:`load_run`) to a file that names them; ``data.options.KEY=VALUE`` among them changes the
    data set instead, such as the resolution of its fields. ``trust_code``: see :func:`load_run`.
    Where the folder cannot be written the figures are returned all the same, and ``report`` (or a
    warning) says that no file holds them.

    ``each`` adds one number per sample, in the order of the split, to the returned figures and not
    to the file: ``{"each": {"measure": "accuracy", "values": [1.0, 0.0, ...]}}``; for tasks other
    than classification the measure is ``"loss"``, the sample's own loss.

    Raises:
        TrustError: the run's recipe imports a file, and ``trust_code`` is not given.
        OptionError: an unknown split, or an override that does not fit.
        CheckpointError: no run or no model there.
        DataError: the user's own files have changed since the training.
    """
    from ..compare.saved import is_comparison

    if split not in SPLITS:
        raise OptionError(f"split: received {split!r}; needs one of {', '.join(SPLITS)}")
    place, measured = RunFolder(run), None
    if is_comparison(place.root):
        _refuse_changes(overrides)
        dataset, outputs = _of_pick(place.root, split, trust_code)
    else:
        # Before the weights are read: a training at work may replace them at any time.
        measured = read_checksum(place.model / WEIGHTS)
        dataset, outputs = _of_run(place, split, overrides, trust_code)
    task = task_of(dataset)
    pairs = ((dataset.in_units(o), dataset.in_units(y)) for o, y in outputs)
    recorded = _PerSample(task)
    if each:
        pairs = recorded.passing(pairs)
    numbers = task.summary(pairs, dataset.classes)
    result = {
        "run": str(place.root),
        "dataset": dataset.name,
        "split": split,
        **({"overrides": list(overrides)} if overrides else {}),
        **({} if measured is None else {MEASURED: measured}),
        "loss_name": task.loss_name,
        **numbers,
        **_judged(dataset, numbers),
    }
    try:
        write_json(_evaluation_file(place, split, overrides), result)
    except StorageError as error:
        line = f"the figures are not written: {error}"
        (report or partial(warnings.warn, stacklevel=2))(line)
    if each:
        result["each"] = {"measure": recorded.measure, "values": recorded.values}
    return result


class _PerSample:
    """One number per sample of the batches that pass."""

    def __init__(self, task: Task):
        self.task = task
        self.measure = "accuracy" if task.each_mode == "max" else "loss"
        self.values: list[float] = []

    def passing(self, batches: Iterable[tuple[Tensor, Tensor]]) -> Iterator[tuple[Tensor, Tensor]]:
        for outputs, labels in batches:
            found = self.task.each(*self.task.pairs(outputs, labels))

            # A task without such a number, or with one per point, has a loss per sample.
            if found is None or found.shape != (len(labels),):
                self.measure = "loss"
                losses = [_sample_loss(self.task, o, y) for o, y in zip(outputs, labels)]
                found = torch.tensor(losses)
            self.values.extend(found.tolist())
            yield outputs, labels


def _sample_loss(task: Task, outputs: Tensor, labels: Tensor) -> float:
    """Return the loss of one sample; NaN where none of its points has a label."""
    outputs, labels = outputs[None], labels[None]
    if not task.weight(labels):
        return math.nan
    return float(task.loss(outputs, labels))


def _of_run(
    place: RunFolder, split: str, overrides: list[str] | tuple[str, ...], trust_code: bool
) -> tuple[Any, Iterator[tuple[Tensor, Tensor]]]:
    """A split of a run's data, and what its model says of it, with the labels."""
    from .. import data

    changes = [text for text in overrides if text.startswith("data.options.")]
    chosen = [text for text in overrides if text not in changes]
    model, _ = load_run(place.root, chosen, trust_code=trust_code)
    recipe = place.load_recipe()
    dataset = run_dataset(model, place, split, changes)
    loader = data.make_loader(dataset, recipe.data.eval_batch_size, seed=recipe.seed, shuffle=False)
    return dataset, _outputs(model, loader, split)


def _of_pick(
    folder: Path, split: str, trust_code: bool
) -> tuple[Any, Iterator[tuple[Tensor, Tensor]]]:
    """The same of the method that a comparison recommends."""
    from ..compare.saved import load_pick, splits_of

    pick = load_pick(folder)
    splits = splits_of(folder, pick, trust_code)
    dataset = getattr(splits, split)
    check_unchanged(pick.facts, dataset)
    return dataset, pick.outputs(dataset)


def _refuse_changes(overrides: list[str] | tuple[str, ...]) -> None:
    if overrides:
        raise OptionError(
            f"override: received {' '.join(overrides)}; a method that a comparison recommends has "
            "no options, leave them out"
        )


def _judged(dataset: Any, numbers: dict[str, Any]) -> dict[str, Any]:
    """The measures by which the recipe's models and the data set itself are judged, and what is to
    be said of its files.
    """
    measures = dataset.measures or (() if dataset.metric is None else ("accuracy",))
    names = dict.fromkeys((dataset.metric, *measures))
    scores = {name: numbers[name] for name in names if name in numbers and name != "loss"}
    return ({"scores": scores} if scores else {}) | (
        {"notes": list(dataset.notes)} if dataset.notes else {}
    )


def _evaluation_file(place: RunFolder, split: str, overrides: list[str] | tuple[str, ...]) -> Path:
    parts = ([] if split == "test" else [split]) + [
        re.sub(r"[^A-Za-z0-9._=+-]", "_", text) for text in overrides
    ]
    return place.root / f"{'-'.join([place.evaluation.stem, *parts])}.json"


def explain(run: str | Path, images: int = 1000, *, trust_code: bool = False) -> Path:
    """The report of a run, in ``run/report``, on the first ``images`` samples of the test split;
    evaluates the run where it was not yet, or with other weights. ``trust_code``: see
    :func:`load_run`.

    Raises:
        TrustError: the run's recipe imports a file, and ``trust_code`` is not given.
        CheckpointError: no run or no model there.
        MissingExtraError: matplotlib is not installed.
        StorageError: the folder cannot be written.
    """
    from ...explain import Samples, report_run
    from ..report.given import read_evaluation
    from ..report.results import FIELDS

    model, place = load_run(run, trust_code=trust_code)
    with storing(place.root):  # before the work: without it there is nowhere to put the result
        (place.root / "report").mkdir(exist_ok=True)
    dataset = run_dataset(model, place, "test")
    if read_evaluation(place.root) is None:
        evaluate(run, trust_code=trust_code)
    chosen = torch.arange(min(images, len(dataset)))
    task, shown = task_of(dataset), dataset.shown(chosen)
    labels = dataset.labels[chosen] if task.classifies else None
    targets = None
    if dataset.task == "regression":
        targets = dataset.in_units(dataset.raw(chosen)[1])
    elif dataset.task == "field":
        targets = dataset.raw(chosen[:FIELDS])[1]
    with storing(place.root), working("explain"):
        return report_run(
            place.root,
            Samples(labels=labels, targets=targets, kind=dataset.kind, **shown),
            model=model,
            counted=dataset.counted or task.counted,
        )


def as_weights(model: nn.Module, inputs: Any) -> Any:
    """Inputs where the model's weights are and, of real numbers, in their precision."""
    weight = next(model.parameters())
    return inputs.to(weight.device, weight.dtype if inputs.is_floating_point() else inputs.dtype)


def on_device(model: nn.Module) -> torch.device:
    """Where the model answers: on a GPU where there is one, to which it is moved."""
    device = next(model.parameters()).device
    if device.type == "cpu" and torch.cuda.is_available():
        device = torch.device("cuda")
        model.to(device)
    return device


def _outputs(model: nn.Module, loader: Any, split: str) -> Iterator[tuple[Tensor, Tensor]]:
    """What the model says of each batch, and the labels, on the CPU."""
    device = on_device(model)
    with inference(model):
        for inputs, labels in steps(f"evaluate on {split}", loader, unit="batches"):
            with torch.inference_mode():
                outputs = model(inputs.to(device)).float().cpu()
            yield outputs, labels.cpu()
