"""A user's files: recognition, splits, and refusals before training."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from fredholm.errors import CheckpointError, DataError, MissingExtraError, OptionError
from fredholm.lab import data
from fredholm.lab.data.files import Reading, delimited, open_files, table
from fredholm.lab.data.files.clouds import read_cloud
from fredholm.lab.data.files.description import describe
from fredholm.lab.data.files.folders import collect_folders
from fredholm.lab.data.files.guesses import PICTURES
from fredholm.lab.data.files.times import NANO, nanoseconds
from fredholm.lab.data.files.unlabelled import read_unlabelled

RNG = np.random.default_rng(0)


def write(path: Path, *rows: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(rows) + "\n", encoding="utf-8")
    return path


def long_rows(count: int = 20, points: int = 5, step=lambda i, k: k) -> list[str]:
    rows = ["id,time,x,z,label"]
    for i in range(count):
        for k in range(points + i % 3):
            cell = "" if k == 2 else f"{RNG.normal():.3f}"
            rows.append(f"s{i},{step(i, k)},{i % 2 + 0.1 * k:.3f},{cell},{'ab'[i % 2]}")
    return rows


def refused(path: Path, match: str, **reading) -> None:
    with pytest.raises(DataError, match=match):
        open_files(path, reading)


# --- series ---------------------------------------------------------------------------------------


def test_a_long_table_of_irregular_series_is_read(tmp_path):
    path = write(tmp_path / "walks.csv", *long_rows(step=lambda i, k: 10 + k + (k > 1)))
    source = open_files(path)
    assert source.reading == Reading(
        kind="series", label="label", time="time", id="id", channels=("x", "z"),
        task="classification", split="random",
    )  # fmt: skip
    train = source.dataset("train")
    assert (train.name, train.classes, train.timed, train.length) == ("walks", ("a", "b"), True, 8)
    inputs = train.batch([0])[0][0]
    assert inputs[:3, 0].tolist() == [0, 1, 3]  # steps since the series began
    assert bool(inputs[2, 2].isnan())  # the missing cell
    assert not bool(inputs[2, 1].isnan())
    known = torch.cat([row[:, 1:] for row in (train.batch([i])[0][0] for i in range(len(train)))])
    assert torch.allclose(known.nanmean(0), torch.zeros(2), atol=1e-5)
    assert len(train) + sum(len(source.dataset(s)) for s in ("val", "test")) == 20
    assert source.description["longest_gap"] == 2
    assert source.description["first"][1]["where"].endswith("walks.csv, row 7")


def test_regular_times_need_no_channel_and_dates_are_read_as_times(tmp_path):
    rows = long_rows(step=lambda i, k: f"2024-01-01T00:00:{5 * k:02d}")
    train = open_files(write(tmp_path / "a.csv", *rows)).dataset("train")
    assert not train.timed
    assert train.batch([0])[0].shape[-1] == 2
    assert train.source["scaling"]["step"] == 5


def test_classes_that_vary_within_a_series_are_predicted_at_every_time(tmp_path):
    rows = ["id;t;x;state"]
    rows += [
        f"{i};{k};{k};{'up' if k > 2 else 'down'}" for i in range(10) for k in range(5 + i % 2)
    ]
    train = open_files(write(tmp_path / "a.csv", *rows)).dataset("train")
    inputs, labels = train.batch(range(len(train)))
    assert (train.task, train.head(), train.classes) == ("steps", {"pool": "every"}, ("down", "up"))
    assert labels.shape == inputs.shape[:2]
    assert labels[0, :5].tolist() == [0, 0, 0, 1, 1]
    assert -100 in labels


def test_a_wide_table_has_a_series_in_each_row(tmp_path):
    rows = [",".join([*(f"t{k}" for k in range(9)), "class"])]
    rows += [
        ",".join([*map(str, range(i, 7 + i % 3 + i)), *[""] * (2 - i % 3), "xy"[i % 2]])
        for i in range(12)
    ]
    source = open_files(write(tmp_path / "w.csv", *rows))
    assert source.reading.kind == "series"
    assert (
        sorted(len(sample) for sample in source.collection.samples) == [7] * 4 + [8] * 4 + [9] * 4
    )
    # the archive's tables have no header, and the class first
    bare = [f"{i % 2}\t" + "\t".join(f"{i + k / 7:.3f}" for k in range(10)) for i in range(12)]
    write(tmp_path / "ucr" / "N_TRAIN.tsv", *bare)
    write(tmp_path / "ucr" / "N_TEST.tsv", *bare)
    source = open_files(tmp_path / "ucr")
    assert (source.reading.kind, source.reading.label) == ("series", "column 1")
    assert len(source.dataset("test")) == 12
    assert source.facts()["split"]["rule"] == "given by the files"


def test_ts_files_of_classes_and_numbers_are_read(tmp_path):
    lines = [f"{i},2,3:{i},5,6:{'ab'[i % 2]}" for i in range(10)]
    header = ["@problemName x", "@classLabel true a b", "@data"]
    write(tmp_path / "c" / "X_TRAIN.ts", *header, *lines)
    write(tmp_path / "c" / "X_TEST.ts", *header, *lines[:4])
    train = open_files(tmp_path / "c").dataset("train")
    assert (train.channels, train.classes, len(train)) == (2, ("a", "b"), 8)
    numbers = [f"{i},2,3:{i / 7}" for i in range(20)]
    source = open_files(write(tmp_path / "r.ts", "@targetlabel true", "@data", *numbers))
    assert source.reading.task == "regression"
    assert source.dataset("train").in_units(source.dataset("train").labels).max() <= 19 / 7 + 1e-6


def test_arrays_of_series_with_times_padding_or_lengths_are_read(tmp_path):
    x = RNG.normal(size=(12, 6, 2))
    y = np.arange(12) % 2
    x[::3, 4:] = np.nan
    times = np.cumsum(RNG.uniform(0.5, 2, (12, 6)), 1)
    np.savez(tmp_path / "a.npz", X=x, y=y, times=times)
    source = open_files(tmp_path / "a.npz")
    assert [len(s) for s in source.collection.samples[:3]] == [4, 6, 6]
    assert source.dataset("train").timed
    np.savez(tmp_path / "b.npz", values=np.arange(40.0), lengths=np.full(10, 4), labels=y[:10])
    assert open_files(tmp_path / "b.npz").dataset("train").batch([0])[0].shape == (1, 4, 1)
    np.savez(tmp_path / "c.npz", X=x[..., :1], y=(x[..., 0] > 0).astype(int))
    assert open_files(tmp_path / "c.npz").dataset("train").task == "steps"
    np.savez(tmp_path / "d.npz", X=np.array([[1], [2, 3]], dtype=object), y=y[:2])
    refused(tmp_path / "d.npz", "holds Python objects, which are not loaded")


# --- rows, texts ----------------------------------------------------------------------------------


def rows_of(count: int = 30) -> list[str]:
    rows = ["age,colour,note,price"]
    for i in range(count):
        rows.append(f"{20 + i % 7},{['red', 'blue'][i % 2]},{'x' * (i + 1)},{100 + 3.5 * (i % 7)}")
    return rows


def test_feature_columns_of_numbers_and_words_predict_a_number(tmp_path):
    source = open_files(write(tmp_path / "flats.csv", *rows_of()))
    train = source.dataset("train")
    assert (train.kind.name, train.task, train.length) == ("row", "regression", 3)
    assert source.collection.channels == ("age", "colour=blue", "colour=red")
    assert (
        "column 'note' is left out: its cells are words ('x'); to read each of them as a "
        "column of its own: --channels age,colour,note"
    ) in source.collection.remarks
    assert abs(float(train.labels.mean())) < 1e-6
    assert train.in_units(train.labels).min() >= 100 - 1e-3
    one = open_files(tmp_path / "flats.csv", {"label": "colour", "channels": ["age", "price"]})
    assert (one.reading.task, one.collection.channels) == ("classification", ("age", "price"))


def test_parquet_is_read_as_the_same_table(tmp_path):
    arrow, parquet = (pytest.importorskip(n) for n in ("pyarrow", "pyarrow.parquet"))
    write(tmp_path / "a.csv", *rows_of())
    names, *rows = [row.split(",") for row in rows_of()]
    columns = {n: list(c) for n, c in zip(names, zip(*rows))}
    columns["age"] = [int(v) for v in columns["age"]]
    columns["price"] = [float(v) for v in columns["price"]]
    parquet.write_table(arrow.table(columns), tmp_path / "b.parquet")
    first, second = (open_files(tmp_path / name) for name in ("a.csv", "b.parquet"))
    assert np.array_equal(first.collection.samples, second.collection.samples)
    assert first.reading == second.reading


def test_parquet_columns_of_other_types_are_read_or_refused(tmp_path):
    arrow, parquet = (pytest.importorskip(n) for n in ("pyarrow", "pyarrow.parquet"))
    path = tmp_path / "a.parquet"
    moments = [10**18 + 1001 * (i % 5) for i in range(100)]
    columns = {
        "id": [i // 5 for i in range(100)],
        "time": arrow.array(moments, arrow.timestamp("ns", "UTC")),
        "x": [i % 7 for i in range(100)],
        "pair": [[1.0, 2.0, i] for i in range(100)],
        "label": [b"xy"[i // 5 % 2 :][:1] for i in range(100)],
    }
    parquet.write_table(arrow.table(columns), path)
    found = open_files(path).collection
    assert np.allclose(np.diff(found.times[0]), 1e-6, atol=5e-7)
    assert (found.labels.names, found.channels) == (["x", "y"], ("x",))
    assert found.remarks[0].startswith("column 'pair' is left out: it holds list<")
    refused(path, "expected numbers or texts in column 'pair', got list<", channels="x,pair")
    columns["label"][:10] = [b"\xfe"] * 5 + [b"\xff"] * 5
    parquet.write_table(arrow.table(columns), path)
    refused(path, "expected two samples or more of each class", channels="x")
    numbers = [arrow.array(range(40)), arrow.array(range(40)), arrow.array(["x", "y"] * 20)]
    parquet.write_table(arrow.table(numbers, names=["a", "a", "label"]), path)
    refused(path, "two columns are called 'a'; rename one")


def test_texts_use_the_vocabulary_of_the_training_split(tmp_path):
    rows = [
        "review,stars",
        *(f'"a {"fine" if i % 2 else "dull"} film, number {i}",{i % 2}' for i in range(20)),
    ]
    train = open_files(write(tmp_path / "r.csv", *rows)).dataset("train")
    assert (train.kind.name, train.classes) == ("text", ("0", "1"))
    assert {"fine", "dull"} <= set(train.vocabulary.words)


# --- pictures, clouds, fields ---------------------------------------------------------------------


def picture(path: Path, level: int) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.full((6, 9, 3), level, np.uint8)).save(path)
    return path


def test_pictures_in_flat_folders_split_folders_and_tables_are_read(tmp_path):
    for i in range(10):
        name = "dark" if i % 2 else "light"
        picture(tmp_path / "flat" / name / f"{i}.png", 20 * i)
        for part in ("train", "val", "test"):
            picture(tmp_path / "split" / part / name / f"{i}.png", 20 * i)
    flat = open_files(tmp_path / "flat")
    assert [len(flat.dataset(s)) for s in ("train", "val", "test")] == [6, 2, 2]
    assert flat.dataset("train").batch([0])[0].shape == (1, 3, 6, 9)
    assert flat.dataset("train").describe()["source"]["split"]["rule"] == "stratified"
    split = open_files(tmp_path / "split")
    assert [len(split.dataset(s)) for s in ("train", "val", "test")] == [10, 10, 10]
    rows = [f"{'dark' if i % 2 else 'light'}/{i}.png,{i / 3:.2f}" for i in range(10)]
    table = write(tmp_path / "flat" / "levels.csv", "file,level", *rows)
    brightness = open_files(table)
    assert (brightness.kind.name, brightness.reading.task) == ("images", "regression")
    assert brightness.dataset("train").labels.is_floating_point()
    assert open_files(tmp_path / "flat").reading.text == "file"  # the table that lies in the folder


def test_clouds_of_every_format_are_read(tmp_path):
    points = RNG.normal(size=(7, 3)).round(3)
    lines = [" ".join(map(str, p)) for p in points]
    head = ["ply", "format ascii 1.0", "element vertex 7", *(f"property float {a}" for a in "xyz")]
    paths = {
        "xyz": write(tmp_path / "a.xyz", "# comment", *lines),
        "ply": write(tmp_path / "a.ply", *head, "end_header", *lines),
        "off": write(tmp_path / "a.off", "OFF", "7 0 0", *lines),
    }
    binary = tmp_path / "b.ply"
    header = "\n".join([head[0], "format binary_little_endian 1.0", *head[2:], "end_header\n"])
    binary.write_bytes(header.encode() + points.astype("<f4").tobytes())
    for path in (*paths.values(), binary):
        assert np.allclose(read_cloud(path), points, atol=1e-6), path
    with pytest.raises(DataError, match="row 3: expected 3 numbers, as the first point has, got 2"):
        read_cloud(write(tmp_path / "bad.xyz", "1 2 3", "4 5 6", "7 8"))
    for i in range(12):
        cloud = points[: 5 + i % 3] + i
        np.savetxt(write(tmp_path / "c" / "ab"[i % 2] / f"{i}.xyz", ""), cloud)
    train = open_files(tmp_path / "c").dataset("train")
    assert (train.kind.name, train.points, train.batch([0])[0].shape[2]) == ("points", 5, 3)
    assert float(train.batch([0])[0].norm(dim=-1).max()) <= 1 + 1e-5
    np.savez(tmp_path / "c.npz", points=RNG.normal(size=(12, 9, 3)), label=np.arange(12) % 2)
    assert open_files(tmp_path / "c.npz").kind.name == "points"


def test_hdf5_clouds_need_their_extra(tmp_path, monkeypatch):
    h5py = pytest.importorskip("h5py")
    with h5py.File(tmp_path / "m.h5", "w") as file:
        file["data"] = RNG.normal(size=(12, 9, 3))
        file["label"] = (np.arange(12) % 2)[:, None]
    assert open_files(tmp_path / "m.h5").dataset("train").batch([0])[0].shape == (1, 9, 3)
    monkeypatch.setitem(__import__("sys").modules, "h5py", None)
    os.utime(tmp_path / "m.h5", (0, 0))
    with pytest.raises(MissingExtraError, match=r"fredholm\[clouds\]"):
        open_files(tmp_path / "m.h5")


def test_fields_on_grids_and_points_are_read(tmp_path):
    a = RNG.normal(size=(10, 4, 6))
    np.savez(tmp_path / "g.npz", inputs=a, outputs=np.stack([a, 2 * a], 1))
    grid = open_files(tmp_path / "g.npz").dataset("train")
    assert [tuple(t.shape[1:]) for t in grid.batch([0])] == [(1, 4, 6), (2, 4, 6)]
    places = RNG.uniform(2, 5, size=(10, 8, 2))
    places[1, 5:] = np.nan
    np.savez(tmp_path / "p.npz", coordinates=places, x=places.sum(2), u=places[..., :1])
    source = open_files(tmp_path / "p.npz")
    points = source.dataset("train")
    assert points.encoder() == {"kind": "points", "channels": 3, "position_dim": 2}
    inputs, answers = points.batch(range(len(points)))
    assert inputs.shape[1:] == (8, 3)
    assert answers.shape[1:] == (1, 8)
    assert (
        0
        <= float(inputs[..., :2].nan_to_num().min())
        <= float(inputs[..., :2].nan_to_num().max())
        <= 1
    )
    np.savez(
        tmp_path / "l.npz",
        x=a.reshape(10, 24),
        u=a.reshape(10, 24),
        grid=np.linspace(0, 1, 24)[:, None],
    )
    assert open_files(tmp_path / "l.npz").dataset("train").coordinates == 1


# --- scales ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(("shift", "size"), [(1e4, 1e-3), (1.7e9, 300.0), (-3e6, 1.0)])
def test_small_changes_of_large_numbers_are_scaled(tmp_path, shift, size):
    x = RNG.normal(size=40)
    table = [f"{shift + size * value!r},7,{'ab'[i % 2]}" for i, value in enumerate(x.tolist())]
    long = [
        f"{i},{k},{shift + size * (value + k)!r},{'ab'[i % 2]}"
        for i, value in enumerate(x.tolist())
        for k in range(4)
    ]
    places, y = (shift + size * RNG.normal(size=(40, 9, 2))), np.arange(40) % 2
    np.savez(tmp_path / "s.npz", X=places, y=y)
    np.savez(tmp_path / "c.npz", points=places, label=y)
    np.savez(tmp_path / "p.npz", coordinates=places, inputs=places[..., 0], outputs=places[..., 1])
    lines = [f"{shift + size * v!r},{shift - size * v!r}:{'ab'[i % 2]}" for i, v in enumerate(x)]
    lines = [line.replace("np.float64(", "").replace(")", "") for line in lines]
    paths = [
        write(tmp_path / "a.csv", "x,same,label", *table),
        write(tmp_path / "l.csv", "id,time,x,label", *long),
        write(tmp_path / "a.ts", "@classLabel true a b", "@data", *lines),
        *(tmp_path / f"{name}.npz" for name in "scp"),
    ]
    for path in paths:
        train = open_files(path).dataset("train")
        values = train.batch(range(len(train)))[0]
        values = values[:, 0] if path.name == "a.csv" else values.flatten(0, 1)
        spread = values.std(0, correction=0)
        low, high = (0.05, 0.6) if path.name == "c.npz" else (0.1, 1.01)
        assert bool(((low < spread) & (spread < high)).all()), (path.name, spread)
        assert len(values.unique()) > 100 or len(values) < 200, path.name
    rows = open_files(paths[0]).dataset("train")
    assert rows.source["scaling"]["std"] == [pytest.approx(size, rel=0.5), 1.0]
    assert float(rows.batch([0])[0][0, 1]) == 0  # what never varies


# --- splits ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["blood_test", "x_train", "dev"])
@pytest.mark.parametrize("label", ["words", "numbers"])
def test_a_single_file_is_divided_whatever_its_name(tmp_path, name, label):
    rows = [f"{i % 7},{'ab'[i % 2] if label == 'words' else 1.7 * i}" for i in range(100)]
    path = write(tmp_path / "some" / f"{name}.csv", "x,label", *rows)
    for place in (path, path.parent):
        parts = open_files(place).parts
        assert np.bincount(parts).tolist() == [64, 16, 20]
    write(tmp_path / "some" / "b_test.csv", "x,label", *rows)
    if name == "blood_test":
        refused(path.parent, "called test or val, and none train: none is left for training")


def grouped_rows() -> list[str]:
    return [
        "patient,day,x,y",
        *(f"p{i // 4},2024-01-{i % 28 + 1:02d},{i % 5},{i % 2}" for i in range(40)),
    ]


def test_groups_are_not_divided_and_the_latest_are_the_test(tmp_path):
    path = write(tmp_path / "a.csv", *grouped_rows())
    assert "so that no patient is in two splits: --group patient" in " ".join(
        open_files(path).collection.remarks
    )
    source = open_files(path, {"group": "patient"})
    parts = [set(source.collection.groups[source.parts == part].tolist()) for part in range(3)]
    assert all(parts)
    assert not (parts[0] & parts[1] | parts[0] & parts[2] | parts[1] & parts[2])
    late = open_files(path, {"split": "time", "time": "day", "channels": ["x"]})
    order = late.collection.order
    assert (
        order[late.parts == 0].max() <= order[late.parts == 1].min() <= order[late.parts == 2].min()
    )
    with pytest.raises(OptionError, match="expected the column of groups as well"):
        open_files(path, {"split": "group"})
    for rule in ("time", "random"):
        with pytest.raises(OptionError, match=f"with group 'patient', whose .*, got '{rule}'"):
            open_files(path, {"split": rule, "time": "day", "group": "patient"})


@pytest.mark.parametrize("share", [0.2, 0.25, 0.3, 0.4, 0.6, 0.75, 0.9])
@pytest.mark.parametrize("label", ["words", "numbers"])
def test_groups_are_held_out_up_to_any_share(tmp_path, share, label):
    values = np.arange(400) % 3
    if label == "numbers":
        values = RNG.normal(size=400)
    rows = [f"p{i // 4},{i % 7},{value}" for i, value in enumerate(values)]
    path = write(tmp_path / "a.csv", "patient,x,y", *rows)
    task = "classification" if label == "words" else "regression"
    source = open_files(path, {"group": "patient", "test": share, "label": "y", "task": task})
    tested = source.parts == 2
    assert tested.mean() == pytest.approx(share, abs=0.02)
    assert not set(source.collection.groups[tested]) & set(source.collection.groups[~tested])
    assert "were asked for" not in " ".join(source.collection.remarks)
    if label == "words":
        counts = np.bincount(source.collection.labels.codes[tested])
        assert np.ptp(counts) <= 4


def test_the_default_share_divides_groups_as_before(tmp_path):
    path = write(tmp_path / "a.csv", *grouped_rows())
    source = open_files(path, {"group": "patient"})
    from sklearn.model_selection import StratifiedGroupKFold

    collection = source.collection
    folds = StratifiedGroupKFold(5, shuffle=True, random_state=0)
    codes = collection.labels.codes
    _, held = next(folds.split(codes, codes, collection.groups))
    assert np.flatnonzero(source.parts == 2).tolist() == held.tolist()


def test_large_groups_are_reported_with_their_share(tmp_path):
    who = [*["p0"] * 60, *["p1"] * 60, *["p2"] * 60]
    rows = [f"{name},{i % 7},{RNG.normal():.4f}" for i, name in enumerate(who)]
    path = write(tmp_path / "a.csv", "patient,x,y", *rows)
    source = open_files(path, {"group": "patient", "label": "y"})
    assert np.bincount(source.parts).tolist() == [60, 60, 60]
    remarks = " ".join(source.collection.remarks)
    why = "were asked for: each value of 'patient' stays in one split"
    assert f"the test set holds 33% of the samples it is taken from, where 20% {why}" in remarks
    assert f"the validation set holds 50% of the samples it is taken from, where 20% {why}" in (
        remarks
    )


def test_samples_of_one_time_are_not_divided(tmp_path):
    rows = [
        f"2024-01-{day + 1:02d},{RNG.normal():.3f},{RNG.normal():.4f}"
        for day in range(30)
        for _ in range(7)
    ]
    path = write(tmp_path / "a.csv", "day,x,y", *rows)
    reading = {"split": "time", "time": "day", "label": "y", "channels": "x", "test": 0.23}
    source = open_files(path, reading)
    order = source.collection.order
    days = [set(order[source.parts == part]) for part in range(3)]
    assert [len(part) for part in days] == [18, 5, 7]
    assert max(days[0]) < min(days[1]) <= max(days[1]) < min(days[2])

    few = write(tmp_path / "few.csv", "day,x,y", *rows[:14])
    match = "expected three different times or more to divide by, got 1 for validation; add some"
    refused(few, match, **reading)
    longer = write(tmp_path / "longer.csv", "day,x,y", *rows[:14], *rows[14:21] * 5)
    remarks = " ".join(open_files(longer, reading).collection.remarks)
    assert "the test set holds 71% of the samples it is taken from, where 23% were asked" in remarks


@pytest.mark.parametrize("rule", ["random", "group", "time"])
def test_no_samples_are_held_out_for_validation_with_a_share_of_zero(tmp_path, rule):
    rows = [f"p{i // 4},{i},{i % 7},{'ab'[i % 2]}" for i in range(80)]
    path = write(tmp_path / "a.csv", "patient,when,x,label", *rows)
    reading = {"split": rule, "time": "when", "label": "label", "channels": "x"}
    if rule == "group":
        reading["group"] = "patient"
    source = open_files(path, reading, val=0)
    counts = np.bincount(source.parts, minlength=3)
    assert (counts[1], counts.sum()) == (0, 80)
    assert counts[2] == 16
    given = {"path": path, "options": reading, "val_fraction": 0}
    assert len(data.create_dataset("files", "train", **given)) == 64
    match = "expected samples in split 'val', got none, as with val_fraction=0; choose another"
    with pytest.raises(OptionError, match=match):
        data.create_dataset("files", "val", **given)


def test_a_series_of_two_groups_is_refused(tmp_path):
    lines = ["id,time,patient,x,label"]
    for i in range(12):
        lines += [f"s{i},{t},p{i % 4},{i + t},{'ab'[i % 2]}" for t in range(3)]
    path = write(tmp_path / "a.csv", *lines)
    assert len(set(open_files(path, {"group": "patient"}).collection.groups.tolist())) == 4
    lines[9] = lines[9].replace("p2", "p3")
    write(path, *lines)
    with pytest.raises(DataError, match=r"row 10, column 'patient': expected one group per series"):
        open_files(path, {"group": "patient"})


def test_a_group_across_several_array_files_is_one_group(tmp_path):
    who = {"a": ["ann", "bob", "cid", "dan"], "b": ["bob", "cid", "dan", "eve"]}
    for name, people in who.items():
        x = RNG.normal(size=(40, 9, 1))
        y = np.arange(40) % 2
        np.savez(tmp_path / f"{name}.npz", X=x, y=y, patient=np.repeat(people, 10))
    source = open_files(tmp_path, {"group": "patient"})
    names = np.concatenate([np.repeat(people, 10) for people in who.values()])
    parts = [set(names[source.parts == part]) for part in range(3)]
    assert not (parts[0] & parts[1] | parts[0] & parts[2] | parts[1] & parts[2])
    # Runs that had divided such groups are told apart by the rule, and refused.
    assert source.facts()["split"]["rule"] == "group, over all files"
    np.savez(tmp_path / "b.npz", X=x, y=y, patient=np.array([7.0, np.nan, *[7.0] * 38]))
    with pytest.raises(DataError, match="'patient' of sample 1 is missing; give it a group"):
        open_files(tmp_path / "b.npz", {"group": "patient"})


@pytest.mark.parametrize("kind", ["fields", "clouds"])
def test_fields_and_clouds_in_arrays_are_divided_by_groups_and_times(tmp_path, kind):
    a = RNG.normal(size=(40, 4, 4))
    label = np.arange(40) % 2
    arrays = {"inputs": a, "outputs": a} if kind == "fields" else {"points": a, "label": label}
    path = tmp_path / "a.npz"
    who = np.arange(40) % 8
    when = RNG.permutation(40)
    np.savez(path, **arrays, site=who, taken=when)
    source = open_files(path, {"group": "site"})
    assert (source.collection.kind, source.facts()["split"]["rule"]) == (kind, "group")
    parts = [set(who[source.parts == part]) for part in range(3)]
    assert all(parts)
    assert not (parts[0] & parts[1] | parts[0] & parts[2] | parts[1] & parts[2])
    source = open_files(path, {"split": "time", "time": "taken"})
    parts = [when[source.parts == part] for part in range(3)]
    assert parts[0].max() < parts[1].min() <= parts[1].max() < parts[2].min()
    refused(path, "expected an array of times, by which the split goes", split="time")


def test_missing_groups_and_times_are_refused(tmp_path):
    for i in range(12):
        cloud = RNG.normal(size=(5, 3))
        np.savetxt(write(tmp_path / "c" / "ab"[i % 2] / f"{i}.xyz", ""), cloud)
        picture(tmp_path / "p" / "ab"[i % 2] / f"{i}.png", 9 * i)
    refused(
        tmp_path / "c",
        "group: expected none, got 'patient'; a folder per class has",
        group="patient",
    )
    refused(tmp_path / "c", "got 'group'|got 'patient'", split="group", group="patient")
    refused(
        tmp_path / "p", "split: expected none, got 'time'; .* give a table of paths", split="time"
    )
    assert open_files(tmp_path / "p", {"split": "random"}).reading.split == "random"
    for rule in ("group", "time"):  # of a run on a table; nothing is divided where it answers
        run = Reading(kind="images", group="patient", split=rule)
        asked = collect_folders(tmp_path / "p", run, PICTURES, labelled=False)
        assert len(asked) == 12
    lines = [f"{i},2,3:{'ab'[i % 2]}" for i in range(12)]
    path = write(tmp_path / "a.ts", "@classLabel true a b", "@data", *lines)
    refused(path, "group: expected none, got 'patient'; .ts files have no", group="patient")
    refused(path, "expected times to divide by, got none; name their column", split="time")


def test_a_split_is_stratified_seeded_and_recorded(tmp_path):
    rows = ["x,class", *(f"{i},{'rare' if i % 6 == 0 else 'common'}" for i in RNG.permutation(60))]
    path = write(tmp_path / "a.csv", *rows)
    first, again, other = (open_files(path, {"seed": s}) for s in (0, 0, 1))
    counts = [
        np.bincount(first.collection.labels.codes[first.parts == p]).tolist() for p in range(3)
    ]
    assert counts == [[32, 6], [8, 2], [10, 2]]
    assert np.array_equal(first.parts, again.parts)
    assert not np.array_equal(first.parts, other.parts)
    assert first.dataset("val").describe()["source"]["split"] == {
        "rule": "stratified", "seed": 0, "train": 38, "val": 10, "test": 12,
    }  # fmt: skip
    assert first.dataset("test").measures == ("balanced_accuracy", "accuracy")


# --- wrong input ----------------------------------------------------------------------------------


def test_files_of_several_kinds_are_refused(tmp_path):
    picture(tmp_path / "m" / "a" / "1.png", 5)
    write(tmp_path / "m" / "c.xyz", "1 2 3")
    refused(tmp_path / "m", r"files of one kind, got 1 pictures \(a/1.png\); 1 clouds \(c.xyz\)")
    refused(tmp_path / "none", "none: no such file or folder")


def test_a_label_equal_to_the_row_number_is_refused(tmp_path):
    path = write(tmp_path / "a.csv", "x,y", *(f"{i % 3},{i}" for i in range(12)))
    refused(path, r"row 2, column 'y': expected a label, got another value in every sample")


def test_one_class_and_classes_of_one_sample_are_refused(tmp_path):
    one = write(tmp_path / "a.csv", "x,label", *(f"{i % 3},yes" for i in range(12)))
    refused(one, "row 2, column 'label': expected two classes or more, got 'yes'")
    rows = [f"{i % 3},{'no' if i == 7 else 'yes'}" for i in range(12)]
    refused(
        write(tmp_path / "b.csv", "x,label", *rows),
        "row 9, column 'label': expected two samples .*, got one of 'no'",
    )


def test_arrays_of_several_forms_are_named_with_both_files(tmp_path):
    def saved(name, shape, **more):
        np.savez(tmp_path / f"{name}.npz", inputs=RNG.normal(size=shape), **more)

    for grid, forms in (
        (
            (12, 16, 16),
            "1 channels on a grid of 8 × 8, as .*train.npz has, got 1 channels on a grid of 16",
        ),
        ((12, 2, 8, 8), "1 channels on a grid of 8 × 8, as .*train.npz has, got 2"),
        ((12, 8), "1 channels on a grid of 8 × 8, as .*train.npz has, got 1 channels;"),
    ):
        for name, shape in (("train", (12, 8, 8)), ("test", grid)):
            saved(name, shape, outputs=RNG.normal(size=shape))
        refused(tmp_path, f"test.npz: expected samples of {forms}")
    places = RNG.uniform(size=(12, 8, 2))
    for name, channels in (("train", 1), ("test", 2)):
        answers = RNG.normal(size=(12, 8, channels))
        saved(name, (12, 8), coordinates=places, outputs=answers)
    refused(tmp_path, "test.npz: expected answers of 1 channels.*train.npz has, got 2 channels")


def test_decreasing_times_and_repeated_ids_are_refused(tmp_path):
    rows = long_rows(4)
    rows[3], rows[4] = rows[4], rows[3]
    refused(
        write(tmp_path / "a.csv", *rows),
        r"row 5, column 'time': expected a later time of 's0' than 3, got 2",
    )
    twice = [row.replace("s3", "s0") for row in long_rows(4)]
    refused(
        write(tmp_path / "b.csv", *twice), r"row 20, column 'time': .* two series have the same id"
    )
    rows = ["id,x,label", *(f"{i},{i % 3},{i % 2}" for i in range(10)), "4,1,0"]
    refused(
        write(tmp_path / "c.csv", *rows),
        r"row 12, column 'id': the id '4' comes twice, first in .*row 6",
    )


def test_missing_and_infinite_labels_are_refused(tmp_path):
    rows = [f"{i % 3},{'' if i == 4 else 'ab'[i % 2]}" for i in range(12)]
    refused(
        write(tmp_path / "a.csv", "x,label", *rows),
        r"row 6, column 'label': has no label \(1 of 12",
        strict=True,
    )
    for odd, why in (("nan", "has no label"), ("", "has no label"), ("-inf", ".* got '-inf'")):
        for values in ([i % 2 for i in range(12)], [i * i / 7 for i in range(12)]):
            rows = [f"{i % 3},{odd if i == 4 else value}" for i, value in enumerate(values)]
            path = write(tmp_path / "a.csv", "x,label", *rows)
            refused(path, f"row 6, column 'label': {why}", strict=True)
    np.savez(tmp_path / "a.npz", X=np.ones((8, 3, 1)), y=[0.5, 1.5, np.nan, 1.25, 2, 1, 0, 1])
    refused(tmp_path / "a.npz", r"sample 2, column 'y': has no label", strict=True)
    np.savez(tmp_path / "a.npz", X=np.ones((8, 3, 1)), y=[0, 1, np.inf, 1, 0, 1, 0, 1])
    refused(tmp_path / "a.npz", r"sample 2, column 'y': has no label", strict=True)
    lines = [f"{i},2,3:{'nan' if i == 4 else i % 2}" for i in range(12)]
    path = write(tmp_path / "a.ts", "@classLabel true", "@data", *lines)
    refused(path, "series 5.*, column 'label': has no label", strict=True)


def test_labels_of_short_series_may_end_in_nan(tmp_path):
    values = RNG.normal(size=(12, 5, 1))
    y = RNG.integers(0, 2, (12, 5)).astype(float)
    values[::3, 3:], y[::3, 3:] = np.nan, np.nan
    np.savez(tmp_path / "a.npz", X=values, y=y)
    source = open_files(tmp_path / "a.npz")
    assert source.collection.task == "steps"
    assert source.collection.labels.names == ["0", "1"]


def test_wrong_cells_and_rows_of_another_length_are_refused(tmp_path):
    rows = [f"{i % 3},{'ab'[i % 2]}" for i in range(delimited.HEAD + 5)]
    rows[-1] = "1,5;a"
    rows[-2] = "1.x,b"
    refused(
        write(tmp_path / "a.csv", "x,label", *rows),
        r"row 2005, column 'x': expected a number, or an empty cell .*, got '1.x'",
        strict=True,
    )
    rows[-2] = "1,a,b"
    refused(write(tmp_path / "b.csv", "x,label", *rows), "row 2005: expected 2 cells, .* got 3")


@pytest.mark.parametrize(
    ("cell", "hint"),
    [
        ("oops", "expected a number, or an empty cell"),
        ("1_2", "expected a number, or an empty cell"),
        ("3,5", r"expected a number \(decimal commas"),
    ],
)
def test_one_wrong_cell_in_a_column_of_numbers_is_refused(tmp_path, cell, hint):
    path = tmp_path / "rows.csv"
    lines = [f"{i / 7:.3f};{i};{'ab'[i % 2]}" for i in range(40)]
    lines[4] = f"{cell};4;a"
    path.write_text("weight;size;label\n" + "\n".join(lines) + "\n")
    with pytest.raises(DataError, match=rf"row 6, column 'weight': {hint}.*, got '{cell}'"):
        open_files(path, {"strict": True})
    found = open_files(path).collection
    assert (found.channels, len(found)) == (("weight", "size"), 39)
    assert f"row 6, column 'weight': {cell!r}" in " ".join(found.remarks)
    chosen = open_files(path, Reading(channels=("size",)))
    assert chosen.collection.channels == ("size",)


def test_decimal_commas_are_named_and_mixed_words_stay_words(tmp_path):
    path = tmp_path / "rows.csv"
    lines = [f"{i},{i % 10};{i};{'ab'[i % 2]}" for i in range(40)]
    path.write_text("weight;size;label\n" + "\n".join(lines) + "\n")
    with pytest.raises(DataError, match=r"column .weight.: .*decimal commas are written as points"):
        open_files(path)
    lines = [f"{'A/' * (i % 3 == 0)}{i + 100};{i};{'ab'[i % 2]}" for i in range(40)]
    path.write_text("ticket;size;label\n" + "\n".join(lines) + "\n")
    assert open_files(path).collection.channels == ("size",)


def test_rows_that_look_like_steps_of_series_are_reported(tmp_path):
    path = tmp_path / "walks.csv"
    lines = [f"{w},{t},{w * t},{'ab'[w % 2]}" for w in range(6) for t in range(5)]
    path.write_text("walk,time,hip,label\n" + "\n".join(lines) + "\n")
    found = open_files(path).collection
    assert found.kind == "rows"
    assert any("--id walk" in line for line in found.remarks)
    series = open_files(path, Reading(id="walk")).collection
    assert (series.kind, len(series), series.remarks) == ("series", 6, [])
    lines = [f"{'red' if t % 2 else 'blue'},{t},{t * t},{'ab'[t % 3 == 0]}" for t in range(30)]
    path.write_text("colour,time,hip,label\n" + "\n".join(lines) + "\n")
    assert not any("--id" in line for line in open_files(path).collection.remarks)


def test_dates_with_time_zones_are_compared_in_utc(tmp_path):
    zones = ("+02:00", "+00:00", "Z", "")
    start = nanoseconds("2024-01-01")
    assert [(nanoseconds(f"2024-01-01T03:00:00{zone}") - start) / NANO for zone in zones] == [
        3600.0,
        10800.0,
        10800.0,
        10800.0,
    ]
    assert nanoseconds("2024-02") == nanoseconds("2024-02-01")


@pytest.mark.parametrize("y", [np.eye(12, 3), np.random.default_rng(0).normal(size=(12, 10))])
def test_labels_of_two_axes_that_are_not_classes_are_refused(tmp_path, y):
    np.savez(tmp_path / "a.npz", X=np.zeros((12, 10, 2)), y=y)
    with pytest.raises(DataError, match=r"expected \(12,\), a class or a number per sample, or"):
        open_files(tmp_path / "a.npz")


def test_a_file_that_changes_while_reading_is_refused(tmp_path, monkeypatch):
    path = write(tmp_path / "a.csv", "x,label", *(f"{i % 3},{'ab'[i % 2]}" for i in range(12)))
    read = delimited.csv.reader

    def growing(*args, **options):
        with path.open("a") as file:
            file.write("1,a\n")
        return read(*args, **options)

    monkeypatch.setattr(delimited.csv, "reader", growing)
    refused(path, "changed while it was read")


def test_large_tables_are_read_in_pieces(tmp_path, monkeypatch):
    import tracemalloc

    import pyarrow

    count = 20_000
    seen = []
    path = write(
        tmp_path / "a.csv", "x,z,label", *(f"{i % 97},{i % 89},{'ab'[i % 2]}" for i in range(count))
    )

    def read(file):
        roles = {"x": "number", "z": "number", "label": "word"}
        return table.read_table([table.read_head(file)], roles)

    # The first table loads modules of pyarrow and pandas, which would be counted as memory.
    read(write(tmp_path / "small.csv", "x,z,label", "1,2,a", "3,4,b"))
    monkeypatch.setattr(delimited, "BLOCK", 1 << 14)
    arrays = delimited.arrays
    monkeypatch.setattr(
        delimited,
        "arrays",
        lambda *given: (seen.append(len(some[0])) or some for some in arrays(*given)),
    )
    before = pyarrow.total_allocated_bytes()
    tracemalloc.start()
    result = read(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert (len(result), sum(seen)) == (count, count)
    assert max(seen) < count / 8
    assert peak < 3e6  # the file as lists of text takes four times that
    assert pyarrow.total_allocated_bytes() - before < 3e5  # no piece is held


MEASURED = """
import resource, sys
import torch  # which the data set imports, and reading does not
from fredholm.lab.data.files import open_files
peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
before = peak()
train = open_files(sys.argv[1]).dataset("train")
train.batch([0])
print(len(train), peak() - before)
"""


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(("suffix", "limit"), [("csv", 400), ("parquet", 650)])
def test_large_tables_need_only_the_memory_of_their_numbers(tmp_path, suffix, limit):
    """Resident memory in MB beyond a process that reads nothing."""
    arrow, csv, parquet = (
        pytest.importorskip(name) for name in ("pyarrow", "pyarrow.csv", "pyarrow.parquet")
    )
    count = 10**6
    columns = {f"x{i}": RNG.normal(size=count).round(4) for i in range(8)}
    columns["colour"] = np.array(["red", "blue", "green"])[np.arange(count) % 3]
    columns["label"] = np.where(columns["x0"] > 0, "yes", "no")
    write = csv.write_csv if suffix == "csv" else parquet.write_table
    write(arrow.table(columns), tmp_path / f"m.{suffix}")
    command = [sys.executable, "-c", MEASURED, str(tmp_path / f"m.{suffix}")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    size, megabytes = done.stdout.split()
    assert int(size) == 640_000
    assert float(megabytes) < limit


def test_another_encoding_is_named_with_its_row(tmp_path):
    path = tmp_path / "a.csv"
    path.write_bytes("x,label\n1,ja\n2,né\n".encode("latin-1"))
    refused(path, r"row 3, column 2: expected UTF-8, .*iconv -f latin1")


def test_a_column_that_determines_the_label_is_reported(tmp_path):
    rows = [f"{RNG.normal():.3f},{i % 2 * 10 + i / 100},{i % 2}" for i in range(40)]
    remarks = (
        open_files(write(tmp_path / "a.csv", "x,code,label", *rows)).dataset("train").remarks()
    )
    assert "column 'code' tells 'label' by itself" in " ".join(remarks)
    assert "'x'" not in " ".join(remarks)


def test_a_channel_that_determines_the_label_is_reported(tmp_path):
    rows = ["id,time,x,code,label"]
    for i in range(30):
        rows += [f"s{i},{k},{RNG.normal():.3f},{i % 2 * 5 + i / 100},{i % 2}" for k in range(4)]
    remarks = " ".join(open_files(write(tmp_path / "a.csv", *rows)).collection.remarks)
    assert "column 'code' tells 'label' by itself" in remarks
    assert "'x'" not in remarks


def test_inconsistent_tables_of_series_are_reported_with_their_row(tmp_path):
    rows = long_rows(20, step=lambda i, k: k)
    rows[3] = rows[3].removesuffix("a") + "b"
    remarks = open_files(write(tmp_path / "a.csv", *rows)).collection.remarks
    assert any(
        "row 2, column 'label': the label varies within 1 of 20 series" in r for r in remarks
    )
    bare = ["id,x,label", *(f"s{i % 9},{k},{'ab'[i % 9 % 2]}" for i in range(10) for k in range(4))]
    remarks = open_files(write(tmp_path / "b.csv", *bare)).collection.remarks
    assert any("row 38, column 'id': the rows of a series are not together" in r for r in remarks)


def test_a_label_that_numbers_the_samples_is_reported(tmp_path):
    rows = [f"{RNG.normal():.3f},{i}" for i in RNG.permutation(30)]
    remarks = open_files(write(tmp_path / "a.csv", "x,label", *rows)).collection.remarks
    assert any("takes each whole number from 0 to 29 once" in remark for remark in remarks)


def test_infinite_cells_empty_files_broken_rows_and_utf_16_are_refused(tmp_path):
    rows = [f"{'inf' if i == 4 else i % 3},{'ab'[i % 2]}" for i in range(12)]
    refused(
        write(tmp_path / "a.csv", "x,label", *rows),
        r"row 6, column 'x': expected a finite number.*, got 'inf'",
    )
    refused(write(tmp_path / "b.csv", "", " "), "expected a header and rows, got an empty file")
    refused(write(tmp_path / "c.csv", "x,label", '"1,a', "2,b"), "row 2: a cell begins with a")
    path = tmp_path / "d.csv"
    path.write_bytes("x,label\n1,a\n".encode("utf-16"))
    refused(path, r"row 1: expected UTF-8, got UTF-16; .*iconv -f utf-16")


def test_unused_classes_and_timestamps_of_ts_files_are_reported(tmp_path):
    head = ["@classLabel true a b", "@data"]
    lines = [f"{i},2,3:a" for i in range(8)]
    refused(
        write(tmp_path / "a.ts", *head, *lines),
        "expected two classes or more, got 'a' for every sample",
    )
    head[0] = "@classLabel true a b c"
    both = [f"{i},2,3:{'ab'[i % 2]}" for i in range(12)]
    refused(write(tmp_path / "b.ts", *head, *both), "declares the class 'c', of which there is no")
    stamped = [f"(0,{i}),(1,2):{'ab'[i % 2]}" for i in range(12)]
    path = write(tmp_path / "c.ts", "@timeStamps true", "@classLabel true a b", "@data", *stamped)
    assert "its time stamps are not read" in open_files(path).collection.remarks[0]


def test_unknown_columns_and_kinds_are_refused(tmp_path):
    path = write(tmp_path / "a.csv", *rows_of())
    refused(path, "has no column 'prize'; did you mean 'price'?", label="prize")
    with pytest.raises(OptionError, match=r"kind: expected one of .*, got 'movies'"):
        open_files(path, {"kind": "movies"})
    with pytest.raises(OptionError, match=r"image_size: expected an option of row"):
        data.create_dataset("files", "train", path=path, image_size=8)


# --- new samples ----------------------------------------------------------------------------------


def test_new_samples_are_scaled_as_the_training_samples(tmp_path):
    path = write(tmp_path / "a.csv", *long_rows(step=lambda i, k: k + (k > 1)))
    source = open_files(path)
    train = source.dataset("train")
    bare = [",".join(row.split(",")[:-1]) for row in path.read_text().splitlines()]
    found = read_unlabelled([write(tmp_path / "new.csv", *bare)], train.describe(), _Width(2))
    assert (len(found), found.places[1]["id"]) == (20, "s1")
    first = int(source.training[0])
    expected = train.batch([0])[0]
    assert torch.equal(found.batch([first]).nan_to_num(7), expected.nan_to_num(7))


def test_new_rows_need_the_columns_of_training(tmp_path):
    train = open_files(write(tmp_path / "a.csv", *rows_of())).dataset("train")
    new = write(tmp_path / "new.csv", "colour,age", "red,21", "red,")
    batch = read_unlabelled([new], train.describe(), None).batch([0, 1])[..., 0]
    assert batch.shape == (2, 3)
    assert bool(batch[1, 0].isnan())
    assert batch[0, 1] < 0 < batch[0, 2]
    with pytest.raises(DataError, match=r"has no column 'age'"):
        read_unlabelled(
            [write(tmp_path / "bad.csv", "colour,size", "red,1")], train.describe(), None
        )


def test_json_is_not_predicted_as_text(tmp_path):
    rows = [
        "review,sentiment",
        *(f"a {word} film {i},{word}" for i in range(10) for word in ("good", "bad")),
    ]
    train = open_files(write(tmp_path / "a.csv", *rows)).dataset("train")
    assert (
        len(read_unlabelled([write(tmp_path / "new.txt", "a good film")], train.describe(), None))
        == 1
    )
    file = write(tmp_path / "new.JSON", '{"review": "a good film"}')
    with pytest.raises(DataError, match=r"expected one text per line, or a table .*, got JSON"):
        read_unlabelled([file], train.describe(), None)
    lines = write(tmp_path / "new.jsonl", '{"review": "a good film"}')
    assert read_unlabelled([lines], train.describe(), None).texts == ["a good film"]


def asked(path: Path, train, *rows: str) -> torch.Tensor:
    """Return a model's inputs for the rows of a new table."""
    found = read_unlabelled([write(path, *rows)], train.describe(), _Width(1))
    return found.batch(range(len(found)))[..., 0]


