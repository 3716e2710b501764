"""The results of a comparison as one file, one table and one page."""

from __future__ import annotations

import csv
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ...errors import DataError, OptionError
from ...files import replacing, write_json, write_text
from ..training.metrics import mean_and_sd

RESULTS = "compare.json"
COLUMNS = (
    "task", "operator", "metric", "direction", "mean", "sd", "n", "failed", "dim", "parameters",
    "off", "flops", "epochs", "minutes", "refused",
)  # fmt: skip


def open_results(place: Path, setting: Any) -> dict[str, Any]:
    """The results in a folder, or empty ones.

    Raises:
        OptionError: they were made with another setting.
        DataError: the file is no such results.
    """
    wanted = json.loads(json.dumps(asdict(setting)))
    if not (place / RESULTS).is_file():
        return {"setting": wanted, "tasks": []}
    results = read_results(place)
    if results["setting"] != wanted:
        raise OptionError(
            f"{place}: holds a comparison with {results['setting']}; received {wanted}; choose "
            "another --out"
        )
    return results


def read_results(place: Path) -> dict[str, Any]:
    """``compare.json`` of a folder.

    Raises:
        DataError: it is missing or no such file.
    """
    try:
        results = json.loads((place / RESULTS).read_text(encoding="utf-8"))
        if not {"setting", "tasks"} <= set(results):
            raise ValueError("it has no setting and tasks")
    except (OSError, ValueError) as error:
        raise DataError(
            f"{place / RESULTS}: no results of a comparison ({error}); run fredholm compare first"
        ) from error
    return results


def add(results: dict[str, Any], task: str, operator: str, cell: dict[str, Any]) -> None:
    """Put what came of a run into its row."""
    entry = next(t for t in results["tasks"] if t["name"] == task)
    row = next(r for r in entry["rows"] if r["operator"] == operator)
    row["runs"] = sorted(
        [r for r in row["runs"] if r["seed"] != cell["seed"]] + [cell], key=lambda r: r["seed"]
    )


def summary(results: dict[str, Any]) -> list[dict[str, Any]]:
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
            flat = {
                "task": task["name"],
                "operator": row["operator"],
                "metric": task["metric"],
                "direction": task["direction"],
                "mean": mean,
                "sd": sd,
                "n": len(good),
                "failed": len(row["runs"]) - len(good),
                # Of the first seed that did not fail.
                "epochs": good[0]["epochs"] if good else None,
                "minutes": mean_and_sd([run["minutes"] for run in good])[0],
            }
            flat |= {key: row.get(key) for key in ("dim", "parameters", "off", "flops", "refused")}
            rows.append({key: flat[key] for key in COLUMNS})
    return rows


def score(row: dict[str, Any]) -> str:
    """Accuracy in percent, or another metric as it is, with its spread over seeds.

    Example:
        >>> score({"metric": "accuracy", "mean": 0.91, "sd": 0.012, "n": 3})
        '91.0 ± 1.2'
    """
    if row["mean"] is None:
        return (
            "does not serve"
            if row.get("refused")
            else "not run"
            if not row.get("failed")
            else "failed"
        )
    style = ".3f" if row.get("direction") == "max" else ".2g"  # of losses the size is what matters
    shown = (
        (lambda x: f"{100 * x:.1f}") if row["metric"] == "accuracy" else (lambda x: f"{x:{style}}")
    )
    return shown(row["mean"]) + (f" ± {shown(row['sd'])}" if row["sd"] is not None else "")


def best_first(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows of one task, the best score first; those without one at the end."""
    sign = -1 if rows and rows[0]["direction"] == "max" else 1
    return sorted(rows, key=lambda r: (r["mean"] is None, sign * (r["mean"] or 0)))


def to_markdown(results: dict[str, Any]) -> str:
    """Return one table per task, the best operator first."""
    lines = []
    rows = summary(results)
    for task in results["tasks"]:
        mine = best_first([row for row in rows if row["task"] == task["name"]])
        metric = "test accuracy (%)" if task["metric"] == "accuracy" else f"test {task['measure']}"
        heads = [
            "operator",
            metric,
            "seeds",
            "width",
            "parameters",
            "off budget",
            "MFLOPs a sample",
        ]
        lines += [
            f"**{task['name']}**: {task['title']}; {task['points']} points, {task['samples']:,} "
            "training samples",
            "",
        ]
        lines += [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
        lines += [f"| {' | '.join(_cells(row))} |" for row in mine] + [""]
    return "\n".join(lines)


def _cells(row: dict[str, Any]) -> list[str]:
    cells = [
        row["operator"],
        score(row),
        str(row["n"]) + (f" ({row['failed']} failed)" if row["failed"] else ""),
    ]
    if row["dim"] is None:
        cells += ["", "", "", ""]
    else:
        cells += [
            str(row["dim"]),
            f"{row['parameters']:,}",
            f"{row['off']:+.1%}",
            f"{row['flops'] / 1e6:.3g}",
        ]
    return cells


def write(place: Path, results: dict[str, Any]) -> None:
    """``compare.json``, ``.csv`` and ``.md``."""
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


def write_page(place: Path, results: dict[str, Any]) -> Path:
    """``index.html``: the tables with their pictures."""
    from ..report.comparison import comparison_page

    text = comparison_page(results, summary(results))
    return write_text(place / "index.html", text)
