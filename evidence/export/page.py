"""The page of programs: errors, refusals, speed."""

from __future__ import annotations

import string
from typing import Any

from ..kit.machine import machine_line
from ..kit.page import head, load, table
from . import FILE, SPEED_FILE
from .models import FAMILIES, OPERATORS
from .speed import ROUNDS

COLUMNS = ("eager", "compile", "export", "ONNX", "AOTI", "prefill", "step")
TITLE = "Programs: every operator and model, in every format"
NOT_YET = "not measured yet"
INTRODUCTION = """The tables show which models can be [exported](../export.md) to which format, and how exactly. Each operator is tested in a model of pictures and in one of causal texts, and each family of
models once, with random weights in the heads (`python -m evidence run export`). A number is the largest difference between program and model, relative to the model's largest output,
at three sets of sizes, padding included. The program was traced at one of these. Batch, lengths, numbers of nodes and sides of pictures are free in every column. A letter stands for a refusal, which is explained below the
tables.

- *eager*: the difference between the model in float32 and in float64, that is, its own rounding error. A program adds in another order. Its error
  may be up to 1e-5, or up to the rounding error of a model that is less exact than that (`ckcnn_small`, whose kernels have a high frequency).
- *compile*: `torch.compile(fullgraph=True, dynamic=True)`; *export*: a program of PyTorch's operations; *ONNX*: a program in ONNX Runtime; *AOTI*: native code.
- *prefill* and *step*: the two programs of a decoder in ONNX Runtime, run one after the other.
"""
SPEED = """Times are processor seconds of one thread (`python -m evidence time export`). Model and program are timed alternately, after a check of their answers. The column *times as fast* is the
median over rounds of the model's time divided by the program's: above 1 the program is faster. A step is compared with `model.step`.
The model is called under `torch.no_grad()`, not inside [`fredholm.inference`](../inference.md), in which `ckconv` and `luna` are faster ([small problems](small.md)). Of {rounds} rounds the lowest ratio stands in brackets. {machine}
"""


def page() -> str:
    """Markdown of ``docs/results/export.md``."""
    found = load(FILE) or {}
    # Both tables share the letters of refusals.
    notes = Notes()
    text = head(TITLE, "export", FILE, SPEED_FILE) + INTRODUCTION
    for title, models in (("Operators", OPERATORS), ("Model families", FAMILIES)):
        rows = [[name, *_row(found.get(name, {}), notes)] for name in models]
        text += f"\n## {title}\n\n{table(('', *COLUMNS), rows)}\n"
    if notes.letters:
        text += f"\n## Refusals\n\n{notes.text()}\n"
    return f"{text}\n## Speed\n\n{_speed(load(SPEED_FILE))}"


class Notes:
    """Texts of refusals, each with a letter."""

    def __init__(self) -> None:
        self.letters: dict[str, str] = {}

    def letter(self, reason: str) -> str:
        reason = reason.removeprefix("export: ")
        number = len(self.letters)
        return self.letters.setdefault(reason, string.ascii_letters[number])

    def text(self) -> str:
        return "\n".join(f"- **{letter}**: {text}" for text, letter in self.letters.items())


def _row(cells: dict[str, dict[str, Any]], notes: Notes) -> list[str]:
    return [_cell(cells.get(column), notes) for column in COLUMNS]


def _cell(cell: dict[str, Any] | None, notes: Notes) -> str:
    if cell is None:
        return NOT_YET
    if "error" in cell:
        if not cell["error"]:
            return "0"
        # One digit, and no zero in front of the exponent.
        return f"{cell['error']:.0e}".replace("e-0", "e-")
    return notes.letter(cell.get("refused") or f"failed: {cell['failed']}")


def _speed(found: dict[str, Any] | None) -> str:
    if not found:
        return "Not measured yet.\n"
    rows = [
        (
            row["model"],
            row["case"],
            row["way"],
            f"{row['times']:.2f} ({row['lowest']:.2f})",
            f"{1e3 * row['seconds']:.2f}",
        )
        for row in found["cases"]
    ]
    heads = "model", "input", "program", "times as fast", "milliseconds"
    about = SPEED.format(rounds=ROUNDS, machine=machine_line(found["machine"]))
    return f"{about}\n{table(heads, rows)}\n"
