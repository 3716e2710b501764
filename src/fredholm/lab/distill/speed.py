"""Time and memory of a converted model and of its teacher, by the length of the input."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile

from ...errors import OptionError
from ...linearization.positions import positions_of
from ...modes import device_of
from ..training.machine import seconds_of
from .stages import call

# Passes per model and length, of which the median counts.
REPEATS = 5


def token_inputs(model: Any) -> Callable[[int], dict[str, Any]]:
    """Return a function from a length N to random tokens (1, N) for a transformers model.

    The function draws from all tokens of the vocabulary, on the device that the model has when it
    is called, and returns them as ``{"input_ids": tokens}``.

    Raises:
        OptionError: a model that reads something else; from the function, a length beyond the
            positions of the model.
    """
    config = getattr(model, "config", None)
    size = getattr(config, "vocab_size", None)
    limit = positions_of(model)
    if size is None:
        raise OptionError(
            f"lengths: expected a model that reads tokens, got {type(model).__name__}; give its "
            "inputs by length, lengths={n: inputs}"
        )

    def make(length: int) -> dict[str, Any]:
        # The limit is None if the model's configuration names none: any length is read.
        if limit is not None and length > limit:
            raise OptionError(
                f"lengths: expected at most {limit} tokens, for which the model has positions, got "
                f"{length}; leave it out"
            )
        device = device_of(model)
        return {"input_ids": torch.randint(0, int(size), (1, length), device=device)}

    return make


@torch.inference_mode()
def measure_speed(
    teacher: nn.Module,
    student: nn.Module,
    lengths: Sequence[int] | dict[int, Any],
) -> list[dict[str, float]]:
    """Measure one forward pass of both models at each length.

    Args:
        teacher, student: measured in turns, in evaluation mode.
        lengths: numbers of tokens, for models of transformers that read tokens; or a dictionary of
            inputs by length.

    Returns:
        One row per length: ``length``; of each model ``NAME_ms``, the median time, and
        ``NAME_bytes``, the peak memory of tensors made during the pass. That is the allocator's
        peak on a GPU, the profiler's account on a CPU. Times are only meaningful on a quiet
        machine.

    Raises:
        OptionError: lengths without inputs for a model that does not read tokens, or beyond its
            positions.
    """
    models = {
        "teacher": teacher.eval(),
        "student": student.eval(),
    }
    if isinstance(lengths, dict):
        make: Callable[[int], Any] = lengths.__getitem__
    else:
        make = token_inputs(teacher)

    rows = []
    for length in sorted(lengths):
        inputs = make(length)
        row = {"length": float(length)}
        for name, model in models.items():
            row[f"{name}_bytes"] = float(peak_bytes(partial(call, model, inputs)))

        # In turns, so that other work on the machine slows both down.
        times: dict[str, list[float]] = {name: [] for name in models}
        for _ in range(REPEATS):
            for name, model in models.items():
                seconds = seconds_of(partial(call, model, inputs), device_of(model))
                times[name].append(seconds)
        for name, values in times.items():
            row[f"{name}_ms"] = 1e3 * statistics.median(values)
        rows.append(row)
    return rows


def peak_bytes(run: Callable[[], Any]) -> int:
    """Return the peak memory in bytes of tensors made during a call.

    Example:
        >>> 4_000_000 <= peak_bytes(lambda: torch.ones(1_000_000)) < 4_100_000
        True
    """
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        run()
        return torch.cuda.max_memory_allocated() - before
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as record:
        run()
    events: Any = record.profiler.kineto_results.events()  # type: ignore[union-attr]
    changes = [event for event in events if event.name() == "[memory]"]
    changes.sort(key=lambda event: event.start_ns())

    # A release has a negative size.
    live = peak = 0
    for event in changes:
        live += event.nbytes()
        peak = max(peak, live)
    return peak
