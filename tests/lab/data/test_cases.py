"""Tables of kinds that were once read wrongly."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import numpy as np
import pytest

from fredholm.errors import DataError, OptionError
from fredholm.lab.data import formats
from fredholm.lab.data.files import delimited, open_files, opening
from fredholm.lab.data.files.unlabelled import read_unlabelled

RNG = np.random.default_rng(0)


def write(path: Path, header: str, rows, sign: str = ",") -> Path:
    lines = [header] if header else []
    path.write_text("\n".join([*lines, *(sign.join(map(str, row)) for row in rows)]) + "\n")
    return path


def origins(source) -> dict[str, str]:
    return {entry.key: entry.origin for entry in source.schema}


def remarks(source) -> str:
    return " ".join(source.collection.remarks)


# --- numbers --------------------------------------------------------------------------------------


def commas(count: int = 60):
    return [(f"n{i}", f"{RNG.normal():.3f}".replace(".", ","), "ab"[i % 2]) for i in range(count)]


def test_channels_with_decimal_commas_are_numbers(tmp_path):
    path = write(tmp_path / "a.csv", "name;v;y", commas(), ";")
    source = open_files(path, {"channels": "v"})
    assert source.collection.channels == ("v",)
    first = path.read_text().splitlines()[1].split(";")[1]
    assert source.collection.samples[0, 0] == float(first.replace(",", "."))
    assert ("read", "decimal=,", "guessed") in [e[:3] for e in source.schema]
    with pytest.raises(DataError, match=r"decimal commas .*--read decimal=,"):
        open_files(path)
    declared = open_files(path, {"read": {"decimal": ","}})
    assert declared.collection.channels == ("v",)
    facts = source.dataset("train").describe()
    new = write(tmp_path / "new.csv", "v", [("0,5",), ("1,5",)])
    batch = read_unlabelled([new], facts | {}, None).batch([0, 1])
    assert float(batch[1] - batch[0]) > 0


def test_declared_thousands_separators_and_currencies_are_read(tmp_path):
    rows = [(i % 7, f'"€{i + 1},{i % 10}00"') for i in range(60)]
    path = write(tmp_path / "houses.csv", "rooms,price", rows)
    with pytest.raises(DataError, match=r"the currency €.*, got '€1,000'; .*--read thousands=,"):
        open_files(path, {"label": "price", "task": "regression"})
    source = open_files(path, {"label": "price", "read": "thousands=,"})
    assert source.reading.task == "regression"
    assert source.collection.labels[:2].tolist() == [1000.0, 2100.0]
    with pytest.raises(DataError, match=r"the currency €.*, got '€1,000'.*--read thousands=,"):
        open_files(path, {"label": "price"})


def test_codes_keep_their_zeros_and_digits(tmp_path):
    rows = [(f"00{i % 3}", 9007199254740992 + i, i % 7, "xy"[i % 2]) for i in range(60)]
    rows[7] = ("A1", *rows[7][1:])
    source = open_files(write(tmp_path / "a.csv", "zone,id,a,label", rows))
    assert source.collection.words["zone"] == ["000", "001", "002", "A1"]
    assert len(set(source.collection.ids)) == 60
    assert source.collection.ids[1] == "9007199254740993"


@pytest.mark.parametrize("cell", ["1e400", "inf", "-1e39", "0x10", "1_000"])
@pytest.mark.parametrize("row", [10, 2400])
def test_non_finite_numbers_are_refused_with_their_row(tmp_path, cell, row):
    rows = [(f"{RNG.normal():.4f}", i % 7, "xy"[i % 2]) for i in range(2500)]
    rows[row] = (cell, *rows[row][1:])
    path = write(tmp_path / "a.csv", "a,b,label", rows)
    with pytest.raises(DataError, match=rf"row {row + 2}, column 'a': expected .*, got '{cell}'"):
        open_files(path, {"strict": True})


def test_declared_words_count_as_missing(tmp_path):
    rows = [("-999" if i == 3 else i % 9, i % 7, "xy"[i % 2]) for i in range(60)]
    path = write(tmp_path / "a.csv", "a,b,label", rows)
    found = open_files(path, {"read": "null=-999"}).collection
    assert np.isnan(found.samples[:, 0]).nonzero()[0].tolist() == [3]
    words = [("none" if i % 3 else "mild", i % 7, "xy"[i % 2]) for i in range(60)]
    path = write(tmp_path / "b.csv", "a,b,label", words)
    assert open_files(path, {"read": "null="}).collection.words["a"] == ["mild", "none"]


def typed_rows(kind):
    """Return columns of numbers in which -999 stands for a missing value."""
    numbers = [-999 if i % 20 == 3 else i % 9 for i in range(60)]
    return {
        "a": np.array(numbers, kind),
        "b": np.arange(60) % 7,
        "label": ["xy"[i % 2] for i in range(60)],
    }


@pytest.mark.parametrize("kind", ["int64", "int16", "float64", "float32"])
def test_declared_numbers_of_parquet_count_as_missing(tmp_path, kind):
    parquet = pytest.importorskip("pyarrow.parquet")
    arrow = pytest.importorskip("pyarrow")
    path = tmp_path / "a.parquet"
    parquet.write_table(arrow.table(typed_rows(kind)), path)
    found = open_files(path, {"read": "null=-999"}).collection
    assert np.isnan(found.samples[:, 0]).nonzero()[0].tolist() == [3, 23, 43]
    # A word that no number of the column equals changes nothing.
    found = open_files(path, {"read": "null=-999.5,unknown"}).collection
    assert found.samples[3, 0] == -999


def test_declared_numbers_in_lists_and_json_count_as_missing(tmp_path):
    arrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    series = [[-999.0 if k == i % 5 else float(k) for k in range(5)] for i in range(40)]
    labels = ["xy"[i % 2] for i in range(40)]
    path = tmp_path / "a.parquet"
    parquet.write_table(arrow.table({"x": series, "label": labels}), path)
    found = open_files(path, {"read": "null=-999"}).collection
    assert [np.isnan(sample[:, 0]).nonzero()[0].tolist() for sample in found.samples] == [
        [i % 5] for i in range(40)
    ]
    columns = {name: np.asarray(column).tolist() for name, column in typed_rows("float64").items()}
    path = tmp_path / "a.jsonl"
    rows = [dict(zip(columns, row)) for row in zip(*columns.values())]
    path.write_text("\n".join(map(json.dumps, rows)))
    found = open_files(path, {"read": "null=-999"}).collection
    assert np.isnan(found.samples[:, 0]).nonzero()[0].tolist() == [3, 23, 43]


@pytest.mark.parametrize(
    ("kind", "null"),
    [("float16", -999.9), ("float32", -999.9), ("float64", -999.9), ("int16", -999)],
)
def test_declared_numbers_are_compared_in_the_type_of_lists(tmp_path, kind, null):
    arrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    series = [[null if k == i % 5 else k for k in range(5)] for i in range(40)]
    cells = [np.array(numbers, kind) for numbers in series]
    table = {
        "x": arrow.array(cells, arrow.list_(arrow.from_numpy_dtype(kind))),
        "label": ["xy"[i % 2] for i in range(40)],
    }
    path = tmp_path / "a.parquet"
    parquet.write_table(arrow.table(table), path)
    found = open_files(path, {"read": f"null={null}"}).collection
    assert [np.isnan(sample[:, 0]).nonzero()[0].tolist() for sample in found.samples] == [
        [i % 5] for i in range(40)
    ]
    # A number that no element equals changes nothing: 0.5 is not cut to the integer 0.
    found = open_files(path, {"read": "null=0.5"}).collection
    assert not any(np.isnan(sample).any() for sample in found.samples)


@pytest.mark.parametrize(
    ("said", "match"),
    [
        ("decimal", "expected KEY=VALUE, got 'decimal'"),
        ("decimals=,", "got 'decimals'; did you mean 'decimal'"),
        ("dates=dayfrist", "did you mean 'dayfirst'"),
        ("separator=ab", "expected separator=one sign"),
        ("header=maybe", "expected header=yes or no"),
    ],
)
def test_contradictory_declarations_are_refused(tmp_path, said, match):
    path = write(tmp_path / "a.csv", "a,label", [(i, "xy"[i % 2]) for i in range(20)])
    with pytest.raises(OptionError, match=match):
        open_files(path, {"read": [said]})


# --- labels and columns ---------------------------------------------------------------------------


def test_a_constant_first_column_is_not_taken_as_label(tmp_path):
    rows = [(0, i % 16, (i * 7) % 16, i % 2) for i in range(60)]
    assert open_files(write(tmp_path / "a.csv", "", rows)).reading.label == "column 4"


def test_every_guess_is_marked_with_its_flag(tmp_path):
    rows = [(i * 1000, f"L{i}", i % 5, "ABC"[i % 3]) for i in range(60)]
    path = write(tmp_path / "a.csv", "price,listing,rooms,energy", rows)
    source = open_files(path)
    assert source.reading.label == "energy"
    assert set(origins(source).values()) == {"guessed"}
    assert "label: column 'energy' (guessed: --label)" in source.said
    source = open_files(path, {"label": "price", "kind": "rows"})
    known = origins(source)
    assert (known["label"], known["kind"], known["channels"]) == ("declared", "declared", "guessed")
    assert "'price' (guessed" not in source.said


def test_the_schema_reproduces_the_reading(tmp_path):
    rows = [(i, f"{RNG.normal():.3f}", i % 5, "ABC"[i % 3]) for i in range(60)]
    source = open_files(write(tmp_path / "a.csv", "price,a,b,energy", rows))
    said = {}
    for entry in source.schema:
        if entry.key == "read":
            said.setdefault("read", []).append(entry.value)
        else:
            said[entry.key] = entry.value
    again = open_files(tmp_path / "a.csv", said)
    assert again.collection.channels == source.collection.channels
    assert np.array_equal(again.parts, source.parts)
    assert "guessed" not in origins(again).values()


def test_a_declared_delimiter_divides_columns(tmp_path):
    rows = [(i, i % 7, "xy"[i % 2]) for i in range(60)]
    path = write(tmp_path / "a.csv", "a b label", rows, " ")
    with pytest.raises(DataError, match="is the separator a space\\? --read separator=space"):
        open_files(path)
    found = open_files(path, {"read": "separator=space"})
    assert found.collection.channels == ("a", "b")
    assert found.schema[-2].value == "separator=space"
    path = write(tmp_path / "b.csv", "a:b:label", rows, ":")
    with pytest.raises(DataError, match="--read separator=SIGN"):
        open_files(path)
    assert open_files(path, {"read": "separator=:"}).collection.channels == ("a", "b")


def test_declared_headers_and_encodings_are_used(tmp_path):
    path = write(tmp_path / "a.csv", "", [(7 + i % 7, i % 5, i % 2) for i in range(2, 62)])
    assert len(open_files(path).collection) == 60
    assert len(open_files(path, {"read": "header=yes"}).collection) == 59
    path.write_bytes("größe,label\n".encode("latin-1") + b"1,a\n2,b\n" * 20)
    with pytest.raises(DataError, match="--read encoding=latin-1"):
        open_files(path)
    assert open_files(path, {"read": "encoding=latin-1"}).collection.channels == ("größe",)
    with pytest.raises(DataError, match="expected an encoding such as utf-8"):
        open_files(path, {"read": "encoding=klingon"})


@pytest.mark.parametrize("encoding", ["utf-8", "UTF8", "utf-8-sig", "utf-16", "utf-16-le"])
def test_a_byte_order_mark_is_not_part_of_the_first_name(tmp_path, encoding):
    written = "utf-8-sig"
    if encoding.startswith("utf-16"):
        written = "utf-16"
    path = tmp_path / "a.csv"
    rows = [f"{'xy'[i % 2]},{i % 7},{i % 5}" for i in range(60)]
    path.write_text("\n".join(["label,a,b", *rows]), encoding=written)
    found = open_files(path, {"read": f"encoding={encoding}"}).collection
    assert (found.reading.label, found.channels) == ("label", ("a", "b"))


def test_columns_of_more_than_twenty_words_are_reported(tmp_path):
    # Often enough that each word is in the training rows.
    rows = [(f"w{i % 30}", i % 7, "xy"[i % 2]) for i in range(600)]
    path = write(tmp_path / "a.csv", "word,b,label", rows)
    source = open_files(path, {"channels": "word,b"})
    # Words of test rows alone have no channel.
    learned = {rows[i][0] for i in source.training}
    assert len(source.collection.channels) == len(learned) + 1
    assert "'word' is read as words, of which the first rows have 30" in remarks(source)


# --- lists and nested values ----------------------------------------------------------------------


def ecg(count: int = 40):
    return [
        {
            "patient": f"p{i // 2}",
            "age": 40 + i % 30,
            "ecg": [*RNG.normal(size=60 + i % 5).tolist(), None],
            "rhythm": ["sinus", "afib"][i % 2],
        }
        for i in range(count)
    ]


@pytest.mark.parametrize("suffix", ["parquet", "jsonl"])
def test_a_column_of_lists_is_read_as_series(tmp_path, suffix):
    arrow, parquet = (pytest.importorskip(n) for n in ("pyarrow", "pyarrow.parquet"))
    rows = ecg()
    path = tmp_path / f"a.{suffix}"
    if suffix == "parquet":
        parquet.write_table(arrow.Table.from_pylist(rows), path)
    else:
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    source = open_files(path)
    assert (source.reading.kind, source.collection.channels) == ("series", ("ecg",))
    assert [len(sample) for sample in source.collection.samples[:5]] == [61, 62, 63, 64, 65]
    assert np.isnan(source.collection.samples[0][-1, 0])
    assert "'age'" in remarks(source)
    assert source.collection.taken["channels"] == "ecg"
    facts = source.dataset("train").describe()
    encoder = type("Encoder", (), {"channels": 1})
    asked = read_unlabelled([path], facts, encoder)
    assert len(asked) == 40
    assert open_files(path, {"kind": "rows"}).collection.channels == ("age",)


def test_unused_nested_values_do_not_stop_reading(tmp_path):
    rows = [
        {"text": f"a fine film of {i} parts", "label": "xy"[i % 2], "meta": {"stars": i}}
        for i in range(40)
    ]
    path = tmp_path / "a.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    source = open_files(path, {"text": "text", "label": "label"})
    assert (source.reading.kind, len(source.collection)) == ("texts", 40)
    assert "column 'meta' is left out: it holds objects" in remarks(source)
    rows[5]["label"] = {"deep": 1}
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    with pytest.raises(DataError, match=r"row 6, column 'label': expected a number or"):
        open_files(path, {"text": "text", "label": "label"})


# --- samples and cells that cannot be used --------------------------------------------------------


def test_samples_without_a_label_are_counted_and_dropped(tmp_path):
    rows = [(i % 7, i % 5, "" if i in (0, 9) else 100 + i * 3.5) for i in range(60)]
    path = write(tmp_path / "a.csv", "a,b,price", rows)
    source = open_files(path, {"label": "price"})
    assert len(source.collection) == 58
    assert "2 of 60 samples have no label and are left out" in remarks(source)
    assert "row 2; " in remarks(source)
    assert "row 11" in remarks(source)
    assert source.collection.place(0)["row"] == 3
    with pytest.raises(DataError, match=r"row 2, column 'price': has no label \(2 of 60"):
        open_files(path, {"label": "price", "strict": True})


def test_unreadable_cells_are_listed_once_and_dropped(tmp_path):
    rows = [[f"{RNG.normal():.3f}", i % 7, "xy"[i % 2]] for i in range(3000)]
    rows[50][0], rows[2500][0], rows[2600][1] = "3o", "kg", "1.2.3"
    path = write(tmp_path / "a.csv", "a,b,label", rows)
    source = open_files(path)
    assert len(source.collection) == 2997
    said = remarks(source)
    for row, cell in ((52, "3o"), (2502, "kg"), (2602, "1.2.3")):
        assert f"row {row}, column '{'ab'[cell == '1.2.3']}': '{cell}'" in said
    assert said.count("--strict") == 1
    with pytest.raises(DataError, match=r"row 52, column 'a': expected a number.*, got '3o'"):
        open_files(path, {"strict": True})
    facts = source.dataset("train").describe()
    new = write(tmp_path / "new.csv", "a,b", [(1, 2), ("x", 2), (3, 4)])
    asked = read_unlabelled([new], facts, None)
    assert [place["row"] for place in asked.places] == [2, 4]
    with pytest.raises(DataError, match=r"row 3, column 'a': expected a number.*, got 'x'"):
        read_unlabelled([new], facts, None, strict=True)
    with pytest.raises(DataError, match="no sample is left"):
        read_unlabelled([write(tmp_path / "bad.csv", "a,b", [("x", 2)])], facts, None)
    many = [[row[0] if i < 2000 else "?!", *row[1:]] for i, row in enumerate(rows)]
    with pytest.raises(
        DataError, match=r"row 52, column 'a': expected a number.*, got '3o'.*1,001 of"
    ):
        open_files(write(tmp_path / "many.csv", "a,b,label", many))


def test_unreadable_cells_of_series_become_gaps(tmp_path):
    rows = [[i // 5, i % 5, f"{RNG.normal():.3f}", "xy"[i // 5 % 2]] for i in range(3000)]
    rows[2501][2] = "kg"
    source = open_files(write(tmp_path / "a.csv", "id,time,a,label", rows))
    assert np.isnan(source.collection.samples[500][1, 0])
    assert "row 2503, column 'a': 'kg'" in remarks(source)


# --- limits ---------------------------------------------------------------------------------------


def test_a_cell_beyond_the_limit_gives_one_line(tmp_path, monkeypatch):
    monkeypatch.setattr(opening, "LARGEST_CELL", 1 << 12)
    monkeypatch.setattr(delimited, "BLOCK", 1 << 12)
    monkeypatch.setattr(delimited, "ROW", 1)
    rows = [(f"a fine film of {i} parts", "xy"[i % 2]) for i in range(40)]
    rows[3] = ("x" * 9000, "x")
    path = write(tmp_path / "a.csv", "text,label", rows)
    with pytest.raises(DataError, match=r"a.csv, row 5: expected cells of at most") as error:
        open_files(path)
    assert "\n" not in str(error.value)
    monkeypatch.setattr(delimited, "HEAD", 3)
    path = write(tmp_path / "b.csv", "text,label", [*rows[:3], *rows[4:], rows[3]])
    path.write_text(path.read_text().replace("x" * 9000, "x" * 90_000))
    with pytest.raises(DataError, match=r"b.csv, row 41: expected cells of at most"):
        open_files(path)


def test_a_long_text_below_the_first_rows_is_read(tmp_path):
    rows = [(f"a fine film of {i} parts", "xy"[i % 2]) for i in range(2400)]
    rows[2200] = ("x " * 2_000_000, "x")
    source = open_files(write(tmp_path / "a.csv", "text,label", rows))
    assert len(source.collection.samples[2200]) == 4_000_000
    assert len(source.collection) == 2400


def test_data_that_expand_beyond_the_limit_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(formats, "UNPACKED_BYTES", 1 << 16)
    (tmp_path / "a.csv.gz").write_bytes(gzip.compress(b"a,label\n" + b"0,x\n0,y\n" * 100_000))
    with pytest.raises(DataError, match=r"a.csv.gz: expected at most .* bytes"):
        open_files(tmp_path / "a.csv.gz")
    np.savez_compressed(tmp_path / "a.npz", X=np.zeros((40, 9000)), y=np.arange(40) % 2)
    with pytest.raises(DataError, match=r"a.npz: expected at most .* bytes"):
        open_files(tmp_path / "a.npz")
    h5py = pytest.importorskip("h5py")
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("points", (5000, 1000, 1000), chunks=(1, 10, 10))
        file["label"] = np.arange(5000) % 2
    with pytest.raises(DataError, match=r"a.h5: expected at most .* bytes"):
        open_files(tmp_path / "a.h5")
    monkeypatch.undo()
    (tmp_path / "b.csv.gz").write_bytes(gzip.compress(b"a,label\n" + b"0,x\n1,y\n" * 100))
    assert len(open_files(tmp_path / "b.csv.gz").collection) == 200


# --- groups and forecasts -------------------------------------------------------------------------


def machines(rows_of_each: int = 30, restart: bool = False, state=lambda m: ["ok", "bad"][m % 2]):
    rows = []
    for machine in range(12):
        for k in range(rows_of_each):
            minute = k if restart else machine * rows_of_each + k
            stamp = np.datetime64("2026-03-01T00:00:00") + np.timedelta64(minute, "m")
            rows.append((f"M{machine}", stamp, f"{RNG.normal():.3f}", k % 7, state(machine)))
    return rows


@pytest.mark.parametrize("restart", [False, True])
def test_repeated_names_beside_dates_stay_in_one_split(tmp_path, restart):
    path = write(tmp_path / "a.csv", "machine,timestamp,temp,vib,state", machines(restart=restart))
    source = open_files(path)
    assert "--id machine" in remarks(source)
    assert (source.reading.group, source.reading.split) == ("machine", "group")
    assert origins(source)["group"] == "guessed"
    assert source.collection.channels == ("temp", "vib")
    parts = [set(source.collection.groups[source.parts == part].tolist()) for part in range(3)]
    assert not (parts[0] & parts[1] | parts[0] & parts[2] | parts[1] & parts[2])
    assert open_files(path, {"split": "random"}).reading.group is None
    assert len(open_files(path, {"id": "machine"}).collection) == 12


def test_forecasting_is_refused(tmp_path):
    hours = [np.datetime64("2026-01-01T00") + i for i in range(300)]
    rows = [(hour, f"{RNG.normal():.2f}") for hour in hours]
    path = write(tmp_path / "one.csv", "date,load", rows)
    with pytest.raises(DataError, match="forecasting, is not supported yet"):
        open_files(path)
    rows = [
        (f"store_{s}", np.datetime64("2025-01-01") + d, f"{RNG.normal():.1f}", d % 2)
        for s in range(5)
        for d in range(60)
    ]
    path = write(tmp_path / "panel.csv", "store,date,sales,promo", rows)
    with pytest.raises(DataError, match="forecasting, is not supported yet"):
        open_files(path)
    assert open_files(path, {"label": "promo"}).reading.label == "promo"
