"""JSON Lines are read like the same table in CSV, and errors name their lines."""

from __future__ import annotations

import csv
import io
import json
from types import SimpleNamespace

import numpy as np
import pytest

from fredholm.errors import DataError
from fredholm.lab.data.files import open_files
from fredholm.lab.data.files.unlabelled import read_unlabelled

REVIEWS = [
    {"text": f'a "{word}", long film {i}', "label": word, "stars": None if i == 3 else i % 5}
    for i in range(10)
    for word in ("good", "bad")
]
ROWS = [{"size": i + 0.5, "open": i % 3 == 0, "price": 3.5 * i * i} for i in range(40)]
TIMES = [
    {"id": i // 5, "time": i % 5, "x": (i * i) % 7, "mood": "calm" if i // 5 % 2 else "wild"}
    for i in range(100)
]


def lines(rows):
    return "".join(json.dumps(row) + "\n" for row in rows)


@pytest.mark.parametrize("rows", [REVIEWS, ROWS, TIMES], ids=["texts", "rows", "series"])
@pytest.mark.parametrize("suffix", [".jsonl", ".NDJSON"])
def test_objects_are_read_like_the_same_table_in_csv(tmp_path, rows, suffix):
    (tmp_path / f"a{suffix}").write_text(lines(rows))
    with (tmp_path / "a.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    ours, theirs = open_files(tmp_path / f"a{suffix}"), open_files(tmp_path / "a.csv")
    one, other = ours.collection, theirs.collection
    assert ours.reading == theirs.reading
    assert (one.channels, ours.classes) == (other.channels, theirs.classes)
    assert ours.parts.tolist() == theirs.parts.tolist()
    for a, b in zip(one.samples, other.samples, strict=True):
        assert a == b if isinstance(a, str) else np.array_equal(a, b, equal_nan=True)
    for number in (0, len(one) - 1):  # a CSV has its names in row 1
        assert one.place(number)["row"] == other.place(number)["row"] - 1


def test_missing_keys_and_empty_lines_are_accepted(tmp_path):
    rows = lines(
        [{"a": i, "label": "xy"[i % 2]} | ({"b": i % 7} if i % 5 else {}) for i in range(40)]
    )
    parts = rows.splitlines(keepends=True)
    (tmp_path / "a.jsonl").write_text("\n\n" + "".join(parts[:20]) + "\n" + "".join(parts[20:]))
    found = open_files(tmp_path / "a.jsonl").collection
    assert found.channels == ("a", "b")
    assert np.isnan(found.samples[:, 1]).nonzero()[0].tolist() == list(range(0, 40, 5))
    assert [found.place(row)["row"] for row in (0, 19, 20, 39)] == [3, 22, 24, 43]
    bad = "".join(parts[:30]).replace('"a": 25,', '"a": 1e999,')
    (tmp_path / "b.jsonl").write_text("\n" + bad)
    with pytest.raises(
        DataError, match=r"b.jsonl, row 27, column 'a': expected a finite number.*, got 'inf'"
    ):
        open_files(tmp_path / "b.jsonl")


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ('{"a": 1', r"row 41: expected a JSON object, .*\("),
        ('{"a": ' + "[" * 100_000, r"row 41: expected a JSON object, .*\("),
        (
            '{"a": 1, "label": "x", "a": 2}',
            r"row 41: expected a JSON object, .*\('a' comes twice\)",
        ),
        ("[1, 2]", r"row 41: expected an object, .*, got '\[1, 2\]'"),
        (
            '{"a": [1, 2], "label": "x"}',
            r"row 41, column 'a': expected a number.*got '\[1, 2\]'",
        ),
        ('{"a": "kg", "label": "x"}', "row 41, column 'a': expected a number.*, got 'kg'"),
    ],
)
def test_invalid_rows_are_named_with_their_line(tmp_path, line, says):
    rows = lines([{"a": i, "label": "xy"[i % 2]} for i in range(40)])
    (tmp_path / "a.jsonl").write_text(rows + line + "\n")
    with pytest.raises(DataError, match=says):
        open_files(tmp_path / "a.jsonl", {"strict": True})


def test_a_file_without_objects_is_empty(tmp_path):
    (tmp_path / "a.jsonl").write_text("\n \n")
    with pytest.raises(DataError, match="expected one object per line, got an empty file"):
        open_files(tmp_path / "a.jsonl")


def test_later_rows_are_read_in_pieces(tmp_path, monkeypatch):
    monkeypatch.setattr("fredholm.lab.data.files.jsonl.HEAD", 10)
    monkeypatch.setattr("fredholm.lab.data.files.jsonl.PIECE", 7)
    rows = [{"a": i, "label": "xy"[i % 2]} for i in range(40)]
    (tmp_path / "a.jsonl").write_text(lines(rows))
    assert open_files(tmp_path / "a.jsonl").collection.samples[:, 0].tolist() == list(range(40))
    (tmp_path / "b.jsonl").write_text(lines([*rows, {"a": 1, "lable": "x"}]))
    with pytest.raises(DataError, match="row 41: has 'lable', which the first rows do not have"):
        open_files(tmp_path / "b.jsonl")


def test_objects_are_read_from_standard_input(tmp_path, monkeypatch):
    (tmp_path / "a.jsonl").write_text(lines(REVIEWS))
    facts = open_files(tmp_path / "a.jsonl").dataset("train").describe()
    given = SimpleNamespace(buffer=io.BytesIO(b'{"text": "a good film"}\n{"text": "a bad one"}\n'))
    monkeypatch.setattr("sys.stdin", given)
    assert read_unlabelled(["-"], facts, None).texts == ["a good film", "a bad one"]
