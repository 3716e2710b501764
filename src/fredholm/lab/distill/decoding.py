"""What decoding costs two models by the length of what came before: time a token, time of the
prompt, bytes kept.
"""

from __future__ import annotations

import statistics
import time
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor, nn

from ...integral import inference
from ...linearization import cache_size
from ...linearization.report import faster_from

STEPS = 24  # timed at each length
PROMPTS, PROMPT_TOKENS = 5, 8192  # prompts timed at each length: so many, of so many tokens in all


def measure_decoding(
    models: dict[str, nn.Module], text: Tensor, lengths: list[int]
) -> list[dict[str, float]]:
    """A row a length N: milliseconds of a prompt of N tokens and tokens a second after it, the
    medians of several (of long prompts one alone), and exact bytes of the cache, those of layers
    that keep softmax apart.

    Both are measured inside :class:`fredholm.inference`, as ``generate`` calls them.

    Args:
        models: causal ones of transformers; their prompts and steps are timed in turns.
        text: tokens of the prompts, repeated where too few.
    """
    rows = []
    with ExitStack() as answering:
        for model in models.values():
            answering.enter_context(inference(model))
        for length in sorted(lengths):
            tokens = text.repeat(-(-(length + STEPS) // len(text)))[: length + STEPS]
            rows.append({"length": float(length)} | _at(models, tokens, length))
    return rows


def _at(models: dict[str, Any], tokens: Tensor, length: int) -> dict[str, float]:
    """One length's numbers, with the caches that the models make of their configurations."""
    from transformers import DynamicCache

    row: dict[str, float] = {}
    caches: dict[str, Any] = {}
    times: dict[str, list[float]] = {name: [] for name in models}
    for _ in range(min(PROMPTS, max(1, PROMPT_TOKENS // length))):
        for name, model in models.items():
            caches[name] = DynamicCache(config=model.config)
            times[name].append(_seconds(model, tokens[:length], caches[name]))
    for name, cache in caches.items():
        size = cache_size(cache)
        row |= {f"{name}_prompt_ms": 1e3 * statistics.median(times[name])}
        row |= {f"{name}_bytes": float(size.linear_bytes + size.softmax_bytes)}
        row |= {f"{name}_softmax_bytes": float(size.softmax_bytes)}
    times = {name: [] for name in models}
    for i in range(STEPS):
        for name, model in models.items():
            step = tokens[length + i : length + i + 1]
            times[name].append(_seconds(model, step, caches[name]))
    for name, values in times.items():
        row[f"{name}_tokens_a_second"] = 1.0 / statistics.median(values)
    return row


def _seconds(model: Any, tokens: Tensor, cache: Any) -> float:
    device = next(model.parameters()).device
    ids = tokens[None].to(device)
    begun = time.perf_counter()
    model(input_ids=ids, past_key_values=cache, use_cache=True, logits_to_keep=1)
    if device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - begun


def crossings(rows: list[dict[str, float]]) -> dict[str, int | None]:
    """From which length on the student's cache is smaller, by the bytes of a token, and from which
    measured length on its tokens are faster; None where there is none.

    Example:
        >>> crossings([{"length": 10.0, "teacher_bytes": 100.0, "student_bytes": 250.0,
        ...     "student_softmax_bytes": 0.0, "teacher_tokens_a_second": 2.0,
        ...     "student_tokens_a_second": 3.0}])
        {'smaller_from': 26, 'faster_from': 10}
    """
    if not rows:
        return {"smaller_from": None, "faster_from": None}
    last = rows[-1]
    kept = last["student_softmax_bytes"]
    token = (last["teacher_bytes"] - kept) / last["length"]
    smaller = None
    if token > 0:
        smaller = int((last["student_bytes"] - kept) // token) + 1
    speeds = ("student_tokens_a_second", "teacher_tokens_a_second")
    faster = faster_from(rows, lambda row: row[speeds[0]] <= row[speeds[1]])
    return {"smaller_from": smaller, "faster_from": faster}
