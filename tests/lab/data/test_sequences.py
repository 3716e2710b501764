"""Sequences: generators, images as sequences, and files of archives."""

from __future__ import annotations

import pytest
import torch
from evidence.datasets.adding import adding
from evidence.datasets.copy_memory import copy_memory

from fredholm.errors import DataError, OptionError, ShapeError
from fredholm.lab import data
from fredholm.lab.data.kinds.sequences import SequenceDataset, image_sequences, padded

from ...tolerances import assert_close


def test_copy_memory_asks_for_the_shown_symbols():
    inputs, answers = copy_memory(torch.arange(50), 30, 7)
    assert inputs.shape == (50, 50, 1)
    assert (inputs[:, :10, 0] == answers[:, -10:]).all()
    assert set(inputs[:, :10].unique().tolist()) == set(range(1, 9))
    assert (inputs[:, 10:39] == 0).all()
    assert (inputs[:, 39:] == 9).all()
    assert (answers[:, :-10] == 0).all()


def test_adding_has_two_marks_and_a_known_chance():
    inputs, answers = adding(torch.arange(4000), 30, 7)
    assert (inputs[..., 1].sum(1) == 2).all()
    assert_close((inputs[..., 0] * inputs[..., 1]).sum(1), answers)
    assert float((answers - 1).square().mean()) == pytest.approx(1 / 6, abs=0.01)
    assert inputs[..., 1].mean(0).min() > 0.03, "every place is marked in some samples"


@pytest.mark.parametrize("name", ["copy-memory", "adding"])
def test_samples_depend_on_seed_split_and_index_only(name):
    def first(split, seed=0):
        return data.create_dataset(name, split, options={"train": 9, "val": 9, "seed": seed}).batch(
            [4, 2]
        )

    for a, b in zip(first("train"), first("train")):
        assert_close(a.double(), b.double())
    assert not torch.equal(first("train")[0], first("val")[0])
    assert not torch.equal(first("train")[0], first("train", seed=1)[0])


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("copy-memory", {"dealy": 3}, "one of copy-memory, got 'dealy'; did you mean 'delay'"),
        ("copy-memory", {"delay": 0}, "delay: expected a positive integer, got 0"),
        ("adding", {"length": 1}, "length: expected 2 or more"),
        ("movie-reviews", {"delay": 1}, "expected none for movie-reviews, got delay"),
        ("mnist", {"sequence": "row"}, "sequence: .* got 'row'; did you mean 'rows'"),
    ],
)
def test_wrong_options_are_refused(name, options, message):
    with pytest.raises(OptionError, match=message):
        data.create_dataset(name, "train", options=options)


def test_images_become_sequences():
    images = data.create_dataset("digits", "test")
    rows = image_sequences(images)
    order = torch.randperm(64)
    permuted = image_sequences(images, order)
    pixels, labels = images.batch([3, 5])
    assert_close(rows.batch([3, 5])[0], pixels.flatten(2).mT)
    assert_close(permuted.batch([3, 5])[0][:, :, 0], pixels.flatten(1)[:, order])
    assert (rows.batch([3, 5])[1] == labels).all()
    assert (rows.length, rows.channels, rows.task) == (64, 1, "classification")
    with pytest.raises(ShapeError, match=r"order: expected a place .*, got 3"):
        image_sequences(images, torch.arange(3))


def test_short_sequences_are_padded_with_nan():
    both = padded([torch.ones(2, 3), torch.ones(4, 3)])
    assert both.shape == (2, 4, 3)
    assert both[0, 2:].isnan().all()
    assert not both[1].isnan().any()


def test_mismatched_labels_and_tasks_are_refused():
    def make(labels, task):
        return SequenceDataset(
            "x", "train", labels, ("a", "b"), lambda i: i, shape=(2, 1), task=task
        )

    assert len(make(torch.tensor([[0, -100], [1, 1]]), "steps")) == 2
    with pytest.raises(DataError, match="labels: expected class"):
        make(torch.tensor([0, 2]), "classification")
    with pytest.raises(DataError, match=r"task: expected one of .*, got 'sorting'"):
        make(torch.tensor([0]), "sorting")


HEADER = (
    "#a comment\n@problemName CharacterTrajectories\n@timeStamps false\n"
    "@classLabel true a b\n@data\n"
)
ROWS = ["1,2,3,4:5,6,7,8:a", "1,?,3:4,5,6:b", "2,3:0,1:a", "9,8,7,6,5:1,1,1,1,2:b"] * 3


@pytest.fixture
def trajectories(tmp_path):
    for part, rows in (("TRAIN", ROWS), ("TEST", ROWS[:4])):
        (tmp_path / f"CharacterTrajectories_{part}.ts").write_text(
            "\ufeff" + HEADER + "\n".join(rows) + "\n"
        )
    return tmp_path


