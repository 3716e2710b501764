"""Held-out samples do not affect measurements on training samples, such as scaling."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

from fredholm.lab.data.files import open_files
from fredholm.lab.data.files.casts import Coded
from fredholm.lab.data.files.head import HEAD
from fredholm.lab.data.files.unlabelled import read_unlabelled
from fredholm.lab.data.memory import MemorySource
from fredholm.lab.data.samples import collect_answers, collect_samples

COUNT = 24
LABELS = np.arange(COUNT) % 2


def drawn(shape: tuple[int, ...]) -> np.ndarray:
    return np.random.default_rng(5).normal(size=(COUNT, *shape))


def ragged(shape: tuple[int, ...]) -> list[np.ndarray]:
    """Return samples of 12 to 15 points."""
    return [sample[: 12 + number % 4] for number, sample in enumerate(drawn((15, *shape)))]


def stretched(sample: np.ndarray) -> np.ndarray:
    """Return other values on another scale."""
    return 1000 * sample - 7


def shortened(sample: np.ndarray) -> np.ndarray:
    return stretched(sample)[:5]


def moved(pair: tuple[np.ndarray, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    return pair[0] * 3 + 1, stretched(pair[1])


def later(pair: tuple[np.ndarray, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Return other values at shifted times; regularity of steps is read from all samples."""
    return pair[0] + 100, stretched(pair[1])


def worded(text: str) -> str:
    return " ".join(["unheard", "of"] * 40)


def places_and_values() -> list[tuple[np.ndarray, np.ndarray]]:
    return list(zip(ragged((2,)), ragged((1,))))


KINDS = {
    "rows": (lambda: list(drawn((5,))), stretched),
    "series": (lambda: ragged((2,)), shortened),
    "timed": (lambda: [(np.arange(len(s)) * 0.5, s) for s in ragged((2,))], later),
    "clouds": (lambda: ragged((3,)), shortened),
    "images": (lambda: list(drawn((8, 8, 1))), stretched),
    "texts": (lambda: [f"word{i % 3} other{i % 5}" for i in range(COUNT)], worded),
    "fields": (lambda: list(drawn((6, 6))), stretched),
    "points": (places_and_values, moved),
}
NAMES = {"timed": "series", "points": "fields"}


def source_of(name: str, samples: list, answers: np.ndarray | list) -> MemorySource:
    kind = NAMES.get(name, name)
    task = "classification" if isinstance(answers, np.ndarray) and answers.dtype == int else None
    given = np.stack(samples) if kind == "rows" else samples
    collection = collect_samples(given, kind, task or "regression")
    if task:
        collection.labels = Coded(answers, ["a", "b"])
    else:
        collection.labels = collect_answers(answers, collection)
    return MemorySource(collection, 0.25, 3)


def measured(source: MemorySource) -> str:
    """Return all facts saved with a model, and all preprocessed training samples."""
    train = source.dataset("train")
    inputs, labels = train.batch(torch.arange(len(train)))
    facts = {"describe": train.describe(), "units": source.units, "encoder": train.encoder()}
    tensors = inputs if isinstance(inputs, tuple) else (inputs,)
    values = [part.nan_to_num(-1.0).double().tolist() for part in (*tensors, labels)]
    return json.dumps([facts, values], default=str)


def answers_of(name: str) -> np.ndarray | list:
    if name == "fields":
        return list(drawn((6, 6)))
    if name == "points":
        return ragged((1,))
    return drawn(())


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("task", ["classification", "regression"])
def test_held_out_samples_change_no_scaling(name, task):
    make, change = KINDS[name]
    if task == "classification" and name in ("fields", "points"):
        pytest.skip("fields are answered by fields")
    answers = LABELS if task == "classification" else answers_of(name)
    plain = source_of(name, make(), answers)
    held = set(np.flatnonzero(plain.parts != 0).tolist())
    assert 0 < len(held) < COUNT

    samples = [change(s) if i in held else s for i, s in enumerate(make())]
    if task == "regression":
        answers = [1000 * np.asarray(a) if i in held else a for i, a in enumerate(answers)]
        answers = answers if name in ("fields", "points") else np.array(answers)
    changed = source_of(name, samples, answers)
    assert np.array_equal(changed.parts, plain.parts)
    assert measured(changed) == measured(plain)

    # The same change of training samples is detected.
    samples = [s if i in held else change(s) for i, s in enumerate(make())]
    assert measured(source_of(name, samples, answers)) != measured(plain)


def test_held_out_files_change_no_scaling(tmp_path):
    found = []
    for name, change in (("a", lambda x: x), ("b", stretched)):
        folder = tmp_path / name / "data"
        folder.mkdir(parents=True)
        np.savez(folder / "train.npz", X=drawn((9, 2)), y=LABELS)
        for part in ("val", "test"):
            np.savez(folder / f"{part}.npz", X=change(drawn((9, 2))), y=LABELS)
        found.append(open_files(folder).dataset("train").describe()["source"]["scaling"])
    assert found[0] == found[1]


