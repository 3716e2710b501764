"""Converted layers against the layers themselves: forward, and forward + backward.

``python -m benchmarks.unification_speed [--only FAMILY] [--threads N] [--out FILE]`` collects the
lists ``SPEED`` of the files of ``benchmarks.unification``, each row (label, build, make_input,
reference, apply): ``build()`` makes the layer, ``make_input()`` a tensor or a tuple of them,
``reference(layer, *inputs)`` and ``apply(operator, *inputs)`` are what is timed. An answer that
differs is not timed. The aim is a ratio of at most 1.2.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import pkgutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fredholm.convert import as_operator

from .machine import describe, matrix_rate
from .registry import Case, Entry, with_gradients
from .runner import run
from .theorems.drawing import write_block

OUT = Path(__file__).parent / "results" / "unification_speed.json"
PAGE = Path(__file__).parents[1] / "docs" / "unification.md"
Row = tuple[
    str,
    Callable[[], torch.nn.Module],
    Callable[[], Any],
    Callable[..., Tensor],
    Callable[..., Tensor],
]


def families() -> dict[str, list[Row]]:
    """The lists ``SPEED`` by the name of their file."""
    from . import unification

    names = [
        module.name
        for module in pkgutil.iter_modules(unification.__path__)
        if module.name != "__main__"
    ]
    found = {name: importlib.import_module(f"{unification.__name__}.{name}") for name in names}
    return {name: module.SPEED for name, module in found.items() if hasattr(module, "SPEED")}


def on_points(y: Tensor, shape: torch.Size) -> Tensor:
    """A layer's output as the operator gives it, points on the second dimension: channels move
    behind the grid.
    """
    return y if y.shape == shape else y.flatten(2).mT


def cases(row: Row, repeats: int = 21) -> Iterator[Case]:
    """The forward without gradients, and the forward with the gradients of all parameters."""
    label, build, make_input, reference, apply = row
    torch.manual_seed(0)
    layer = build().eval()
    inputs = make_input()
    inputs = inputs if isinstance(inputs, tuple) else (inputs,)
    operator = as_operator(layer)
    parameters: list[Tensor] = [p for p in layer.parameters() if p.requires_grad]
    with torch.no_grad():
        shape = apply(operator, *inputs).shape

    def layer_forward() -> Tensor:
        return on_points(reference(layer, *inputs), shape)

    def operator_forward() -> Tensor:
        return apply(operator, *inputs)

    ways = {"layer": layer_forward, "operator": operator_forward}
    silent = {name: Entry(torch.no_grad()(way)) for name, way in ways.items()}
    yield Case(f"{label}: forward", silent["layer"].run, silent, repeats=repeats)  # type: ignore[arg-type]
    step = {
        name: Entry(lambda way=way: with_gradients(way(), parameters)) for name, way in ways.items()
    }
    name = f"{label}: forward+backward"
    yield Case(name, step["layer"].run, step, tolerance=1e-3, repeats=repeats)  # type: ignore[arg-type]


def table(found: dict[str, Any]) -> str:
    """The figures as the documentation shows them: one row a layer."""
    ratio = {row["case"]: row["ratio"] for row in found["cases"] if row["way"] == "operator"}
    labels = dict.fromkeys(case.rsplit(": ", 1)[0] for case in ratio)
    rows = [
        f"| {label} | {ratio[f'{label}: forward']:.2f} | {ratio[f'{label}: forward+backward']:.2f} "
        "|"
        for label in labels
    ]
    machine = f"{found['machine']['processor']}, {found['machine']['threads']} threads, torch {found['machine']['torch']}."
    return "\n".join(
        ["| layer | forward | forward and backward |", "|---|---|---|", *rows, "", machine]
    )


def main() -> None:
    known = families()
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.unification_speed", description=__doc__
    )
    parser.add_argument("--only", action="append", choices=sorted(known), help="run these families")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument(
        "--repeats", type=int, default=21, help="timed rounds, in each of which both run once"
    )
    parser.add_argument("--out", type=Path, default=OUT, help="where results are written as JSON")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    result: dict[str, Any] = {
        "machine": describe() | {"sgemm_gflops": matrix_rate() / 1e9},
        "cases": [],
    }
    print(
        f"{result['machine']}\n{'case':72} {'layer ms':>10} {'±':>7} {'operator ms':>12} {'±':>7} "
        f"{'ratio':>6}"
    )
    for family in args.only or known:
        for row in known[family]:
            for case in cases(row, args.repeats):
                rows: list[dict[str, Any]] = [{"family": family, **found} for found in run(case)]
                result["cases"] += rows
                a, b = rows
                times = f"{a['milliseconds']:10.2f} {a['spread']:7.2f} {b['milliseconds']:12.2f} {b['spread']:7.2f}"
                print(f"{case.name:72} {times} {b['ratio']:6.2f}", flush=True)
    if args.only and args.out.is_file():  # what was not run again stays as it was measured before
        before = json.loads(args.out.read_text(encoding="utf-8"))
        result["cases"] = [
            row for row in before["cases"] if row["family"] not in args.only
        ] + result["cases"]
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    print(f"written to {args.out}")
    if args.out == OUT:
        write_block(PAGE, "speed", table(result))


if __name__ == "__main__":
    main()