def test_ts_files_are_read(trajectories):
    train = data.create_dataset("ts-folder", "train", path=trajectories, val_fraction=0.25)
    assert train.classes == ("a", "b")
    assert (train.length, train.channels, train.timed) == (5, 2, False)
    test = data.create_dataset("ts-folder", "test", path=trajectories)
    values, labels = test.batch([0, 1])
    assert labels.tolist() == [0, 1]
    assert values.shape == (2, 4, 2)
    assert values[1, 3].isnan().all(), "padding"
    assert values[1, 1].isnan().tolist() == [True, False], "a missing value"
    whole = data.create_dataset("ts-folder", "train", path=trajectories, val_fraction=0)
    rows = whole.batch(range(len(whole)))[0].flatten(0, 1)
    assert_close(rows.nanmean(0), torch.zeros(2), dtype=torch.bfloat16)
    assert_close((rows - rows.nanmean(0)).square().nanmean(0), torch.ones(2), dtype=torch.bfloat16)


def test_dropped_samples_keep_the_times_of_the_others(trajectories):
    options = {"timed": True, "drop": 0.5}
    timed = data.create_dataset("ts-folder", "test", path=trajectories, options=options)
    gaps = data.create_dataset("ts-folder", "test", path=trajectories, options={"drop": 0.5})
    full = data.create_dataset("ts-folder", "test", path=trajectories)
    for i in range(4):
        (a, _), (b, _), (whole, _) = timed.batch([i]), gaps.batch([i]), full.batch([i])
        places = a[0, :, 0].long()
        assert_close(a[0, :, 1:].nan_to_num(), whole[0, places].nan_to_num())
        assert places.tolist() == (~b[0].isnan().all(-1)).nonzero().flatten().tolist()
    assert timed.timed
    assert torch.equal(
        timed.batch([3])[0],
        data.create_dataset("ts-folder", "test", path=trajectories, options=options).batch([3])[0],
    )
    coarse = data.create_dataset("ts-folder", "test", path=trajectories, options={"every": 2})
    assert coarse.spacing == 2.0
    assert_close(coarse.batch([3])[0], full.batch([3])[0][:, ::2])


def test_series_are_standardised_individually(tmp_path):
    """Each series by its remaining samples; constants and single samples become zero."""
    lines = "0.001,?,0.003,0.008:a\n5e5,1e6,0,7e5:b\n0.1,0.1,0.1:a\n7:b\n"
    for part in ("TRAIN", "TEST"):
        (tmp_path / f"X_{part}.ts").write_text(HEADER + lines)
    for options in (
        {"scale": "series"},
        {"scale": "series", "drop": 0.4},
        {"scale": "series", "every": 2},
    ):
        test = data.create_dataset("ts-folder", "test", path=tmp_path, options=options)
        timed = data.create_dataset(
            "ts-folder", "test", path=tmp_path, options=options | {"timed": True}
        )
        for i in range(4):
            values = test.batch([i])[0][0, :, 0]
            here = values[~values.isnan()]
            spread = 1.0 if i < 2 and len(here) > 1 else 0.0
            assert here.mean().abs() < 1e-6
            assert_close(here.std(correction=0), torch.tensor(spread))
            others = timed.batch([i])[0][0, :, 1]
            assert_close(others[~others.isnan()], here)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("@problemName X\n1,2:a\n", "expected a line @data"),
        (HEADER, "expected series, got none"),
        (HEADER + "1,2:c\n", r"line 6: expected one of the classes a, b .*, got 'c'"),
        (HEADER + "1,x:a\n", "could not convert"),
        (HEADER + "1,2:3:a\n", r"dimensions of one length, got \[2, 1\]"),
        (HEADER + "1:a\n1:2:a\n", "as many dimensions each"),
        ("@classLabel false\n@data\n1:a\n", "expected series with classes"),
    ],
)
def test_damaged_ts_files_are_refused(tmp_path, content, message):
    (tmp_path / "X_TRAIN.ts").write_text(content)
    with pytest.raises(DataError, match=message):
        data.create_dataset("ts-folder", "train", path=tmp_path)


def test_folders_without_series_are_refused(tmp_path):
    with pytest.raises(DataError, match=r"expected one file \*_TRAIN\.ts, got 0"):
        data.create_dataset("ts-folder", "train", path=tmp_path)
    with pytest.raises(OptionError, match="path=FOLDER"):
        data.create_dataset("ts-folder", "train")
    refused = (
        ({"every": 0}, "every: expected an integer of 1 or more, got 0"),
        ({"drop": 1.0}, "drop: expected a rate in .*, got 1.0"),
        ({"scale": "x"}, "scale: expected 'file' or 'series', got 'x'"),
    )
    for options, message in refused:
        with pytest.raises(OptionError, match=message):
            data.create_dataset("ts-folder", "train", path=tmp_path, options=options)


def test_decreasing_times_are_refused():
    times = torch.tensor(
        [[0.0, 1.0, 2.0], [0.0, 2.0, 1.0], [0.0, 1.0, torch.nan], [2.0, torch.nan, 1.0]]
    )
    rows = torch.stack([times, torch.ones(4, 3)], -1)
    timed = SequenceDataset(
        "walk",
        "train",
        torch.tensor([0, 1, 0, 1]),
        ("a", "b"),
        rows.__getitem__,
        shape=(3, 1),
        timed=True,
    )
    assert timed.batch([2, 0])[0].shape == (2, 3, 2)
    with pytest.raises(DataError, match=r"walk: expected times .* in sequence 1; sort"):
        timed.batch([0, 1])
    with pytest.raises(DataError, match=r"in sequence 3; sort"):
        timed.batch([3])
