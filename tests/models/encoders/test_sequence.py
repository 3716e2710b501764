"""Sequences as signals in time: rates, timestamps, padding, missing values."""

from __future__ import annotations

import itertools
import math

import pytest
import torch

from fredholm.encoders import EmbeddedSequence, SampleConfig, SequenceConfig, SequenceEncoder
from fredholm.errors import OptionError, ShapeError
from fredholm.models import create_model, read_out
from fredholm.models.encoders.windows import standardised, windows

from ...tolerances import assert_close

NAN = float("nan")


def test_a_regular_sequence_has_the_positions_of_training():
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
def test_another_rate_scales_positions_and_mass(spacing):
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


def test_masses_of_a_long_regular_sequence_with_times_are_equal():
    """Masses are differences of the exact times; differences of scaled times would be off by a
    percent.
    """
    encoder = SequenceEncoder(channels=1, length=100_000, timed=True)
    sequence = torch.stack([torch.arange(100_000.0), torch.zeros(100_000)], -1)[None]
    _, domain = encoder(sequence)
    assert torch.equal(domain.measure, torch.ones(1, 100_000))
    assert domain.positions.max() < 1


@pytest.mark.parametrize("causal", [True, False])
def test_the_time_of_gaps_goes_to_their_neighbours(causal):
    """Missing samples of a grid leave their time to their neighbours, as with timestamps."""
    options = {"channels": 1, "length": 8, "causal": causal}
    values = torch.randn(2, 7, 1)
    values[0, [0, 3, 4]], values[1, 5:] = NAN, NAN
    _, domain = SequenceEncoder(**options, spacing=2.0)(values)
    first = [0, 2, 2, 0, 0, 6, 2] if causal else [0, 2, 4, 0, 0, 4, 2]
    assert domain.measure.tolist() == [first, [2, 2, 2, 2, 2, 0, 0]]
    assert (domain.shape, domain.kind) == ((7,), "spacing"), "still a grid"
    _, left = SequenceEncoder(**options, fill_gaps=False)(values)
    assert (left.measure.tolist(), left.kind) == ([1] * 7, "counting")


def test_missing_values_are_zero_and_masked():
    sequences = torch.tensor([[[0.0, 1.0, 2.0], [1.0, NAN, 3.0], [2.5, NAN, NAN], [NAN, NAN, NAN]]])
    features, domain = SequenceEncoder(channels=2, length=4, timed=True, mask="channel")(sequences)
    assert features[0].tolist() == [[1, 2, 1, 1], [0, 3, 0, 1], [0, 0, 0, 0], [0, 0, 0, 0]]
    assert domain.valid.tolist() == [[True, True, True, False]]
    assert_close(domain.measure, torch.tensor([[1.0, 1.0, 1.5, 0.0]]))
    features, _ = SequenceEncoder(channels=2, length=4, timed=True, mask="point")(sequences)
    assert features[0, :, 2].tolist() == [1, 1, 0, 0]


def test_an_empty_sequence_reads_out_as_zero():
    encoder = SequenceEncoder(channels=1, length=4)
    features, domain = encoder(torch.full((2, 3, 1), NAN))
    assert read_out(features, domain, "last").tolist() == [[0.0], [0.0]]
    assert read_out(features, domain.replace(valid=None), "last").shape == (2, 1)


def test_a_spacing_beside_times_is_refused():
    sizes = {"channels": 1, "length": 8, "timed": True}
    for kind in (SampleConfig, SequenceConfig, SequenceEncoder):
        with pytest.raises(OptionError, match=r"spacing: expected 1 beside timed=True, got 2\.0"):
            kind(**sizes, spacing=2.0)
        kind(**sizes, spacing=1.0)


def test_wrong_options_and_shapes_are_refused():
    with pytest.raises(OptionError, match="did you mean 'point'"):
        SequenceEncoder(channels=1, length=4, mask="points")
    with pytest.raises(OptionError, match="spacing: expected a number above 0, got 0"):
        SequenceEncoder(channels=1, length=4, spacing=0)
    with pytest.raises(ShapeError, match=r"\(B, N, 3\), times and 2 channels, got \(1, 5, 2\)"):
        SequenceEncoder(channels=2, length=4, timed=True)(torch.zeros(1, 5, 2))
    with pytest.raises(ShapeError, match="got \\(1, 0, 1\\)"):
        SequenceEncoder(channels=1, length=4)(torch.zeros(1, 0, 1))