def test_held_out_pictures_change_no_size(tmp_path):
    pillow = pytest.importorskip("PIL.Image")
    for part, side in (("train", 12), ("val", 40), ("test", 40)):
        for name in ("a", "b"):
            for number in range(3):
                path = tmp_path / part / name / f"{number}.png"
                path.parent.mkdir(parents=True, exist_ok=True)
                pillow.new("RGB", (side, side), 40 * number).save(path)
    assert open_files(tmp_path).image_size == (12, 12)


def parted(folder, trained: str, tested: str):
    """Write rows with a column of words: 40 to train on and 20 to test."""
    for name, words, count in (("train", trained, 40), ("test", tested, 20)):
        rows = [f"{words[i % len(words)]},{i % 7},{i % 2}" for i in range(count)]
        folder.mkdir(exist_ok=True)
        (folder / f"{name}.csv").write_text("\n".join(["zone,a,label", *rows]))
    return open_files(folder)


def test_words_of_the_test_rows_alone_are_unknown(tmp_path):
    source = parted(tmp_path / "files", "AB", "AGH")
    collection = source.collection
    assert collection.words == {"zone": ["A", "B"]}
    assert collection.channels == ("zone=A", "zone=B", "a")
    assert collection.samples.shape == (60, 3)
    place = str(tmp_path / "files" / "test.csv")
    remark = f"{place}, row 3, column 'zone': the training rows have no 'G' in this column, nor 1"
    (found,) = [line for line in collection.remarks if line.startswith(remark)]
    assert found.endswith("to the model 13 rows are none of A, B")
    assert source.description["channels"]

    # The same rows are the same inputs in a new file.
    test = source.dataset("test")
    inputs, _ = test.batch(torch.arange(len(test)))
    new = tmp_path / "new.csv"
    new.write_text((tmp_path / "files" / "test.csv").read_text())
    again = read_unlabelled([new], test.describe(), None)
    assert torch.equal(again.batch(range(20)), inputs)


def test_a_column_without_training_words_is_left_out(tmp_path):
    # The latest days alone have words, and are the test set.
    rows = [f"{i},{'AG'[i % 2] if i >= 48 else ''},{i % 7},{i % 2}" for i in range(60)]
    path = tmp_path / "rows.csv"
    path.write_text("\n".join(["time,zone,a,label", *rows]))
    source = open_files(path, {"split": "time", "time": "time", "kind": "rows"})
    assert source.collection.channels == ("a",)
    assert source.reading.channels == ("a",)
    assert "column 'zone' is left out: no training row has a word there" in " ".join(
        source.collection.remarks
    )
    assert source.dataset("test").describe()["source"]["words"] == {}


@pytest.mark.parametrize("last", ["Z,3,", "Z,much,1"], ids=["no label", "unreadable"])
def test_words_of_rows_that_are_left_out_have_no_remark(tmp_path, last):
    # The first rows alone decide that a column has numbers.
    rows = [f"{'AB'[i % 2]},{i % 7},{i // 2 % 2}" for i in range(HEAD)]
    path = tmp_path / "rows.csv"
    path.write_text("\n".join(["zone,a,label", *rows, last]))
    collection = open_files(path).collection
    assert collection.words == {"zone": ["A", "B"]}
    assert collection.channels == ("zone=A", "zone=B", "a")
    assert collection.samples.shape == (HEAD, 3)
    (remark,) = collection.remarks
    assert "left out" in remark


def test_remarks_count_only_words_of_samples(tmp_path):
    folder = tmp_path / "files"
    folder.mkdir()
    rows = {
        "train": [f"{'AB'[i % 2]},{i % 7},{i // 2 % 2}" for i in range(40)],
        # The words Y and Z are those of a row without a label and of one without a number.
        "test": [f"{'AG'[i % 2]},{i % 7},{i // 2 % 2}" for i in range(20)] + ["Y,1,", "Z,much,1"],
    }
    for name, lines in rows.items():
        (folder / f"{name}.csv").write_text("\n".join(["zone,a,label", *lines]))
    collection = open_files(folder).collection
    assert collection.channels == ("zone=A", "zone=B", "a")
    (found,) = [line for line in collection.remarks if "training rows" in line]
    assert "have no 'G' in this column; to the model 10 rows are none of A, B" in found


def test_words_of_every_split_keep_their_columns(tmp_path):
    source = parted(tmp_path / "files", "ABC", "CA")
    assert source.collection.words == {"zone": ["A", "B", "C"]}
    assert not [line for line in source.collection.remarks if "training rows" in line]
