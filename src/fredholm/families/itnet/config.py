"""Configuration of ITNet."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from ...errors import OptionError
from ...models.checks import (
    check_counts,
    check_heads,
    check_known,
    check_patch,
    check_rates,
    check_ratio,
    image_sides,
)

ENCODERS = ("image", "points", "text", "graph", "multimodal", "field")


@dataclass(frozen=True)
class ITNetConfig:
    """A model of images, point clouds, texts, graphs, pictures with questions, or fields: residual
    blocks around any operator.

    Attributes:
        encoder: ``image``, ``points``, ``text``, ``graph``, ``multimodal`` (a picture and a text)
            or ``field`` (values on a grid, and as many answers). A text has ``vocabulary`` token
            numbers of which ``max_length`` are one unit of position. Fields of other encoders play
            no role.
        image_size: height and width the model is built for (other sizes work where the patch
            divides them).
        patch: patch side in pixels, or (height, width).
        scales: of images, two or more patch sizes in one domain instead of ``patch``.
        position_dim: of points, how many of the channels are coordinates (default all).
        point_features: ``raw`` or ``fourier``; ``neighbours``: k of the local pre-extraction, 0 for
            none.
        node_tokens: whether a graph's nodes are bags of tokens, rather than ``channels`` numbers.
        eigenvectors, off_edges: of graphs, see :class:`fredholm.encoders.GraphEncoder`.
        measure: of pictures with questions ``balanced`` (default), ``uniform`` or the picture's
            share; of several scales ``uniform`` (default) or ``balanced``.
        views: pictures of one sample, each joined with its text; their read-outs are concatenated.
        channels, num_classes: of input and output.
        dim, depth, heads: width d, layers L, heads H.
        operator: a registered operator's name.
        operator_options: its further options; ``position_dim`` is set by the encoder.
        mlp_ratio: expansion of the feed-forward networks.
        dropout: after operators, inside feed-forward networks and after the embedding.
        drop_path: stochastic depth of the last block; it grows linearly from 0.
        pool: ``mean`` or ``cls``; of text also ``last``, or ``every``: logits at every token; of
            graphs ``mean``, ``first`` (the node in question) or ``every``. A field is answered at
            every point, clouds and several scales are averaged.
        causal: of text, a token reads those before it and itself.
        frequencies, sigma: of the encoder's Fourier features.
    """

    encoder: str = "image"
    image_size: tuple[int, int] | list[int] | int = (28, 28)
    patch: int | tuple[int, int] | list[int] = 4
    channels: int = 1
    num_classes: int = 10
    dim: int = 64
    depth: int = 3
    heads: int = 4
    operator: str = "itnet"
    operator_options: dict[str, Any] = field(default_factory=dict)
    mlp_ratio: float = 4.0
    dropout: float = 0.1
    drop_path: float = 0.0
    pool: str = "mean"
    frequencies: int = 64
    sigma: float = 10.0
    vocabulary: int = 257
    max_length: int = 256
    causal: bool = False
    scales: tuple[int, ...] | list[int] = ()
    position_dim: int | None = None
    point_features: str = "raw"
    neighbours: int = 0
    node_tokens: bool = False
    eigenvectors: int = 8
    off_edges: str = "learned"
    measure: str | float | None = None
    views: int = 1

    def __post_init__(self) -> None:
        size = image_sides(self.image_size)
        object.__setattr__(self, "image_size", size)
        object.__setattr__(self, "scales", tuple(self.scales))
        patch = image_sides(self.patch)
        if not isinstance(self.patch, int):
            object.__setattr__(self, "patch", patch)
        sizes = (
            "channels",
            "num_classes",
            "dim",
            "depth",
            "heads",
            "vocabulary",
            "max_length",
            "eigenvectors",
            "views",
        )
        given = [("patch", side) for side in patch] + [("scales", side) for side in self.scales]
        check_counts(given + [(name, getattr(self, name)) for name in sizes])
        check_rates(self, "dropout", "drop_path")
        check_ratio(self.mlp_ratio)
        check_known(self, encoder=ENCODERS)
        if self.views > 1 and self.encoder != "multimodal":
            raise OptionError(
                f"views: received {self.views}; only pictures with a text come in several views"
            )
        if self.causal and self.encoder != "text":
            raise OptionError(f"causal: a text has an order, {self.encoder!r} has none")
        check_heads(self.dim, self.heads)
        if self.encoder in ("image", "multimodal"):
            for part in self.scales or [patch]:
                check_patch(size, part)

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Shape of one input the model is built for: (C, H, W), 1,024 points (N, p), or the longest
        text (N,).

        Raises:
            OptionError: an input of several tensors.
        """
        if self.encoder in ("graph", "multimodal"):
            raise OptionError(
                f"input_shape: a {self.encoder} input is several tensors, see "
                "fredholm.encoders.Inputs"
            )
        if self.encoder == "text":
            return (self.max_length,)
        if self.encoder == "points":
            return 1024, self.channels
        size: Any = self.image_size
        return self.channels, *size
