"""Results of a comparison as one file, one table and one page."""

from __future__ import annotations

import csv
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ...errors import DataError, OptionError
from ...files import replacing, write_json, write_text
from ..report.comparison import best_first, comparison_page, score
from ..training.metrics import mean_and_sd
from ..training.recipe_files import absolute_overrides

RESULTS = "compare.json"
COLUMNS = (
    "task", "operator", "metric", "direction", "mean", "sd", "n", "failed", "dim", "parameters",
    "off", "flops", "epochs", "minutes", "refused",
)  # fmt: skip
HEADS = ("seeds", "width", "parameters", "off budget", "MFLOPs per sample")

Row = dict[str, Any]
"""Plain data: the results, a task's entry, a row or a run in it."""


def open_results(place: Path, setting: Any) -> Row:
    """Return the results in a folder, or empty ones.

    Raises:
        OptionError: results of another setting.
        DataError: a file of another kind.
    """
    wanted = json.loads(json.dumps(asdict(setting)))
    if not (place / RESULTS).is_file():
        return {"setting": wanted, "tasks": []}
    results = read_results(place)
    # Earlier versions stored the changes as they were typed.
    results["setting"]["changes"] = absolute_overrides(results["setting"]["changes"])
    if results["setting"] != wanted:
        raise OptionError(
            f"{place}: expected results of the setting {wanted}, got those of "
            f"{results['setting']}; choose another --out"
        )
    return results


def read_results(place: Path) -> Row:
    """Read ``compare.json`` of a folder.

    Raises:
        DataError: the file is missing, or of another kind.
    """
    path = place / RESULTS
    fix = "run fredholm compare first"
    try:
        results = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise DataError(f"{path}: expected results of a comparison, got {error}; {fix}") from error
    if not {"setting", "tasks"} <= set(results):
        raise DataError(f"{path}: expected results of a comparison, got other JSON; {fix}")
    return results


def put(results: Row, entries: list[Row]) -> None:
    """Put the entries of tasks into ``results``, in place of those that an earlier call made.

    Raises:
        OptionError: see :func:`refuse_other`.
    """
    for entry in entries:
        refuse_other(results, entry)
    names = {entry["name"] for entry in entries}
    others = [task for task in results["tasks"] if task["name"] not in names]
    results["tasks"] = [*others, *entries]


def refuse_other(results: Row, entry: Row) -> None:
    """Refuse a task that has the name of another one in ``results``.

    Runs lie in the folder of their task's name, so that those of the other task would be lost.

    Args:
        results: content of ``compare.json``.
        entry: of the task, with its ``name``, ``recipe_mark`` and ``files_mark``.

    Raises:
        OptionError: a task of this name with another recipe or other files.
    """
    for task in results["tasks"]:
        if task["name"] != entry["name"]:
            continue
        # Tables of earlier versions have no marks.
        for what in ("files", "recipe"):
            key = f"{what}_mark"
            if key in task and task[key] != entry[key]:
                raise OptionError(
                    f"task: expected the {what} with which {task['name']!r} was compared before, "
                    f"got another task of this name, or its {what} have changed since; choose "
                    "another --out, or rename the task"
                )


def add(
    results: Row,
    task: str,
    operator: str,
    run: Row,
) -> None:
    """Put a run into the row of its task and operator, in place of one with the same seed, so that
    adding a run twice changes nothing.

    Changes ``results``: the task and the row must be there already, and the row's runs stay in the
    order of their seeds.

    Args:
        results: content of ``compare.json``.
        task: its name.
        operator: the label of the contender.
        run: one training, with its ``seed``.
    """
    entry = next(entry for entry in results["tasks"] if entry["name"] == task)
    row = next(row for row in entry["rows"] if row["operator"] == operator)
    runs = [other for other in row["runs"] if other["seed"] != run["seed"]]
    runs.append(run)
    row["runs"] = sorted(runs, key=lambda run: run["seed"])


def summary(results: Row) -> list[Row]:
    """Return one flat row per task and operator, with the keys :data:`COLUMNS`.

    ``mean`` and ``sd`` (sample standard deviation) are those of the score over the ``n`` seeds that
    did not fail, ``minutes`` the mean time of one training, and ``off`` how far the size misses the
    budget (0.03: 3% over).
    """
    rows = []
    for task in results["tasks"]:
        for row in task["rows"]:
            good = [run for run in row["runs"] if "error" not in run]
            mean, sd = mean_and_sd([run[task["metric"]] for run in good])
            minutes, _ = mean_and_sd([run["minutes"] for run in good])
            flat = {
                "task": task["name"],
                "operator": row["operator"],
                "metric": task["metric"],
                "direction": task["direction"],
                "mean": mean,
                "sd": sd,
                "n": len(good),
                "failed": len(row["runs"]) - len(good),
                # All seeds that did not fail have as many.
                "epochs": next((run["epochs"] for run in good), None),
                "minutes": minutes,
            }
            for key in ("dim", "parameters", "off", "flops", "refused"):
                flat[key] = row.get(key)
            rows.append({key: flat[key] for key in COLUMNS})
    return rows


def to_markdown(results: Row) -> str:
    """Return one table per task, the best operator first."""
    lines = []
    rows = summary(results)
    for task in results["tasks"]:
        metric = f"test {task['measure']}"
        if task["metric"] == "accuracy":
            metric = "test accuracy (%)"
        heads = ["operator", metric, *HEADS]
        samples = f"{task['points']} points, {task['samples']:,} training samples"
        lines += [
            f"**{task['name']}**: {task['title']}; {samples}",
            "",
            f"| {' | '.join(heads)} |",
            "|---" * len(heads) + "|",
        ]
        own = [row for row in rows if row["task"] == task["name"]]
        for row in best_first(own):
            lines.append(f"| {' | '.join(_cells(row))} |")
        lines.append("")
    return "\n".join(lines)


def _cells(row: Row) -> list[str]:
    seeds = str(row["n"])
    if row["failed"]:
        seeds += f" ({row['failed']} failed)"
    cells = [row["operator"], score(row), seeds]
    if row["dim"] is None:
        return [*cells, "", "", "", ""]
    return [
        *cells,
        f"{row['dim']}",
        f"{row['parameters']:,}",
        f"{row['off']:+.1%}",
        f"{row['flops'] / 1e6:.3g}",
    ]


def write(place: Path, results: Row) -> None:
    """Write ``compare.json``, ``.csv`` and ``.md``."""
    place.mkdir(parents=True, exist_ok=True)
    write_json(place / RESULTS, results)
    write_text(place / "compare.md", to_markdown(results))
    with (
        replacing(place / "compare.csv") as temporary,
        temporary.open("w", newline="", encoding="utf-8") as file,
    ):
        table: csv.DictWriter[str] = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        table.writeheader()
        table.writerows(summary(results))


def write_page(place: Path, results: Row) -> Path:
    """Write ``index.html``: the tables with their pictures."""
    return write_text(place / "index.html", comparison_page(results, summary(results)))