def zones(path: Path):
    """Write a column of words, some of them digits, and one of numbers."""
    rows = [f"{'12B'[i % 3]},{20 + i % 41},{'yes' if i % 3 else 'no'}" for i in range(60)]
    return open_files(write(path, "zone,age,label", *rows)).dataset("train")


def test_a_new_row_is_read_equally_alone_and_among_others(tmp_path, capsys):
    train = zones(tmp_path / "a.csv")
    assert train.source["words"] == {"zone": ["1", "2", "B"]}
    rows = ["1,30", "B,30", ",30", "2,", "C,30"]
    together = asked(tmp_path / "all.csv", train, "zone,age", *rows)
    said = capsys.readouterr().err
    assert said.count("row 6, column 'zone': the training files have no 'C' in this column") == 1
    assert "to the model the row is none of 1, 2, B" in said
    for number, row in enumerate(rows):
        alone = asked(tmp_path / "one.csv", train, "zone,age", row)[0]
        assert torch.equal(alone.nan_to_num(7), together[number].nan_to_num(7)), row
    assert (together[:2, :3] > 0).tolist() == [[True, False, False], [False, False, True]]
    assert together[2].isnan().tolist() == [True, True, True, False]  # no word: not known
    assert together[3].isnan().tolist() == [False, False, False, True]
    assert bool((together[4, :3] < 0).all())  # another word: in none of the columns
    older = train.describe()  # a run that was saved before the words were
    older["source"] = {key: older["source"][key] for key in older["source"] if key != "words"}
    with pytest.raises(CheckpointError, match="which columns of its files hold words"):
        read_unlabelled([tmp_path / "all.csv"], older, None)


