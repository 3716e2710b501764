"""A grid of overrides and seeds as one resumable table."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ...errors import RecipeError
from ...files import storing, write_json, write_text
from .callbacks import write_table
from .grid import Grid, quiet, recipe_cell, safe_name, train_cell
from .metrics import mean_and_sd, title_of
from .recipe_files import load_recipe

Row = dict[str, Any]


def split_values(text: str) -> list[str]:
    """Comma-separated values; commas inside brackets, braces or quotes do not separate.
    ``log(a,b,n)`` are n values from a to b at equal ratios, to three significant digits.

    Example:
        >>> split_values("softmax,{name: itnet, hidden: 8},[1, 2]")
        ['softmax', '{name: itnet, hidden: 8}', '[1, 2]']
        >>> split_values("log(1,100,3)")
        ['1', '10', '100']

    Raises:
        RecipeError: a logarithmic grid of anything but two positive numbers and a count of 2 or
            more.
    """
    if text.startswith("log(") and text.endswith(")"):
        return _log_grid(text)
    parts, depth, quote = [""], 0, ""
    for char in text:
        if quote:
            quote = "" if char == quote else quote
        elif char in "'\"":
            quote = char
        depth += (char in "[{") - (char in "]}") if not quote else 0
        if char == "," and depth == 0 and not quote:
            parts.append("")
        else:
            parts[-1] += char
    return [part.strip() for part in parts]


def _log_grid(text: str) -> list[str]:
    result = [part.strip() for part in text[4:-1].split(",")]
    try:
        first, last, count = float(result[0]), float(result[1]), int(result[2])
        if len(result) != 3 or not (0 < first < math.inf and 0 < last < math.inf) or count < 2:
            raise ValueError
    except (ValueError, IndexError):
        need = "log(FIRST,LAST,COUNT), two positive numbers and 2 or more values"
        raise RecipeError(f"grid: received {text!r}; needs {need}") from None
    ratio = (last / first) ** (1 / (count - 1))
    return [f"{first * ratio**i:.3g}" for i in range(count)]


def expand(overrides: list[str], first_seed: int) -> list[tuple[str, list[str], int]]:
    """All cells of a grid as (label, overrides, seed); ``seeds=n`` asks for n consecutive seeds.

    Example:
        >>> expand(["operator=itnet,softmax", "seeds=2"], 0)[1:3]
        [('operator=itnet', ['operator=itnet'], 1), ('operator=softmax', ['operator=softmax'], 0)]
    """
    seeds, axes = 1, []
    for text in overrides:
        key, result, values = text.partition("=")
        if not result:
            raise RecipeError(f"override: received {text!r}; needs key=value or key=value,value")
        if key == "seeds":
            if not values.isdigit() or int(values) < 1:
                raise RecipeError(f"seeds: received {values!r}; needs a count of 1 or more")
            seeds = int(values)
        else:
            given = dict.fromkeys(split_values(values))  # one cell each, however often it is said
            axes.append([f"{key}={value}" for value in given])
    varied = [i for i, axis in enumerate(axes) if len(axis) > 1]
    return [
        (" ".join(cell[i] for i in varied) or "default", list(cell), first_seed + seed)
        for cell in itertools.product(*axes)
        for seed in range(seeds)
    ]


def sweep(
    source: str | Path,
    overrides: list[str],
    folder: str | Path,
    *,
    report: Callable[[str], None] | None = None,
    trust_code: bool = False,
    worker: bool = False,
) -> tuple[list[Row], list[Row]]:
    """Train and evaluate every cell of a grid; returns the cells and the table over seeds.

    Finished cells are read, unfinished ones resumed, and a cell that fails is recorded with its
    error while the rest goes on. ``cells.json``, ``table.json``, ``table.csv`` and ``table.md`` in
    ``folder`` are rewritten after every cell. Of several processes that are each a ``worker``, on
    any machines that see ``folder``, each computes cells that no other is at work on, and writes
    the tables once all are there. ``trust_code``: of a run folder as the source, see
    :func:`fredholm.training.load_recipe`.

    Raises:
        RecipeError: any cell's recipe is wrong; found before the first one starts.
        StorageError: ``folder`` cannot be written.
        Interrupted: Ctrl-C; the same command goes on.
    """
    folder, say = Path(folder), report or quiet
    seeded = [o for o in overrides if o.startswith("seed=")]
    first = load_recipe(source, seeded, trust_code=trust_code).seed
    plan = []
    for label, chosen, seed in expand([o for o in overrides if not o.startswith("seed=")], first):
        name = f"{safe_name(label)},seed={seed}"
        own = [*chosen, f"seed={seed}", f"name={name}"]
        recipe = load_recipe(source, own, trust_code=trust_code)
        plan.append((label, seed, recipe_cell(recipe, folder / name)))
    with storing(folder):
        folder.mkdir(parents=True, exist_ok=True)
    grid, cells = Grid(train_cell, say), [cell for _, _, cell in plan]
    known = {cell.place: (label, seed) for label, seed, cell in plan}
    done: dict[Path, Row] = {}
    for cell, result in grid.share(cells) if worker else grid.run(cells):
        label, seed = known[cell.place]
        row = {"cell": label, "seed": seed, "folder": str(cell.place), **result}
        done[cell.place] = row
        metric = _metric([row])
        failed = "error" in result
        outcome = f"failed: {result['error']}" if failed else f"test {metric} {result[metric]:.4g}"
        say(f"[{len(done)}/{len(plan)}] {label} seed {seed}: {outcome}")
        if not worker:
            _write(folder, list(done.values()))
    rows = [done[cell.place] for cell in cells]
    if worker:
        _write(folder, rows)
    return rows, tabulate(rows)


def _metric(good: list[Row]) -> str:
    """What a table is about: the recipe's metric, accuracy, or the loss of a regression."""
    chosen = {cell.get("metric") for cell in good}
    if len(chosen) == 1 and None not in chosen:
        return str(chosen.pop())
    return "accuracy" if all("accuracy" in cell for cell in good) else "loss"


