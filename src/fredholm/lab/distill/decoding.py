"""Cost of decoding for two models, by the length of the prompt: time per token, time of the prompt,
bytes of the cache.
"""

from __future__ import annotations

import math
import statistics
from contextlib import ExitStack
from functools import partial
from typing import Any

from torch import Tensor, nn

from ...integral import inference
from ...linearization import cache_size
from ...linearization.report import faster_from
from ...modes import device_of
from ..training.machine import seconds_of

# transformers is an extra: the function that needs it imports it.

# Steps timed at each length.
STEPS = 24

# Prompts timed at each length, at most, and the tokens of all of them together.
PROMPTS = 5
PROMPT_TOKENS = 8192


def measure_decoding(
    models: dict[str, nn.Module],
    text: Tensor,
    lengths: list[int],
) -> list[dict[str, float]]:
    """Measure the cost of decoding after prompts of each length.

    Models are measured inside :class:`fredholm.inference`, as ``generate`` calls them. Their
    prompts and steps are timed in turns.

    Args:
        models: causal models of transformers, by name.
        text: tokens of the prompts, repeated if there are too few.
        lengths: numbers of tokens.

    Returns:
        One row per length: ``length``; of each model ``NAME_prompt_ms`` and
        ``NAME_tokens_a_second``, the medians of several (of a long prompt there is only one);
        ``NAME_bytes`` of the cache, exact, and ``NAME_softmax_bytes``, the part of layers that keep
        softmax.
    """
    rows = []
    with ExitStack() as answering:
        for model in models.values():
            answering.enter_context(inference(model))
        for length in sorted(lengths):
            needed = length + STEPS
            copies = math.ceil(needed / len(text))
            tokens = text.repeat(copies)[:needed]
            row = _measure_length(models, tokens, length)
            rows.append({"length": float(length), **row})
    return rows


def _measure_length(
    models: dict[str, Any],
    tokens: Tensor,
    length: int,
) -> dict[str, float]:
    """Measure decoding after one prompt, with a new cache for each prompt and model.

    The prompt is read :data:`PROMPTS` times, a long one less often: :data:`PROMPT_TOKENS` in all,
    but at least once. :data:`STEPS` single tokens then continue the last cache of each model, whose
    bytes are counted before them.

    Args:
        models: causal models of transformers, by name.
        tokens: the prompt and the tokens of the steps, (length + STEPS,).
        length: tokens of the prompt.

    Returns:
        Of each model ``NAME_prompt_ms``, ``NAME_bytes`` and ``NAME_softmax_bytes`` of the cache,
        and ``NAME_tokens_a_second``; see :func:`measure_decoding`.
    """
    from transformers import DynamicCache

    # The cache of the last prompt is the one that the steps continue.
    row: dict[str, float] = {}
    caches: dict[str, Any] = {}
    times: dict[str, list[float]] = {name: [] for name in models}
    prompt = tokens[:length]
    prompts = min(PROMPTS, max(1, PROMPT_TOKENS // length))
    for _ in range(prompts):
        for name, model in models.items():
            caches[name] = DynamicCache(config=model.config)
            seconds = _seconds(model, prompt, caches[name])
            times[name].append(seconds)
    for name, cache in caches.items():
        size = cache_size(cache)
        row[f"{name}_prompt_ms"] = 1e3 * statistics.median(times[name])
        row[f"{name}_bytes"] = float(size.linear_bytes + size.softmax_bytes)
        row[f"{name}_softmax_bytes"] = float(size.softmax_bytes)

    times = {name: [] for name in models}
    for place in range(length, length + STEPS):
        token = tokens[place : place + 1]
        for name, model in models.items():
            seconds = _seconds(model, token, caches[name])
            times[name].append(seconds)
    for name, values in times.items():
        row[f"{name}_tokens_a_second"] = 1.0 / statistics.median(values)
    return row


def _seconds(model: Any, tokens: Tensor, cache: Any) -> float:
    """Time a forward pass over tokens (N,) that continues a cache."""
    device = device_of(model)
    forward = partial(
        model,
        input_ids=tokens[None].to(device),
        past_key_values=cache,
        use_cache=True,
        logits_to_keep=1,
    )
    return seconds_of(forward, device)


def crossings(
    rows: list[dict[str, float]],
) -> dict[str, int | None]:
    """Return the lengths from which on the student's cache is smaller and its tokens are faster.

    The first follows from the bytes per token of the longest prompt; the second is a measured
    length. Each is None if there is no such length.

    Example:
        >>> crossings([{"length": 10.0, "teacher_bytes": 100.0, "student_bytes": 250.0,
        ...     "student_softmax_bytes": 0.0, "teacher_tokens_a_second": 2.0,
        ...     "student_tokens_a_second": 3.0}])
        {'smaller_from': 26, 'faster_from': 10}
    """
    if not rows:
        return {"smaller_from": None, "faster_from": None}

    # Layers that keep softmax cost both models the same.
    last = rows[-1]
    kept = last["student_softmax_bytes"]
    states = last["student_bytes"] - kept
    token = (last["teacher_bytes"] - kept) / last["length"]
    smaller = None
    if token > 0:
        smaller = int(states // token) + 1

    def slower(row: dict[str, float]) -> bool:
        return row["student_tokens_a_second"] <= row["teacher_tokens_a_second"]

    faster = faster_from(rows, slower)
    return {"smaller_from": smaller, "faster_from": faster}