def test_columns_of_new_rows_have_the_roles_of_training(tmp_path):
    train = zones(tmp_path / "a.csv")
    new = write(tmp_path / "b.csv", "zone,age", "1,30", "1,old")
    with pytest.raises(DataError, match=r"row 3, column 'age': expected a number.*, got 'old'"):
        read_unlabelled([new], train.describe(), _Width(1), strict=True)
    with pytest.raises(DataError, match=r"has no column 'zone', which the run was trained on"):
        asked(tmp_path / "c.csv", train, "age", "30")
    # What no model reads may be missing, come anew, or come twice.
    rows = [f"p{i},2024-01-{1 + i % 28:02d},{i % 7},{'ab'[i % 2]}" for i in range(40)]
    dated = open_files(write(tmp_path / "d.csv", "id,date,x,label", *rows)).dataset("train")
    expected = asked(tmp_path / "e.csv", dated, "id,date,x", "p1,2024-03-01,4")
    assert torch.equal(asked(tmp_path / "f.csv", dated, "x", "4"), expected)
    assert torch.equal(asked(tmp_path / "g.csv", dated, "date,x", "soon,4"), expected)
    twice = asked(tmp_path / "h.csv", train, "id,zone,age", "7,1,30", "7,1,30")
    assert torch.equal(twice[0], twice[1])


