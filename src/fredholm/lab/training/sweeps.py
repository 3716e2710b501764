"""A sweep: a grid of overrides and seeds, trained and evaluated as one resumable table."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from ...errors import RecipeError
from ...files import storing, write_json, write_text
from ..numbers import readable
from .callbacks import write_table
from .grid import Cell, Grid, quiet, recipe_cell, safe_name, train_cell
from .metrics import mean_and_sd, title_of
from .recipe_files import load_recipe

Row = dict[str, Any]


def split_values(text: str) -> list[str]:
    """Split comma-separated values; commas inside brackets, braces or quotes do not separate.

    ``log(a,b,n)`` stands for n values from a to b with equal ratios, to three significant digits.

    Example:
        >>> split_values("softmax,{name: itnet, hidden: 8},[1, 2]")
        ['softmax', '{name: itnet, hidden: 8}', '[1, 2]']
        >>> split_values("log(1,100,3)")
        ['1', '10', '100']

    Raises:
        RecipeError: a logarithmic grid does not have two positive numbers and a count of 2 or more.
    """
    if text.startswith("log(") and text.endswith(")"):
        return _log_grid(text)
    parts = [""]
    depth = 0
    quote = ""
    for char in text:
        if quote:
            # Inside quotes only the same sign ends them.
            if char == quote:
                quote = ""
        elif char in "'\"":
            quote = char
        elif char in "[{":
            depth += 1
        elif char in "]}":
            depth -= 1

        if char == "," and depth == 0 and not quote:
            parts.append("")
        else:
            parts[-1] += char
    return [part.strip() for part in parts]


def _log_grid(text: str) -> list[str]:
    try:
        arguments = text.removeprefix("log(").removesuffix(")")
        first_text, last_text, count_text = arguments.split(",")
        first = float(first_text)
        last = float(last_text)
        count = int(count_text)

        are_positive = 0 < first < math.inf and 0 < last < math.inf
        if not are_positive or count < 2:
            raise ValueError
    except ValueError:
        raise RecipeError(
            "grid: expected log(FIRST,LAST,COUNT) with two positive numbers and 2 or more values, "
            f"got {text!r}"
        ) from None

    ratio = (last / first) ** (1 / (count - 1))
    return [f"{first * ratio**i:.3g}" for i in range(count)]


class GridPoint(NamedTuple):
    """A combination of overrides with one seed.

    ``label`` names the overrides that vary over the grid.
    """

    label: str
    overrides: list[str]
    seed: int


def expand(overrides: list[str], first_seed: int) -> list[GridPoint]:
    """List all points of a grid; ``seeds=n`` asks for n consecutive seeds.

    Example:
        >>> points = expand(["operator=itnet,softmax", "seeds=2"], 0)
        >>> [(point.label, point.seed) for point in points][1:3]
        [('operator=itnet', 1), ('operator=softmax', 0)]
    """
    seeds = 1
    axes = []
    for text in overrides:
        key, separator, values = text.partition("=")
        if not separator:
            raise RecipeError(f"override: expected key=value or key=value,value, got {text!r}")
        if key == "seeds":
            if not values.isdigit() or int(values) < 1:
                raise RecipeError(f"seeds: expected a count of 1 or more, got {values!r}")
            seeds = int(values)
            continue

        # A value that is given twice is one cell.
        distinct = dict.fromkeys(split_values(values))
        axes.append([f"{key}={value}" for value in distinct])

    points = []
    for combination in itertools.product(*axes):
        varied = [text for text, axis in zip(combination, axes) if len(axis) > 1]
        label = " ".join(varied) or "default"
        for seed in range(first_seed, first_seed + seeds):
            points.append(GridPoint(label, list(combination), seed))
    return points


class Sweep(NamedTuple):
    """The cells of a sweep, and its table over seeds."""

    cells: list[Row]
    table: list[Row]


def sweep(
    source: str | Path,
    overrides: list[str],
    folder: str | Path,
    *,
    report: Callable[[str], None] | None = None,
    trust_code: bool = False,
    worker: bool = False,
) -> Sweep:
    """Train and evaluate every cell of a grid.

    Finished cells are read and unfinished ones resumed. A cell that fails is recorded with its
    error, while the others continue. ``cells.json``, ``table.json``, ``table.csv`` and ``table.md``
    in ``folder`` are rewritten after every cell.

    Args:
        source: the recipe, as for :func:`fredholm.training.load_recipe`.
        overrides: ``key=value`` or ``key=value,value``, and ``seeds=n``.
        folder: where runs and tables are written.
        report: receives one line per cell.
        trust_code: for a run folder as the source.
        worker: share the grid with other processes that see ``folder``. Each computes cells that no
            other is working on, and writes the tables once all cells are finished.

    Raises:
        RecipeError: a cell's recipe is wrong; found before the first cell starts.
        StorageError: ``folder`` cannot be written.
        Interrupted: Ctrl-C; the same command continues.
    """
    folder = Path(folder)
    say = report or quiet
    points = _plan(source, overrides, folder, trust_code)
    with storing(folder):
        folder.mkdir(parents=True, exist_ok=True)

    grid = Grid(train_cell, say)
    cells = [cell for cell, _ in points]
    point_of = {cell.place: point for cell, point in points}
    done: dict[Path, Row] = {}
    results = grid.run(cells)
    if worker:
        results = grid.share(cells)
    for cell, result in results:
        point = point_of[cell.place]
        row = {
            "cell": point.label,
            "seed": point.seed,
            "folder": str(cell.place),
            **result,
        }
        done[cell.place] = row
        say(f"[{len(done)}/{len(points)}] {point.label} seed {point.seed}: {_outcome(row)}")
        if not worker:
            _write(folder, list(done.values()))

    rows = [done[cell.place] for cell in cells]
    if worker:
        _write(folder, rows)
    return Sweep(rows, tabulate(rows))


class _PlannedCell(NamedTuple):
    cell: Cell
    point: GridPoint


def _plan(
    source: str | Path,
    overrides: list[str],
    folder: Path,
    trust_code: bool,
) -> list[_PlannedCell]:
    """Load the recipes of all cells, so that a wrong one is found before the first starts."""
    seed_overrides = [text for text in overrides if text.startswith("seed=")]
    grid_overrides = [text for text in overrides if not text.startswith("seed=")]
    first_seed = load_recipe(source, seed_overrides, trust_code=trust_code).seed

    planned = []
    for point in expand(grid_overrides, first_seed):
        name = f"{safe_name(point.label)},seed={point.seed}"
        changes = [*point.overrides, f"seed={point.seed}", f"name={name}"]
        recipe = load_recipe(source, changes, trust_code=trust_code)
        cell = recipe_cell(recipe, folder / name)
        planned.append(_PlannedCell(cell, point))
    return planned


def _outcome(row: Row) -> str:
    if "error" in row:
        return f"failed: {row['error']}"
    metric = _metric([row])
    return f"test {metric} {readable(row[metric])}"


def _metric(cells: list[Row]) -> str:
    """Return the metric that cells have in common.

    It is the recipe's metric, else the accuracy, or the loss of a regression.
    """
    chosen = {cell.get("metric") for cell in cells}
    if len(chosen) == 1 and None not in chosen:
        return str(chosen.pop())
    if all("accuracy" in cell for cell in cells):
        return "accuracy"
    return "loss"


def tabulate(cells: list[Row]) -> list[dict[str, Any]]:
    """Make one row per combination, with mean and sample standard deviation over its seeds.

    The metric, on the test split, is ``training.metric``, else the accuracy, or the loss of a
    regression.

    Example:
        >>> same = {"cell": "a", "parameters": 5, "minutes": 1.0}
        >>> cells = [{**same, "seed": s, "accuracy": v} for s, v in enumerate([0.9, 0.8])]
        >>> row = tabulate(cells)[0]
        >>> round(row["mean"], 3), round(row["sd"], 4), row["n"], row["failed"]
        (0.85, 0.0707, 2, 0)
    """
    rows = []
    for label in dict.fromkeys(cell["cell"] for cell in cells):
        with_label = [cell for cell in cells if cell["cell"] == label]
        finished = [cell for cell in with_label if "error" not in cell]
        metric = _metric(finished)
        mean, sd = mean_and_sd([cell[metric] for cell in finished])

        parameters = None
        minutes = None
        if finished:
            parameters = finished[0]["parameters"]
            minutes = sum(cell["minutes"] for cell in finished) / len(finished)
        rows.append(
            {
                "cell": label,
                "metric": metric,
                "mean": mean,
                "sd": sd,
                "n": len(finished),
                "failed": len(with_label) - len(finished),
                "parameters": parameters,
                "minutes": minutes,
            }
        )
    return rows


def to_markdown(rows: list[dict[str, Any]]) -> str:
    """Format the table of a sweep as Markdown.

    Accuracies are in percent. If combinations have different metrics, each score has its name.
    """
    scored = [row for row in rows if row["mean"] is not None]
    metrics = {row["metric"] for row in scored} or {"accuracy"}
    mixed = len(metrics) > 1
    head = "on the test split"
    if not mixed:
        head = f"test {title_of(*metrics)}"
    if metrics == {"accuracy"}:
        head += " (%)"

    lines = [f"| cell | {head} | n | parameters | minutes |", "|---|---|---|---|---|"]
    for row in rows:
        count = str(row["n"])
        if row["failed"]:
            count += f" ({row['failed']} failed)"

        # Without a finished cell there is no size and no duration.
        parameters = ""
        if row["parameters"] is not None:
            parameters = f"{row['parameters']:,}"
        minutes = ""
        if row["minutes"] is not None:
            minutes = f"{row['minutes']:.1f}"

        score = _score(row, named=mixed)
        lines.append(f"| {row['cell']} | {score} | {count} | {parameters} | {minutes} |")
    return "\n".join(lines) + "\n"


def _score(row: Row, named: bool) -> str:
    """Format mean and standard deviation of a row; ``named`` adds the name of the metric."""
    if row["mean"] is None:
        return "failed"

    metric = row.get("metric", "accuracy")
    in_percent = metric == "accuracy"

    def number(value: float) -> str:
        if in_percent:
            return f"{100 * value:.2f}"
        return readable(value, 3)

    score = number(row["mean"])
    if row["sd"] is not None:
        score += f" ± {number(row['sd'])}"
    if named:
        name = title_of(metric)
        if in_percent:
            name += ", %"
        score += f" ({name})"
    return score


def _write(folder: Path, cells: list[Row]) -> None:
    rows = tabulate(cells)
    write_json(folder / "cells.json", cells)
    write_json(folder / "table.json", rows)
    write_text(folder / "table.md", to_markdown(rows))
    write_table(folder / "table.csv", list(rows[0]), rows)
