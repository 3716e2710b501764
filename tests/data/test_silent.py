"""What would be wrong without a word: each is said, refused or read as it is meant."""

from __future__ import annotations

import csv
import random
import shutil

import numpy as np
import pytest
import torch

from fredholm.data.files import open_files
from fredholm.errors import DataError, OptionError
from fredholm.estimators import FredholmClassifier


def write(path, rows, head=("a", "b", "label"), **how):
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as file:
        csv.writer(file, **how).writerows([head, *rows])
    return path


def samples(count, shift=0.0):
    rng = random.Random(count)
    return [[round(rng.gauss(shift, 1), 3), i % 7, "xy"[i % 2]] for i in range(count)]


def test_folders_called_train_and_test_are_the_splits_of_tables(tmp_path):
    write(tmp_path / "train" / "part1.csv", samples(60))
    write(tmp_path / "test" / "deep" / "part1.csv", samples(40, shift=100.0))
    source = open_files(tmp_path)
    assert [int((source.parts == part).sum()) for part in (0, 1, 2)] == [48, 12, 40]
    held = source.collection.samples[source.parts == 2, 0]
    assert held.min() > 50 > source.collection.samples[source.parts != 2, 0].max()
    write(tmp_path / "more.csv", samples(5))
    with pytest.raises(DataError, match=r"more.csv: lies beside files \(or folders of files\)"):
        open_files(tmp_path)


def test_folders_called_train_and_test_are_the_splits_of_arrays(tmp_path):
    for name, count in (("train", 30), ("test", 20)):
        (tmp_path / name).mkdir()
        x = np.full((count, 9, 1), float(count))
        np.savez(tmp_path / name / "x.npz", x=x + np.arange(9)[:, None], y=np.arange(count) % 2)
    source = open_files(tmp_path)
    assert int((source.parts == 2).sum()) == 20
    assert {sample[0, 0] for sample in map(np.asarray, source.collection.samples)} == {30.0, 20.0}


def test_copies_in_hidden_folders_are_no_samples(tmp_path):
    file = write(tmp_path / "data.csv", samples(60))
    hidden = tmp_path / ".ipynb_checkpoints"
    hidden.mkdir()
    shutil.copy(file, hidden / "data-checkpoint.csv")
    assert len(open_files(tmp_path).collection) == 60


def test_a_slip_in_a_column_of_numbers_is_said(tmp_path):
    rows = [[i % 5 + 1, i, "xy"[i % 2]] for i in range(60)]
    rows[7][0] = "3o"
    source = open_files(write(tmp_path / "a.csv", rows))
    (line,) = source.collection.remarks
    assert line == "column 'a' is read as 6 words, not as numbers: row 9 has '3o'"
    words = [["low" if i % 3 else 1, i, "xy"[i % 2]] for i in range(60)]
    assert not open_files(write(tmp_path / "b.csv", words)).collection.remarks, "mostly words"


def test_few_different_decimal_commas_are_refused(tmp_path):
    rows = [[f"36,{i % 9}", i, "xy"[i % 2]] for i in range(60)]
    with pytest.raises(DataError, match="decimal commas are written as points"):
        open_files(write(tmp_path / "a.csv", rows, delimiter=";"))


def test_answers_far_from_zero_are_said(tmp_path):
    x = torch.randn(12, 1, 8, 8).numpy()
    for name, shift in (("near", 0.0), ("far", 300.0)):
        np.savez(tmp_path / f"{name}.npz", x=x, y=2 * x + np.float32(shift))
    near, far = (
        open_files(tmp_path / f"{name}.npz", {"kind": "fields"}).dataset("train")
        for name in ("near", "far")
    )
    assert not near.notes
    assert "on average and vary by" in far.notes[0]


@pytest.mark.parametrize("first", [np.uint8, float])
def test_zeros_and_ones_are_of_the_type_that_was_fitted(first):
    rng = np.random.default_rng(0)
    images = rng.integers(0, 2, (16, 8, 8, 1))
    labels = np.arange(16) % 2
    model = FredholmClassifier(dim=8, depth=1, epochs=1, random_state=0)
    model.fit(images.astype(first), labels)
    assert model.predict(images.astype(first)).shape == (16,)
    with pytest.raises(OptionError, match="give numbers of the same type"):
        model.predict(images.astype(float if first is np.uint8 else np.uint8))
