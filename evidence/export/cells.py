"""One row of the table: a model in every column, as a relative error or as the text that refuses it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch._inductor.exc import InductorError

from fredholm.errors import ExportError, FredholmError
from fredholm.export import (
    decoder_errors,
    export_decoder,
    export_onnx,
    export_package,
    export_program,
    largest_error,
    signature_of,
)
from fredholm.export.program import first_lines, rounding_error
from fredholm.models import Model

from .models import MODELS

Cell = dict[str, Any]
"""``error``, or ``refused``: the message; ``failed`` is an accident, which no committed row has."""


def eager(model: Model, folder: Path) -> float:
    """Return the error of the model in float32 beside itself in float64: rounding alone."""
    return rounding_error(model, signature_of(model))


def compiled(model: Model, folder: Path) -> float:
    """Return the error of ``torch.compile`` without graph breaks, one graph for all sizes."""
    # Graphs of other rows count towards the compiler's limit of graphs of one function.
    torch.compiler.reset()
    program = torch.compile(model, fullgraph=True, dynamic=True)
    try:
        return largest_error(model, signature_of(model), torch.no_grad()(program))
    except InductorError as error:
        # The model was traced as one graph, and torch's code generator gave up on it.
        raise ExportError(
            f"compile: expected a graph that Inductor has code for, got {first_lines(error)}"
        ) from error


def exported(model: Model, folder: Path) -> float | None:
    """Return the error of a program of PyTorch's operations."""
    return export_program(model, folder / "program.pt2").error


def onnx(model: Model, folder: Path) -> float | None:
    """Return the error of a program in ONNX Runtime."""
    return export_onnx(model, folder / "model.onnx").error


def aoti(model: Model, folder: Path) -> float | None:
    """Return the error of a package of native code."""
    return export_package(model, folder / "package.pt2").error


def steps(model: Model, folder: Path) -> dict[str, float]:
    """Return the errors of prefill and step in ONNX Runtime."""
    paths = export_decoder(model, folder / "model.onnx")
    return decoder_errors(model, *(path.read_bytes() for path in paths))._asdict()


Column = Callable[[Model, Path], Any]
PROGRAMS: dict[str, Column] = {
    "eager": eager,
    "export": exported,
    "ONNX": onnx,
    "steps": steps,
}
COMPILERS: dict[str, Column] = {"compile": compiled, "AOTI": aoti}
"""Columns that take a C++ compiler, a minute of processor time in each row."""


def cells(name: str, folder: Path, columns: dict[str, Column]) -> dict[str, Cell]:
    """Return the cells of one model in some columns; its programs stay in ``folder``."""
    folder.mkdir(parents=True, exist_ok=True)
    row: dict[str, Cell] = {}
    for column, function in columns.items():
        found = cell(MODELS[name], function, folder)
        # Prefill and step are exported together and are columns of their own.
        parts = ("prefill", "step") if column == "steps" else (column,)
        for part in parts:
            row[part] = found
            if isinstance(found.get("error"), dict):
                row[part] = {"error": found["error"][part]}
    return row


def cell(make: Callable[[], Model], column: Column, folder: Path) -> Cell:
    """Return one cell."""
    try:
        return {"error": column(make(), folder)}
    except FredholmError as error:
        return {"refused": str(error)}
    except Exception as error:  # an accident: the row is finished, and the test of the page fails
        lines = [line for line in str(error).splitlines() if line.strip()]
        return {"failed": f"{type(error).__name__}: {' '.join(lines[:2])}"}
