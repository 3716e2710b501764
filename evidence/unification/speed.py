"""Times of converted layers against the layers themselves: forward, and forward + backward.

The files of this folder have lists ``SPEED`` with rows (label, build, make_input, reference,
apply). ``build()`` makes the layer and ``make_input()`` a tensor or a tuple of tensors;
``reference(layer, *inputs)`` and ``apply(operator, *inputs)`` are timed. A different answer is not
timed. The goal is a ratio of at most 1.2.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from fredholm.convert import as_operator

from ..kit.check import theirs_first
from ..kit.clock import Case, Entry, no_grad, time_cases, with_gradients
from ..kit.machine import machine_line, with_rate
from ..kit.page import load, save
from ..kit.page import table as as_table
from ..kit.subject import Options

Row = tuple[
    str,
    Callable[[], torch.nn.Module],
    Callable[[], Any],
    Callable[..., Tensor],
    Callable[..., Tensor],
]


def families() -> dict[str, list[Row]]:
    """Return the lists ``SPEED`` by the names of their files."""
    package = importlib.import_module(__package__ or "evidence.unification")
    names = [module.name for module in pkgutil.iter_modules(package.__path__)]
    found = {name: importlib.import_module(f"{package.__name__}.{name}") for name in names}
    return {name: module.SPEED for name, module in found.items() if hasattr(module, "SPEED")}


def on_points(y: Tensor, shape: torch.Size) -> Tensor:
    """Return a layer's output with points in the second dimension and channels in the last."""
    if y.shape == shape:
        return y
    return y.flatten(2).mT


def cases(row: Row, repeats: int = 21) -> Iterator[Case]:
    """Yield the cases of a row: forward, and forward with the gradients of all parameters."""
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
    silent = {name: Entry(no_grad(way)) for name, way in ways.items()}
    yield Case(f"{label}: forward", silent["layer"].run, silent, repeats=repeats)  # type: ignore[arg-type]
    step = {}
    for name, way in ways.items():
        step[name] = Entry(lambda way=way: with_gradients(way(), parameters))
    name = f"{label}: forward+backward"
    yield Case(name, step["layer"].run, step, tolerance=1e-3, repeats=repeats)  # type: ignore[arg-type]


def table(found: dict[str, Any]) -> str:
    """Return the documentation's table of ratios, with one row per layer."""
    ratios: dict[str, dict[str, str]] = {}
    for row in found["cases"]:
        if row["way"] == "operator":
            label, way = row["case"].rsplit(": ", 1)
            ratios.setdefault(label, {})[way] = f"{row['ratio']:.2f}"
    rows = [(label, one["forward"], one["forward+backward"]) for label, one in ratios.items()]
    machine = machine_line(found["machine"] | {"sgemm_gflops": None})
    return f"{as_table(('layer', 'forward', 'forward and backward'), rows)}\n\n{machine}"


def timed(options: Options) -> Iterator[dict[str, Any]]:
    """Time the families of ``--only``, or all, and yield their rows."""
    known = families()
    repeats = 2 if options.small else 21
    for family in options.chosen(known):
        for row in known[family]:
            yield from time_cases(cases(row, repeats), family=family)


def time(options: Options) -> None:
    """Time families and replace their rows in the file."""
    machine, rows = with_rate(), list(timed(options))
    before = load("unification-speed.json", options.results) or {"cases": []}
    again = {row["family"] for row in rows}
    others = [row for row in before["cases"] if row["family"] not in again]
    found = {"machine": machine, "cases": others + rows}
    save(found, "unification-speed.json", options.results)


def cases_again(options: Options) -> list[dict[str, Any]]:
    """Time the cases again, for ``check``."""
    return theirs_first(list(timed(options)))


def committed() -> list[dict[str, Any]]:
    """Return the committed rows, for ``check``."""
    return theirs_first(load("unification-speed.json")["cases"])
