"""Columns that identify rows are not features; dropped columns come with suggested flags."""

from __future__ import annotations

import csv
import random
import shlex

import numpy as np
import pytest

from fredholm.errors import DataError, OptionError
from fredholm.lab.cli.main import main
from fredholm.lab.data.files import open_files
from fredholm.lab.data.files.guesses import names_an_id
from fredholm.lab.data.files.unlabelled import read_unlabelled

ROWS = 60


def table(path, **columns):
    """Write a table of these columns, and of a feature and a label."""
    rng = random.Random(0)
    columns |= {"width": [round(rng.gauss(0, 1), 3) for _ in range(ROWS)]}
    columns |= {"label": ["xy"[i % 2] for i in range(ROWS)]}
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(columns)
        writer.writerows(zip(*columns.values()))
    return path


def shuffled(first):
    numbers = list(range(first, first + ROWS))
    random.Random(1).shuffle(numbers)
    return numbers


def pasted(remark):
    """Return the declarations of a remark's flags, parsed as on the command line."""
    words = shlex.split(remark[remark.index("--") :])
    return {
        flag.removeprefix("--"): words[i + 1] for i, flag in enumerate(words) if flag[:2] == "--"
    }


# --- ids ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name",
    ["customer_id", "CustomerID", "user id", "PassengerId", "id_number", "userid", "order-uuid"],
)
def test_a_column_named_id_is_read_as_one(tmp_path, name):
    found = open_files(table(tmp_path / "a.csv", **{name: shuffled(10_000)}))
    assert found.reading.id == name
    assert found.collection.channels == ("width",)
    assert found.collection.ids[0] == str(shuffled(10_000)[0])
    assert found.collection.taken["id"] == f"column {name!r}"


@pytest.mark.parametrize("name", ["paid", "void", "grid", "valid", "bid", "GRID", "Android"])
def test_words_that_end_in_id_are_features(tmp_path, name):
    found = open_files(table(tmp_path / "a.csv", **{name: shuffled(10_000)}))
    assert found.reading.id is None
    assert found.collection.channels == (name, "width")
    assert not names_an_id(name)


def test_measured_numbers_are_not_ids(tmp_path):
    numbers = [number + 0.5 for number in shuffled(0)]
    found = open_files(table(tmp_path / "a.csv", mean_id=numbers))
    assert found.collection.channels == ("mean_id", "width")


def test_a_repeated_id_is_dropped_with_two_suggested_flags(tmp_path):
    path = table(tmp_path / "a.csv", store_id=[i % 30 for i in range(ROWS)])
    found = open_files(path).collection
    assert found.channels == ("width",)
    (remark,) = found.remarks
    assert "--group store_id" in remark
    read = pasted(remark[remark.index("--channels") :])
    assert open_files(path, read).collection.channels == ("store_id", "width")


def test_a_second_id_is_dropped(tmp_path):
    path = table(tmp_path / "a.csv", order_id=shuffled(0), customer_id=shuffled(500))
    found = open_files(path)
    assert (found.reading.id, found.collection.channels) == ("order_id", ("width",))
    (remark,) = found.collection.remarks
    assert "'customer_id' is left out: it has another value in every row" in remark
    assert open_files(path, pasted(remark)).reading.id == "customer_id"


def test_an_id_that_repeats_in_later_rows_is_not_an_id(tmp_path):
    path = tmp_path / "a.csv"
    lines = [f"{i % 2400},{i % 7},{'xy'[i % 2]}" for i in range(2500)]
    path.write_text("user_id,a,label\n" + "\n".join(lines))
    found = open_files(path)
    assert (found.reading.id, found.collection.channels) == (None, ("a",))
    assert "--group user_id" in found.collection.remarks[0]


def test_ids_of_wide_series_are_not_times(tmp_path):
    rng = np.random.default_rng(0)
    series = {f"t{i}": rng.normal(size=ROWS).round(3).tolist() for i in range(9)}
    path = table(tmp_path / "a.csv", device_id=shuffled(0), **series)
    text = path.read_text().replace("width,", "t9,")
    path.write_text(text)
    found = open_files(path)
    assert (found.reading.kind, found.reading.id) == ("series", "device_id")


