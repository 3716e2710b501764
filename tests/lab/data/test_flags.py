"""Every flag about files is used or refused by name."""

from __future__ import annotations

import json

import numpy as np
import pytest
from PIL import Image

from fredholm.errors import DataError
from fredholm.lab.data.files import open_files
from fredholm.lab.data.files.labelled import read_labelled
from fredholm.lab.data.files.unlabelled import read_unlabelled

COLUMNS = {"label": "species", "time": "when", "id": "who", "text": "note", "channels": "a,b"}


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    root = tmp_path_factory.mktemp("flags") / "pictures"
    for name in ("cat", "dog"):
        (root / name).mkdir(parents=True)
        for number in range(6):
            Image.new("RGB", (8, 8), 30 * number).save(root / name / f"{number}.png")
    return root


@pytest.fixture(scope="module")
def arrays(tmp_path_factory):
    root = tmp_path_factory.mktemp("flags")
    rng = np.random.default_rng(0)
    np.savez(root / "series.npz", X=rng.normal(size=(12, 9, 2)), y=np.arange(12) % 2)
    np.savez(root / "clouds.npz", points=rng.normal(size=(12, 9, 3)), label=np.arange(12) % 2)
    grids = rng.normal(size=(12, 8, 8))
    np.savez(root / "fields.npz", inputs=grids, outputs=grids)
    return root


@pytest.mark.parametrize("flag", COLUMNS)
def test_flags_of_columns_are_refused_for_class_folders(flag, pictures):
    said = COLUMNS[flag]
    with pytest.raises(DataError, match=rf"pictures: {flag}: expected no column, got '{said}'"):
        open_files(pictures, {flag: said})
    assert len(open_files(pictures).dataset("train")) > 0


@pytest.mark.parametrize("flag", ["group", "split"])
def test_flags_of_groups_and_times_are_refused_for_class_folders(flag, pictures):
    said = {"group": "patient", "split": "time"}[flag]
    with pytest.raises(
        DataError, match=rf"{flag}: expected none, got '{said}'; a folder per class"
    ):
        open_files(pictures, {flag: said})


@pytest.mark.parametrize("kind", ["series", "clouds", "fields"])
@pytest.mark.parametrize("flag", ["id", "text"])
def test_flags_of_columns_are_refused_for_arrays(flag, kind, arrays):
    with pytest.raises(DataError, match=rf"{kind}\.npz: {flag}: expected no column, got 'who'"):
        open_files(arrays / f"{kind}.npz", {flag: "who"})


@pytest.mark.parametrize("kind", ["clouds", "fields"])
def test_flags_of_times_are_refused_for_other_arrays_than_series(kind, arrays):
    with pytest.raises(DataError, match=rf"{kind}\.npz: time: expected none, got 'when'"):
        open_files(arrays / f"{kind}.npz", {"time": "when"})


def test_a_single_array_is_read(arrays):
    with pytest.raises(DataError, match=r"channels: expected the name of one array, got 'X,y'"):
        open_files(arrays / "series.npz", {"channels": "X,y"})
    assert open_files(arrays / "series.npz", {"channels": "X"}).reading.channels == ("X",)


# --- contradictory flags --------------------------------------------------------------------------


@pytest.fixture(scope="module")
def families(pictures, arrays, tmp_path_factory):
    """Return a path per family of files, and its kind."""
    wav = pytest.importorskip("scipy.io.wavfile")
    root = tmp_path_factory.mktemp("families")
    rng = np.random.default_rng(0)
    for name in "ab":
        for number in range(6):
            for family in ("clouds", "sounds"):
                (root / family / name).mkdir(parents=True, exist_ok=True)
            np.save(root / "clouds" / name / f"{number}.npy", rng.normal(size=(9, 3)))
            sound = (1000 * rng.normal(size=50)).astype(np.int16)
            wav.write(root / "sounds" / name / f"{number}.wav", 100, sound)
    header = "@timeStamps false\n@univariate true\n@classLabel true 0 1\n@data\n"
    rows = [",".join(map(str, rng.normal(size=9))) + f":{i % 2}\n" for i in range(12)]
    (root / "series.ts").write_text(header + "".join(rows))
    return {
        "pictures": (pictures, "images"),
        "clouds": (root / "clouds", "clouds"),
        "sounds": (root / "sounds", "series"),
        ".ts": (root / "series.ts", "series"),
        "npz": (arrays / "series.npz", "series"),
    }


