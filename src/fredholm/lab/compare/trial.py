"""One trial: a contender trained for so many steps, and judged on samples it has not seen."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter
from typing import Any

import torch
from torch import Tensor

from ...integral import inference
from ..training.build import build_loaders, build_model
from ..training.calibration import fit_temperature
from ..training.failures import TrainingFailed
from ..training.fit import Limits, fit
from ..training.grid import Cell, Report, Result
from ..training.metrics import title_of
from ..training.module import RecipeLearner
from ..training.recipe import Recipe
from ..training.tasks import Task, task_of
from .plain import PLAIN, Answer
from .splits import Splits, batches
from .stress import STRESSES, applies


@dataclass(frozen=True)
class Given:
    """What a trial is given besides its settings.

    Attributes:
        recipe: that the settings describe.
        most_minutes: after which its training ends; None: never. No setting, since it follows from
            how long earlier trials took: the same trial is found again at another pace.
    """

    recipe: Recipe
    most_minutes: float | None


@dataclass(frozen=True)
class Judgement:
    """How well samples were answered.

    Attributes:
        score: what the contenders are ordered by; ``higher`` says which way.
        loss: of the task, which orders equal scores.
        each: a number per sample whose mean the score is, or close to it: right or wrong, squared
            or relative error; empty where a sample has no number of its own.
        per_class: accuracy by class.
    """

    score: float
    loss: float
    each: tuple[float, ...]
    per_class: dict[str, float | None]

    def to_dict(self) -> Result:
        each = "".join(str(int(v)) for v in self.each) if _binary(self.each) else list(self.each)
        return {
            "score": self.score,
            "loss": self.loss,
            "each": each,
            "per_class": self.per_class,
        }


def _binary(values: tuple[float, ...]) -> bool:
    return bool(values) and set(values) <= {0.0, 1.0}


def measure_of(dataset: Any) -> tuple[str, bool]:
    """The measure that decides on a data set, and whether more of it is better."""
    if dataset.metric is None and dataset.measures:
        return dataset.measures[0], True
    name, mode = task_of(dataset).metric
    return name.removeprefix("val_"), mode == "max"


def judge(
    answer: Answer, dataset: Any, size: int, change: Callable[[Tensor], Tensor] | None = None
) -> Judgement:
    """Judge the answers to a data set, ``size`` samples at a time; ``change`` the samples first."""
    return _judged(_answered(answer, dataset, size, change), dataset)


def _answered(
    answer: Answer, dataset: Any, size: int, change: Callable[[Tensor], Tensor] | None = None
) -> list[tuple[Tensor, Tensor]]:
    """Outputs and labels, in the units of the files."""
    pairs = []
    with torch.inference_mode():
        for inputs, labels in batches(dataset, size):
            outputs = answer(inputs if change is None else change(inputs)).float().cpu()
            pairs.append((dataset.in_units(outputs), dataset.in_units(labels)))
    return pairs


def _judged(pairs: list[tuple[Tensor, Tensor]], dataset: Any) -> Judgement:
    task = task_of(dataset)
    found = task.summary(iter(pairs), dataset.classes)
    name, _ = measure_of(dataset)
    if found[name] is None:
        raise TrainingFailed(
            f"{title_of(name)} is not defined on the {dataset.split} split: a class is missing "
            "there, or all answers or labels are the same"
        )
    each = [_each(task, task.pairs(*pair)) for pair in pairs]
    return Judgement(
        float(found[name]),
        float(found["loss"]),
        tuple(value for part in each for value in part),
        dict(found.get("per_class", {})),
    )


def _each(task: Task, pair: tuple[Tensor, Tensor]) -> list[float]:
    """A number for each sample, as it is kept."""
    values = task.each(*pair)
    return [] if values is None else [float(f"{value:.6g}") for value in values.tolist()]


def learn(recipe: Recipe, train: Any, minutes: float | None) -> tuple[Any, int]:
    """A model trained by a recipe in memory, and the steps it took; none after ``minutes``."""
    loader, _ = build_loaders(recipe, train, train)
    model = build_model(recipe, train)
    limits = Limits(
        None, recipe.training.steps, minutes=minutes, clip_norm=recipe.training.clip_norm
    )
    module = RecipeLearner(model, recipe, loader, None, task_of(train))
    fitted = fit(module, limits=limits, keep=lambda model: None)
    return model, int(fitted.rows[-1]["step"]) if fitted.rows else 0


def run_trial(splits: Splits, cell: Cell, report: Report) -> Result:
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
    settings, recipe = cell.settings, cell.given.recipe
    train, val = splits.fold(settings["fold"])

    # A method reads a view of the data set; a model, whose steps are counted, reads it as it is.
    method = PLAIN.get(settings["method"])
    if method is not None:
        answer = method.fit(train, recipe.seed)
        steps = 0
        view = method.view
    else:
        model, steps = learn(recipe, train, cell.given.most_minutes)
        answer = _answers(model)
        view = _as_it_is

    # Only on the test split are contenders compared sample by sample.
    size = recipe.data.eval_batch_size
    pairs = _answered(answer, view(val), size)
    result: Result = {"val": _judged(pairs, val).to_dict(), "steps": steps}
    del result["val"]["each"]
    if method is not None and task_of(val).classifies:
        result["temperature"] = fit_temperature(*(torch.cat(part) for part in zip(*pairs)))

    if settings["test"]:
        test = splits.tested(settings["fold"])
        result["test"] = judge(answer, view(test), size).to_dict()
        if applies(test):
            result["stress"] = {
                name: judge(answer, test, size, change(test.timed)).score
                for name, change in STRESSES.items()
            }

    # A result is valid as long as the folder of its cell exists.
    cell.place.mkdir(parents=True, exist_ok=True)
    return result | {"seconds": round(perf_counter() - start, 3)}


def _as_it_is(dataset: Any) -> Any:
    return dataset


def _answers(model: Any) -> Answer:
    model.eval()

    def answer(inputs: Tensor) -> Tensor:
        with inference(model):
            return model(inputs)

    return answer
