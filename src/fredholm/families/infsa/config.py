"""Configuration of InfViT."""

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

DEPTH_RULES = ("power", "constant", "accumulated")


@dataclass(frozen=True)
class InfViTConfig:
    r"""A pre-norm vision transformer around any registered operator.

    Attributes:
        image_size: height and width the model is built for; it takes any other whose sides the
            patch divides.
        patch: patch side in pixels.
        channels, num_classes: of input and output.
        dim, depth, heads: width d, layers L, heads H.
        operator: ``linear_infsa``, ``infsa``, ``softmax`` (the ViT of equal depth) or any
            registered operator.
        operator_options: its further options.
        depth_rule: what block l adds to the residual stream. ``power``: :math:`\gamma^l Z^{(l)}`,
            the paper's; ``constant``:
            :math:`\gamma Z^{(l)}`, as the released code does; ``accumulated``: as ``power``, and
            the class is read from
            :math:`S_L = \sum_l \gamma^l Z^{(l)}` instead of the stream, for any operator
            (:class:`fredholm.depth.Accumulation`). Operators without a γ, such as softmax, add Z in
            the first two.
        decay: γ, of operators that have one and of ``accumulated``.
        learned_decay: γ is learned: one per head, or one for all of ``accumulated``.
        mlp_ratio: expansion of the feed-forward networks.
        chunk: tokens that a feed-forward network computes at once, None for all: bounds memory,
            changes no weight.
        dropout: after operators, inside feed-forward networks and after the embedding.
        drop_path: stochastic depth of the last block; it grows linearly from 0 (``accumulated``: of
            all).
        pool: ``cls`` or ``mean``.
        positions: ``learned``, a table interpolated for other sizes, or ``fourier``, a function of
            the coordinates.
        frequencies, sigma: of ``fourier`` positions.

    Raises:
        OptionError: values out of range, or that do not fit one another.
    """

    image_size: tuple[int, int] | list[int] | int = (224, 224)
    patch: int = 16
    channels: int = 3
    num_classes: int = 1000
    dim: int = 768
    depth: int = 4
    heads: int = 64
    operator: str = "linear_infsa"
    operator_options: dict[str, Any] = field(default_factory=dict)
    depth_rule: str = "power"
    decay: float = 0.7
    learned_decay: bool = False
    mlp_ratio: float = 4.0
    chunk: int | None = None
    dropout: float = 0.0
    drop_path: float = 0.0
    pool: str = "cls"
    positions: str = "learned"
    frequencies: int = 64
    sigma: float = 10.0

    def __post_init__(self) -> None:
        size = image_sides(self.image_size)
        object.__setattr__(self, "image_size", size)
        counts = ("patch", "channels", "num_classes", "dim", "depth", "heads")
        check_counts((name, getattr(self, name)) for name in counts)
        check_rates(self, "dropout", "drop_path")
        check_ratio(self.mlp_ratio)
        check_known(self, depth_rule=DEPTH_RULES)
        check_heads(self.dim, self.heads)
        check_patch(size, self.patch)
        if not isinstance(self.decay, int | float) or not 0 < self.decay < 1:
            raise OptionError(f"decay is γ in (0, 1), got {self.decay!r}")
        if self.chunk is not None and (not isinstance(self.chunk, int) or self.chunk < 1):
            raise OptionError(
                "chunk is a number of tokens, 1 or more, or null for all at once, got "
                f"{self.chunk!r}"
            )
        for name in ("decay", "learned_decay", "power"):
            if name in self.operator_options:
                raise OptionError(
                    f"operator option {name!r}: InfViT sets it; give the model's decay, "
                    "learned_decay and depth_rule"
                )

    @property
    def encoder(self) -> str:
        """What the model reads: images."""
        return "image"

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Shape (C, H, W) of an image the model is built for."""
        size: Any = self.image_size
        return self.channels, *size
