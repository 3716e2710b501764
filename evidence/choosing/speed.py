"""Cost of the operators of a comparison: time and memory of a training step on each task, and
growth with the number of points.

Run it on a quiet machine, after the training. Every operator is measured in separate processes, so
that the memory of one does not count for another.
"""

from __future__ import annotations

import math
import multiprocessing
import statistics
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any

import torch

from fredholm.domain import Domain
from fredholm.errors import FredholmError, OptionError
from fredholm.lab.compare.budgets import REFERENCE, make_recipe
from fredholm.lab.compare.tables import read_results
from fredholm.lab.compare.tasks import (
    ComparedTask,
    Contender,
    code_of,
    find_task,
    list_tasks,
    options_of,
    read_contenders,
)
from fredholm.lab.training.build import build_dataset, build_model
from fredholm.lab.training.checks import import_files
from fredholm.lab.training.failures import TrainingFailed
from fredholm.lab.training.machine import describe_machine, peak_megabytes, seconds_of
from fredholm.lab.training.tasks import task_of
from fredholm.models import BackboneConfig
from fredholm.models.bodies.backbone import make_layer, suited
from fredholm.models.encoders import TextConfig

from ..kit.memory import show_megabytes
from ..kit.page import save
from ..kit.subject import Options

FILE = "compare-speed.json"
LENGTHS = (64, 256, 1024, 4096)
DIM, HEADS = 64, 4
LIMIT = 1.0
"""Seconds. A length is skipped if its time, extrapolated from the length before, is above it."""


def run(options: Options) -> None:
    """Measure the rows of ``fredholm compare --out FOLDER``, given as ``--runs FOLDER``.

    Pass Python files that its recipes import with ``--import``.
    """
    save(measure(options.runs, report=print), FILE, options.results)


def measure(
    out: str | Path,
    *,
    lengths: tuple[int, ...] = LENGTHS,
    repeats: int = 5,
    report: Callable[[str], None] | None = None,
    trust_code: bool = False,
) -> dict[str, Any]:
    """Measure every row of a comparison in ``out``.

    ``steps``: median milliseconds of a training step of the task's batch, and peak memory above
    that of the process before it, MB. ``scaling``: median milliseconds of one operator of width 64
    on one line of N points, forward and forward + backward, the exponent fitted by least squares in
    logarithms, and the N from which it is faster than softmax attention.

    The folder ``out`` names files that the compared recipes import. They are executed only with
    ``trust_code``, or if this process has already imported the same content.

    Raises:
        TrustError: a compared recipe imports a file, without ``trust_code``.
        DataError: the folder does not have a comparison.
        OptionError: fewer than two lengths, or no repeats.
    """
    folder = Path(out)
    say = report or (lambda line: None)
    if len(lengths) < 2 or repeats < 1 or min(lengths) < 2:
        raise OptionError(
            f"lengths and repeats: expected two lengths of 2 or more and one repeat or more, got "
            f"{lengths} and {repeats}; give more"
        )
    results = read_results(folder)

    # A file may be imported by several recipes; the order of the first imports is kept.
    files: dict[str, None] = {}
    for task in results["tasks"]:
        changes = [*task["overrides"], *results["setting"]["changes"]]
        files |= dict.fromkeys(map(str, code_of(task["recipe"], changes)))
    code = import_files([*files], folder, trust_code)
    speed: dict[str, Any] = {
        "machine": describe_machine(),
        "dim": DIM,
        "reference": REFERENCE.label,
        "steps": [],
        "scaling": [],
    }
    for task in results["tasks"]:
        for row in task["rows"]:
            if "refused" in row:
                continue
            changes = [*results["setting"]["changes"], f"model.body.dim={row['dim']}"]
            step = _child(
                "step",
                {
                    "task": task,
                    "operator": row["operator"],
                    "changes": changes,
                    "repeats": repeats,
                    "code": code,
                },
            )
            speed["steps"].append({"task": task["name"], "operator": row["operator"], **step})
            say(
                f"{task['name']} {row['operator']}: {step['milliseconds']:.1f} ms a step, "
                f"{show_megabytes(step['megabytes'])} MB"
            )
    labels = dict.fromkeys(row["operator"] for task in results["tasks"] for row in task["rows"])
    for label in dict.fromkeys([REFERENCE.label, *labels]):
        curves = _child(
            "scaling",
            {"operator": label, "lengths": list(lengths), "repeats": repeats, "code": code},
        )
        speed["scaling"] += curves
        say(f"{label}: {'; '.join(_line(curve) for curve in curves)}")

    references: dict[str, dict[str, Any]] = {}
    for curve in speed["scaling"]:
        if curve["operator"] == REFERENCE.label:
            references[curve["direction"]] = curve
    for curve in speed["scaling"]:
        curve["exponent"] = exponent(curve)
        curve["crossover"] = crossover(curve, references[curve["direction"]])
    return speed


