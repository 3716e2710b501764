"""What is said of files is used, or refused by name: nothing that was said is ignored."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image

from fredholm.errors import DataError
from fredholm.lab.data.files import open_files

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
def test_a_folder_per_class_has_no_columns(flag, pictures):
    said = COLUMNS[flag]
    with pytest.raises(DataError, match=rf"pictures: {flag}: expected no column, got '{said}'"):
        open_files(pictures, {flag: said})
    assert len(open_files(pictures).dataset("train")) > 0


@pytest.mark.parametrize("flag", ["group", "split"])
def test_a_folder_per_class_has_no_groups_and_times(flag, pictures):
    said = {"group": "patient", "split": "time"}[flag]
    with pytest.raises(DataError, match=rf"{flag}: received '{said}'; a folder a class has no"):
        open_files(pictures, {flag: said})


@pytest.mark.parametrize("kind", ["series", "clouds", "fields"])
@pytest.mark.parametrize("flag", ["id", "text"])
def test_arrays_have_no_columns(flag, kind, arrays):
    with pytest.raises(DataError, match=rf"{kind}\.npz: {flag}: expected no column, got 'who'"):
        open_files(arrays / f"{kind}.npz", {flag: "who"})


@pytest.mark.parametrize("kind", ["clouds", "fields"])
def test_times_within_a_sample_are_those_of_series(kind, arrays):
    with pytest.raises(DataError, match=rf"{kind}\.npz: time: expected none, got 'when'"):
        open_files(arrays / f"{kind}.npz", {"time": "when"})


def test_one_array_is_read(arrays):
    with pytest.raises(DataError, match=r"channels: expected the name of one array, got 'X,y'"):
        open_files(arrays / "series.npz", {"channels": "X,y"})
    assert open_files(arrays / "series.npz", {"channels": "X"}).reading.channels == ("X",)