def test_files_without_header_are_read_by_column_position(tmp_path):
    rows = [f"{i % 2},{i % 7},{(i * i) % 5 + 0.5}" for i in range(40)]
    train = open_files(write(tmp_path / "a.csv", *rows)).dataset("train")
    assert train.source["channels"] == ["column 2", "column 3"]
    expected = asked(tmp_path / "b.csv", train, "0,3,1.5")
    assert torch.equal(asked(tmp_path / "c.csv", train, "3,1.5"), expected)
    assert not bool(expected.isnan().any())


def test_few_new_rows_of_series_are_read_as_series(tmp_path):
    train = open_files(write(tmp_path / "a.csv", *long_rows())).dataset("train")
    rows = ["id,time,x,z", "u,0,1,1", "u,1,1,1", "v,0,1,1", "w,0,1,1", "y,0,1,1"]
    found = read_unlabelled([write(tmp_path / "b.csv", *rows)], train.describe(), _Width(2))
    assert [place["id"] for place in found.places] == ["u", "v", "w", "y"]
    assert found.batch([0]).shape == (1, 2, 2)


def timed(path: Path, series: list[np.ndarray]) -> Path:
    """Write series of one channel with individual times."""
    values, times = np.concatenate([np.arange(len(t)) for t in series]), np.concatenate(series)
    lengths = [len(t) for t in series]
    np.savez(path, values=values, times=times, lengths=lengths, y=np.arange(len(series)) % 2)
    return path


