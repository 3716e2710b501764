"""The operator for samples in memory: the rungs of a search, without its finalists."""

from __future__ import annotations

import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..data.files.source import Source
from ..training.grid import Report, quiet
from .budgets import REFERENCE, make_recipe
from .clock import Clock
from .search import Search
from .splits import Splits
from .tasks import ComparedTask, options_of, read_contenders
from .trials import Trials


@dataclass(frozen=True)
class Choice:
    """What a search recommends to train with."""

    operator: dict[str, Any]
    dim: int
    lr: float


def choose_for(
    source: Source,
    recipe: dict[str, Any],
    minutes: float,
    *,
    operators: str | None = None,
    report: Report | None = None,
) -> Choice:
    """The operator, its width and learning rate that validation prefers for samples in memory.

    Args:
        source: the samples, divided; there is no test split.
        recipe: the sections of a recipe that the contenders share, see
            :func:`fredholm.lab.training.usual.usual_recipe`.
        minutes: of the search.
        operators: as of :func:`.search.open_search`.
        report: receives lines of progress.

    Raises:
        OptionError: no minutes, or too few for any operator.
        TrainingFailed: every trial failed.
    """
    # The recipe names a place that nothing is read from: the samples are given.
    place = {"data": {**recipe["data"], "path": source.name}}
    task = ComparedTask("samples", "samples", {"name": "samples", **recipe, **place})
    splits, contenders = Splits(make_recipe(task, REFERENCE), source), read_contenders(operators)
    with tempfile.TemporaryDirectory() as folder:
        clock = Clock(minutes, timer=time.perf_counter)
        trials = Trials.of(task, contenders, splits, Path(folder), clock, {})
        search = Search.open(trials, {}, {}, report or quiet)
        label, lr = search.shortlist()[0]
    assert lr is not None
    contender = trials.contenders[label]
    return Choice(
        {"name": contender.name, **options_of(task, contender)}, trials.sizes[label]["dim"], lr
    )
