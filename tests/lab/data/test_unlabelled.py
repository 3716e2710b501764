"""New files for a run on a catalogue set are read like the set's files, or refused."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from fredholm.errors import OptionError
from fredholm.lab import data
from fredholm.lab.data.files.unlabelled import read_unlabelled

from ...tolerances import assert_close
from .fixtures import write_idx, write_image_folder
from .test_audio import speech, stays  # noqa: F401  (fixtures)


def test_pictures_of_an_image_folder_are_cut_as_in_training(tmp_path):
    folder = write_image_folder(tmp_path)  # 14 pixels wide, 9 to 18 high
    test = data.create_dataset("image-folder", "test", path=folder, image_size=8)
    given = read_unlabelled(test.files, test.describe(), SimpleNamespace(input_shape=test.shape))
    assert_close(given.batch(range(len(test))), test.batch(range(len(test)))[0])


def test_stays_are_scaled_by_the_training_stays(stays, tmp_path):  # noqa: F811
    test = data.create_dataset("physionet-2019", "test", path=stays, options={"hours": 5})
    inputs, _ = test.batch([0, 1])
    mean, std = (np.array(test.source["scaling"][key]) for key in ("mean", "std"))
    np.savez(tmp_path / "new.npz", x=(inputs.numpy() * std + mean).astype(np.float64))
    found = read_unlabelled([tmp_path / "new.npz"], test.describe(), SimpleNamespace(channels=4))
    assert float(mean[2]) > 50, "ages are far from zero"
    answer = found.batch([0, 1])
    assert torch.equal(answer.isnan(), inputs.isnan())
    assert_close(answer.nan_to_num(), inputs.nan_to_num(), dtype=torch.float32)


def test_raw_sound_is_read_at_the_rate_of_training(speech, tmp_path):  # noqa: F811
    given = {"words": ["no", "yes"], "features": "raw"}
    whole, coarse = (
        data.create_dataset("speech-commands", "test", path=speech, options=given | {"every": n})
        for n in (1, 4)
    )
    np.savez(tmp_path / "new.npz", x=whole.batch([0])[0].double().numpy())
    found = read_unlabelled([tmp_path / "new.npz"], coarse.describe(), SimpleNamespace(channels=1))
    assert_close(found.batch([0]), coarse.batch([0])[0])


def test_data_sets_without_a_reader_of_new_files_are_refused(speech, tmp_path):  # noqa: F811
    sound = data.create_dataset(
        "speech-commands", "test", path=speech, options={"words": ["no", "yes"]}
    )
    folder = write_idx(tmp_path / "digits")
    rows, mixed = (
        data.create_dataset("mnist", "test", path=folder, options={"sequence": order})
        for order in ("rows", "permuted")
    )
    for dataset, words in (
        (sound, "cepstral coefficients of sound, which speech-commands"),
        (rows, "pixels of pictures, row after row, which mnist"),
        (mixed, "pixels of pictures, in one fixed order, which mnist"),
    ):
        with pytest.raises(OptionError, match=f"the run reads {words} makes of its own files"):
            read_unlabelled([tmp_path / "x.npz"], dataset.describe(), None)


def test_a_header_of_numbers_is_not_a_sample(tmp_path):
    """Columns named 0, 1, 2 are recognised without the label's column, too."""
    rows = [f"{i},{i * 2 % 5},{i % 3}" for i in range(12)]
    train = [f"{row},{'ab'[i % 2]}" for i, row in enumerate(rows)]
    (tmp_path / "train.csv").write_text("\n".join(["0,1,2,label", *train]) + "\n")
    dataset = data.create_dataset("files", "train", path=tmp_path / "train.csv")
    found = []
    for header in (["0,1,2"], [" 2, 0, 1"], []):
        order = [int(n) for n in header[0].split(",")] if header else [0, 1, 2]
        lines = [",".join(row.split(",")[n] for n in order) for row in rows]
        (tmp_path / "new.csv").write_text("\n".join([*header, *lines]) + "\n")
        encoder = SimpleNamespace(channels=1)
        new = read_unlabelled([tmp_path / "new.csv"], dataset.describe(), encoder)
        assert len(new) == len(rows)
        found.append(new.batch(list(range(len(rows)))))
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0], found[2])
