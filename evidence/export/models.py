"""The rows of the table: every operator in a model of pictures and in one of causal texts, and every
family of models, at sizes that a processor compiles in seconds.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import nn

from fredholm.models import Model, create_model
from fredholm.operators import list_operators

from ..itnet import two_streams  # noqa: F401  registers the body

VOCABULARY = 9
TEXT: dict[str, Any] = {"kind": "text", "vocabulary": VOCABULARY, "max_length": 64}


def random_model(preset: str, **parts: Any) -> Model:
    """Return a model with a head of random weights.

    Heads start at zero, and a model that answers zero would pass any comparison.
    """
    torch.manual_seed(0)
    model = create_model(preset, **parts).eval()
    for weight in model.head.parameters():
        nn.init.normal_(weight, std=0.2)
    return model


def of_pictures(operator: str) -> Model:
    """Return a model of pictures with this operator."""
    return random_model("itnet_nano", body={"operator": operator})


def of_texts(operator: str, max_length: int = TEXT["max_length"]) -> Model:
    """Return a model of the next token with this operator."""
    return random_model(
        "itnet_nano",
        encoder=TEXT | {"causal": True, "max_length": max_length},
        body={"operator": operator},
        head={"pool": "every", "outputs": VOCABULARY},
    )


OPERATORS: dict[str, Callable[[], Model]] = {
    f"{operator}, {kind}": partial(make, operator)
    for operator in list_operators()
    for kind, make in (("pictures", of_pictures), ("causal texts", of_texts))
}

SERIES: dict[str, Any] = {"kind": "sequence", "channels": 2, "length": 32}
BOTH: dict[str, Any] = {"kind": "multimodal", "vocabulary": VOCABULARY, "max_length": 16}
CLOUD: dict[str, Any] = {"dim": 32, "depth": 2, "heads": 2}

FAMILIES: dict[str, Callable[[], Model]] = {
    # Presets of pictures.
    "backbone_nano": partial(random_model, "backbone_nano"),
    "infvit_pure_pico": partial(random_model, "infvit_pure_pico"),
    "infvit_linear_pico": partial(random_model, "infvit_linear_pico"),
    "continuous_cvt_micro": partial(random_model, "continuous_cvt_micro"),
    "ckcnn_image": partial(random_model, "ckcnn_image"),
    # Presets of texts, series and clouds.
    "lra_official_retrieval": partial(
        random_model, "lra_official_retrieval", encoder={"vocabulary": VOCABULARY, "views": 2}
    ),
    "continuous_text_micro": partial(
        random_model, "continuous_text_micro", encoder={"vocabulary": VOCABULARY}
    ),
    "ckcnn_ptb": partial(random_model, "ckcnn_ptb"),
    "ckcnn_small": partial(random_model, "ckcnn_small"),
    "itnet_pc": partial(random_model, "itnet_pc", body=CLOUD, encoder={"frequencies": 16}),
    # Other encoders, in front of the blocks of itnet_nano.
    "fields": partial(random_model, "itnet_nano", encoder={"kind": "field"}),
    # Sides are multiples of every patch: with patches of 4 and 7 pixels the largest picture checked
    # would have 10,000 patches, and every pair of them is evaluated.
    "patches of two sizes": partial(
        random_model, "itnet_nano", encoder={"kind": "scales", "scales": (2, 4)}
    ),
    "series": partial(random_model, "itnet_nano", encoder=SERIES),
    "series with times": partial(random_model, "itnet_nano", encoder=SERIES | {"timed": True}),
    "pictures with texts": partial(random_model, "itnet_nano", encoder=BOTH),
    "two streams": partial(
        random_model, "itnet_nano", encoder=BOTH, body={"kind": "two_streams", "operator": "luna"}
    ),
    "graphs": partial(random_model, "itnet_nano", encoder={"kind": "graph", "channels": 3}),
}

MODELS = OPERATORS | FAMILIES
