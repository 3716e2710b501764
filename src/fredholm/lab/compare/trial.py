"""One trial: train a contender for a number of steps, and judge it on samples it has not seen."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from time import perf_counter
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ...integral import inference
from ..training.build import build_loaders, build_model
from ..training.calibration import fit_temperature
from ..training.failures import TrainingFailed
from ..training.fit import fit
from ..training.grid import Cell, Report, Result
from ..training.metrics import title_of
from ..training.module import RecipeLearner
from ..training.recipe import Recipe
from ..training.run import limits_of
from ..training.tasks import Task, task_of
from .plain import PLAIN, Answer
from .splits import Splits, batches
from .stress import STRESSES, applies


@dataclass(frozen=True)
class Given:
    """Inputs of a trial besides its settings.

    Attributes:
        recipe: that the settings describe.
        most_minutes: after which training ends; None: never. It is not a setting, since it depends
            on how long earlier trials took: the same trial must be found again at another pace.
    """

    recipe: Recipe
    most_minutes: float | None


@dataclass(frozen=True)
class Judgement:
    """Quality of the answers to a data set.

    Attributes:
        score: what the contenders are ordered by; ``higher`` says which way.
        loss: of the task, which orders equal scores.
        each: a number per sample whose mean is the score, or close to it: right or wrong, squared
            or relative error; empty where a sample has no number of its own.
        per_class: accuracy by class.
    """

    score: float
    loss: float
    each: tuple[float, ...]
    per_class: dict[str, float | None]

    def to_dict(self) -> Result:
        """Return plain data. If all numbers per sample are 0 or 1, they become one text."""
        each: str | list[float] = list(self.each)
        if each and set(each) <= {0.0, 1.0}:
            each = "".join(str(int(value)) for value in self.each)
        return {
            "score": self.score,
            "loss": self.loss,
            "each": each,
            "per_class": self.per_class,
        }


class Measure(NamedTuple):
    """Name of a measure, and whether larger values are better."""

    name: str
    higher: bool


def measure_of(dataset: Any) -> Measure:
    """Return the measure that decides on a data set."""
    if dataset.metric is None and dataset.measures:
        return Measure(dataset.measures[0], True)
    name, mode = task_of(dataset).metric
    return Measure(name.removeprefix("val_"), mode == "max")


def judge(
    answer: Answer,
    dataset: Any,
    size: int,
    change: Callable[[Tensor], Tensor] | None = None,
) -> Judgement:
    """Judge the answers to a data set, ``size`` samples at a time; ``change`` the samples first."""
    pairs = _answered(answer, dataset, size, change)
    return _judged(pairs, dataset)


def _answered(
    answer: Answer,
    dataset: Any,
    size: int,
    change: Callable[[Tensor], Tensor] | None = None,
) -> list[tuple[Tensor, Tensor]]:
    """Return outputs and labels of each batch, in the units of the files."""
    pairs = []
    with torch.inference_mode():
        for inputs, labels in batches(dataset, size):
            if change is not None:
                inputs = change(inputs)
            outputs = answer(inputs).float().cpu()
            pair = (dataset.in_units(outputs), dataset.in_units(labels))
            pairs.append(pair)
    return pairs


def _judged(pairs: list[tuple[Tensor, Tensor]], dataset: Any) -> Judgement:
    task = task_of(dataset)
    summary = task.summary(iter(pairs), dataset.classes)
    name = measure_of(dataset).name
    if summary[name] is None:
        raise TrainingFailed(
            f"{title_of(name)} is not defined on the {dataset.split} split: a class is missing "
            "there, or all answers or labels are the same; choose another metric or more samples"
        )

    each: list[float] = []
    for pair in pairs:
        each += _each(task, task.pairs(*pair))
    return Judgement(
        float(summary[name]),
        float(summary["loss"]),
        tuple(each),
        dict(summary.get("per_class", {})),
    )


def _each(task: Task, pair: tuple[Tensor, Tensor]) -> list[float]:
    """Return a number per sample, with six digits: they are saved."""
    values = task.each(*pair)
    if values is None:
        return []
    return [float(f"{value:.6g}") for value in values.tolist()]


def learn(
    recipe: Recipe,
    train: Any,
    minutes: float | None,
) -> tuple[Any, int]:
    """Train a model in memory, as :func:`.run.train` would; return it in float32, in which runs are
    judged too, and the number of its steps.

    No step starts after ``minutes``.
    """
    loader, _ = build_loaders(recipe, train, train)
    model: Any = build_model(recipe, train)
    limits = replace(limits_of(recipe), minutes=minutes)
    learner = RecipeLearner(
        model,
        recipe,
        loader,
        None,
        task_of(train),
    )
    rows = fit(learner, limits=limits, keep=lambda model: None).rows
    count = 0
    if rows:
        count = int(rows[-1]["step"])
    return model.float(), count


def run_trial(
    splits: Splits,
    cell: Cell,
    report: Report,
) -> Result:
    """Train a contender on one fold and judge it; return what the file of the trial holds.

    Args:
        splits: the data sets.
        cell: its settings name the ``fold``, the ``method`` (``model``: an operator's) and whether
            to ``test``; its ``given`` is a :class:`Given` with the recipe.
        report: unused; the grid passes it to any work.

    Returns:
        ``val``, the :class:`Judgement` of the validation samples; ``steps`` and ``seconds``. For a
        finalist also ``test``, and of series ``stress``, the test score by :data:`STRESSES`. For a
        method beside the operators that classifies also the ``temperature`` of its classes.
    """
    start = perf_counter()
    settings = cell.settings
    recipe = cell.given.recipe
    train, val = splits.fold(settings["fold"])

    # A method reads a view of the data set; a model, whose steps are counted, reads it as it is.
    method = PLAIN.get(settings["method"])
    steps = 0
    view = _unchanged
    if method is None:
        model, steps = learn(recipe, train, cell.given.most_minutes)
        answer = _answers(model)
    else:
        answer = method.fit(train, recipe.seed)
        view = method.view

    # Only on the test split are contenders compared sample by sample.
    size = recipe.data.eval_batch_size
    pairs = _answered(answer, view(val), size)
    judged = _judged(pairs, val).to_dict()
    del judged["each"]
    result: Result = {"val": judged, "steps": steps}
    if method is not None and task_of(val).classifies:
        outputs, labels = (torch.cat(part) for part in zip(*pairs))
        result["temperature"] = fit_temperature(outputs, labels)

    if settings["test"]:
        test = splits.tested(settings["fold"])
        result["test"] = judge(answer, view(test), size).to_dict()
        if applies(test):
            result["stress"] = {}
            for name, stress in STRESSES.items():
                change = partial(stress, timed=test.timed)
                found = judge(answer, test, size, change)
                result["stress"][name] = found.score

    # A result is valid as long as the folder of its cell exists.
    cell.place.mkdir(parents=True, exist_ok=True)
    seconds = perf_counter() - start
    return result | {"seconds": round(seconds, 3)}


def _unchanged(dataset: Any) -> Any:
    return dataset


def _answers(model: Any) -> Answer:
    """Return a function from a batch of inputs to a trained model's outputs, one entry per sample,
    without gradients. The model stays in evaluation mode.
    """
    model.eval()

    def answer(inputs: Tensor) -> Tensor:
        # Within one call, work that depends on the weights alone is done once. The context is
        # entered per batch, so nothing stays cached between batches.
        with inference(model):
            return model(inputs)

    return answer