def exponent(curve: dict[str, Any]) -> float | None:
    """Fit the slope of log time against log N over the three longest lengths; None for fewer than
    two.

    Example:
        >>> round(exponent({"lengths": [10, 100, 1000], "milliseconds": [1.0, 100.0, 10000.0]}), 3)
        2.0
    """
    x = [math.log(n) for n in curve["lengths"][-3:]]
    y = [math.log(ms) for ms in curve["milliseconds"][-3:]]
    if len(x) < 2:
        return None
    mean = sum(x) / len(x)
    return sum((a - mean) * b for a, b in zip(x, y)) / sum((a - mean) ** 2 for a in x)


def crossover(curve: dict[str, Any], reference: dict[str, Any]) -> float | None:
    """Return the N from which a curve stays below the reference.

    Between measured lengths it is interpolated linearly in logarithms. It is 0 if the curve is
    below at all lengths, and None if it isn't below at the longest length of both.

    Example:
        >>> slow = {"lengths": [10, 1000], "milliseconds": [1.0, 100.0]}
        >>> fast = {"lengths": [10, 1000], "milliseconds": [10.0, 10.0]}
        >>> round(crossover(fast, slow)), crossover(slow, fast)
        (100, None)
    """
    both = sorted(set(curve["lengths"]) & set(reference["lengths"]))
    gaps = []
    for n in both:
        ratio = _at(curve, n) / _at(reference, n)
        gaps.append(math.log(ratio))
    if not gaps or gaps[-1] >= 0:
        return None
    above = [i for i, gap in enumerate(gaps) if gap >= 0]
    if not above:
        return 0
    # The last length at which the curve is not below, and the share of the way to the next one.
    i = above[-1]
    share = gaps[i] / (gaps[i] - gaps[i + 1])
    return both[i] * (both[i + 1] / both[i]) ** share


def _at(curve: dict[str, Any], n: int) -> float:
    """Return a curve's milliseconds at N."""
    return curve["milliseconds"][curve["lengths"].index(n)]


def _line(curve: dict[str, Any]) -> str:
    """Format a curve for the progress report."""
    if not curve["lengths"]:
        return f"{curve['direction']}: {curve['refused']}"
    times = ", ".join(f"{n}: {ms:.2f}" for n, ms in zip(curve["lengths"], curve["milliseconds"]))
    return f"{curve['direction']} ms at N = {times}"


def _child(what: str, arguments: dict[str, Any]) -> Any:
    """Measure in a new process, forked from one that only imported the modules."""
    forkserver = "forkserver" in multiprocessing.get_all_start_methods()
    context: Any = multiprocessing.get_context("forkserver" if forkserver else "spawn")
    if forkserver:
        context.set_forkserver_preload([__name__])
    work = {"step": step, "scaling": scale}[what]
    with ProcessPoolExecutor(1, context) as process:
        try:
            return process.submit(work, **arguments).result()
        except BrokenProcessPool as error:
            raise TrainingFailed(
                f"{arguments['operator']}: expected a result of its {what}, got a killed process; "
                f"free memory or give shorter lengths"
            ) from error


# --- in a new process ---------------------------------------------------------------------------


