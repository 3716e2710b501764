"""Speech Commands: one-second recordings of spoken words from the user's folder, raw or as
mel-frequency cepstral coefficients.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from fredholm.errors import DataError, OptionError
from fredholm.lab.data.files.reading import series_source
from fredholm.lab.data.kinds.sequences import SEQUENCES, SequenceDataset
from fredholm.lab.data.registry import Entry, Request, register_dataset
from fredholm.lab.data.splits import stratified

from .checks import check_integers
from .sound_features import mfcc, read_wav

RATE = 16_000
WORDS = ("down", "go", "left", "no", "off", "on", "right", "stop", "up", "yes")
FEATURES = ("mfcc", "raw")
SPLITS_OF = ("random", "official")


@dataclass(frozen=True)
class SpeechOptions:
    """Options of the data set.

    Attributes:
        features: ``mfcc``, 20 coefficients at 161 points, or ``raw``, 16,000 samples.
        every: stride of the samples of raw sound.
        words: the folders that are read.
        split: ``random``, 70/15/15% of each word's recordings, as in the paper, or ``official``,
            the lists of the archive, which have a speaker in one split.

    Raises:
        OptionError: an unknown name, fewer than two words, or a stride below 1.
    """

    features: str = "mfcc"
    every: int = 1
    words: tuple[str, ...] | list[str] = WORDS
    split: str = "random"

    def __post_init__(self) -> None:
        for name, known in (("features", FEATURES), ("split", SPLITS_OF)):
            value = getattr(self, name)
            if value not in known:
                raise OptionError(f"{name}: expected one of {', '.join(known)}, got {value!r}")
        object.__setattr__(self, "words", tuple(self.words))
        if len(set(self.words)) < 2 or len(set(self.words)) != len(self.words):
            raise OptionError(f"words: expected two or more different words, got {self.words!r}")
        check_integers(self, 1, "every")
        if self.every > 1 and self.features != "raw":
            raise OptionError(
                f"every: expected 1 with features='mfcc', got {self.every}; set features='raw'"
            )


def scan(folder: Path, words: tuple[str, ...]) -> tuple[list[Path], list[int]]:
    """Return the recordings that last a second, and the index of each one's word.

    As in the paper, shorter recordings do not count, which leaves 34,975 of ten words.

    Raises:
        DataError: a word has no folder or no recordings.
    """
    # The header of a plain WAV file, and 16-bit samples.
    least = 44 + 2 * RATE
    files, labels = [], []
    for number, word in enumerate(words):
        recordings = sorted((folder / word).glob("*.wav"))
        complete = [file for file in recordings if file.stat().st_size >= least]
        if not complete:
            raise DataError(
                f"{folder / word}: expected recordings of a second, got none; give the archive's "
                "folder of that word"
            )
        files += complete
        labels += [number] * len(complete)
    return files, labels


def listed(folder: Path, files: list[Path]) -> dict[str, Tensor]:
    """Return the indices of the archive's splits, from its two lists.

    Raises:
        DataError: a list is missing.
    """
    names = {}
    for split, name in (("val", "validation_list.txt"), ("test", "testing_list.txt")):
        if not (folder / name).is_file():
            raise DataError(
                f"{folder / name}: expected the archive's list, got none; add it, or set "
                f"split='random'"
            )
        names[split] = set((folder / name).read_text(encoding="utf-8").split())

    parts: dict[str, list[int]] = {"train": [], "val": [], "test": []}
    for index, file in enumerate(files):
        name = f"{file.parent.name}/{file.name}"
        split = next((split for split in names if name in names[split]), "train")
        parts[split].append(index)
    return {split: torch.tensor(indices) for split, indices in parts.items()}


def create(request: Request) -> SequenceDataset:
    """Return the data set of a request.

    Coefficients are standardised by up to 512 training recordings.
    """
    options: SpeechOptions = request.options
    files, labels = scan(request.folder, tuple(options.words))
    numbers = torch.tensor(labels)
    if options.split == "official":
        parts = listed(request.folder, files)
    else:
        rest, test = stratified(numbers, 0.15)
        fraction = request.share
        train, val = stratified(numbers[rest], fraction)
        parts = {"train": rest[train], "val": rest[val], "test": test}
    chosen = parts[request.split]
    if not len(parts["train"]) or not len(chosen):
        raise DataError(
            f"{request.folder}: expected more than {len(files)} recordings, which leave none for "
            f"{request.split}; add recordings"
        )

    def read(indices: Tensor) -> Tensor:
        samples = torch.stack([read_wav(files[i], RATE)[:RATE] for i in indices.tolist()])
        if options.features == "mfcc":
            return mfcc(samples, RATE)
        return samples[:, :: options.every, None]

    values: Callable[[Tensor], Tensor] = read
    if options.features == "mfcc":
        train = parts["train"]
        seen = read(train[torch.linspace(0, len(train) - 1, min(512, len(train))).long()])
        mean, std = seen.mean((0, 1)), seen.std((0, 1)).clamp(min=1e-6)
        values = lambda indices: (read(indices) - mean) / std  # noqa: E731
    result = SequenceDataset(
        request.entry.name,
        request.split,
        numbers[chosen],
        tuple(options.words),
        lambda indices: values(chosen[indices]),
        shape=(161, 20) if options.features == "mfcc" else (RATE, 1),
    )
    result.spacing = float(options.every)
    if options.features == "raw":
        result.source = series_source([0.0], [1.0], every=options.every, rate=RATE)
    else:
        result.prepared = "cepstral coefficients of sound"
    return result


ENTRY = Entry(
    name="speech-commands",
    title="Speech Commands: ten spoken words, raw sound or cepstral coefficients (Warden, 2018)",
    source="your folder: the unpacked archive, one folder of .wav files a word",
    needs={"path": "the unpacked archive, one folder of recordings a word"},
    licence_package="yours",
    licence_data="CC BY 4.0 (Google)",
    classes=WORDS,
    read=create,
    official="the unpacked archive: WORD/*.wav, validation_list.txt, testing_list.txt",
    val_fraction=0.15 / 0.85,
    notes="path: the folder; options: features (mfcc, raw), every, words, split (random, official)",
    kind=SEQUENCES,
    options=SpeechOptions,
)
register_dataset(ENTRY)
