"""Speech Commands: one-second recordings of spoken words, raw or as mel-frequency cepstral
coefficients, from the user's folder.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from fredholm.errors import DataError, OptionError, suggest
from fredholm.lab.data.files.reading import series_source
from fredholm.lab.data.kinds.sequences import SEQUENCES, SequenceDataset
from fredholm.lab.data.registry import Entry, Request, register_dataset
from fredholm.lab.data.splits import stratified

from .sound_features import mfcc, read_wav

RATE = 16_000
WORDS = ("down", "go", "left", "no", "off", "on", "right", "stop", "up", "yes")
FEATURES = ("mfcc", "raw")
SPLITS_OF = ("random", "official")


@dataclass(frozen=True)
class SpeechOptions:
    """``features``: ``mfcc``, 20 coefficients at 161 points, or ``raw``, 16,000 samples. ``every``:
    keep each n-th sample of raw sound. ``words``: the folders that are read. ``split``: ``random``,
    70/15/15% of each word's recordings, as the paper has it, or ``official``, the lists of the
    archive, which keep a speaker in one split.

    Raises:
        OptionError: an unknown name, fewer than two words, or a rate below 1.
    """

    features: str = "mfcc"
    every: int = 1
    words: tuple[str, ...] | list[str] = WORDS
    split: str = "random"

    def __post_init__(self) -> None:
        for name, known in (("features", FEATURES), ("split", SPLITS_OF)):
            if getattr(self, name) not in known:
                raise OptionError(
                    f"{name}: received "
                    f"{getattr(self, name)!r}{suggest(str(getattr(self, name)), known)}"
                )
        object.__setattr__(self, "words", tuple(self.words))
        if len(set(self.words)) < 2 or len(set(self.words)) != len(self.words):
            raise OptionError(f"words: received {self.words!r}; needs two or more different ones")
        if not isinstance(self.every, int) or isinstance(self.every, bool) or self.every < 1:
            raise OptionError(f"every: received {self.every!r}; needs an integer of 1 or more")
        if self.every > 1 and self.features != "raw":
            raise OptionError(
                f"every: received {self.every} with features='mfcc'; needs features='raw'"
            )


def scan(folder: Path, words: tuple[str, ...]) -> tuple[list[Path], list[int]]:
    """The recordings of a second's length, and each one's word.

    Only whole seconds are kept, as the paper does: that is what makes its 34,975 recordings of ten
    words.

    Raises:
        DataError: a word without a folder or without recordings.
    """
    files, labels = [], []
    for number, word in enumerate(words):
        whole = 44 + 2 * RATE  # the header of a plain WAV file, and 16-bit samples
        mine = sorted(
            file for file in (folder / word).glob("*.wav") if file.stat().st_size >= whole
        )
        if not mine:
            raise DataError(
                f"{folder / word}: holds no recordings of a second; needs the archive's folder of "
                "that word"
            )
        files += mine
        labels += [number] * len(mine)
    return files, labels


def listed(folder: Path, files: list[Path]) -> dict[str, Tensor]:
    """The archive's own splits, by its two lists.

    Raises:
        DataError: a list that is missing.
    """
    names = {}
    for split, name in (("val", "validation_list.txt"), ("test", "testing_list.txt")):
        if not (folder / name).is_file():
            raise DataError(
                f"{folder / name}: missing; needs the archive's list, or split='random'"
            )
        names[split] = set((folder / name).read_text(encoding="utf-8").split())
    of = [
        next((s for s in names if f"{f.parent.name}/{f.name}" in names[s]), "train") for f in files
    ]
    return {
        split: torch.tensor([i for i, s in enumerate(of) if s == split])
        for split in ("train", "val", "test")
    }


def create(request: Request) -> SequenceDataset:
    """The data set of a request; coefficients are scaled by the mean and standard deviation of up
    to 512 training recordings.
    """
    options: SpeechOptions = request.options
    files, labels = scan(request.folder, tuple(options.words))
    numbers = torch.tensor(labels)
    if options.split == "official":
        parts = listed(request.folder, files)
    else:
        rest, test = stratified(numbers, 0.15)
        fraction = request.share
        kept, val = stratified(numbers[rest], fraction)
        parts = {"train": rest[kept], "val": rest[val], "test": test}
    chosen = parts[request.split]
    if not len(parts["train"]) or not len(chosen):
        raise DataError(
            f"{request.folder}: {len(files)} recordings leave none for {request.split}; needs more "
            "of them"
        )

    def read(indices: Tensor) -> Tensor:
        samples = torch.stack([read_wav(files[i], RATE)[:RATE] for i in indices.tolist()])
        return (
            mfcc(samples, RATE)
            if options.features == "mfcc"
            else samples[:, :: options.every, None]
        )

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
