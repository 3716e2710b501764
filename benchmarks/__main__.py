"""``python -m benchmarks [--only NAME] [--operator NAME] [--import FILE] [--out FILE] [--check
FILE]``
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path
from typing import Any

import torch

from fredholm.operators import import_file

from . import ckconv, hidden_first, memory, operators, peers, published  # noqa: F401  registers the cases
from .machine import describe, matrix_rate
from .registry import makers
from .regressions import compare_ratios
from .runner import run


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument(
        "--only", action="append", choices=[*makers(), "memory"], help="run these groups of cases"
    )
    parser.add_argument("--operator", help="of the group 'operators': this operator only")
    parser.add_argument(
        "--import",
        action="append",
        default=[],
        dest="files",
        help="Python files that register operators",
    )
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--out", type=Path, help="write results as JSON")
    parser.add_argument(
        "--check", type=Path, help="compare ratios with this file; exit code 1 where one got worse"
    )
    args = parser.parse_args()
    for path in args.files:
        import_file(path)
    before = None if args.check is None else json.loads(args.check.read_text(encoding="utf-8"))
    torch.set_num_threads(args.threads)
    chosen = args.only or [*makers(), "memory"]
    result: dict[str, Any] = {
        "machine": describe() | {"sgemm_gflops": matrix_rate() / 1e9},
        "cases": [],
        "memory": [],
    }
    print(
        f"{result['machine']}\n{'case':44} {'way':38} {'ratio':>7} {'ms':>10} {'±':>8} "
        f"{'of sgemm':>9}  note"
    )
    result["cases"] = time_cases([name for name in makers() if name in chosen], args.operator)
    if "memory" in chosen:
        result["memory"] = measure_memory()
    if args.out:
        write(args.out, result, whole=not args.only)
    if before is not None:
        worse = compare_ratios(before["cases"], result["cases"])
        print("\n".join(worse) or f"no ratio is worse than in {args.check}")
        sys.exit(bool(worse))


def time_cases(groups: list[str], operator: str | None) -> list[dict[str, Any]]:
    """Rows of all cases of these groups, printed as they come."""
    rows: list[dict[str, Any]] = []
    for group in groups:
        for case in makers()[group]():
            if operator and group == "operators" and not case.name.startswith(f"{operator} "):
                continue
            for row in run(case):
                rows.append({"group": group, **row})
                share = f"{row['matrix_rate_share']:.0%}" if row["matrix_rate_share"] else ""
                figures = f"{row['ratio']:7.2f} {row['milliseconds']:10.2f} {row['spread']:8.2f} {share:>9}"
                print(f"{row['case']:44} {row['way']:38} {figures}  {row['note']}", flush=True)
    return rows


def measure_memory() -> list[dict[str, Any]]:
    """Peak memory of two operators against N."""
    found = [
        memory.run(name, **options) for name, options in (("itnet", {"width": 32}), ("softmax", {}))
    ]
    for entry in found:
        lengths: Any = entry["lengths"]
        sizes = ", ".join(f"{row['n']}: {row['megabytes']:.0f} MB" for row in lengths)
        print(
            f"{entry['case']:44} exponent {entry['exponent']:.2f}  {sizes}  {entry['note']}",
            flush=True,
        )
    return found


def write(path: Path, result: dict[str, Any], *, whole: bool) -> None:
    """The results as JSON; groups that were not run again stay as they were measured before."""
    if not whole and path.is_file():
        before = json.loads(path.read_text(encoding="utf-8"))
        result["machine"] = before["machine"]
        again = {row["group"] for row in result["cases"]}
        result["cases"] = [row for row in before["cases"] if row["group"] not in again] + result[
            "cases"
        ]
        result["memory"] = result["memory"] or before["memory"]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    print(f"written to {path}")


if __name__ == "__main__":
    main()
