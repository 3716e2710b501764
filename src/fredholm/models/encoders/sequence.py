"""Sequences of numbers as signals in time: regular, at another rate, or with timestamps of their
own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from ...configuration import check_counts, check_known, check_name, check_positive, options_of
from ...distributed import Shards, concatenated
from ...domain import Domain
from ...errors import OptionError, ShapeError
from ...ops.backend import at_least_single
from .encoder import Axis, Encoder, EncoderConfig, register_encoder

MASKS = ("none", "point", "channel")


class SequenceInputs(EncoderConfig):
    """Base of configurations of encoders of sequences."""

    of_data = ("channels", "length", "timed")
    pools = ("mean", "points", "last", "every")

    channels: int
    length: int
    timed: bool
    spacing: float
    causal: bool

    def __post_init__(self) -> None:
        super().__post_init__()
        check_spacing(self.spacing, self.timed)

    @property
    def points(self) -> int:
        return self.length

    @property
    def input_shape(self) -> tuple[int, ...]:
        return (self.length, self.channels + self.timed)

    @property
    def axes(self) -> tuple[Axis, ...]:
        return (Axis(1, "length"),)

    def example(self, shape: Sequence[int], generator: torch.Generator) -> Tensor:
        values = torch.randn(*shape, generator=generator)
        if self.timed:
            steps = torch.rand(*shape[:2], generator=generator) + 0.1
            values[..., 0] = steps.cumsum(1)
        # The last sample has padding at its end.
        values[-1, -1] = torch.nan
        return values


def check_spacing(spacing: float, timed: bool) -> None:
    """Refuse a spacing beside times, which say where the samples lie.

    Raises:
        OptionError: a timed sequence with another spacing than 1.
    """
    if timed and spacing != 1:
        raise OptionError(
            f"spacing: expected 1 beside timed=True, got {spacing!r}; times say where samples lie: "
            "leave it out"
        )


@register_encoder("samples")
@dataclass(frozen=True)
class SampleConfig(SequenceInputs):
    """Sequences of numbers without an embedding, for convolutions; see :class:`SequenceEncoder`.

    Attributes:
        channels, length: values per point, and points of a training sequence.
        timed: whether times come first.
        spacing: of a regular sequence, steps of training between two samples; 1 beside ``timed``.
        step: of times, their unit.
        causal: a point sees those up to its own.
        mask: ``none``, ``point`` or ``channel``: what marks missing values.
    """

    data = "sequence"
    own_width = True

    channels: int = 1
    length: int = 784
    timed: bool = False
    spacing: float = 1.0
    step: float | None = None
    causal: bool = True
    mask: str = "none"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_known(self, mask=MASKS)
        check_counts(self, "channels", "length")
        check_positive(self, "spacing", "step")

    @classmethod
    def idle(cls, given: Mapping[str, Any]) -> dict[str, str]:
        if given.get("timed"):
            return {}
        return {"step": "timed=False"}

    def build(
        self,
        dim: int | None,
        *,
        dropout: float = 0.0,
        class_token: bool = False,
    ) -> SequenceEncoder:
        return SequenceEncoder(**options_of(self))


class SequenceEncoder(Encoder):
    r"""Samples as points of a time axis, with their values as features. The unit of time is the
    length of a training sequence.

    Missing values are NaN. The samples of a regular sequence lie at 0, spacing, 2·spacing, … steps
    of training; a sample without any value is not a point (padding at the end, a gap elsewhere). A
    ``timed`` sequence has its times in the first channel. A sample without a time is padding; one
    with a time and without values is a missing observation: zero, and marked by ``mask``. The mass
    of a point is the time that it represents, in training steps, so that sums over other rates or
    irregular samples keep their size. A grid with lost samples therefore gives the same result in
    two forms: with gaps of NaN (by FFT), and without the gaps but with times.

    Args:
        channels: values of a point.
        length: L, steps of a training sequence.
        spacing: of a regular sequence, steps of training between two samples: 2 at half the rate,
            any positive number.
        timed: times come first, in units where a step of training is ``step``.
        step: see ``timed``.
        causal: a point sees itself and earlier points.
        fill_gaps: whether the time of a gap in a regular sequence is assigned to its neighbours.
            Otherwise every point has the mass of one sample, as recurrences require.
        mask: ``point`` appends a channel that is 1 where any value is present, ``channel`` one for
            each channel.

    Shape: sequences (B, N, C), with times (B, N, 1 + C), to features (B, N, C + masks) and a domain
    of N points.

    Raises:
        OptionError: an unknown mask, a size that is not positive, or a ``spacing`` beside
            ``timed``.
        ShapeError: sequences of other channels.

    Reference: CKConv §4.1, App. A, E.1-E.2.

    Example:
        >>> sequences = torch.tensor([[[0.0, 5.0], [1.5, 7.0], [float("nan"), float("nan")]]])
        >>> features, domain = SequenceEncoder(channels=1, length=10, timed=True)(sequences)
        >>> features.flatten().tolist(), domain.valid.tolist(), domain.measure.tolist()
        ([5.0, 7.0, 0.0], [[True, True, False]], [[1.0, 1.5, 0.0]])
    """

    position_dim = 1
    axis = 1

    def __init__(
        self,
        *,
        channels: int,
        length: int,
        spacing: float = 1.0,
        timed: bool = False,
        step: float = 1.0,
        causal: bool = True,
        fill_gaps: bool = True,
        mask: str = "none",
    ):
        super().__init__()
        check_name("mask", mask, MASKS)
        sizes = {
            "channels": channels,
            "length": length,
            "spacing": spacing,
            "step": step,
        }
        for name, value in sizes.items():
            # NaN is not positive either.
            if not value > 0:
                raise OptionError(f"{name}: expected a number above 0, got {value!r}")
        check_spacing(spacing, timed)
        self.channels = channels
        self.length = length
        self.spacing = spacing
        self.step = step
        self.timed = timed
        self.causal = causal
        self.fill_gaps = fill_gaps
        self.mask = mask
        marks = {
            "none": 0,
            "point": 1,
            "channel": channels,
        }
        self.dim = channels + marks[mask]

    def forward(self, sequences: Float[Tensor, "b n c"]) -> tuple[Float[Tensor, "b n d"], Domain]:
        features, places = self._read(sequences)
        return features, self._domain(places)

    def part(self, inputs: Float[Tensor, "b n c"], mesh: Any) -> tuple[Tensor, Domain]:
        features, places = self._read(inputs)
        shards = Shards.of_parts(mesh, inputs.shape[1])
        # A point's mass depends on the other points: every rank makes the complete domain, from one
        # number per point.
        complete = self._domain(concatenated(places, shards, 1))
        return features, complete.shard(mesh, sizes=shards.sizes)

    def _read(self, sequences: Tensor) -> tuple[Tensor, Tensor]:
        """Return features (B, N, D), and the places of the points (B, N): their times, or of a
        regular sequence 1 where a point is present.
        """
        need = self.channels + self.timed
        if sequences.dim() != 3 or sequences.shape[-1] != need or sequences.shape[1] < 1:
            first = ""
            if self.timed:
                first = "times and "
            raise ShapeError(
                f"sequences: expected shape (B, N, {need}), {first}{self.channels} channels, got "
                f"{tuple(sequences.shape)}; reshape them"
            )
        values = sequences
        if self.timed:
            values = sequences[..., 1:]
        known = ~values.isnan()
        present = known.any(-1)
        present = present.to(values.dtype)
        features = torch.where(known, values, 0.0)
        if self.mask == "point":
            features = torch.cat([features, present[..., None]], -1)
        elif self.mask == "channel":
            known = known.to(values.dtype)
            features = torch.cat([features, known], -1)
        if self.timed:
            return features, sequences[..., 0]
        return features, present

    def _domain(self, places: Tensor) -> Domain:
        if self.timed:
            return self._times(places)
        return self._line(places)

    def _line(self, places: Tensor) -> Domain:
        dtype = at_least_single(places.dtype)
        options: Any = {"device": places.device, "dtype": dtype}
        batch, n = places.shape
        present = places > 0
        length = self.length / self.spacing
        line = Domain.line(
            n,
            length=length,
            causal=self.causal,
            measure="counting",
            **options,
        )
        line = line.replace(valid=present)
        mass = line.measure
        if self.fill_gaps:
            # The cells of points at 0, 1, 2, …, of which those beside a gap reach into it.
            index = torch.arange(n, **options)
            index = index.expand(batch, n)
            steps = Domain.timestamps(index, causal=self.causal, valid=present)
            mass = steps.measure
        elif self.spacing == 1:
            return line
        mass = mass * self.spacing
        return line.replace(measure=mass, kind="spacing")

    def _times(self, times: Tensor) -> Domain:
        # Masses are differences of the times as they came: divided before, they would be rounded.
        real = ~times.isnan()
        domain = Domain.timestamps(
            times,
            step=self.step,
            causal=self.causal,
            valid=real,
        )
        length = self.length * self.step
        positions = domain.positions / length
        return domain.replace(positions=positions)

    def extra_repr(self) -> str:
        size = f"channels={self.channels}, length={self.length}"
        return f"{size}, timed={self.timed}, mask={self.mask!r}"
