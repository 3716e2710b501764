"""Voice prompts: windows of raw sound, from a folder or its archive."""

from __future__ import annotations

import io
import json
import tarfile

import numpy as np
import pytest
import torch
from evidence.datasets import voice_prompts

from fredholm.errors import DataError, OptionError
from fredholm.lab import data
from fredholm.lab.data.splits import SPLITS, place_of

from ...tolerances import assert_close
from .test_audio import write_wav

VOICES = ("en_US_f_Allison", "es_MX_f_Allison", "fr_CA_f_June", "it_IT_m_Carlo", "ru_RU_f_Ivr")
PHRASES, RATE = 12, 8_000


@pytest.fixture(scope="module")
def sounds(tmp_path_factory):
    """Write twelve clips of 2.5 s per language, tones of its frequency, and a silent one."""
    folder = tmp_path_factory.mktemp("sounds")
    time = np.arange(RATE * 5 // 2) / RATE
    for number, voice in enumerate(VOICES):
        for phrase in range(PHRASES):
            tone = (0.1 + 0.05 * phrase) * np.sin(2 * np.pi * 100 * (number + 1) * time)
            tone[RATE : 2 * RATE] *= 0.01 if phrase == 3 else 1  # a pause
            below = "digits/" if phrase % 2 else ""
            write_wav(folder / voice / f"{below}{phrase}.wav", tone, RATE)
        write_wav(folder / voice / "silence" / "1.wav", np.zeros(RATE), RATE)
        write_wav(folder / voice / "empty.wav", [], RATE)
    return folder


def voices(path, split="train", **options):
    return data.create_dataset("voice-prompts", split, path=path, options=options)


def test_windows_have_their_labels_and_splits(sounds):
    found = {split: voices(sounds, split) for split in SPLITS}
    assert sum(map(len, found.values())) == len(VOICES) * (2 * PHRASES - 1), "pauses are left out"
    assert found["train"].classes == ("English", "Spanish", "French", "Italian", "Russian")
    shares = {"test": 0, "val": 0, "train": 0}
    for phrase in range(PHRASES):
        place = place_of(f"{'digits/' if phrase % 2 else ''}{phrase}.wav")
        split = "test" if place < 0.2 else "val" if place < 0.3 else "train"
        shares[split] += 1 if phrase == 3 else 2
    counts = {split: torch.bincount(part.labels).tolist() for split, part in found.items()}
    assert counts == {split: [share] * 5 for split, share in shares.items()}
    train = found["train"]
    values, labels = train.batch(torch.arange(len(train)))
    assert values.shape == (len(train), RATE, 1)
    spectrum = torch.fft.rfft(values[..., 0]).abs()
    assert spectrum.argmax(1).equal(100 * (labels + 1)), "the tone of its own language"
    assert_close(values.mean(), torch.tensor(0.0), dtype=torch.float32)
    assert_close(values.std(correction=0), torch.tensor(1.0), dtype=torch.float32)


def test_rates_dropped_samples_and_scales_are_applied(sounds):
    whole = voices(sounds, seconds=0.25)
    assert len(whole) > 4 * len(voices(sounds))
    index = torch.arange(6)
    coarse = voices(sounds, seconds=0.25, every=4)
    assert (coarse.length, coarse.spacing) == (2000, 4.0)
    assert coarse.raw(index)[0].equal(whole.raw(index)[0][:, ::4])
    lost = voices(sounds, seconds=0.25, drop=0.5, seed=3).raw(index)[0]
    gone = lost.isnan()
    assert 0.4 < gone.float().mean() < 0.6
    assert lost[~gone].equal(whole.raw(index)[0][~gone])
    timed = voices(sounds, seconds=0.25, drop=0.5, seed=3, timed=True).raw(index)[0]
    first = timed[0][~timed[0, :, 1].isnan()]
    assert first[:, 0].long().equal((~gone[0, :, 0]).nonzero()[:, 0])
    own = voices(sounds, seconds=0.25, scale="series").raw(index)[0]
    assert_close(own.std(1, correction=0), torch.ones(6, 1), dtype=torch.float32)


def test_an_archive_equals_its_folder(sounds, tmp_path, monkeypatch):
    made = tmp_path / "made"
    counted = []
    made.mkdir()
    monkeypatch.setattr(voice_prompts, "tar_stream", lambda path, client: tarfile.open(path))  # noqa: SIM115
    for voice in VOICES:
        archive = tmp_path / f"{voice}.tar"
        with tarfile.open(archive, "w") as tar:
            tar.add(sounds / voice, f"./usr/share/asterisk/sounds/{voice}")
            tar.addfile(tarfile.TarInfo("./usr/share/doc/readme.wav"), io.BytesIO())
        voice_prompts.derive(archive, made, counted.append)
    assert sum(counted) == len(VOICES) * PHRASES * 2 * RATE * 5 // 2
    index = torch.arange(9)
    for split in SPLITS:
        one, other = voices(made, split), voices(sounds, split)
        assert one.labels.equal(other.labels)
        assert one.raw(index % len(one))[0].equal(other.raw(index % len(other))[0])
    listed = json.loads((made / "it.json").read_text())
    (made / "it.json").write_text(json.dumps(listed | {"lengths": [1]}))
    with pytest.raises(DataError, match="expected 1 samples of it"):
        voices(made)
    (made / "it.json").unlink()
    with pytest.raises(DataError, match="expected clips of it, got none"):
        voices(made)
    with tarfile.open(archive, "w"):
        pass
    with pytest.raises(DataError, match="expected voice prompts, got none"):
        voice_prompts.derive(archive, made, counted.append)


def test_unreadable_sounds_are_refused(sounds, tmp_path):
    with pytest.raises(OptionError, match=r"seconds: expected .* or more, got 0"):
        voices(sounds, seconds=0)
    with pytest.raises(OptionError, match="every: expected an integer of 1 or more, got 0"):
        voices(sounds, every=0)
    with pytest.raises(DataError, match="expected clips with a window of 3 seconds"):
        voices(sounds, seconds=3)
    write_wav(tmp_path / VOICES[0] / "one.wav", [0.5] * RATE, RATE)
    with pytest.raises(DataError, match="got no clips of es, fr, it, ru"):
        voices(tmp_path)
    write_wav(tmp_path / VOICES[0] / "two.wav", [0.5] * RATE, 16_000)
    with pytest.raises(DataError, match=r"two.wav: expected 8,000 .*got 16,000"):
        voices(tmp_path)