# --- patches --------------------------------------------------------------------------------------


def patched(patch, **options):
    torch.manual_seed(0)
    encoder = EmbeddedSequence(channels=2, length=12, dim=5, patch=patch, **options)
    return encoder.double()


def naive_patches(sequences, patch):
    """Return patches whose missing values are interpolated linearly, value by value."""
    batch, count, channels = sequences.shape
    result = torch.full((batch, -(-count // patch), patch * channels), NAN, dtype=sequences.dtype)
    for b, m in itertools.product(range(batch), range(result.shape[1])):
        held = range(m * patch, min((m + 1) * patch, count))
        if sequences[b, list(held)].isnan().all():
            continue
        for offset, channel in itertools.product(range(patch), range(channels)):
            place = min(m * patch + offset, count - 1)
            known = [i for i in range(count) if not sequences[b, i, channel].isnan()]
            value = torch.zeros((), dtype=sequences.dtype)
            if known:
                low = max((i for i in known if i <= place), default=known[0])
                high = min((i for i in known if i >= place), default=known[-1])
                share = (place - low) / (high - low) if high > low else 0.0
                at = sequences[b, :, channel]
                value = at[low] + min(max(share, 0.0), 1.0) * (at[high] - at[low])
            result[b, m, offset * channels + channel] = value
    return result


@pytest.mark.parametrize("patch", [2, 3, 5])
def test_patches_interpolate_missing_values_linearly(patch):
    values = torch.randn(3, 11, 2, dtype=torch.float64)
    values[0, [0, 4, 5], 0], values[0, 3:7, 1], values[1, 6:], values[2, :, 1] = NAN, NAN, NAN, NAN
    found = windows(values, patch)
    expected = naive_patches(values, patch)
    assert found.isnan().equal(expected.isnan())
    assert_close(found.nan_to_num(), expected.nan_to_num())
    known = torch.where(values.isnan(), 0.0, values)

    def filled(numbers):
        found = windows(torch.where(values.isnan(), NAN, numbers), patch)
        return found.nan_to_num()

    assert torch.autograd.gradcheck(filled, known.requires_grad_())


def test_a_patch_without_samples_is_padding():
    encoder = patched(4)
    values = torch.randn(2, 12, 2, dtype=torch.float64)
    values[0, 5:] = NAN
    values[1, 4:8] = NAN
    features, domain = encoder(values)
    assert domain.valid.tolist() == [[True, True, False], [True, False, True]]
    assert domain.shape == (3,)
    assert_close(domain.positions[:, 0].double(), torch.arange(3) / 3.0)
    assert domain.measure.tolist() == [1.0, 1.0, 1.0]
    # Padding behind the end of a series changes nothing.
    longer = torch.cat([values, torch.full((2, 5, 2), NAN, dtype=torch.float64)], 1)
    more = encoder(longer)[0]
    assert_close(more[:, :3][domain.valid], features[domain.valid])
    whole = values[1:, :4].clone().requires_grad_()
    encoder(whole)[0].sum().backward()
    weight = encoder.embed.weight.sum(0)
    assert_close(whole.grad.flatten(), weight[:8])


def test_half_the_rate_equals_dropping_every_other_sample():
    values = torch.randn(2, 12, 2, dtype=torch.float64)
    lost = values.clone()
    lost[:, 1::2] = NAN
    features, domain = patched(4)(lost[:, :11])
    half, other = patched(4, spacing=2.0)(values[:, ::2])
    assert_close(half, features)
    assert_close(other.positions, domain.positions)
    assert other.valid.equal(domain.valid)
    smooth = torch.linspace(0, 1, 12, dtype=torch.float64)[None, :, None].expand(2, 12, 2)
    twice = torch.linspace(0, 1, 23, dtype=torch.float64)[None, :, None].expand(2, 23, 2)
    assert_close(patched(4, spacing=0.5)(twice)[0], patched(4)(smooth)[0])


@pytest.mark.parametrize("spacing", [0.3, 0.5, 0.7, 1.0, 1.5])
@pytest.mark.parametrize("count", [4, 7, 10])
def test_windows_do_not_depend_on_padding(count, spacing):
    values = torch.randn(1, count, 2, dtype=torch.float64)
    padded = torch.cat([values, torch.full((1, 6, 2), NAN, dtype=torch.float64)], 1)
    alone = windows(values, 4, spacing)
    together = windows(padded, 4, spacing)
    assert_close(together[:, : alone.shape[1]], alone)
    assert together[:, alone.shape[1] :].isnan().all()


@pytest.mark.parametrize("option", ["timed", "causal"])
def test_patches_refuse_timestamps_and_causal_order(option):
    with pytest.raises(OptionError, match=f"patch: expected 1 beside {option}=True, got 4"):
        patched(4, **{option: True})
    assert patched(1, **{option: True}).patch == 1


def test_patches_reduce_the_number_of_points():
    model = create_model(
        "backbone_nano",
        encoder={"kind": "sequence", "channels": 1, "length": 50, "patch": 8},
        head={"outputs": 3},
    )
    assert model.config.encoder.points == 7
    assert model(torch.randn(2, 50, 1)).shape == (2, 3)
    with pytest.raises(OptionError, match=r"head\.pool: expected one of .*, got 'every'"):
        model.config.replace(head={"pool": "every"})
    plain = create_model("backbone_nano", data={"kind": "sequence", "channels": 1, "length": 50})
    assert plain.config.encoder.points == 50  # the patch of images does not apply


# --- a scale of their own -------------------------------------------------------------------------


def test_sequences_are_standardised_individually():
    values = torch.randn(3, 9, 2, dtype=torch.float64)
    values[0, 4:], values[1, 2, 0] = NAN, NAN
    found, facts = standardised(values)
    assert found.isnan().equal(values.isnan())
    for b, c in itertools.product(range(3), range(2)):
        there = values[b, :, c][~values[b, :, c].isnan()]
        deviation = (there.var(correction=0) + 1e-6).sqrt()
        assert_close(found[b, :, c][~found[b, :, c].isnan()], (there - there.mean()) / deviation)
        assert_close(facts[b, [c, 2 + c]], torch.stack([there.mean(), deviation.log()]))
    known = torch.where(values.isnan(), 0.0, values).requires_grad_()

    def read(numbers):
        found, facts = standardised(torch.where(values.isnan(), NAN, numbers))
        return found.nan_to_num(), facts

    assert torch.autograd.gradcheck(read, known)
    nothing = standardised(torch.full((1, 3, 1), NAN))
    assert nothing[1].isfinite().all()


@pytest.mark.parametrize("options", [{"patch": 4}, {"timed": True}, {}])
def test_points_receive_the_scale_of_their_sequence(options):
    torch.manual_seed(0)
    encoder = EmbeddedSequence(channels=1, length=8, dim=4, standard=True, **options).double()
    values = torch.randn(2, 8, 1, dtype=torch.float64)
    times = torch.arange(8.0, dtype=torch.float64).expand(2, 8)[..., None]

    def read(values):
        inputs = torch.cat([times, values], -1) if "timed" in options else values
        return encoder(inputs)[0]

    # A factor changes the features by its logarithm only, equally at every point.
    apart = read(3 * values) - read(values)
    assert (apart - apart[:, :1]).abs().max() < 1e-4
    weight = encoder.embed.weight[:, -2:]
    mean = 2 * values.mean(1)
    assert_close(
        apart[:, 0], mean * weight[:, 0] + math.log(3.0) * weight[:, 1], dtype=torch.float32
    )
    with pytest.raises(OptionError, match="standard: expected False beside causal=True"):
        EmbeddedSequence(channels=1, length=8, dim=4, standard=True, causal=True)


def test_rounding_of_the_spacing_adds_no_window():
    """At this spacing, the product with the number of samples would round up in float32."""
    assert windows(torch.zeros(1, 7, 1), 2, 0.33333333).shape[1] == 1
