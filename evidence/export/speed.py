"""Programs beside their models: processor seconds of one thread, ways in turn, answers checked."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fredholm.encoders import Inputs
from fredholm.export import signature_of
from fredholm.export.onnx import INPUT, onnx_answers, runner_of
from fredholm.export.program import in_float64, in_turn
from fredholm.export.signature import tensors_of
from fredholm.models import Model

from ..kit.clock import difference, require
from ..kit.machine import with_rate
from ..kit.page import load, rounded, save
from ..kit.subject import Options
from . import SPEED_FILE
from .models import MODELS
from .table import SMALL, folder_name

ROUNDS = 7
SECONDS = 0.02
"""Of calls in a row, for one reading of the clock."""
TOLERANCE = 1e-4
"""Of the answers of programs, and of models that are themselves that close to exact answers."""

PICTURES = 8
"""Pictures of a batch; of other inputs a batch is one."""
LENGTHS = (64, 512, 2048)
"""Tokens of texts, which the programs leave free."""
SLOW = ("itnet, causal texts",)
"""Rows with a network of every pair, which are timed at the shorter lengths."""
SEEN = 48
"""Tokens before the step that is timed."""

Way = Callable[[], Tensor]


def time_speed(options: Options) -> None:
    """Time the programs of ``run export``: of ``--only`` anew, or of the rows that are not timed yet,
    until ``--minutes`` are over; the others stay as they were.

    Raises:
        SystemExit: no programs there.
    """
    # Waiting threads would count as processor seconds.
    torch.set_num_threads(1)
    before: dict[str, Any] = load(SPEED_FILE, options.results) or {"cases": []}
    names = options.chosen(MODELS)
    if options.small and not options.only:
        names = list(SMALL)
    folders = {name: options.runs / folder_name(name) for name in names}
    there = [name for name, folder in folders.items() if any(folder.glob("*.*"))]
    if not there:
        raise SystemExit(
            f"{options.runs}: expected programs of these models, got none; write them first: "
            "python -m evidence run export"
        )
    if missing := [name for name in names if name not in there]:
        print(f"without programs, and not timed: {'; '.join(missing)}", flush=True)

    # What is timed already stays, unless it is named.
    timed = {row["model"] for row in before["cases"]}
    for name in there:
        if name in timed and not options.only:
            continue
        if options.is_over:
            break
        rows = [rounded(row) for row in _rows(name, folders[name], small=options.small)]
        kept = [row for row in before["cases"] if row["model"] != name]
        before = {"machine": with_rate(), "cases": kept + rows}
        save(before, SPEED_FILE, options.results)


@torch.no_grad()
def _rows(name: str, folder: Path, *, small: bool) -> Iterator[dict[str, Any]]:
    model = MODELS[name]()
    for inputs in _batches(name, model, small=small):
        ways = _whole_programs(model, folder, inputs)
        allowed = max(TOLERANCE, _rounding(model, inputs))
        yield from _timed(name, _shapes(inputs), ways, allowed)
    if (folder / "model-step.onnx").is_file():
        yield from _timed(name, f"a step after {SEEN} tokens", _steps(model, folder), TOLERANCE)


def _batches(name: str, model: Model, *, small: bool) -> Iterator[Tensor | Inputs]:
    """Yield made-up inputs of the sizes that are timed."""
    encoder = signature_of(model).encoder
    generator = torch.Generator().manual_seed(0)
    if encoder.data != "text":
        batch = 1
        if encoder.data == "image":
            batch = PICTURES
        shapes = {part.name: (batch, *part.shape) for part in encoder.parts}
        yield encoder.batch(shapes, generator)
        return

    lengths = LENGTHS
    if name in SLOW:
        lengths = LENGTHS[:2]
    if small:
        lengths = LENGTHS[:1]
    # Learned positions end at the length of training.
    largest = encoder.axes[0].largest or math.inf
    for length in lengths:
        if length <= largest:
            yield encoder.example((1, *encoder.input_shape[:-1], length), generator)


def _shapes(inputs: Tensor | Inputs) -> str:
    """Return the shapes of a batch as the table prints them."""
    return " ".join(str(tuple(tensor.shape)) for tensor in tensors_of(inputs).values())


def _whole_programs(model: Model, folder: Path, inputs: Tensor | Inputs) -> dict[str, Way]:
    """Return the model and the whole-signal programs that are there."""
    ways: dict[str, Way] = {"model": lambda: model(inputs)}
    if (folder / "model.onnx").is_file():
        answer = onnx_answers((folder / "model.onnx").read_bytes(), threads=1)
        ways["ONNX"] = lambda: answer(inputs)
    if (folder / "package.pt2").is_file():
        inductor: Any = torch._inductor
        package = in_turn(inductor.aoti_load_package(str(folder / "package.pt2")))
        ways["AOTI"] = lambda: package(inputs)
    return ways


def _steps(model: Model, folder: Path) -> dict[str, Way]:
    """Return one more token of the model and of its program."""
    length = model.config.encoder.points
    numbers = torch.randint(
        1,
        model.config.encoder.vocabulary,
        (1, SEEN + 1),
        generator=torch.Generator().manual_seed(0),
    )
    _, state = model.prefill(numbers[:, :SEEN], model.init_state(length))
    run = runner_of((folder / "model-step.onnx").read_bytes(), threads=1)
    tensors = [tensor for layer in state.layers for tensor in layer.keys.values()]
    # A step's result is thrown away: every call continues the same text.
    given: dict[str, Any] = {f"past_{i}": tensor.numpy() for i, tensor in enumerate(tensors)}
    given |= {INPUT: numbers[:, SEEN].numpy(), "seen": np.array(SEEN)}
    return {
        "model": lambda: model.step(numbers[:, SEEN], state)[0],
        "ONNX": lambda: torch.from_numpy(run(given)[0]),
    }


def _rounding(model: Model, inputs: Tensor | Inputs) -> float:
    """Return the error of the model in float32 beside itself in float64.

    Sines of large phases round by more than the tolerance on long signals. A program adds up in
    another order, so that its answers may differ from the model's by as much.
    """
    return difference(model(inputs), in_float64(model)(inputs))


def _timed(name: str, case: str, ways: dict[str, Way], allowed: float) -> Iterator[dict[str, Any]]:
    """Yield a row for each program: the model's seconds over its own, round by round.

    Args:
        name, case: the model, and the sizes of its inputs.
        ways: the model and its programs.
        allowed: the largest relative error of a program's answers.

    Raises:
        WrongAnswer: a program with a larger error.
    """
    expected = ways["model"]()
    for way, call in ways.items():
        require(f"{name} {case} {way}", difference(call(), expected), allowed)

    # In each round every way has its turn, so that a slow moment of the machine meets all of them.
    counts = {way: _calls_in_a_row(call) for way, call in ways.items()}
    seconds: dict[str, list[float]] = {way: [] for way in ways}
    for _ in range(ROUNDS):
        for way, call in ways.items():
            seconds[way].append(_reading(call, counts[way]))
    for way in ways:
        if way == "model":
            continue
        # Ratios are taken within a round, where both ways met the same machine.
        ratios = [own / its for own, its in zip(seconds["model"], seconds[way], strict=True)]
        row = {
            "model": name,
            "case": case,
            "way": way,
            "times": statistics.median(ratios),
            "lowest": min(ratios),
            "seconds": statistics.median(seconds[way]),
        }
        print(f"{name:30} {case:28} {way:5} {row['times']:6.2f}", flush=True)
        yield row


def _calls_in_a_row(call: Way) -> int:
    once = min(_reading(call, 1) for _ in range(2))
    return max(1, math.ceil(SECONDS / max(once, 1e-6)))


def _reading(call: Way, count: int) -> float:
    begin = time.process_time()
    for _ in range(count):
        call()
    return (time.process_time() - begin) / count
