"""Which samples a report looks at, and what the layers of a model saw of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ...errors import OptionError
from ...models import Model
from .layers import Layer


def encoder_config(model: Any) -> Any:
    """What a model of this library is told of its inputs; None of any other."""
    return model.config.encoder if isinstance(model, Model) else None


def choose_samples(count: int, samples: int, seed: int, picture: int | None) -> list[int]:
    """Indices of some samples, the one to be mapped first."""
    if picture is not None and not 0 <= picture < count:
        raise OptionError(f"picture {picture} is not among the {count} samples")
    order = torch.randperm(count, generator=torch.Generator().manual_seed(seed)).tolist()
    if picture is not None:
        order = [picture, *(i for i in order if i != picture)]
    return order[:samples]


def trace_layers(model: Any, inputs: Any, chosen: list[int]) -> list[Layer]:
    """What each layer saw of some samples, where its operator can be looked into."""
    device = next(model.parameters()).device
    with torch.no_grad():
        seen = model.trace(inputs[chosen].to(device))
    names = model.body.layer_names if isinstance(model, Model) else []
    names = names or [f"layer {i}" for i, _ in enumerate(seen, 1)]
    return [
        Layer(name, operator, u, domain)
        for name, (operator, u, domain) in zip(names, seen)
        if hasattr(operator, "kernel_matrix")
    ]


def padded_queries(layers: Sequence[Layer]) -> list[int] | None:
    """The first sample's first, middle and last point, where some are padding."""
    if not layers or layers[0].domain.valid is None:
        return None
    real = layers[0].domain.valid[0].nonzero()[:, 0].tolist()
    return sorted({real[0], real[len(real) // 2], real[-1]})


@torch.no_grad()
def answers(model: nn.Module, inputs: Any, *, batch: int = 128) -> Tensor:
    """Return a model's outputs on all inputs, in float32 on the CPU."""
    device = next(model.parameters()).device
    places = range(0, len(inputs), batch)
    parts = [model(inputs[i : i + batch].to(device)).float().cpu() for i in places]
    return torch.cat(parts)