def test_regular_series_are_predicted_at_multiples_of_their_step_only(tmp_path):
    even = 0.1 * np.arange(8)
    train = open_files(timed(tmp_path / "a.npz", [even] * 20)).dataset("train")
    assert (train.timed, train.source["scaling"]["clocked"]) == (False, True)

    def read(times: np.ndarray, facts=None) -> torch.Tensor:
        path = timed(tmp_path / "new.npz", [times])
        return read_unlabelled([path], facts or train.describe(), _Width(1)).batch([0])[0]

    same = read(5 + 1.0005 * even)
    assert torch.equal(same, train.batch([0])[0][0])
    assert torch.equal(read(3 * even)[::3], same)  # the others are gaps
    assert bool(read(3 * even)[1::3].isnan().all())
    lost = read(np.delete(even, [2, 5]))
    assert lost.isnan().flatten().nonzero().flatten().tolist() == [2, 5]
    for times, said in (
        (
            0.5 * even,
            r"expected equal steps of 0.1 .* trained on one every 0.1, got a point every 0.05",
        ),
        (
            100 * even,
            r"steps of 0.1 or whole multiples of it, 10 at most, .* got a point every 10",
        ),
        (even**2 + even, r"got a point after 0.11 to 0.23; .* or train on irregular times"),
    ):
        with pytest.raises(DataError, match=said):
            read(times)
    older = train.describe()
    older["source"] = dict(older["source"], scaling=dict(older["source"]["scaling"]))
    del older["source"]["scaling"]["clocked"]
    assert torch.equal(read(3 * even, older)[::3], same)
    plain = {"values": np.tile(np.arange(8), 20), "lengths": [8] * 20, "y": np.arange(20) % 2}
    np.savez(tmp_path / "b.npz", **plain)
    bare = open_files(tmp_path / "b.npz").dataset("train").describe()
    assert torch.equal(read(3 * even, bare), same)  # no step is known
    with pytest.raises(
        DataError, match="expected equal steps, as the model was trained on series without times"
    ):
        read(even**2 + even, bare)


