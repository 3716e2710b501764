"""Converted models under torch.compile, in a separate process: jaxtyping's hook breaks tracing."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch

from fredholm.convert import replace_attention

from . import library, models


def llama():
    return models.llama()


def gemma3():
    return library.library("gemma3")


CASES: dict[str, tuple[Callable[[], Any], dict[str, Any]]] = {
    "bert": (models.bert, {}),
    "gemma3": (gemma3, {"keep_refused": True}),
    "llama with a decay": (llama, {"decay": "token", "window": 2}),
}


def check(name: str, to: str) -> None:
    """Trace the converted model as one graph, as its source can be traced."""
    build, options = CASES[name]
    model = replace_attention(build(), to, **options).model
    expected = model(**models.padded()).logits
    actual = torch.compile(model, fullgraph=True, backend="eager")(**models.padded()).logits
    torch.testing.assert_close(actual, expected, atol=1e-5, rtol=1e-5)
    print(f"{name} {to}: ok")


if __name__ == "__main__":
    for case in CASES:
        check(case, sys.argv[1])