def step(
    task: dict[str, Any], operator: str, changes: list[str], repeats: int, code: Sequence[str] = ()
) -> dict[str, float | None]:
    """Measure the median milliseconds and the peak megabytes of a training step.

    Args:
        task: entry of the comparison.
        operator: label of the contender.
        changes: overrides of the recipe.
        repeats: timed steps.
        code: files that the recipe imports, already trusted.
    """
    import_files(list(code), Path.cwd())
    contender = read_contenders(_as_option(operator))[0]
    recipe = make_recipe(_compared(task), contender, tuple(changes))
    dataset = build_dataset(recipe, "train")
    model: Any = build_model(recipe, dataset)
    objective, optimizer = task_of(dataset), torch.optim.AdamW(model.parameters(), lr=1e-4)
    inputs, labels = dataset.batch(torch.arange(min(recipe.data.batch_size, len(dataset))))

    def once(size: int) -> None:
        optimizer.zero_grad()
        objective.loss(model(inputs[:size]), labels[:size]).backward()
        optimizer.step()

    once(1)
    megabytes = peak_megabytes(lambda: once(len(inputs)))
    times = [seconds_of(lambda: once(len(inputs))) for _ in range(repeats)]
    with torch.no_grad():
        points = model.encoder(inputs[:1])[1].size
    seconds = statistics.median(times)
    rate = len(inputs) * points / seconds
    return {
        "milliseconds": 1e3 * seconds,
        "megabytes": megabytes,
        "points_a_second": rate,
    }


def _compared(entry: dict[str, Any]) -> ComparedTask:
    """Return the task of an entry: a known one with its operators' options, or a user's recipe."""
    if entry["name"] in list_tasks():
        known = find_task(entry["name"])
        if known.recipe == entry["recipe"]:
            return known
    return ComparedTask(entry["name"], entry["title"], entry["recipe"], (*entry["overrides"],))


def scale(
    operator: str, lengths: list[int], repeats: int, code: Sequence[str] = ()
) -> list[dict[str, Any]]:
    """Measure the median milliseconds of an operator against N, forward and forward + backward."""
    import_files(list(code), Path.cwd())
    contender = read_contenders(_as_option(operator))[0]
    curves = []
    for direction in ("forward", "step"):
        curve: dict[str, Any] = {
            "operator": operator,
            "direction": direction,
            "lengths": [],
            "milliseconds": [],
        }
        for n in lengths:
            if curve["lengths"] and _too_long(curve, n):
                break
            try:
                times = _times(contender, n, direction, repeats)
            except FredholmError as error:
                curve["refused"] = str(error)
                break
            curve["lengths"].append(n)
            curve["milliseconds"].append(1e3 * statistics.median(times))
        curves.append(curve)
    return curves


def _too_long(curve: dict[str, Any], n: int) -> bool:
    """Return whether the time at N, extrapolated as N² from the last length, is above LIMIT.

    Times below LIMIT / 16 are not extrapolated, since overheads dominate them.
    """
    seconds = curve["milliseconds"][-1] / 1e3
    extrapolated = seconds * (n / curve["lengths"][-1]) ** 2
    return extrapolated > LIMIT and seconds > LIMIT / 16


def _times(contender: Contender, n: int, direction: str, repeats: int) -> list[float]:
    """Time one layer on a line of N points, after one call that warms up."""
    options = options_of(find_task("digits"), contender)
    config = BackboneConfig(dim=DIM, heads=HEADS, operator=contender.name, operator_options=options)
    torch.manual_seed(0)
    layer = make_layer(config, 1, TextConfig(max_length=n))
    u = torch.randn(1, n, DIM, requires_grad=direction == "step")
    domain = suited(layer, Domain.line(n))
    along = torch.randn(1, n, DIM)

    def once() -> None:
        if direction == "forward":
            with torch.no_grad():
                layer(u, domain)
        else:
            torch.autograd.grad(
                layer(u, domain), [u, *layer.parameters()], along, allow_unused=True
            )

    return [seconds_of(once) for _ in range(repeats + 1)][1:]


def _as_option(label: str) -> str:
    """Return the command-line option that has a contender's label."""
    name, *options = label.split(" ")
    if not options:
        return name
    pairs = ", ".join(option.replace("=", ": ", 1) for option in options)
    return f"{{name: {name}, {pairs}}}"