@pytest.mark.parametrize("family", ["pictures", "clouds", "sounds", ".ts"])
@pytest.mark.parametrize("kind", ["series", "rows", "texts", "images", "clouds", "fields"])
def test_a_contradictory_kind_is_refused(family, kind, families):
    path, own = families[family]
    if kind == own:
        assert open_files(path, {"kind": kind}).collection.kind == own
        return
    with pytest.raises(DataError, match=rf"{path.name}: kind: expected {own}, .*got '{kind}'"):
        open_files(path, {"kind": kind})


@pytest.mark.parametrize("family", ["pictures", "clouds", "sounds", ".ts", "npz"])
def test_flags_of_tables_are_refused_for_other_files(family, families):
    path, _ = families[family]
    with pytest.raises(DataError, match=r"read: expected none, got decimal=,"):
        open_files(path, {"read": "decimal=,"})


@pytest.mark.parametrize(
    ("suffix", "said", "accepted"),
    [
        ("parquet", "separator=;", False),
        ("parquet", "header=no", False),
        ("parquet", "encoding=latin-1", False),
        ("parquet", "null=-999", True),
        ("jsonl", "separator=;", False),
        ("jsonl", "header=yes", False),
        ("jsonl", "encoding=utf-8", True),
    ],
)
def test_notation_that_a_format_of_tables_lacks_is_refused(tmp_path, suffix, said, accepted):
    columns = {"a": list(range(40)), "label": ["xy"[i % 2] for i in range(40)]}
    path = tmp_path / f"a.{suffix}"
    if suffix == "parquet":
        parquet = pytest.importorskip("pyarrow.parquet")
        parquet.write_table(pytest.importorskip("pyarrow").table(columns), path)
    else:
        rows = [dict(zip(columns, row)) for row in zip(*columns.values())]
        path.write_text("\n".join(map(json.dumps, rows)))
    if accepted:
        open_files(path, {"read": said})
        return
    name, _, value = said.partition("=")
    match = f"read: expected no {name}, got {said}, which files .{suffix} do not have"
    with pytest.raises(DataError, match=match):
        open_files(path, {"read": said})

    # New files: the notation of the training table does not count, a declared one is refused.
    table = tmp_path / "a.csv"
    table.write_text("a;label\n" + "".join(f"{i};{'xy'[i % 2]}\n" for i in range(40)))
    train = open_files(table, {"read": "separator=;"}).dataset("train")
    for read in (read_unlabelled, read_labelled):
        files = [path] if read is read_unlabelled else path
        assert len(read(files, train.describe(), None)) == 40
        with pytest.raises(DataError, match=match):
            read(files, train.describe(), None, read={name: value})


@pytest.mark.parametrize("flag", COLUMNS)
def test_flags_of_columns_are_refused_for_ts_files(flag, families):
    path, _ = families[".ts"]
    with pytest.raises(DataError, match=rf"ts: {flag}: expected no column, got '{COLUMNS[flag]}'"):
        open_files(path, {flag: COLUMNS[flag]})


def test_flags_of_channels_are_refused_for_texts_and_paths(tmp_path, pictures):
    texts = tmp_path / "texts.csv"
    lines = [f"a fine film number {i},{i},{'xy'[i % 2]}" for i in range(20)]
    texts.write_text("\n".join(["text,a,label", *lines]))
    with pytest.raises(DataError, match=r"expected no column, got 'a'; the column 'text'"):
        open_files(texts, {"channels": "a", "text": "text"})
    paths = tmp_path / "paths.csv"
    files = sorted(pictures.rglob("*.png"))
    paths.write_text("\n".join(["picture,a,label", *(f"{f},1,{f.parent.name}" for f in files)]))
    with pytest.raises(DataError, match=r"expected no column, got 'a'; the column 'picture'"):
        open_files(paths, {"channels": "a", "text": "picture"})
