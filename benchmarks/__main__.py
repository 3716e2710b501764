"""``python -m benchmarks [--only NAME] [--operator NAME] [--import FILE] [--out FILE]``"""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path

import torch

from fredholm.operators import import_file

from . import ckconv, hidden_first, memory, operators  # noqa: F401  registers the cases
from .machine import describe, matrix_rate
from .registry import makers
from .runner import run


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--only", action="append", choices=[*makers(), "memory"], help="run these groups of cases")
    parser.add_argument("--operator", help="of the group 'operators': this operator only")
    parser.add_argument(
        "--import", action="append", default=[], dest="files", help="Python files that register operators"
    )
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--out", type=Path, help="write results as JSON")
    args = parser.parse_args()
    for path in args.files:
        import_file(path)
    torch.set_num_threads(args.threads)
    chosen = args.only or [*makers(), "memory"]
    result = {"machine": describe() | {"sgemm_gflops": matrix_rate() / 1e9}, "cases": [], "memory": []}
    print(f"{result['machine']}\n{'case':34} {'way':20} {'ratio':>7} {'ms':>10} {'±':>8} {'of sgemm':>9}  note")
    for name, maker in makers().items():
        if name not in chosen:
            continue
        for case in maker():
            if args.operator and name == "operators" and not case.name.startswith(f"{args.operator} "):
                continue
            rows = [{"group": name, **row} for row in run(case)]
            result["cases"] += rows
            for row in rows:
                share = f"{row['matrix_rate_share']:.0%}" if row["matrix_rate_share"] else ""
                figures = f"{row['ratio']:7.2f} {row['milliseconds']:10.2f} {row['spread']:8.2f} {share:>9}"
                print(f"{row['case']:34} {row['way']:20} {figures}  {row['note']}", flush=True)
    if "memory" in chosen:
        for name, options in (("itnet", {"width": 32}), ("softmax", {})):
            found = memory.run(name, **options)
            result["memory"].append(found)
            sizes = ", ".join(f"{row['n']}: {row['megabytes']:.0f} MB" for row in found["lengths"])
            print(f"{found['case']:34} exponent {found['exponent']:.2f}  {sizes}  {found['note']}", flush=True)
    if args.out:
        if args.only and args.out.is_file():  # what was not run again stays as it was measured before
            before = json.loads(args.out.read_text(encoding="utf-8"))
            result["machine"] = before["machine"]
            again = {row["group"] for row in result["cases"]}
            result["cases"] = [row for row in before["cases"] if row["group"] not in again] + result["cases"]
            result["memory"] = result["memory"] or before["memory"]
        args.out.parent.mkdir(parents=True, exist_ok=True)
        args.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
        print(f"written to {args.out}")


if __name__ == "__main__":
    main()