def tabulate(cells: list[Row]) -> list[dict[str, Any]]:
    """One row a combination: mean and sample standard deviation over its seeds of the test split's
    accuracy (of a regression, loss), or of ``training.metric``.

    Example:
        >>> same = {"cell": "a", "parameters": 5, "minutes": 1.0}
        >>> cells = [{**same, "seed": s, "accuracy": v} for s, v in enumerate([0.9, 0.8])]
        >>> row = tabulate(cells)[0]
        >>> round(row["mean"], 3), round(row["sd"], 4), row["n"], row["failed"]
        (0.85, 0.0707, 2, 0)
    """
    rows = []
    for label in dict.fromkeys(cell["cell"] for cell in cells):
        mine = [cell for cell in cells if cell["cell"] == label]
        good = [cell for cell in mine if "error" not in cell]
        metric = _metric(good)
        scores = [cell[metric] for cell in good]
        mean, spread = mean_and_sd(scores)
        rows.append(
            {
                "cell": label,
                "metric": metric,
                "mean": mean,
                "sd": spread,
                "n": len(good),
                "failed": len(mine) - len(good),
                "parameters": good[0]["parameters"] if good else None,
                "minutes": sum(cell["minutes"] for cell in good) / len(good) if good else None,
            }
        )
    return rows


def to_markdown(rows: list[dict[str, Any]]) -> str:
    """The table of a sweep: test accuracy in percent, or another metric as it is; where the cells
    are of several, each score has its name.
    """
    metrics = {row["metric"] for row in rows if row["mean"] is not None} or {"accuracy"}
    mixed = len(metrics) > 1
    head = "on the test split" if mixed else f"test {title_of(*metrics)}"
    head += " (%)" if metrics == {"accuracy"} else ""
    lines = [f"| cell | {head} | n | parameters | minutes |", "|---|---|---|---|---|"]
    for row in rows:
        metric = row.get("metric", "accuracy")
        shown = (lambda x: f"{100 * x:.2f}") if metric == "accuracy" else (lambda x: f"{x:.3g}")
        score = "failed" if row["mean"] is None else shown(row["mean"])
        score += f" ± {shown(row['sd'])}" if row["sd"] is not None else ""
        unit = ", %" if metric == "accuracy" else ""
        score += f" ({title_of(metric)}{unit})" if mixed and row["mean"] is not None else ""
        count = f"{row['n']}" + (f" ({row['failed']} failed)" if row["failed"] else "")
        size = "" if row["parameters"] is None else f"{row['parameters']:,}"
        minutes = "" if row["minutes"] is None else f"{row['minutes']:.1f}"
        lines.append(f"| {row['cell']} | {score} | {count} | {size} | {minutes} |")
    return "\n".join(lines) + "\n"


def _write(folder: Path, cells: list[Row]) -> None:
    rows = tabulate(cells)
    write_json(folder / "cells.json", cells)
    write_json(folder / "table.json", rows)
    write_text(folder / "table.md", to_markdown(rows))
    write_table(folder / "table.csv", list(rows[0]), rows)
