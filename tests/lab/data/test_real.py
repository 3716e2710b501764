"""Fetched data sets match their descriptions."""

from __future__ import annotations

import pytest
import torch

from fredholm.lab import data

FETCHABLE = [name for name in data.list_datasets() if data.get_entry(name).package is not None]
IMAGES = [
    name
    for name in FETCHABLE
    if data.get_entry(name).kind.name == "images" and data.get_entry(name).samples
]


@pytest.mark.parametrize("name", IMAGES)
def test_real_data_have_their_sizes_classes_and_constants(name):
    if data.describe(name)["state"] != "fetched":
        pytest.skip(f"{name} is not here: fredholm data fetch {name}")
    entry = data.get_entry(name)
    train, test = (
        data.create_dataset(name, "train", val_fraction=0),
        data.create_dataset(name, "test"),
    )
    assert {"train": len(train), "test": len(test)} == entry.samples
    assert train.shape == test.shape == entry.shape
    assert (
        train.labels.unique().tolist()
        == test.labels.unique().tolist()
        == list(range(len(entry.classes)))
    )
    histogram = torch.stack(
        [
            torch.bincount(channel.flatten(), minlength=256)
            for channel in train.images.transpose(0, 1)
        ]
    ).double()
    levels = torch.arange(256).double() / 255
    mean = (histogram * levels).sum(1) / histogram.sum(1)
    std = ((histogram * (levels - mean[:, None]) ** 2).sum(1) / histogram.sum(1)).sqrt()
    assert torch.allclose(mean, torch.tensor(train.mean).double(), atol=1e-4)
    assert torch.allclose(std, torch.tensor(train.std).double(), atol=1e-4)


@pytest.mark.parametrize("name", IMAGES)
def test_the_validation_split_is_stratified(name):
    if data.describe(name)["state"] != "fetched":
        pytest.skip(f"{name} is not here: fredholm data fetch {name}")
    val = data.create_dataset(name, "val")
    official = data.get_entry(name).samples["train"]
    assert abs(len(val) - official / 10) < 5
    shares = torch.bincount(val.labels) / len(val)
    train = data.create_dataset(name, "train")
    assert len(train) + len(val) == official
    assert (shares - torch.bincount(train.labels) / len(train)).abs().max() < 1e-3


def test_movie_reviews_match_their_description():
    if data.describe("movie-reviews")["state"] != "fetched":
        pytest.skip("movie-reviews is not here: fredholm data fetch movie-reviews")
    parts = {
        split: data.create_dataset("movie-reviews", split) for split in ("train", "val", "test")
    }
    assert sum(len(part) for part in parts.values()) == 10072
    assert {name: len(part) for name, part in parts.items()} == {
        "train": 7017,
        "val": 1026,
        "test": 2029,
    }
    assert data.get_entry("movie-reviews").samples == {"train": 7017 + 1026, "test": 2029}
    for part in parts.values():
        assert abs(part.labels.double().mean() - 0.5) < 0.02, "both sides are equally frequent"
        assert part.targets.abs().min() >= 0.5
    texts = [set(part.texts) for part in parts.values()]
    assert not texts[0] & texts[1] | texts[0] & texts[2] | texts[1] & texts[2], (
        "a sentence lies in one split"
    )
    first = parts["train"].texts[0]
    assert first.startswith("The Rock is destined to be the 21st Century's new ''Conan''"), (
        "the file's first review"
    )


def test_voice_prompts_match_their_description():
    if data.describe("voice-prompts")["state"] != "fetched":
        pytest.skip("voice-prompts is not here: fredholm data fetch voice-prompts")
    found = {
        split: data.create_dataset("voice-prompts", split) for split in ("train", "val", "test")
    }
    assert {name: len(part) for name, part in found.items()} == {
        "train": 4105,
        "val": 544,
        "test": 1403,
    }
    values, _ = found["test"].batch(torch.arange(100))
    assert values.shape == (100, 8000, 1)
    assert 0.5 < values.std() < 2
