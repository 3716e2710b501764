"""Sound and hospital stays in their official formats, on small fixtures."""

from __future__ import annotations

import wave

import numpy as np
import pytest
import torch
from evidence.datasets.sound_features import cosine_basis, mel_filters, mfcc, read_wav

from fredholm.errors import DataError, OptionError
from fredholm.lab import data
from fredholm.lab.data.splits import SPLITS

from ...tolerances import assert_close


def write_wav(path, samples, rate=16_000, channels=1):
    path.parent.mkdir(parents=True, exist_ok=True)
    with wave.open(str(path), "wb") as file:
        file.setnchannels(channels)
        file.setsampwidth(2)
        file.setframerate(rate)
        file.writeframes((np.asarray(samples) * 32767).astype("<i2").tobytes())


@pytest.fixture
def speech(tmp_path):
    rng = np.random.default_rng(0)
    for k, word in enumerate(("no", "yes")):
        for i in range(20):
            length = 16_000 if i else 12_000  # the first one is short and dropped
            tone = np.sin(2 * np.pi * (300 + 400 * k) * np.arange(length) / 16_000)
            write_wav(
                tmp_path / word / f"{i:02}_nohash_0.wav",
                0.5 * tone + 0.01 * rng.standard_normal(length),
            )
    (tmp_path / "validation_list.txt").write_text("no/03_nohash_0.wav\nyes/04_nohash_0.wav\n")
    (tmp_path / "testing_list.txt").write_text(
        "no/05_nohash_0.wav\nyes/05_nohash_0.wav\nyes/00_nohash_0.wav\n"
    )
    return tmp_path


@pytest.mark.filterwarnings("ignore:At least one mel filter")
def test_cepstral_coefficients_equal_transformers():
    """mel filters and power spectra against an independent implementation, the cosine transform
    against its definition.
    """
    audio = pytest.importorskip("transformers.audio_utils")
    torch.manual_seed(0)
    samples = torch.randn(16_000)
    bank = audio.mel_filter_bank(101, 64, 0.0, 8000.0, 16_000, norm=None, mel_scale="htk")
    assert_close(mel_filters(101, 64, 16_000).double(), torch.from_numpy(bank), dtype=torch.float32)
    energy = audio.spectrogram(
        samples.numpy(),
        np.hanning(201)[:-1],
        200,
        100,
        fft_length=200,
        power=2.0,
        center=True,
        pad_mode="reflect",
        mel_filters=bank,
        mel_floor=0.0,
    )
    expected = np.log(energy + 1e-6).T @ cosine_basis(64, 20).double().numpy()
    assert_close(mfcc(samples, 16_000), torch.from_numpy(expected).float(), dtype=torch.float32)
    basis = cosine_basis(64, 64).double()
    assert_close(basis.mT @ basis, torch.eye(64, dtype=torch.float64), dtype=torch.float32)


def test_speech_commands_are_read(speech):
    options = {"words": ["no", "yes"]}
    sizes = {
        s: len(data.create_dataset("speech-commands", s, path=speech, options=options))
        for s in SPLITS
    }
    assert sum(sizes.values()) == 38, "recordings shorter than a second are left out"
    assert sizes["test"] == 6
    train = data.create_dataset("speech-commands", "train", path=speech, options=options)
    values, labels = train.batch(range(len(train)))
    assert values.shape == (len(train), 161, 20)
    assert values.mean((0, 1)).abs().max() < 0.1
    assert labels.unique().tolist() == [0, 1]
    raw = data.create_dataset(
        "speech-commands", "test", path=speech, options=options | {"features": "raw", "every": 2}
    )
    assert raw.batch([0])[0].shape == (1, 8000, 1)
    assert (raw.spacing, raw.length) == (2.0, 16_000)
    assert 0.4 < float(raw.batch([0])[0].abs().max()) < 0.6
    official = data.create_dataset(
        "speech-commands", "test", path=speech, options=options | {"split": "official"}
    )
    assert len(official) == 2
    assert (
        len(
            data.create_dataset(
                "speech-commands", "val", path=speech, options=options | {"split": "official"}
            )
        )
        == 2
    )


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({}, DataError, r"down: expected recordings of a second, got none"),
        ({"features": "mel"}, OptionError, "features: expected one of mfcc, raw, got 'mel'"),
        ({"words": ["no"]}, OptionError, "two or more different words"),
        ({"every": 2}, OptionError, "set features='raw'"),
    ],
)
def test_wrong_options_of_speech_are_refused(speech, options, error, message):
    with pytest.raises(error, match=message):
        data.create_dataset("speech-commands", "train", path=speech, options=options)


