"""What each operator of a comparison costs: time and memory of a training step on each task, and
growth with the number of points.

Meant for a quiet machine, apart from training. Every operator is measured in processes of its own,
so that one's memory is not another's.
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
LIMIT = (
    1.0  # seconds: a length whose time, extrapolated from the one before, is above it is left out
)


def run(options: Options) -> None:
    """Measure the rows that ``fredholm compare --out FOLDER`` wrote, ``--runs FOLDER``.

    Python files that its recipes import are named before, by ``--import``.
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

    Files that the compared recipes import are executed with ``trust_code`` only, or where this
    process has imported the same content already: what is in ``out`` names them.

    Raises:
        TrustError: a compared recipe imports a file, without ``trust_code``.
        DataError: no comparison there.
        OptionError: fewer than two lengths, or no repeats.
    """
    place, say = Path(out), report or (lambda line: None)
    if len(lengths) < 2 or repeats < 1 or min(lengths) < 2:
        raise OptionError(
            f"received lengths {lengths} and {repeats} repeats; needs two lengths of 2 or more, "
            "one repeat"
        )
    results = read_results(place)
    files = dict.fromkeys(
        str(file) for task in results["tasks"] for file in code_of(task["recipe"])
    )
    code = import_files([*files], place, trust_code)
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
    for curve in speed["scaling"]:
        same = next(
            c
            for c in speed["scaling"]
            if (c["operator"], c["direction"]) == (REFERENCE.label, curve["direction"])
        )
        curve["exponent"], curve["crossover"] = exponent(curve), crossover(curve, same)
    return speed


def exponent(curve: dict[str, Any]) -> float | None:
    """Slope of log time against log N over the three longest lengths, by least squares; None for
    fewer than two.

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
    """The N from which a curve stays below the reference, between measured lengths by a straight
    line in logarithms.

    0 where it is below at all lengths, None where it is not below at the longest that both have.

    Example:
        >>> slow = {"lengths": [10, 1000], "milliseconds": [1.0, 100.0]}
        >>> fast = {"lengths": [10, 1000], "milliseconds": [10.0, 10.0]}
        >>> round(crossover(fast, slow)), crossover(slow, fast)
        (100, None)
    """
    both = sorted(set(curve["lengths"]) & set(reference["lengths"]))
    gaps = []
    for n in both:
        mine, theirs = (c["milliseconds"][c["lengths"].index(n)] for c in (curve, reference))
        gaps.append(math.log(mine / theirs))
    if not gaps or gaps[-1] >= 0:
        return None
    above = [i for i, gap in enumerate(gaps) if gap >= 0]
    if not above:
        return 0
    i = above[-1]
    share = gaps[i] / (gaps[i] - gaps[i + 1])
    return both[i] * (both[i + 1] / both[i]) ** share


def _line(curve: dict[str, Any]) -> str:
    times = ", ".join(f"{n}: {ms:.2f}" for n, ms in zip(curve["lengths"], curve["milliseconds"]))
    return (
        f"{curve['direction']} ms at N = {times}"
        if times
        else f"{curve['direction']}: {curve['refused']}"
    )


def _child(what: str, arguments: dict[str, Any]) -> Any:
    """One measurement in a process of its own, forked from one that has imported everything and
    computed nothing.
    """
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
                f"{arguments['operator']}: the process that measured its {what} was killed; where "
                "memory ran out, free some, or give shorter lengths"
            ) from error


# --- in a process of its own ----------------------------------------------------------------------


def step(
    task: dict[str, Any], operator: str, changes: list[str], repeats: int, code: Sequence[str] = ()
) -> dict[str, float | None]:
    """Median milliseconds and peak megabytes of a training step; ``task`` is its entry in a table,
    ``code`` what its recipes import, which was trusted before.
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
    """The task of an entry: the one known by name, with its operators' options, or a recipe."""
    if entry["name"] in list_tasks():
        known = find_task(entry["name"])
        if known.recipe == entry["recipe"]:
            return known
    return ComparedTask(entry["name"], entry["title"], entry["recipe"], (*entry["overrides"],))


def scale(
    operator: str, lengths: list[int], repeats: int, code: Sequence[str] = ()
) -> list[dict[str, Any]]:
    """Median milliseconds of one operator against N, forward and forward + backward."""
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
            before = curve["milliseconds"][-1] if curve["lengths"] else 0.0
            if (
                before / 1e3 * (n / (curve["lengths"] or [n])[-1]) ** 2 > LIMIT
                and before / 1e3 > LIMIT / 16
            ):
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


def _times(contender: Contender, n: int, direction: str, repeats: int) -> list[float]:
    options = options_of(find_task("digits"), contender)
    config = BackboneConfig(dim=DIM, heads=HEADS, operator=contender.name, operator_options=options)
    torch.manual_seed(0)
    layer = make_layer(config, 1, TextConfig(max_length=n))
    u, domain = (
        torch.randn(1, n, DIM, requires_grad=direction == "step"),
        suited(layer, Domain.line(n)),
    )
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
    """The option that gives a contender's label."""
    name, *options = label.split(" ")
    pairs = ", ".join(
        f"{key}: {value}" for key, value in (option.split("=", 1) for option in options)
    )
    return f"{{name: {name}, {pairs}}}" if pairs else name
