"""Sequences of numbers as features of the model's width."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from jaxtyping import Float
from torch import Tensor, nn

from ..configuration import check_counts, check_positive, given
from ..domain import Domain
from ..integral import FourierFeatures
from .encoder import Encoder, register_encoder
from .sequence import SequenceEncoder, SequenceInputs


@register_encoder("sequence")
@dataclass(frozen=True)
class SequenceConfig(SequenceInputs):
    """Sequences of numbers, embedded; see :class:`EmbeddedSequence`.

    Attributes:
        channels, length: values per point, and points of a training sequence.
        timed: whether times come first.
        spacing: of a regular sequence, steps of training between two samples.
        causal: a point sees those up to its own.
        frequencies, sigma: of the positions.
    """

    channels: int = 1
    length: int = 784
    timed: bool = False
    spacing: float = 1.0
    causal: bool = False
    frequencies: int | None = None
    sigma: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check_counts(self, "channels", "length", "frequencies")
        check_positive(self, "spacing", "sigma")

    def build(
        self, dim: int | None, *, dropout: float = 0.0, class_token: bool = False
    ) -> EmbeddedSequence:
        assert dim is not None
        return EmbeddedSequence(
            channels=self.channels,
            length=self.length,
            timed=self.timed,
            spacing=self.spacing,
            causal=self.causal,
            dim=dim,
            dropout=dropout,
            **given(self, "frequencies", "sigma"),
        )


class EmbeddedSequence(Encoder):
    r"""Samples of a sequence as features of width D: :math:`E\,u_i + P\,\gamma(t_i)`; times in
    units of a training sequence.

    Shape: sequences as :class:`fredholm.encoders.SequenceEncoder` takes them, to (B, N, dim) and
    their domain.

    Example:
        >>> EmbeddedSequence(channels=2, dim=8, length=5)(torch.zeros(3, 5, 2))[0].shape
        torch.Size([3, 5, 8])
    """

    position_dim, axis = 1, 1

    def __init__(
        self,
        *,
        dim: int,
        frequencies: int = 16,
        sigma: float = 3.0,
        dropout: float = 0.0,
        **options: Any,
    ):
        super().__init__()
        self.dim = dim
        self.samples = SequenceEncoder(mask="point", fill_gaps=False, **options)
        self.embed = nn.Linear(self.samples.dim, dim)
        self.fourier = FourierFeatures(1, frequencies, sigma)
        self.position = nn.Linear(2 * frequencies, dim, bias=False)
        self.dropout = nn.Dropout(dropout)
        nn.init.xavier_uniform_(self.embed.weight)
        nn.init.zeros_(self.embed.bias)
        nn.init.trunc_normal_(self.position.weight, std=0.02)

    def forward(self, sequences: Float[Tensor, "b n c"]) -> tuple[Float[Tensor, "b n d"], Domain]:
        return self._embedded(*self.samples(sequences))

    def part(self, inputs: Float[Tensor, "b n c"], mesh: Any) -> tuple[Tensor, Domain]:
        return self._embedded(*self.samples.part(inputs, mesh))

    def _embedded(self, samples: Tensor, domain: Domain) -> tuple[Tensor, Domain]:
        position = self.position(self.fourier(domain.positions).to(self.position.weight.dtype))
        return self.dropout(self.embed(samples) + position), domain
