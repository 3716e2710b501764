"""Results of training runs and sweeps as one committed file: ``python -m benchmarks.runs
RUN_OR_SWEEP... --out FILE``.

Reads what ``fredholm train``, ``evaluate`` and ``sweep`` wrote; nothing is trained here.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import torch

from .machine import describe


def _read(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


def gather_run(folder: Path) -> dict[str, Any]:
    """What one finished and evaluated run reported."""
    result, evaluation = _read(folder / "result.json"), _read(folder / "evaluation.json")
    return {
        "run": result["name"],
        "dataset": evaluation["dataset"],
        "operator": _read(folder / "model" / "config.json")["config"]["operator"],
        "accuracy": evaluation["accuracy"],
        "sd": None,
        "seeds": 1,
        "parameters": result["parameters"],
        "epochs": result["epochs"],
        "minutes": result["minutes"],
    }


def gather_sweep(folder: Path) -> list[dict[str, Any]]:
    """One row for each combination of a sweep: mean and sd over its seeds."""
    rows = []
    for row in _read(folder / "table.json"):
        cell = next(
            c for c in _read(folder / "cells.json") if c["cell"] == row["cell"] and "error" not in c
        )
        run = gather_run(folder / Path(cell["folder"]).name)
        rows.append(
            run | {"run": row["cell"], "accuracy": row["mean"], "sd": row["sd"], "seeds": row["n"]}
        )
        rows[-1]["minutes"] = row["minutes"]
    return rows


def gather(folder: Path) -> list[dict[str, Any]]:
    """A run's one row, or a sweep's rows."""
    if (folder / "result.json").is_file():
        return [gather_run(folder)]
    if (folder / "table.json").is_file():
        return gather_sweep(folder)
    raise SystemExit(f"{folder}: neither a finished run nor a sweep")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.runs", description=__doc__)
    parser.add_argument("folders", nargs="+", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument(
        "--threads", type=int, required=True, help="threads that the runs were trained with"
    )
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    rows = [row for folder in args.folders for row in gather(folder)]
    args.out.write_text(
        json.dumps({"machine": describe(), "runs": rows}, indent=1) + "\n", encoding="utf-8"
    )
    print(f"{len(rows)} rows written to {args.out}")


if __name__ == "__main__":
    main()
