"""``python -m benchmarks.theorems theorem4|theorem5``: measure, and write docs/results/NAME.json,
its table in docs/unification.md and docs/images/NAME.png.
"""

from __future__ import annotations

import argparse
import importlib
import json
import time
from pathlib import Path

from .drawing import IMAGES, PAGE, RESULTS, save_numbers, save_picture, write_block


def main(arguments: list[str] | None = None) -> Path:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.theorems", description=__doc__)
    parser.add_argument("name", choices=["theorem4", "theorem5"])
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder of the JSON")
    parser.add_argument("--images", type=Path, default=IMAGES, help="folder of the picture")
    parser.add_argument("--page", type=Path, default=PAGE, help="page whose table is written")
    parser.add_argument(
        "--tiny", action="store_true", help="a few seconds' worth, to see that it runs"
    )
    parser.add_argument("--draw", action="store_true", help="only draw the results that are there")
    args = parser.parse_args(arguments)
    theorem = importlib.import_module(f".{args.name}", __package__)
    numbers = args.results / f"{args.name}.json"
    if not args.draw:
        started = time.perf_counter()
        save_numbers(theorem.measure(tiny=args.tiny), numbers)
        print(f"{args.name}: {time.perf_counter() - started:.0f} s, {numbers}")
    found = json.loads(numbers.read_text(encoding="utf-8"))
    save_picture(lambda theme: theorem.draw(theme, found), args.images / f"{args.name}.png")
    write_block(args.page, args.name, theorem.table(found))
    print(f"drawn: {args.images / f'{args.name}.png'}")
    return numbers


if __name__ == "__main__":
    main()
