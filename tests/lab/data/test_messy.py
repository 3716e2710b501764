"""Irregular files: guesses are reported, and contradictions refused."""

from __future__ import annotations

import re

import numpy as np
import pytest
from PIL import Image

from fredholm.errors import DataError, FredholmError, OptionError
from fredholm.estimators import FredholmClassifier
from fredholm.lab.cli.main import main
from fredholm.lab.data.files import open_files
from fredholm.lab.data.files.writing import no_number

RNG = np.random.default_rng(0)


def write(path, header, rows):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join([header, *(",".join(map(str, row)) for row in rows)]) + "\n")
    return path


def numbers(n=60):
    return [(i % 2, *(f"{x:.3f}" for x in RNG.normal(size=2))) for i in range(n)]


def remarks(path, **reading):
    return open_files(path, reading).collection.remarks


def test_a_column_of_texts_keeps_numeric_columns(tmp_path):
    names = [f"Mr. Owen Harris {i}" for i in range(60)]
    rows = [(y, name, a, b) for (y, a, b), name in zip(numbers(), names)]
    path = write(tmp_path / "passengers.csv", "survived,Name,age,fare", rows)
    source = open_files(path, {"label": "survived"})
    assert (source.collection.kind, source.collection.channels) == ("rows", ("age", "fare"))
    assert any("'Name' is left out" in remark for remark in source.collection.remarks)
    few = write(tmp_path / "few.csv", "survived,Name,age", [row[:3] for row in rows])
    source = open_files(few, {"label": "survived"})
    assert source.collection.kind == "texts"
    assert "column 'age' is not read: texts are" in " ".join(source.collection.remarks)
    assert not remarks(few, label="survived", kind="texts")


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
def test_dates_of_estimators_are_seconds_in_any_unit(unit):
    start = np.datetime64("2024-01-01", "s")
    clocks = [start + np.cumsum(RNG.integers(1, 9, 12)).astype("m8[s]") for _ in range(24)]
    values = [RNG.normal(size=(12, 1)) for _ in range(24)]
    labels = [int(v.sum() > 0) for v in values]
    model = FredholmClassifier(dim=8, epochs=1, random_state=0)
    model.fit(list(zip(clocks, values)), labels)
    expected = model.predict_proba(list(zip(clocks, values)))
    other = [t.astype(f"M8[{unit}]") for t in clocks]
    assert np.array_equal(model.predict_proba(list(zip(other, values))), expected)
    other[0][0] = np.datetime64("NaT")
    with pytest.raises(FredholmError, match="sample 0: expected finite times, got NaT as time 0"):
        model.predict(list(zip(other, values)))


def test_a_missing_time_is_not_reported_as_unsorted(tmp_path):
    times = np.arange(12.0)
    values = RNG.normal(size=(4, 12, 1))
    for bad in (np.nan, np.inf):
        broken = np.stack([times] * 4)
        broken[2, 5] = bad
        message = f"expected finite times, got {bad} as time 5; leave the point out"
        with pytest.raises(OptionError, match=f"X, sample 2: {message}"):
            FredholmClassifier(epochs=1).fit(list(zip(broken, values)), [0, 1, 0, 1])
        np.savez(tmp_path / "walks.npz", x=values, t=broken, y=[0, 1, 0, 1])
        with pytest.raises(DataError, match=f"'t' of sample 2: {message}"):
            open_files(tmp_path / "walks.npz")
    apart = [(times * 1e30, sample) for sample in values]
    with pytest.raises(OptionError, match=r"sample 0: expected finite times, .* further apart"):
        FredholmClassifier(epochs=1).fit(apart, [0, 1, 0, 1])


def test_a_run_inside_the_folder_of_its_data_can_be_evaluated(tmp_path, monkeypatch):
    write(tmp_path / "here" / "rows.csv", "y,a,b", numbers())
    monkeypatch.chdir(tmp_path / "here")
    small = ["operator=softmax", "model.body.dim=8", "model.body.depth=1", "training.epochs=1"]
    assert main(["train", "./", *small, "--runs", "runs"]) == 0
    assert main(["evaluate", "runs/here"]) == 0
    for colour in ("red", "blue"):
        for i in range(8):
            folder = tmp_path / "pictures" / colour
            folder.mkdir(parents=True, exist_ok=True)
            Image.new("RGB", (8, 8), (i, 0, 255 * (colour == "red"))).save(folder / f"{i}.png")
    (tmp_path / "pictures" / "runs").mkdir()
    (tmp_path / "here" / "runs" / "here").rename(tmp_path / "pictures" / "runs" / "here")
    assert open_files(tmp_path / "pictures").classes == ("blue", "red")


def test_recordings_in_separate_files_are_reported_as_rows(tmp_path):
    for folder in ("run", "walk"):
        for i in range(3):
            rows = [(t, *row[1:]) for t, row in enumerate(numbers(9))]
            write(tmp_path / "recordings" / folder / f"{i}.csv", "time,ax,ay", rows)
    said = " ".join(remarks(tmp_path / "recordings"))
    assert "where each of the 6 files is a series" in said
    assert "the names of folders (run, walk) are no labels" in said