def test_damaged_recordings_are_refused(tmp_path):
    write_wav(tmp_path / "a.wav", np.zeros(100), rate=8000)
    with pytest.raises(DataError, match="got 8,000 in 1"):
        read_wav(tmp_path / "a.wav", 16_000)
    write_wav(tmp_path / "b.wav", np.zeros(100))
    content = (tmp_path / "b.wav").read_bytes()
    (tmp_path / "b.wav").write_bytes(content[:-50])
    with pytest.raises(DataError, match=r"expected a complete WAV file .*expected 244 bytes"):
        read_wav(tmp_path / "b.wav", 16_000)
    (tmp_path / "c.wav").write_text("no sound")
    with pytest.raises(DataError, match="expected a complete WAV file of plain samples"):
        read_wav(tmp_path / "c.wav", 16_000)
    with pytest.raises(OptionError, match="at most the 64 filters"):
        mfcc(torch.randn(1000), 16_000, 65)
    with pytest.raises(OptionError, match="expected more than 100"):
        mfcc(torch.randn(90), 16_000)


HEADER = "HR|Temp|Age|ICULOS|SepsisLabel"


@pytest.fixture
def stays(tmp_path):
    for i in range(40):
        sick = i % 4 == 0
        rows = [
            f"{80 + i}|{'NaN' if h % 2 else 37 + i / 10}|{50 + i}|{h}|{int(sick and h > 3)}"
            for h in range(1, 6)
        ]
        (tmp_path / f"p{i:06}.psv").write_text("\n".join([HEADER, *rows]) + "\n")
    return tmp_path


def test_physionet_stays_are_read(stays):
    parts = {
        s: data.create_dataset("physionet-2019", s, path=stays, options={"hours": 3})
        for s in SPLITS
    }
    assert sum(len(p) for p in parts.values()) == 40
    train = parts["train"]
    values, labels = train.batch(range(len(train)))
    assert values.shape[1:] == (3, 4)
    assert labels.float().mean() == pytest.approx(0.25, abs=0.05), (
        "sepsis after the hours read still counts"
    )
    assert values[:, 0, 1].isnan().all()
    assert not values[:, 1].isnan().any()
    assert_close(values.flatten(0, 1).nanmean(0), torch.zeros(4), dtype=torch.bfloat16)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("HR|Temp\n1|2\n", "ends in 'Temp'"),
        (HEADER + "\n", "expected hourly values, got none"),
        (HEADER + "\n1|2|3\n", "line 2: expected 5 values, got 3"),
        (HEADER + "\n1|2|x|4|0\n", "line 2: expected numbers or NaN .*could not convert"),
    ],
)
def test_damaged_stays_are_refused(tmp_path, content, message):
    (tmp_path / "p000001.psv").write_text(content)
    with pytest.raises(DataError, match=message):
        data.create_dataset("physionet-2019", "train", path=tmp_path)


def test_missing_folders_and_wrong_options_are_refused(tmp_path):
    with pytest.raises(DataError, match=r"expected files p\*.psv, got none"):
        data.create_dataset("physionet-2019", "train", path=tmp_path)
    for name in ("physionet-2019", "speech-commands"):
        with pytest.raises(OptionError, match=f"{name}: expected path"):
            data.create_dataset(name, "train")
    with pytest.raises(OptionError, match="hours: expected an integer of 1 or more, got 0"):
        data.create_dataset("physionet-2019", "train", path=tmp_path, options={"hours": 0})