# --- remedies -------------------------------------------------------------------------------------


def test_dates_come_with_flags_for_a_split_by_time(tmp_path):
    days = [f"2024-{i // 28 + 1:02d}-{i % 28 + 1:02d}" for i in range(ROWS)]
    path = table(tmp_path / "a.csv", **{"signed up": days})
    (remark,) = open_files(path).collection.remarks
    assert "its cells are dates ('2024-01-01')" in remark
    said = pasted(remark.partition(";")[2].rpartition(";")[0])
    assert said == {"time": "signed up", "split": "time"}
    assert (open_files(path, said).parts[-12:] == 2).all()


def test_texts_and_words_come_with_flags_to_read_them(tmp_path):
    notes = [f"a note of some {i // 2} words" for i in range(ROWS)]
    names = [f"n{i // 2}" for i in range(ROWS)]
    path = table(tmp_path / "a.csv", note=notes, height=shuffled(0), name=names)
    note, name = open_files(path).collection.remarks
    name = name.partition(":")[2].partition(":")[2]
    assert open_files(path, pasted(note)).reading.text == "note"
    channels = open_files(path, pasted(name)).reading.channels
    assert channels == ("height", "name", "width")


def test_a_guessed_text_is_reported_with_flags_to_change_it(tmp_path):
    notes = [f"a note of some {i} words" for i in range(ROWS)]
    notes[7] = ""
    path = table(tmp_path / "a.csv", note=notes)
    fix = r"'note' is a guess: name another column with --text, or .* --kind rows"
    with pytest.raises(DataError, match=rf"row 9, column 'note': expected a text.*; {fix}"):
        open_files(path)
    assert open_files(path, {"kind": "rows"}).reading.channels == ("width",)
    with pytest.raises(DataError, match=r"remove the row$"):
        open_files(path, {"text": "note"})
    path = table(tmp_path / "b.csv", file=[f"p{i}.png" for i in range(ROWS)])
    with pytest.raises(DataError, match=r"column 'file': no file '.*p0.png'; 'file' is a guess: "):
        open_files(path)


# --- how numbers are written ----------------------------------------------------------------------


def test_classes_in_scientific_notation_are_plain_numbers(tmp_path):
    numbers = np.column_stack([np.arange(ROWS) % 7 + 0.25, np.arange(ROWS) % 3])
    np.savetxt(tmp_path / "a.csv", numbers, delimiter=",", header="a,label", comments="")
    assert open_files(tmp_path / "a.csv").classes == ("0", "1", "2")
    codes = ["1E5", "2E5"] * (ROWS // 2)
    path = table(tmp_path / "b.csv", code=codes)
    assert open_files(path, {"label": "code", "task": "classification"}).classes == ("1E5", "2E5")


def test_a_new_table_may_have_another_notation(tmp_path):
    facts = open_files(table(tmp_path / "a.csv")).dataset("train").describe()
    new = tmp_path / "new.csv"
    new.write_text("width;b\n" + "".join(f"{i},5;1\n" for i in range(5)))
    with pytest.raises(DataError, match="decimal commas"):
        read_unlabelled([new], facts, None)
    found = read_unlabelled([new], facts, None, read={"decimal": ","})
    assert len(found) == 5
    with pytest.raises(OptionError, match=r"read: expected one of .*, got 'decimals'"):
        read_unlabelled([new], facts, None, read={"decimals": ","})


def test_the_suggested_command_names_a_free_run(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    table(tmp_path / "my data.csv")
    for expected in ("", " --name my-data-2", " --name my-data-3"):
        assert main(["data", "describe", "my data.csv", "--label", "label"]) == 0
        line = capsys.readouterr().out.splitlines()[-1]
        assert line == f"next: fredholm train 'my data.csv' --label label{expected}"
        (tmp_path / "runs" / (expected.rpartition(" ")[2] or "my-data")).mkdir(parents=True)