def test_paths_with_commas_and_spaces_are_read(tmp_path):
    folder = tmp_path / "may, june 3"
    rows = [f"p{i},{i % 7},{'ab'[i % 2]}" for i in range(20)]
    table = write(folder / "a.csv", "id,x,label", *rows)
    facts = open_files(table).dataset("train").describe()
    found = read_unlabelled([table], facts, None)
    assert found.places[1] == {"file": str(table), "row": 3, "id": "p1"}
    series = folder / "a.npz"
    np.savez(series, X=RNG.normal(size=(12, 5, 1)), y=np.arange(12) % 2)
    facts = open_files(series).dataset("train").describe()
    assert read_unlabelled([series], facts, _Width(1)).places[1] == {
        "file": str(series), "sample": 1,
    }  # fmt: skip


class _Width:
    def __init__(self, channels: int):
        self.channels = channels


def test_missing_cells_are_counted_by_column(tmp_path):
    """A column of words counts as one column, however many words it has."""
    lines = ["town,area,price"]
    for i in range(60):
        town = "" if i % 6 == 0 else "ABCD"[i % 4] + "town"
        area = "" if i % 2 else str(30 + i)
        lines.append(f"{town},{area},{1000 + 10 * (i * 37 % 60)}")
    (tmp_path / "flats.csv").write_text("\n".join(lines))
    facts = describe(open_files(tmp_path / "flats.csv", {"label": "price"}))
    assert facts["missing"] == (10 + 30) / 120


def test_unreadable_cells_are_located_beside_unreadable_pictures(tmp_path):
    """Rows of unreadable pictures are dropped first, which shifts the numbers of all others."""
    lines = ["picture,size"]
    for i in range(60):
        Image.new("L", (8, 8), color=i).save(tmp_path / f"{i}.png")
        lines.append(f"{i}.png,{'3o' if i == 30 else i}")
    (tmp_path / "0.png").write_bytes(b"no picture")
    (tmp_path / "pictures.csv").write_text("\n".join(lines))
    source = open_files(tmp_path / "pictures.csv", {"label": "size", "task": "regression"})
    found = source.collection
    assert len(found) == 58
    assert sorted(found.labels.tolist()) == [i for i in range(60) if i not in (0, 30)]
