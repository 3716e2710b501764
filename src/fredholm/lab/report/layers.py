"""Layers to be shown: an operator with its input, the names of its points, and its numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor

from ...domain import Domain
from ...explain.kernels import class_token, take_samples

MAX_LAYERS, MAX_HEADS = 8, 6  # of a map: more would be too small to read
DRAWABLE = 3  # coordinates of points that can be drawn, one of them left out


@dataclass(frozen=True, eq=False)
class Layer:
    """An operator and its input: features u (B, N, D) of B samples on a domain. Maps show the first
    sample.
    """

    name: str
    operator: Any
    u: Tensor
    domain: Domain


@dataclass(frozen=True)
class Axis:
    """The names of the points of the first sample.

    Attributes:
        names: of the points of a line, in their order: words, or columns; empty where they have
            none.
        label: of the line; "" for that of the kind of data.
        unit: units of the label for one of the domain.
    """

    names: tuple[str, ...] = ()
    label: str = ""
    unit: float = 1.0

    def of(self, domain: Domain) -> list[str]:
        """Return a name for each point of a domain; "" of a class token and of padding."""
        token, names = class_token(domain), iter(self.names)
        return ["" if i == token else next(names, "") for i in range(domain.size)]


PLAIN = Axis()


def shown_layers(layers: Sequence[Layer]) -> list[Layer]:
    """Return up to :data:`MAX_LAYERS` of the layers that live on the first one's points."""
    alike = [layer for layer in layers if layer.domain.size == layers[0].domain.size]
    places = np.linspace(0, len(alike) - 1, min(MAX_LAYERS, len(alike)))
    return [alike[i] for i in sorted({round(i) for i in places})]


def has_weights(layer: Layer) -> bool:
    """Whether a pair has a scalar weight; else it is the norm of its kernel matrix."""
    return bool(layer.operator.has_weights)


def first_sample(domain: Domain) -> Domain:
    """Return the domain of the first sample."""
    return take_samples(domain, slice(0, 1))


def plain(value: Any) -> Any:
    """Return tensors, and dictionaries of them, as JSON has them; NaN as null."""
    if isinstance(value, dict):
        return {key: plain(part) for key, part in value.items()}
    if isinstance(value, Tensor):
        return plain(value.tolist())
    if isinstance(value, list):
        return [plain(part) for part in value]
    if isinstance(value, float):
        return float(f"{value:.6g}") if np.isfinite(value) else None
    return value
