"""Marks of a user's files change with every file that samples come from, and with no copy."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fredholm.lab.data.files import Reading, collect, open_files
from fredholm.lab.data.files.collect import mark_of


def picture(path: Path, level: int) -> Path:
    """Write a picture whose file has the same size for every level."""
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("L", (4, 4), level).save(path, format="BMP")
    return path


def marks(path: Path, **reading) -> tuple[str, str]:
    """Return the mark with and without reading the samples."""
    read = open_files(path, reading).collection.files
    return read, mark_of(path, Reading(**reading))


def table_of_pictures(folder: Path) -> Path:
    rows = []
    for i in range(20):
        picture(folder / "img" / f"{i}.bmp", 5 * i)
        rows.append(f"img/{i}.bmp,{'ab'[i % 2]}")
    path = folder / "data.csv"
    path.write_text("\n".join(["picture,label", *rows]))
    return path


def folder_of_pictures(folder: Path) -> Path:
    for i in range(20):
        picture(folder / "ab"[i % 2] / f"{i}.bmp", 5 * i)
    return folder


def folder_of_tables(folder: Path) -> Path:
    folder.mkdir()
    for i in range(12):
        rows = [f"{j % 7},{'ab'[j % 2]}" for j in range(10)]
        (folder / f"{i:02d}.csv").write_text("\n".join(["x,label", *rows]))
    return folder


def folder_of_arrays(folder: Path) -> Path:
    folder.mkdir()
    for i in range(12):
        x = np.arange(40.0).reshape(4, 10, 1) + i
        np.savez(folder / f"{i:02d}.npz", X=x, y=np.arange(4) % 2)
    return folder


def other_picture(path: Path) -> None:
    picture(path, 201)


def other_table(path: Path) -> None:
    path.write_text(path.read_text().replace("6,", "5,"))


def other_array(path: Path) -> None:
    np.savez(path, X=np.ones((4, 10, 1)), y=np.arange(4) % 2)


CASES = {
    "table of pictures": (table_of_pictures, "img/7.bmp", other_picture),
    "pictures": (folder_of_pictures, "b/7.bmp", other_picture),
    "tables": (folder_of_tables, "07.csv", other_table),
    "arrays": (folder_of_arrays, "07.npz", other_array),
}


@pytest.mark.parametrize("case", CASES)
def test_a_replaced_file_of_the_same_size_changes_the_mark(tmp_path, case):
    make, name, replace = CASES[case]
    path = make(tmp_path / "data")
    before = marks(path)
    assert before[0] == before[1] != ""
    file = tmp_path / "data" / name
    size = file.stat().st_size
    replace(file)
    os.utime(file, (1, 1))
    assert file.stat().st_size == size
    after = marks(path)
    assert after[0] == after[1] != before[0]


@pytest.mark.parametrize("case", CASES)
def test_a_copy_at_another_place_has_the_same_mark(tmp_path, case):
    make, _, _ = CASES[case]
    path = make(tmp_path / "data")
    before = marks(path)
    shutil.copytree(tmp_path / "data", tmp_path / "other" / "data", copy_function=shutil.copyfile)
    copied = tmp_path / "other" / path.relative_to(tmp_path)
    assert marks(copied) == before


def test_pictures_of_a_table_beside_their_folder_are_marked(tmp_path):
    """The table lies in the folder that is given, as in a folder of pictures."""
    path = table_of_pictures(tmp_path / "data")
    before = marks(path.parent)
    assert before[0] == before[1]
    other_picture(path.parent / "img" / "7.bmp")
    assert marks(path.parent)[0] != before[0]


def test_large_sets_of_pictures_are_marked_by_names_and_sizes(tmp_path, monkeypatch):
    monkeypatch.setattr(collect, "HASHED", 100)
    path = folder_of_pictures(tmp_path / "data")
    before = marks(path)
    other_picture(path / "b" / "7.bmp")
    assert marks(path) == before
    (path / "b" / "7.bmp").rename(path / "b" / "77.bmp")
    assert marks(path)[0] != before[0]


def test_the_mark_of_a_single_table_is_that_of_earlier_versions(tmp_path):
    path = tmp_path / "data.csv"
    path.write_text("x,label\n" + "".join(f"{i % 7},{'ab'[i % 2]}\n" for i in range(40)))
    assert set(marks(path)) == {"73969d356342e071"}