def test_a_truncated_picture_is_detected_before_training(tmp_path):
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        for i in range(4):
            pixels = RNG.integers(0, 255, (40, 40, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(tmp_path / name / f"{i}.jpg")
    whole = (tmp_path / "b" / "3.jpg").read_bytes()
    (tmp_path / "b" / "3.jpg").write_bytes(whole + b"\0" * 20)  # a camera's padding
    open_files(tmp_path)
    (tmp_path / "b" / "3.jpg").write_bytes(whole[:-300])
    (said,) = open_files(tmp_path).collection.remarks
    assert re.search(r"1 of 8 files .*3\.jpg: not a readable picture .*truncated", said)
    with pytest.raises(DataError, match=r"3\.jpg: not a readable picture .*truncated"):
        open_files(tmp_path, {"strict": True})


@pytest.mark.parametrize(
    ("reading", "message"),
    [
        ({"label": "y", "id": "y"}, "column 'y': expected one role, got label and id"),
        ({"label": "y", "time": "y"}, "column 'y': expected one role, got label and time"),
        ({"text": "y", "label": "y"}, "column 'y': expected one role, got label and text"),
        (
            {"group": "a", "channels": ("a", "b")},
            "column 'a': expected one role, got group and channels",
        ),
        ({"channels": ("a", "a")}, "channels: expected each column once, got 'a' twice"),
    ],
)
def test_a_column_has_one_role(tmp_path, reading, message):
    path = write(tmp_path / "a.csv", "y,a,b", numbers())
    with pytest.raises(DataError, match=message):
        open_files(path, {"label": "y", **reading})


def test_numbered_columns_are_a_header(tmp_path):
    rows = [(i, *row[1:], row[0]) for i, row in enumerate(numbers(50))]
    source = open_files(write(tmp_path / "pandas.csv", ",0,1,2", rows))
    assert len(source.collection) == 50
    assert source.collection.channels == ("0", "1")
    plain = open_files(write(tmp_path / "plain.csv", "0.5,1,0", [r[1:] for r in rows]))
    assert len(plain.collection) == 51


def test_a_class_without_test_samples_is_reported(tmp_path):
    rows = [("b" if i < 2 else "a", *row[1:]) for i, row in enumerate(numbers(80))]
    said = " ".join(remarks(write(tmp_path / "rare.csv", "y,u,v", rows), label="y"))
    assert "no test sample is of the class 'b'" in said


def test_words_that_count_as_missing_are_reported(tmp_path):
    words = ["none", "mild", "heavy"]
    rows = [(row[0], words[i % 3], row[1]) for i, row in enumerate(numbers())]
    path = write(tmp_path / "drinks.csv", "y,alcohol,v", rows)
    assert "column 'alcohol': 'none' counts as missing (20 of the first 60" in " ".join(
        remarks(path, label="y")
    )
    with pytest.raises(DataError, match="none, NA, - and \\? count as missing"):
        open_files(path, {"label": "alcohol", "strict": True})
    found = open_files(path, {"label": "alcohol"})
    assert (len(found.collection), found.classes) == (40, ("heavy", "mild"))


def test_thousands_separators_differ_from_decimal_commas():
    assert "between thousands are left out" in no_number("1,000")
    assert "(decimal commas are written as points)" in no_number("1,5")


def test_a_table_that_starts_with_pk_is_read(tmp_path):
    from fredholm.lab.data.files.standard_input import _MAGIC

    assert not any(b"PK,a,b\n1,2,3\n".startswith(magic) for magic in _MAGIC)


@pytest.mark.parametrize(
    ("samples", "message"),
    [
        (None, "expected an array or a list .*, got NoneType"),
        (
            (row for row in [[1.0, 2.0]] * 4),
            "expected an array or a list .*, got generator",
        ),
        ([{"a": 1.0}, {"a": 2.0}] * 2, "samples as rows of numbers, got dictionaries"),
    ],
)
def test_invalid_lists_of_samples_are_refused(samples, message):
    with pytest.raises(FredholmError, match=message):
        FredholmClassifier(dim=8, epochs=1).fit(samples, [0, 1, 0, 1])


def test_a_line_that_declares_the_delimiter_is_not_a_header(tmp_path):
    lines = ["sep=;", "x;y", *(f"{i % 7},5;{'ab'[i % 2]}" for i in range(30))]
    path = tmp_path / "excel.csv"
    path.write_text("\n".join(line.replace(",5", ".5") for line in lines) + "\n")
    source = open_files(path)
    assert source.collection.channels == ("x",)
    assert len(source.collection) == 30
    assert source.collection.place(0)["row"] == 3  # as in a text editor
    (tmp_path / "tabs.csv").write_text("sep=\t\n" + "x\ty\n" + "1.5\ta\n2.5\tb\n" * 15)
    assert open_files(tmp_path / "tabs.csv").collection.channels == ("x",)
    (tmp_path / "none.csv").write_text("sep=;\n")
    with pytest.raises(DataError, match=r"none.csv: expected .*, got an empty file"):
        open_files(tmp_path / "none.csv")


def test_one_and_one_point_zero_are_one_class(tmp_path):
    rows = [(("1", "0", "1.0")[i % 3], *row[1:]) for i, row in enumerate(numbers())]
    source = open_files(write(tmp_path / "floats.csv", "y,u,v", rows), {"label": "y"})
    assert tuple(source.classes) == ("0", "1")
    assert (source.collection.labels.codes == [1, 0, 1] * 20).all()
    alike = open_files(
        write(
            tmp_path / "same.csv",
            "y,u,v",
            [("1.0", *r[1:]) if i % 2 else ("2.0", *r[1:]) for i, r in enumerate(rows)],
        ),
        {"label": "y"},
    )
    assert tuple(alike.classes) == ("1.0", "2.0")  # as written in the file


def test_dates_that_look_like_numbers_are_reported(tmp_path):
    rows = [(i % 6, f"202401{1 + i // 6:02d}", i % 5, "ab"[i % 2]) for i in range(60)]
    path = write(tmp_path / "days.csv", "id,date,x,label", rows)
    assert "the times in 'date' are read as plain numbers" in " ".join(remarks(path))
    rows = [(a, int(b) - 20240100, c, d) for a, b, c, d in rows]
    path = write(tmp_path / "counts.csv", "id,date,x,label", rows)
    assert "plain numbers" not in " ".join(remarks(path))
