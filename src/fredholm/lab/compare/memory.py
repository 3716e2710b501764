"""Search for the operator that suits samples in memory: rungs without finalists."""

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
    """Recommendation of a search.

    Attributes:
        operator: its name and options, as a recipe has them.
        dim: width of the body.
        lr: learning rate.
    """

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
    """Find the operator, its width and its learning rate that validation prefers.

    Args:
        source: the samples, divided; there is no test split.
        recipe: the sections of a recipe that the contenders share, see
            :func:`fredholm.lab.training.usual.usual_recipe`.
        minutes: of the search.
        operators: see :func:`.search.open_search`.
        report: receives lines of progress.

    Raises:
        OptionError: no minutes, or too few for any operator.
        TrainingFailed: every trial failed.
    """
    # A recipe must name a place; nothing is read from it, since the samples are in memory.
    data = {**recipe["data"], "path": source.name}
    recipe = {"name": "samples", **recipe, "data": data}
    task = ComparedTask("samples", "samples", recipe)
    splits = Splits(make_recipe(task, REFERENCE), source)
    contenders = read_contenders(operators)

    with tempfile.TemporaryDirectory() as folder:
        clock = Clock(minutes, timer=time.perf_counter)
        trials = Trials.of(
            task,
            contenders,
            splits,
            Path(folder),
            clock,
            sizes={},
        )
        search = Search.open(trials, {}, {}, report or quiet)
        label, lr = search.shortlist()[0]

    # Every operator has a learning rate; only the methods beside them have none.
    assert lr is not None
    contender = trials.contenders[label]
    operator = {"name": contender.name, **options_of(task, contender)}
    return Choice(operator, trials.sizes[label]["dim"], lr)
