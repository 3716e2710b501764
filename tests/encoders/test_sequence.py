"""Sequences as signals in time: rates, timestamps, padding, what is missing."""

from __future__ import annotations

import pytest
import torch

from fredholm.encoders import SequenceEncoder
from fredholm.errors import OptionError, ShapeError
from fredholm.models import read_out

from ..tolerances import assert_close

NAN = float("nan")


def test_a_regular_sequence_stands_on_the_training_line():
    encoder = SequenceEncoder(channels=2, length=8)
    sequences = torch.randn(3, 5, 2)
    sequences[1, 3:] = NAN
    features, domain = encoder(sequences)
    assert domain.shape == (5,)
    assert domain.causal
    assert_close(domain.positions[:, 0], torch.arange(5) / 8)
    assert_close(domain.measure, domain.valid.float())
    assert domain.valid.sum(1).tolist() == [5, 3, 5]
    assert (features[1, 3:] == 0).all()
    assert_close(read_out(features, domain, "last")[1], sequences[1, 2])


@pytest.mark.parametrize("spacing", [0.5, 1.5, 2.0])
def test_another_rate_keeps_positions_and_mass(spacing):
    _, domain = SequenceEncoder(channels=1, length=8, spacing=spacing)(torch.zeros(1, 4, 1))
    assert_close(domain.positions[:, 0], torch.arange(4) * spacing / 8)
    assert_close(domain.measure, torch.full((1, 4), spacing))
    assert domain.shape == (4,)


def test_timestamps_of_the_training_grid_give_the_same_integral():
    line, timed = (
        SequenceEncoder(channels=1, length=8),
        SequenceEncoder(channels=1, length=8, timed=True, step=0.1),
    )
    values = torch.randn(2, 6, 1)
    times = (torch.arange(6) * 0.1).expand(2, 6)[..., None]
    regular, irregular = line(values)[1], timed(torch.cat([times, values], -1))[1]
    assert_close(irregular.positions, regular.positions.expand(2, -1, -1))
    assert_close(irregular.measure, regular.measure)


@pytest.mark.parametrize("causal", [True, False])
def test_gaps_stand_for_the_time_around_them(causal):
    """What is lost from a grid leaves its time to its neighbours, as samples with timestamps have
    it.
    """
    options = {"channels": 1, "length": 8, "causal": causal}
    values = torch.randn(2, 7, 1)
    values[0, [0, 3, 4]], values[1, 5:] = NAN, NAN
    _, domain = SequenceEncoder(**options, spacing=2.0)(values)
    expected = (
        [[0, 2, 2, 0, 0, 6, 2], [2, 2, 2, 2, 2, 0, 0]]
        if causal
        else [[0, 2, 4, 0, 0, 4, 2], [2, 2, 2, 2, 2, 0, 0]]
    )
    assert domain.measure.tolist() == expected
    assert (domain.shape, domain.kind) == ((7,), "spacing"), "still a grid"
    _, left = SequenceEncoder(**options, fill_gaps=False)(values)
    assert (left.measure.tolist(), left.kind) == ([1] * 7, "counting")


def test_what_is_missing_is_zero_and_marked():
    sequences = torch.tensor([[[0.0, 1.0, 2.0], [1.0, NAN, 3.0], [2.5, NAN, NAN], [NAN, NAN, NAN]]])
    features, domain = SequenceEncoder(channels=2, length=4, timed=True, mask="channel")(sequences)
    assert features[0].tolist() == [[1, 2, 1, 1], [0, 3, 0, 1], [0, 0, 0, 0], [0, 0, 0, 0]]
    assert domain.valid.tolist() == [[True, True, True, False]]
    assert_close(domain.measure, torch.tensor([[1.0, 1.0, 1.5, 0.0]]))
    features, _ = SequenceEncoder(channels=2, length=4, timed=True, mask="point")(sequences)
    assert features[0, :, 2].tolist() == [1, 1, 0, 0]


def test_nothing_at_all_reads_out_as_zero():
    encoder = SequenceEncoder(channels=1, length=4)
    features, domain = encoder(torch.full((2, 3, 1), NAN))
    assert read_out(features, domain, "last").tolist() == [[0.0], [0.0]]
    assert read_out(features, domain.replace(valid=None), "last").shape == (2, 1)


def test_refusals():
    with pytest.raises(OptionError, match="did you mean 'point'"):
        SequenceEncoder(channels=1, length=4, mask="points")
    with pytest.raises(OptionError, match="spacing: received 0"):
        SequenceEncoder(channels=1, length=4, spacing=0)
    with pytest.raises(ShapeError, match=r"\(B, N, 3\), times and 2 channels; got \(1, 5, 2\)"):
        SequenceEncoder(channels=2, length=4, timed=True)(torch.zeros(1, 5, 2))
    with pytest.raises(ShapeError, match="got \\(1, 0, 1\\)"):
        SequenceEncoder(channels=1, length=4)(torch.zeros(1, 0, 1))
