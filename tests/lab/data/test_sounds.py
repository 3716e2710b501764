"""A user's sounds: every format of WAV, folders and tables, other rates, and refusals."""

from __future__ import annotations

import struct
import wave
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from scipy.io import wavfile

from fredholm.errors import DataError
from fredholm.lab.data.files import open_files
from fredholm.lab.data.files.sounds import read_sound
from fredholm.lab.data.files.unlabelled import read_unlabelled

from ...tolerances import assert_close
from .test_audio import write_wav
from .test_voices import sounds, voices  # noqa: F401  (fixture)

RATE = 800


def tone(kind: int, number: int, rate: int = RATE) -> np.ndarray:
    time = np.arange(int((0.2 + 0.01 * (number % 5)) * rate)) / rate
    return 0.5 * np.sin(2 * np.pi * (50 * (kind + 1) * time + number / 7))


@pytest.fixture
def folder(tmp_path):
    for kind, name in enumerate(("high", "low")):
        for number in range(15):
            write_wav(tmp_path / "tones" / name / f"{number:02}.wav", tone(kind, number), RATE)
    return tmp_path / "tones"


def trained_on(source) -> tuple[dict, SimpleNamespace]:
    return source.dataset("train").describe(), SimpleNamespace(channels=1, timed=False)


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_integer_samples_of_every_size_are_scaled_to_one(tmp_path, size):
    """The smallest sample, zero, one half and the largest, as bytes of the format."""
    half = 2 ** (8 * size - 1)
    values = [-half, 0, half // 2, half - 1]
    shift = half if size == 1 else 0  # bytes are unsigned
    content = b"".join((v + shift).to_bytes(size, "little", signed=size > 1) for v in values)
    with wave.open(str(tmp_path / "a.wav"), "wb") as file:
        file.setnchannels(2)
        file.setsampwidth(size)
        file.setframerate(12)
        file.writeframes(content)
    found, rate = read_sound(tmp_path / "a.wav")
    assert (rate, found.shape, found.dtype) == (12, (2, 2), np.float32)
    assert found.ravel().tolist() == pytest.approx([-1, 0, 0.5, 1 - 1 / half], abs=1e-7)
    assert np.array_equal(read_sound(tmp_path, (tmp_path / "a.wav").read_bytes())[0], found)


def test_float_samples_are_read_unchanged(tmp_path):
    values = np.array([0.25, -3.0], np.float32)
    wavfile.write(tmp_path / "a.wav", 12, values)
    assert np.array_equal(read_sound(tmp_path / "a.wav")[0][:, 0], values)


def test_a_folder_per_class_is_read_as_series_with_times(folder):
    source = open_files(folder)
    assert (source.kind.name, source.classes, len(source.collection)) == (
        "sequence",
        ("high", "low"),
        30,
    )
    assert source.collection.channels == ("sound",)
    assert source.description["rate"] == "every 0.00125"
    assert source.scaling["step"] == pytest.approx(1 / RATE)
    assert not source.scaling["timed"]
    train = source.dataset("train")
    inputs, labels = train.batch(range(len(train)))
    assert inputs.shape == (len(train), 192, 1)
    assert labels.unique().tolist() == [0, 1]
    known = inputs[~inputs.isnan()]
    assert_close(known.std(correction=0), torch.tensor(1.0), dtype=torch.float32)


def test_a_table_names_sounds_and_their_speakers(folder):
    rows = [
        f"{name}/{number:02}.wav,{name},{number // 3}"
        for name in ("high", "low")
        for number in range(15)
    ]
    (folder / "list.csv").write_text("\n".join(["file,label,speaker", *rows]) + "\n")
    for path in (folder, folder / "list.csv"):
        source = open_files(path, {"group": "speaker"})
        assert (source.reading.kind, source.reading.text) == ("series", "file")
        assert source.collection.taken["paths"] == "column 'file'"
        who = np.array([i % 15 // 3 for i in range(30)])
        parts = [set(who[source.parts == part]) for part in range(3)]
        assert all(parts)
        assert not parts[0] & (parts[1] | parts[2])
        assert not parts[1] & parts[2]
    given = read_unlabelled([folder / "list.csv"], *trained_on(source))
    assert len(given) == 30
    assert given.places[1] == {"file": str(folder / "list.csv"), "row": 3}
    mean, std = source.scaling["mean"][0], source.scaling["std"][0]
    first = torch.from_numpy((read_sound(folder / "high" / "00.wav")[0] - mean) / std)
    assert_close(given.batch([0])[0], first.float(), dtype=torch.float32)
    (folder / "list.csv").write_text(
        "\n".join(["file,label,speaker", *rows[:1], "no.wav,low,1"]) + "\n"
    )
    with pytest.raises(DataError, match=r"list.csv, row 3, column 'file': no file .*no.wav"):
        open_files(folder / "list.csv")


def test_features_of_missing_sounds_are_rows(folder):
    """Tables of features often have the name of the sound that they were computed from."""
    rows = [f"{i}.wav,{i % 7},{i * 5 % 11},{'ab'[i % 2]}" for i in range(40)]
    path = folder.parent / "features.csv"
    path.write_text("\n".join(["filename,centroid,energy,label", *rows]) + "\n")
    source = open_files(path)
    assert (source.reading.kind, source.reading.channels) == ("rows", ("centroid", "energy"))
    for i in range(40):
        write_wav(folder.parent / "there" / f"{i}.wav", tone(i % 2, i), RATE)
    path = path.rename(folder.parent / "there" / "features.csv")
    source = open_files(path)
    assert (source.reading.kind, source.reading.text) == ("series", "filename")
    assert any("not read: sounds are" in remark for remark in source.collection.remarks)
    assert open_files(path, {"kind": "rows"}).reading.text is None
    with pytest.raises(DataError, match="text: column 'label' holds no paths of sounds"):
        open_files(path, {"kind": "series", "text": "label", "label": "energy"})


def test_a_run_reads_its_rate_and_integer_multiples(folder, tmp_path):
    facts, encoder = trained_on(open_files(folder))
    whole = read_unlabelled([folder / "low" / "03.wav"], facts, encoder)
    assert whole.places == [{"file": str(folder / "low" / "03.wav")}]
    samples = read_sound(folder / "low" / "03.wav")[0]
    write_wav(tmp_path / "half.wav", samples[::2, 0] * 32768 / 32767, RATE // 2)
    half = read_unlabelled([tmp_path / "half.wav"], facts, encoder).batch([0])
    there = ~half.isnan()
    assert there[0, :, 0].tolist() == [i % 2 == 0 for i in range(half.shape[1])]
    assert_close(half[there], whole.batch([0])[:, ::2].ravel(), dtype=torch.float32)
    write_wav(tmp_path / "twice.wav", tone(0, 0, 2 * RATE), 2 * RATE)
    with pytest.raises(DataError, match=r"one every 0.00125, got a point every 0.000625;"):
        read_unlabelled([tmp_path / "twice.wav"], facts, encoder)


@pytest.mark.parametrize(("timed", "scale"), [(False, "file"), (True, "file"), (False, "series")])
def test_a_run_on_voice_prompts_reads_their_files(sounds, timed, scale):  # noqa: F811
    """A window of the data set equals the same samples of its file."""
    train = voices(sounds, seconds=2.5, every=2, timed=timed, scale=scale)
    encoder = SimpleNamespace(channels=1, timed=timed)
    files = sorted(sounds.glob("en_US_f_Allison/**/*.wav"))
    given = read_unlabelled([f for f in files if f.name not in ("empty.wav", "1.wav")],
                            train.describe(), encoder)  # fmt: skip
    asked = given.batch(range(len(given)))
    windows, labels = train.batch(range(len(train)))
    for window in windows[labels == 0]:
        assert min(float((window - one).abs().max()) for one in asked) < 1e-5


def test_unsupported_sounds_are_refused(folder, tmp_path):
    def refused(match, **reading):
        with pytest.raises(DataError, match=match):
            open_files(folder, reading)

    refused("group: expected none, got 'speaker'; .* give a table of paths", group="speaker")
    refused("the names of the folders are classes", task="regression")
    odd = folder / "low" / "99.wav"
    write_wav(odd, tone(0, 0), 2 * RATE)
    refused(r"99.wav: expected 800 samples per .*00.wav has, got 1,600; .* convert them")
    write_wav(odd, np.zeros(8), RATE, channels=2)
    refused(r"99.wav: expected 1 channels, as .*00.wav has, got 2")
    write_wav(odd, [], RATE)
    refused(r"99.wav: expected samples, got an empty sound; remove it", strict=True)
    write_wav(odd, tone(0, 0), RATE)
    content = odd.read_bytes()
    odd.write_bytes(content[:-50])
    refused(r"99.wav: expected a complete WAV file .*expected .* copy it again", strict=True)
    odd.write_bytes(content[:30])
    refused(r"99.wav: expected a complete WAV file", strict=True)
    odd.write_bytes(content[:20] + struct.pack("<H", 7) + content[22:])
    refused(r"99.wav: expected a complete WAV file .*MULAW.* convert it", strict=True)
    with pytest.raises(DataError, match="subfolder of sounds for each class, got one file"):
        open_files(folder / "low" / "00.wav")
    with pytest.raises(DataError, match="no such file"):
        read_sound(tmp_path / "none.wav")


def test_unknown_chunks_of_wav_files_are_skipped(folder):
    path = folder / "low" / "00.wav"
    plain, _ = read_sound(path)
    content = path.read_bytes() + b"note" + struct.pack("<I", 4) + b"abcd"
    path.write_bytes(content[:4] + struct.pack("<I", len(content) - 8) + content[8:])
    assert np.array_equal(read_sound(path)[0], plain)


def test_sounds_are_trained_and_predicted_from_the_command_line(folder, tmp_path):
    from typer.testing import CliRunner

    from fredholm.lab.cli.app import app

    trained = CliRunner().invoke(
        app, ["train", str(folder), "training.epochs=1", "--runs", str(tmp_path / "runs")]
    )
    assert trained.exit_code == 0, trained.output
    content = (folder / "low" / "00.wav").read_bytes()
    run = str(tmp_path / "runs" / "tones")
    asked = CliRunner().invoke(app, ["predict", run, "-"], input=content)
    assert asked.exit_code == 0, asked.output
    assert "standard input" in asked.output
