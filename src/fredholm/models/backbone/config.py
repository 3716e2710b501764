"""Configuration of the backbone and its named sizes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from ...errors import OptionError
from ..checks import (
    check_counts,
    check_heads,
    check_known,
    check_patch,
    check_rates,
    check_ratio,
    image_sides,
)

ENCODERS = ("image", "points", "text", "sequence", "field")
HEADS = ("pooled", "every")


@dataclass(frozen=True)
class BackboneConfig:
    """Residual blocks around any registered operator or baseline, over images, point clouds, texts,
    sequences of numbers or fields.

    Attributes:
        encoder: ``image``, ``points``, ``text``, ``sequence`` or ``field`` (numbers on a grid, to
            numbers at every point of it); the fields of the others play no role.
        image_size, patch: of an image, and the side of a patch, in pixels.
        channels: of an image, a sequence or a field; coordinates of a point.
        vocabulary, max_length: token numbers of a text, and how many of them are one unit of
            position.
        length, timed, spacing: of a sequence, see :class:`fredholm.encoders.SequenceEncoder`.
        causal: a point sees those up to its own; of texts and sequences.
        num_classes: outputs; 1 for a regression.
        head: ``pooled``, one output a sample: the mean over points, or the last one where
            ``causal``; ``every``: one a point, as always of a field.
        dim, depth, heads: width d, layers L, heads H.
        operator: a registered operator, or one of :func:`fredholm.models.list_baselines`.
        operator_options: its further options; what the data say (``position_dim``, ``length``) is
            set by the model.
        mlp_ratio: expansion of the feed-forward networks.
        dropout: after operators, inside feed-forward networks and after the embedding.
        frequencies, sigma: of the encoder's Fourier features.
    """

    encoder: str = "image"
    image_size: tuple[int, int] | list[int] | int = (28, 28)
    patch: int = 4
    channels: int = 1
    vocabulary: int = 257
    max_length: int = 256
    length: int = 784
    timed: bool = False
    spacing: float = 1.0
    causal: bool = False
    num_classes: int = 10
    head: str = "pooled"
    dim: int = 32
    depth: int = 2
    heads: int = 2
    operator: str = "softmax"
    operator_options: dict[str, Any] = field(default_factory=dict)
    mlp_ratio: float = 2.0
    dropout: float = 0.0
    frequencies: int = 16
    sigma: float = 3.0

    def __post_init__(self) -> None:
        size = image_sides(self.image_size)
        object.__setattr__(self, "image_size", size)
        check_known(self, encoder=ENCODERS, head=HEADS)
        counts = (
            "patch",
            "channels",
            "vocabulary",
            "max_length",
            "length",
            "num_classes",
            "dim",
            "depth",
            "heads",
        )
        check_counts((name, getattr(self, name)) for name in counts)
        check_heads(self.dim, self.heads)
        check_rates(self, "dropout")
        check_ratio(self.mlp_ratio)
        if self.encoder == "image":
            check_patch(size, self.patch)
        if self.causal and self.encoder in ("image", "points", "field"):
            raise OptionError(
                f"causal: received True for {self.encoder}, which have no order; needs False"
            )

    @property
    def points(self) -> int:
        """Points of one training input: patches, tokens, samples; of a cloud 1,024, of a field 16 x
        16.
        """
        if self.encoder == "image":
            size: Any = self.image_size
            return size[0] * size[1] // self.patch**2
        return {"points": 1024, "field": 256, "text": self.max_length, "sequence": self.length}[
            self.encoder
        ]

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Shape of one input the model is built for: (C, H, W), (N, p), (N,) of a text, (N, C), or
        (C, 16, 16) of a field.
        """
        if self.encoder == "image":
            size: Any = self.image_size
            return (self.channels, *size)
        if self.encoder == "text":
            return (self.max_length,)
        if self.encoder == "field":
            return self.channels, 16, 16
        return self.points, self.channels + (self.timed and self.encoder == "sequence")


PRESETS = {
    "backbone_nano": lambda: BackboneConfig(),
    "backbone_micro": lambda: BackboneConfig(dim=64, depth=3, heads=4, mlp_ratio=4.0),
}
