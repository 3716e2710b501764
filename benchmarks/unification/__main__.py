"""``python -m benchmarks.unification``: measure every configuration, write the results, their
tables and the kernels' pictures.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib.util
import json
from typing import Any

import torch

from ..machine import describe
from ..theorems.drawing import IMAGES, PAGE, RESULTS, save_numbers, write_block
from .measure import Configuration, configurations, measure
from .pictures import draw_all
from .table import overview, page


def run(configuration: Configuration) -> dict[str, Any]:
    """One row: the errors in both precisions, or the package that is missing."""
    row: dict[str, Any] = {"family": configuration.family, "label": configuration.label}
    if configuration.requires and importlib.util.find_spec(configuration.requires) is None:
        return row | {"requires": configuration.requires}
    for name, dtype in (("float64", torch.float64), ("float32", torch.float32)):
        row[name] = dataclasses.asdict(measure(configuration, dtype))
    return row


def write(found: dict[str, Any]) -> None:
    """The pages from the numbers."""
    (RESULTS / "unification.md").write_text(page(found), encoding="utf-8")
    write_block(PAGE, "unification", overview(found))


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.unification", description=__doc__)
    parser.add_argument(
        "--write", action="store_true", help="only write the pages from the results that are there"
    )
    parser.add_argument("--pictures", action="store_true", help="only draw the kernels")
    args = parser.parse_args(arguments)
    numbers = RESULTS / "unification.json"
    if not args.write and not args.pictures:
        rows = []
        for configuration in configurations():
            rows.append(run(configuration))
            worst = max(rows[-1]["float64"].values()) if "float64" in rows[-1] else None
            print(
                f"{configuration!s:90} "
                f"{'needs ' + rows[-1]['requires'] if worst is None else f'{worst:.0e}'}"
            )
        save_numbers({"machine": describe(), "configurations": rows}, numbers)
    if not args.pictures:
        write(json.loads(numbers.read_text(encoding="utf-8")))
    if not args.write:
        for path in draw_all(IMAGES):
            print(f"drawn: {path}")


if __name__ == "__main__":
    main()
