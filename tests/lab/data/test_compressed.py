"""Compressed tables are read like plain ones, and damaged ones are refused."""

from __future__ import annotations

import gzip
import io
import json
import sys

import numpy as np
import pytest

from fredholm.errors import DataError
from fredholm.lab.data.files import open_files
from fredholm.lab.data.files.unlabelled import read_unlabelled
from fredholm.lab.training.own_files import names_files
from fredholm.training import load_recipe

ROWS = [{"a": i / 7, "b": (i * 5) % 11, "label": "xy"[i % 2]} for i in range(60)]
CSV = "a,b,label\n" + "".join(f"{r['a']},{r['b']},{r['label']}\n" for r in ROWS)
JSON = "".join(json.dumps(row) + "\n" for row in ROWS)


def compressed(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(text.encode()))
    return path


@pytest.mark.parametrize(
    ("name", "text"),
    [("w.csv.gz", CSV), ("w.TSV.GZ", CSV.replace(",", "\t")), ("w.jsonl.gz", JSON)],
)
def test_a_compressed_table_equals_the_plain_one(tmp_path, name, text):
    (tmp_path / "w.csv").write_text(CSV)
    plain, found = open_files(tmp_path / "w.csv"), open_files(compressed(tmp_path / name, text))
    assert found.name == plain.name == "w"
    assert np.array_equal(found.collection.samples, plain.collection.samples)
    assert found.classes == plain.classes
    assert found.collection.place(3)["row"] == (4 if "json" in name else 5)


def test_compressed_files_work_as_splits_and_by_path(tmp_path):
    lines = CSV.splitlines(keepends=True)
    compressed(tmp_path / "d" / "train.csv.gz", "".join(lines[:41]))
    compressed(tmp_path / "d" / "test.csv.gz", "".join(lines[:1] + lines[41:]))
    source = open_files(tmp_path / "d")
    assert int((source.parts == 2).sum()) == 20
    assert names_files("walks.csv.gz")
    assert not names_files("walks.yaml.gz")
    recipe = load_recipe({"data": {"path": str(tmp_path / "d" / "train.csv.gz")}})
    assert recipe.name == "train"


def test_compressed_samples_are_predicted_from_files_and_standard_input(tmp_path, monkeypatch):
    source = open_files(compressed(tmp_path / "w.csv.gz", CSV))
    facts = source.dataset("train").describe()
    new = gzip.compress(b"a,b\n1.5,3\n2.5,4\n")
    (tmp_path / "new.csv.gz").write_bytes(new)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(new)))
    from_file = read_unlabelled([tmp_path / "new.csv.gz"], facts, None)
    from_stdin = read_unlabelled(["-"], facts, None)
    assert np.array_equal(from_file.batch([0, 1]), from_stdin.batch([0, 1]))


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (lambda b: b[: len(b) // 2], "expected a readable file"),
        (lambda b: b[:40] + bytes(40) + b[80:], "expected a readable file"),
        (lambda b: CSV.encode(), r"expected a readable file, .*\(Not a gzipped file"),
        (
            lambda b: gzip.compress(CSV.replace("x", "\xe9").encode("latin1")),
            "row 2, column 3: expected UTF-8",
        ),
    ],
)
def test_damaged_files_are_named(tmp_path, damage, says):
    path = tmp_path / "w.csv.gz"
    path.write_bytes(damage(gzip.compress(CSV.encode())))
    with pytest.raises(DataError, match=f"w.csv.gz.*{says}"):
        open_files(path)
