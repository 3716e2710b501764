"""MiniROCKET against its definition in loops, and on irregular series."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
import torch

from fredholm.lab.compare import minirocket as module
from fredholm.lab.compare.minirocket import Convolutions, dilated, evened, minirocket
from fredholm.lab.compare.plain import MINIROCKET, serves
from fredholm.lab.compare.trial import judge
from fredholm.lab.data.kinds.sequences import SequenceDataset, padded


def in_loops(found: Convolutions, series: np.ndarray) -> np.ndarray:
    """Return the features of one series (C, n), by loops over kernels, taps and thresholds."""
    length = series.shape[1]
    features = []
    for number, dilation in enumerate(found.dilations):
        reach = 4 * dilation
        for kernel, twos in enumerate(combinations(range(9), 3)):
            weights = found.weights[number][kernel].view(-1, 9)
            output = np.zeros(length)
            for channel, row in zip(series, weights):
                assert set(row.tolist()) in ({0.0}, {2.0, -1.0})
                if not row.any():
                    continue
                wide = np.pad(channel, reach)
                for tap in range(9):
                    weight = 2.0 if tap in twos else -1.0
                    output += weight * wide[tap * dilation : tap * dilation + length]
            if (number + kernel) % 2:
                output = output[reach:-reach]
            features += [(output > b).mean() for b in found.biases[number][kernel].double().numpy()]
    return np.array(features)


@pytest.mark.parametrize(("channels", "points"), [(1, 9), (1, 40), (3, 33)])
def test_features_equal_the_definition(channels, points):
    series = torch.randn(2, channels, points, generator=torch.Generator().manual_seed(0))
    found = Convolutions.draw(series, seed=1, count=4)
    features = found(series)
    assert features.shape == (2, 84 * 4)
    assert 0.0 <= features.min() < 0.2 < 0.8 < features.max() <= 1.0
    for row, one in zip(features, series.double().numpy()):
        differing = np.abs(row.numpy() - in_loops(found, one)) > 1e-6
        assert differing.mean() < 1e-2  # a threshold is an output of a series: there rounding tells
    assert torch.equal(features, Convolutions.draw(series, seed=1, count=4)(series))


def test_dilations_match_the_paper():
    dilations, shares = dilated(150, 119)
    assert (dilations[0], dilations[-1]) == (1, 18)  # 8 * 18 < 150: the last kernel fits
    assert sum(shares) == 119
    assert max(shares) == shares[0]  # several small dilations fall together
    assert dilated(9, 119) == ([1], [119])
    assert dilated(500, 1) == ([1], [1])


def test_gaps_and_timestamps_are_resampled_evenly():
    nan = float("nan")
    series = torch.tensor([[[1.0, nan], [nan, nan], [3.0, nan], [nan, nan]]])
    assert evened(series, 3, timed=False).tolist() == [[[1, 2, 3], [0, 0, 0]]]
    timed = torch.tensor([[[0.0, 0.0], [3.0, 3.0], [4.0, nan], [nan, nan]]])
    assert evened(timed, 5, timed=True).tolist() == [[[0, 1, 2, 3, 3]]]
    assert evened(torch.full((1, 4, 1), nan), 5, timed=False).abs().sum() == 0


def waves(task: str = "classification", timed: bool = False) -> SequenceDataset:
    """Return sixty series of 20 to 39 points, with gaps, whose label is their frequency."""
    rng = np.random.default_rng(0)
    rows = []
    speeds = np.where(np.arange(60) % 3 == 0, 0.3, np.where(np.arange(60) % 3 == 1, 0.6, 1.2))
    for speed in speeds:
        times = np.arange(rng.integers(20, 40)).astype(float)
        times += 0.3 * rng.random(len(times)) if timed else 0.0
        values = np.sin(speed * times + 6 * rng.random()) + 0.1 * rng.normal(size=len(times))
        values[rng.integers(1, len(times) - 1, size=3)] = np.nan
        row = np.stack([times, values], 1) if timed else values[:, None]
        rows.append(torch.from_numpy(row).float())
    series = padded(rows)
    regress = task == "regression"
    labels = torch.from_numpy(speeds).float() if regress else torch.arange(60) % 3
    classes = () if regress else ("slow", "brisk", "fast")
    shape = (series.shape[1], 1)
    return SequenceDataset(
        "waves", "train", labels, classes, series.__getitem__, shape=shape, task=task, timed=timed
    )


@pytest.mark.parametrize("timed", [False, True])
def test_series_of_different_lengths_are_classified(timed):
    data = waves(timed=timed)
    train, test = data.select(torch.arange(40)), data.select(torch.arange(40, 60))
    found = judge(minirocket(train, 0), test, 7)
    assert found.score > 0.9
    assert found.loss < 0.5


def test_series_are_regressed():
    data = waves("regression")
    answer = minirocket(data.select(torch.arange(40)), 0)
    inputs, labels = data.batch(torch.arange(40, 60))
    error = (answer(inputs)[:, 0] - labels).square().mean()
    assert error < 0.2 * labels.var()


def test_large_data_sets_use_fewer_features(monkeypatch):
    data = waves()
    counts = []
    monkeypatch.setattr(module, "WORK", data.length * len(data) // 2)
    monkeypatch.setattr(module, "PER_KERNEL", 4)
    plain = Convolutions.draw
    monkeypatch.setattr(
        Convolutions, "draw", lambda *given: counts.append(given[2]) or plain(*given)
    )
    for most in (60, 30, 15):
        monkeypatch.setattr(module, "MOST", most)
        minirocket(data, 0)
    monkeypatch.setattr(module, "WORK", 1)
    minirocket(data, 0)
    assert counts == [2, 4, 4, 1]


def test_other_kinds_of_data_are_refused():
    assert serves(MINIROCKET, waves()) is None
    assert "classification" not in str(serves(MINIROCKET, waves("regression")))
    rows = torch.zeros(4, 5, dtype=torch.long)
    steps = SequenceDataset(
        "steps", "train", rows, ("a",), torch.zeros(4, 5, 1).__getitem__, shape=(5, 1), task="steps"
    )
    assert "asks for steps" in serves(MINIROCKET, steps)
