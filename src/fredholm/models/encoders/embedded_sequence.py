"""Sequences of numbers as features of the model's width."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ...configuration import check_counts, check_positive, options_of
from ...domain import Domain
from ...errors import OptionError
from ...integral import FourierFeatures
from .encoder import Encoder, register_encoder
from .sequence import SequenceEncoder, SequenceInputs
from .windows import standardised, windows


@register_encoder("sequence")
@dataclass(frozen=True)
class SequenceConfig(SequenceInputs):
    """Sequences of numbers, embedded; see :class:`EmbeddedSequence`.

    Attributes:
        channels, length: values per point, and points of a training sequence.
        timed: whether times come first.
        spacing: of a regular sequence, steps of training between two samples; 1 beside ``timed``.
        causal: a point sees those up to its own.
        patch: training samples per point; only for a regular sequence that is not causal.
        standard: whether each sequence is standardised and its scale added to the features of its
            points; only for sequences that are not causal.
        frequencies, sigma: of the positions.
    """

    own = ("patch",)

    channels: int = 1
    length: int = 784
    timed: bool = False
    spacing: float = 1.0
    causal: bool = False
    patch: int = 1
    standard: bool = False
    frequencies: int | None = None
    sigma: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check_counts(self, "channels", "length", "patch", "frequencies")
        check_positive(self, "spacing", "sigma")
        check_whole(
            self.patch,
            self.standard,
            timed=self.timed,
            causal=self.causal,
        )

    def build(
        self,
        dim: int | None,
        *,
        dropout: float = 0.0,
        class_token: bool = False,
    ) -> EmbeddedSequence:
        assert dim is not None
        return EmbeddedSequence(dim=dim, dropout=dropout, **options_of(self))

    @property
    def pools(self) -> tuple[str, ...]:
        # A sample in a patch has no answer of its own.
        if self.patch > 1:
            return ("mean", "points", "last")
        return SequenceInputs.pools

    @property
    def points(self) -> int:
        return math.ceil(self.length / self.patch)


def check_whole(patch: int, standard: bool, **given: Any) -> None:
    """Refuse patches, or a scale of the sequence, where later samples are not known yet.

    Raises:
        OptionError: naming what excludes them.
    """
    refused = [name for name in ("timed", "causal") if given.get(name)]
    if patch > 1 and refused:
        raise OptionError(
            f"patch: expected 1 beside {refused[0]}=True, got {patch}; larger patches are for "
            "regular sequences without causal order"
        )
    if standard and given.get("causal"):
        raise OptionError(
            "standard: expected False beside causal=True, got True; the scale of a sequence "
            "reveals its later samples"
        )


class EmbeddedSequence(Encoder):
    r"""Samples of a sequence as features of width D: :math:`E\,u_i + P\,\gamma(t_i)`; times in
    units of a training sequence.

    With ``patch`` P, the P training samples from kP on form the k-th point, like the patches of a
    picture: :math:`E\,(u_{kP}, \dots, u_{kP+P-1}) + P\,\gamma(kP / L)`, ⌈N/P⌉ points with a mass
    of one. Samples that are missing, or that another ``spacing`` omits, are interpolated linearly
    between their neighbours (:func:`.windows.windows`); a patch without any sample is
    not a point. With ``standard`` each sequence is standardised, and every point receives its
    scale, :math:`E\,(u_i, m, \log s)` (:func:`.windows.standardised`), so that series of
    very different size are distinguished by their shape.

    Args:
        dim: D.
        channels, length, spacing: see :class:`fredholm.encoders.SequenceEncoder`.
        patch: P.
        standard: see above.
        frequencies, sigma: of γ.
        dropout: after the embedding.
        options: of :class:`fredholm.encoders.SequenceEncoder`.

    Shape: sequences as :class:`fredholm.encoders.SequenceEncoder` takes them, to (B, ⌈N/P⌉, dim)
    and their domain.

    Raises:
        OptionError: patches of a sequence with individual times, or in causal order, where a patch
            would contain later samples.

    Reference: Nie et al., A time series is worth 64 words, 2023, for the patches.

    Example:
        >>> EmbeddedSequence(channels=2, dim=8, length=5)(torch.zeros(3, 5, 2))[0].shape
        torch.Size([3, 5, 8])
        >>> EmbeddedSequence(channels=2, dim=8, length=5, patch=2)(torch.zeros(3, 5, 2))[0].shape
        torch.Size([3, 3, 8])
    """

    position_dim = 1
    axis = 1

    def __init__(
        self,
        *,
        dim: int,
        channels: int,
        length: int,
        spacing: float = 1.0,
        patch: int = 1,
        standard: bool = False,
        frequencies: int = 16,
        sigma: float = 3.0,
        dropout: float = 0.0,
        **options: Any,
    ):
        super().__init__()
        check_whole(patch, standard, **options)
        self.dim = dim
        self.patch = patch
        self.spacing = spacing
        self.standard = standard
        # A sequence's scale is a mean and a deviation per channel.
        facts = 0
        if standard:
            facts = 2 * channels
        if patch > 1:
            # Windows are points one step apart, whatever the spacing of their samples.
            channels *= patch
            length = math.ceil(length / patch)
            spacing = 1.0
        self.samples = SequenceEncoder(
            channels=channels,
            length=length,
            spacing=spacing,
            mask="point",
            fill_gaps=False,
            **options,
        )
        width = self.samples.dim + facts
        self.embed = nn.Linear(width, dim)
        self.fourier = FourierFeatures(1, frequencies, sigma)
        self.position = nn.Linear(2 * frequencies, dim, bias=False)
        self.dropout = nn.Dropout(dropout)
        nn.init.xavier_uniform_(self.embed.weight)
        nn.init.zeros_(self.embed.bias)
        nn.init.trunc_normal_(self.position.weight, std=0.02)

    def forward(self, sequences: Float[Tensor, "b n c"]) -> tuple[Float[Tensor, "b m d"], Domain]:
        facts = None
        if self.standard:
            # Times, where there are any, come first and keep their scale.
            times, values = sequences.tensor_split([int(self.samples.timed)], -1)
            values, facts = standardised(values)
            sequences = torch.cat([times, values], -1)
        if self.patch > 1:
            sequences = windows(sequences, self.patch, self.spacing)
        samples, domain = self.samples(sequences)
        if facts is not None:
            columns = facts[:, None].expand(-1, samples.shape[1], -1)
            samples = torch.cat([samples, columns], -1)
        return self._embedded(samples, domain)

    def part(self, inputs: Float[Tensor, "b n c"], mesh: Any) -> tuple[Tensor, Domain]:
        if self.patch > 1 or self.standard:
            self.refuse_part("patches are filled from their neighbours, scales are of all samples")
        samples, domain = self.samples.part(inputs, mesh)
        return self._embedded(samples, domain)

    def _embedded(self, samples: Tensor, domain: Domain) -> tuple[Tensor, Domain]:
        features = self.embed(samples)
        features = self.with_positions(features, domain.positions)
        return self.dropout(features), domain
