"""Configuration of the CKCNN."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from ...errors import OptionError
from ...models.checks import check_counts, check_known, check_rates, image_sides

ENCODERS = ("sequence", "text", "image")
HEADS = ("last", "every", "mean")
NORMS = ("paper", "released")


@dataclass(frozen=True)
class CKCNNConfig:
    r"""Residual blocks of two continuous kernel convolutions each, over sequences, texts or images.

    Attributes:
        encoder: ``sequence`` of numbers, ``text`` (token numbers, embedded) or ``image`` (pixels of
            a grid, kernels of two dimensions).
        channels, length: values per point, and points of a training sequence: the kernels' extent.
        num_classes: outputs; 1 for a regression.
        timed, spacing, step, mask: of sequences, see :class:`fredholm.encoders.SequenceEncoder`.
            ``spacing`` and ``step`` change no weight.
        vocabulary, max_length, embedding: of texts: token numbers, the length of a training text,
            and the width of their embedding.
        image_size: of images; their kernels are centred.
        widths: channels of each block.
        causal: a point sees those before it and itself; images have no order.
        head: ``last`` point, ``every`` point, or the ``mean`` over points, then a linear layer.
        tied: of a text, the head's matrix is the embedding.
        norm: ``paper``: layer norm over the channels of each point; ``released``: the authors'
            code, one norm over all channels and points, which tells every point of the future and
            is refused where ``causal``.
        operator, operator_options: the convolution and its further options: ``omega``, ``width``,
            ``activation``, ``preset``, …
        dropout, input_dropout: after every activation, and after the input or embedding.
    """

    encoder: str = "sequence"
    channels: int = 1
    length: int = 784
    num_classes: int = 10
    timed: bool = False
    spacing: float = 1.0
    step: float = 1.0
    mask: str = "none"
    vocabulary: int = 50
    max_length: int = 1024
    embedding: int = 100
    image_size: tuple[int, int] | list[int] | int = (28, 28)
    widths: Any = (30, 30)
    causal: bool = True
    head: str = "last"
    tied: bool = False
    norm: str = "paper"
    operator: str = "ckconv"
    operator_options: dict[str, Any] = field(default_factory=dict)
    dropout: float = 0.0
    input_dropout: float = 0.0

    def __post_init__(self) -> None:
        size = image_sides(self.image_size)
        object.__setattr__(self, "image_size", size)
        object.__setattr__(self, "widths", tuple(self.widths))
        check_known(self, encoder=ENCODERS, head=HEADS, norm=NORMS)
        whole = ("channels", "length", "num_classes", "vocabulary", "max_length", "embedding")
        counts = [(name, getattr(self, name)) for name in whole] + [
            ("widths", w) for w in self.widths or (0,)
        ]
        check_counts(counts)
        check_rates(self, "dropout", "input_dropout")
        self._check_together()

    def _check_together(self) -> None:
        if self.norm == "released" and self.ordered:
            raise OptionError(
                "norm: 'released' reads the whole sequence at every point; needs causal=False, or "
                "'paper'"
            )
        if self.encoder == "image" and self.head == "last":
            raise OptionError("head: an image has no last point; needs 'mean' or 'every'")
        if self.tied and (self.encoder != "text" or self.widths[-1] != self.embedding):
            raise OptionError("tied: needs encoder='text' and a last width equal to embedding")
        if self.tied and self.num_classes != self.vocabulary:
            raise OptionError(
                f"tied: num_classes {self.num_classes} must be the vocabulary, {self.vocabulary}"
            )

    @property
    def ordered(self) -> bool:
        """Whether the points have an order that the kernels respect."""
        return self.causal and self.encoder != "image"

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Shape of one input the model is built for: (N, C), (N,) of a text, or (C, H, W)."""
        size: Any = self.image_size
        if self.encoder == "image":
            return (self.channels, *size)
        return (
            (self.max_length,)
            if self.encoder == "text"
            else (self.length, self.channels + self.timed)
        )
