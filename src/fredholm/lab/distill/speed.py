"""Time and memory of a converted model beside its teacher's, against the length."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile

from ...errors import OptionError
from ...linearization.positions import positions_of
from .stages import call

REPEATS = 5


def token_inputs(model: Any) -> Callable[[int], dict[str, Any]]:
    """Random tokens of a length for a transformers model.

    Raises:
        OptionError: a model that reads something else, or a length beyond its positions.
    """
    size, limit = getattr(getattr(model, "config", None), "vocab_size", None), positions_of(model)
    if size is None:
        raise OptionError(
            f"{type(model).__name__} does not read tokens: say what it is given at a length with "
            "lengths={n: inputs}"
        )

    def make(length: int) -> dict[str, Any]:
        if limit is not None and length > limit:
            raise OptionError(
                f"lengths: received {length}; the model has positions for {limit} tokens"
            )
        device = next(model.parameters()).device
        return {"input_ids": torch.randint(0, int(size), (1, length), device=device)}

    return make


@torch.inference_mode()
def measure_speed(
    teacher: nn.Module, student: nn.Module, lengths: Sequence[int] | dict[int, Any]
) -> list[dict[str, float]]:
    """A row a length: median milliseconds of one forward pass and the peak of what it holds at
    once, in bytes, of both models.

    Args:
        teacher, student: in turns, in evaluation mode.
        lengths: numbers of tokens, for models of transformers that read tokens; or a dictionary of
            inputs by length.

    Memory is that of tensors made during the pass: the allocator's peak on a GPU, the profiler's
    account on a CPU. Times mean something on a quiet machine only.

    Raises:
        OptionError: lengths without inputs for a model that does not read tokens, or beyond its
            positions.
    """
    given = dict(lengths) if isinstance(lengths, dict) else None
    make = token_inputs(teacher) if given is None else given.__getitem__
    rows = []
    for length in sorted(lengths):
        inputs, row = make(length), {"length": float(length)}
        times: dict[str, list[float]] = {"teacher": [], "student": []}
        for name, model in (("teacher", teacher.eval()), ("student", student.eval())):
            row[f"{name}_bytes"] = float(peak_bytes(lambda m=model, x=inputs: call(m, x)))
        for _ in range(REPEATS):
            for name, model in (("teacher", teacher), ("student", student)):
                times[name].append(_seconds(model, inputs))
        rows.append(
            row | {f"{name}_ms": 1e3 * statistics.median(values) for name, values in times.items()}
        )
    return rows


def _seconds(model: nn.Module, inputs: Any) -> float:
    cuda = next(model.parameters()).is_cuda
    if cuda:
        torch.cuda.synchronize()
    begun = time.perf_counter()
    call(model, inputs)
    if cuda:
        torch.cuda.synchronize()
    return time.perf_counter() - begun


def peak_bytes(run: Callable[[], Any]) -> int:
    """The most bytes of tensors that a call holds at once, beyond what was there before it.

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
    live = peak = 0
    for event in sorted((e for e in events if e.name() == "[memory]"), key=lambda e: e.start_ns()):
        live += event.nbytes()
        peak = max(peak, live)
    return peak
