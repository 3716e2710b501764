"""What the samples of a report are: how they are called, and how one of them is drawn."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..encoders import Inputs
from ..errors import ShapeError
from ..models import Model
from .texts import is_text, prepare_texts


@dataclass(frozen=True)
class Kind:
    """A sample's name, and that of several."""

    one: str
    many: str


IMAGES, FIELDS, TEXTS = Kind("image", "images"), Kind("field", "fields"), Kind("text", "texts")
SEQUENCES, CLOUDS = Kind("sequence", "sequences"), Kind("cloud", "point clouds")
GRAPHS, QUESTIONS, OTHERS = (
    Kind("graph", "graphs"),
    Kind("question", "questions"),
    Kind("sample", "samples"),
)


@dataclass(frozen=True, eq=False)
class Signal:
    """A sequence to be drawn: values (n, channels), NaN where nothing is, at times x (n,)."""

    x: np.ndarray
    values: np.ndarray


@dataclass(frozen=True, eq=False)
class Cloud:
    """Points to be drawn, (n, 2 or more): on the two axes along which they spread most."""

    points: np.ndarray

    def flat(self) -> np.ndarray:
        """The points on those two axes, (n, 2)."""
        axes = np.sort(np.argsort(-np.ptp(self.points, axis=0), kind="stable")[:2])
        return self.points[:, axes]


def encoder_config(model: Any) -> Any:
    """What a model of this library is told of its inputs; None of any other."""
    return model.config.encoder if isinstance(model, Model) else None


def kind_of(model: Any, inputs: Tensor | Inputs) -> Kind:
    """What a model's inputs are, from their type and shape and from the encoder that its
    configuration names.
    """
    data = getattr(encoder_config(model), "data", None)
    if isinstance(inputs, Inputs):
        return GRAPHS if "edges" in inputs else QUESTIONS if "tokens" in inputs else OTHERS
    if is_text(inputs):
        return TEXTS
    if inputs.dim() == 3:
        return CLOUDS if data == "points" else SEQUENCES
    return FIELDS if data == "field" else IMAGES


def prepare_samples(
    kind: Kind,
    model: Any,
    inputs: Any,
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
    texts: Sequence[str] | None = None,
) -> tuple[Any, list[Any] | None]:
    """(inputs of the model, what is shown of each: a picture, a text, a signal, a cloud; None where
    nothing can be).

    Raises:
        ShapeError: no samples, or shapes that no kind has.
    """
    if not len(inputs):
        raise ShapeError(f"a report needs at least one {kind.one}, got none")
    if kind is TEXTS:
        return inputs, prepare_texts(inputs, texts)
    if kind in (IMAGES, FIELDS):
        return prepare_pictures(inputs, mean, std)
    if kind is CLOUDS:
        return inputs, [Cloud(points) for points in inputs[..., :3].detach().float().cpu().numpy()]
    if kind is SEQUENCES:
        timed = bool(getattr(encoder_config(model), "timed", False))
        return inputs, [_signal(one, timed) for one in inputs.detach().float().cpu().numpy()]
    return inputs, None


def prepare_pictures(
    images: Tensor, mean: Sequence[float] | None, std: Sequence[float] | None
) -> tuple[Tensor, list[np.ndarray]]:
    """(inputs of the model, pictures (h, w, C) in [0, 1]) from uint8 pixels or from floats that are
    inputs already.

    Without ``mean`` and ``std`` the pictures of float images are stretched to their own range.

    Raises:
        ShapeError: no images (N, C, H, W), or a normalisation of another number of channels.
    """
    if images.dim() != 4 or not len(images):
        raise ShapeError(
            "inputs must be images (N, C, H, W), sequences or clouds (N, points, C), or token "
            "numbers (N, length), with at least "
            f"one sample; got {tuple(images.shape)}"
        )
    channels = images.shape[1]
    for name, value in (("mean", mean), ("std", std)):
        if value is not None and len(value) != channels:
            raise ShapeError(
                f"{name} has {len(value)} values and the images {channels} channels; they must be "
                "equal"
            )
    shift = torch.tensor(mean or [0.0] * channels, dtype=torch.float32).view(-1, 1, 1)
    scale = torch.tensor(std or [1.0] * channels, dtype=torch.float32).view(-1, 1, 1)
    if not images.is_floating_point():
        plain = images.float() / 255
        inputs = (plain - shift) / scale
    else:
        inputs = images
        plain = images.detach().float().cpu() * scale + shift
        if mean is None or std is None:
            low, high = plain.amin((1, 2, 3), keepdim=True), plain.amax((1, 2, 3), keepdim=True)
            plain = (plain - low) / (high - low).clamp(min=1e-9)
    return inputs, list(plain.clamp(0, 1).cpu().permute(0, 2, 3, 1).numpy())


def _signal(one: np.ndarray, timed: bool) -> Signal:
    x = one[:, 0] if timed else np.arange(len(one), dtype=np.float32)
    values = one[:, 1:] if timed else one
    there = ~np.isnan(values).all(1) & ~np.isnan(x)
    last = int(there.nonzero()[0].max(initial=0)) + 1
    return Signal(x[:last], values[:last])
