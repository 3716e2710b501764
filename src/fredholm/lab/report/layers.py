"""Layers to be shown: an operator with its input, the names of its points, and its numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor

from ...domain import Domain
from ...explain.kernels import (
    class_token,
    image_grid,
    kernel_map,
    masses,
    output_points,
    take_samples,
)
from ..data.kinds.kind import SAMPLES, Kind

MAX_LAYERS = 8
# Of a map; more would be too small to read.
MAX_HEADS = 6

# Coordinates of points that can be drawn; one of three is left out.
DRAWABLE = 3


@dataclass(frozen=True, eq=False)
class Layer:
    """An operator and its input: features u (B, N, D) of B samples on a domain. Maps show the first
    sample.
    """

    name: str
    operator: Any
    u: Tensor
    domain: Domain

    @property
    def has_weights(self) -> bool:
        """Whether a pair has a scalar weight; else it is the norm of its kernel matrix."""
        return bool(self.operator.has_weights)


@dataclass(frozen=True)
class Axis:
    """How the points of the first sample are labelled where they are drawn along a line.

    Attributes:
        names: of the points in their order: words or columns; empty where points have no names.
        label: of the axis; "" for the usual label of the kind of data.
        unit: how many units of the label, such as seconds, one unit of the domain's coordinate is.
    """

    names: tuple[str, ...] = ()
    label: str = ""
    unit: float = 1.0

    def of(self, domain: Domain) -> list[str]:
        """Return one name per point of a domain, "" for points that have none.

        The class token, wherever it stands, has no name and is skipped. The other points take the
        names in turn. Padding follows the real points, so the names have run out when it comes.
        """
        token = class_token(domain)
        names = iter(self.names)
        result = []
        for point in range(domain.size):
            name = ""
            if point != token:
                name = next(names, "")
            result.append(name)
        return result


PLAIN = Axis()


@dataclass(frozen=True, eq=False)
class View:
    """What a page shows of some layers.

    Attributes:
        layers: one or more, the first sample of each being the one that is mapped.
        image: that sample as a picture (h, w, channels) in [0, 1], on which maps are laid; or None.
        kind: of the samples.
        axis: names of the points.
    """

    layers: Sequence[Layer]
    image: np.ndarray | None = None
    kind: Kind = SAMPLES
    axis: Axis = PLAIN

    @property
    def names(self) -> list[str]:
        return [layer.name for layer in self.layers]


def shown_layers(layers: Sequence[Layer]) -> list[Layer]:
    """Return up to :data:`MAX_LAYERS` of the layers that live on the first one's points, evenly
    spaced in depth.
    """
    # A model of several inputs has layers on the points of each.
    alike = [layer for layer in layers if layer.domain.size == layers[0].domain.size]
    places = np.linspace(0, len(alike) - 1, min(MAX_LAYERS, len(alike)))
    return [alike[i] for i in sorted({round(i) for i in places})]


def first_sample(domain: Domain) -> Domain:
    """Return the domain of the first sample."""
    return take_samples(domain, slice(0, 1))


def first_map(layer: Layer, queries: list[int]) -> Tensor:
    """Return the weights (H, queries, N) of some queries of a layer's first sample."""
    return kernel_map(layer.operator, layer.u[:1], first_sample(layer.domain), queries=queries)[0]


def output_places(layer: Layer) -> Tensor:
    """Return the positions (n, p) of a layer's output points."""
    return places_of(output_points(layer.operator, layer.domain))


def places_of(domain: Domain) -> Tensor:
    """Return the positions of the first sample's points, (N, p), in float64 on the CPU."""
    return domain.positions.detach().reshape(-1, domain.size, domain.dim)[0].double().cpu()


def real_points(domain: Domain) -> list[int]:
    """Return the first sample's points that have a mass: no padding and no class token."""
    return (masses(domain)[0] > 0).nonzero()[:, 0].tolist()


def count_points(domain: Domain) -> int:
    """Return the number of the first sample's points, without padding."""
    if domain.valid is None:
        return domain.size
    return int(domain.valid[0].sum())


def last_point(domain: Domain) -> int:
    """Return the number, from 1, of the first sample's last real point.

    Gaps count, such as the columns of an empty cell; padding at the end does not.
    """
    if domain.valid is None:
        return domain.size
    real = domain.valid[0].nonzero()[:, 0].tolist()
    return 1 + max(real, default=-1)


def layout_of(domain: Domain, axis: Axis) -> str:
    """Return how the points of a domain are drawn: ``"grid"``, ``"words"``, ``"line"`` or
    ``"points"``; "" if they have too many coordinates.
    """
    if image_grid(domain) is not None:
        return "grid"
    if any(axis.of(domain)):
        return "words"
    if domain.dim == 1:
        return "line"
    if domain.dim <= DRAWABLE:
        return "points"
    return ""


def plain(value: Any) -> Any:
    """Return tensors, and dictionaries and lists of them, as JSON can hold them: NaN becomes None,
    real numbers have six digits.
    """
    if isinstance(value, Tensor):
        value = value.tolist()
    if isinstance(value, dict):
        return {key: plain(part) for key, part in value.items()}
    if isinstance(value, list):
        return [plain(part) for part in value]
    if not isinstance(value, float):
        return value
    if not np.isfinite(value):
        return None
    return float(f"{value:.6g}")
