"""Text files in one folder per class, and advice for other layouts."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from fredholm.errors import DataError
from fredholm.lab.data.files import open_files
from fredholm.lab.data.files.labelled import read_labelled
from fredholm.lab.data.files.unlabelled import read_unlabelled


@pytest.fixture
def reviews(tmp_path):
    root = tmp_path / "reviews"
    for word in ("good", "bad"):
        (root / word).mkdir(parents=True)
        for number in range(10):
            text = f"a {word} meal\nin room {number}\n"
            (root / word / f"{number}.txt").write_text(text)
    return root


def described(root):
    return open_files(root, {}).dataset("train").describe()


def test_each_file_is_a_text_with_its_folder_as_class(reviews):
    source = open_files(reviews, {})
    assert source.description["kind"] == "texts"
    assert source.description["classes"] == {"bad": 10, "good": 10}
    assert source.collection.samples[0] == "a bad meal\nin room 0"


def test_a_licence_beside_samples_is_not_a_text(tmp_path):
    (tmp_path / "LICENCE.txt").write_text("free")
    rows = "\n".join(f"{i},{2 * i},{'ab'[i % 2]}" for i in range(20))
    (tmp_path / "rows.csv").write_text(f"x,y,label\n{rows}\n")
    assert open_files(tmp_path, {}).description["kind"] == "rows"


def test_an_empty_text_is_dropped_and_listed(reviews):
    (reviews / "bad" / "0.txt").write_text(" \n")
    source = open_files(reviews, {})
    assert len(source.collection) == 19
    assert "expected a text, got an empty file" in " ".join(source.description["remarks"])


def test_new_files_are_read_as_one_text_each(reviews, tmp_path):
    """As in training, a file is not split into lines."""
    facts = described(reviews)
    path = tmp_path / "new.txt"
    path.write_text("a good meal\nin room 3\n")
    assert list(read_unlabelled([path], facts, SimpleNamespace()).texts) == [
        "a good meal\nin room 3"
    ]
    assert len(read_unlabelled([reviews / "bad"], facts, SimpleNamespace())) == 10


def test_training_files_are_not_evaluated_as_new(reviews, tmp_path, monkeypatch):
    facts = described(reviews)
    notes = []
    place = "fredholm.lab.data.files.labelled.current"
    monkeypatch.setattr(place, lambda: SimpleNamespace(note=notes.append))
    read_labelled(reviews, facts, SimpleNamespace())
    assert "most of their samples are not new" in notes[0]
    notes.clear()
    (reviews / "bad" / "new.txt").write_text("a bad meal")
    read_labelled(reviews, facts, SimpleNamespace())
    assert not notes


@pytest.mark.parametrize("folder", [True, False], ids=["two files", "one file"])
def test_separate_arrays_are_refused_with_a_fix(tmp_path, folder):
    for name in ("inputs", "outputs"):
        np.save(tmp_path / f"{name}.npy", np.zeros((4, 8, 8)))
    with pytest.raises(DataError, match=r"np.savez\('data.npz', inputs="):
        open_files(tmp_path if folder else tmp_path / "inputs.npy", {})


def test_a_description_shows_cells_unchanged(tmp_path):
    rows = "\n".join(f"{i},{['gas', 'oil', ''][i % 3]},{'ab'[i % 2]}" for i in range(30))
    (tmp_path / "rows.csv").write_text(f"area,heating,label\n{rows}\n")
    first = open_files(tmp_path / "rows.csv", {"label": "label"}).description["first"]
    assert [sample["beginning"] for sample in first] == ["0 gas", "1 oil", "2 ·"]
