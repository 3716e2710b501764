"""Voice prompts of a telephone exchange in five languages, raw sound at 8,000 samples per second.

There is one speaker per language, so a model may recognise voices as well as languages.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from fredholm.errors import DataError, OptionError
from fredholm.lab.data.catalogue.time_series import (
    TimeSeriesOptions,
    mean_and_deviation,
    observed,
    tell_rate,
)
from fredholm.lab.data.clients import APT, tar_stream
from fredholm.lab.data.create import source_folder
from fredholm.lab.data.kinds.sequences import SEQUENCES, SequenceDataset, padded
from fredholm.lab.data.registry import Entry, Request, register_dataset
from fredholm.lab.data.sources import Package, Packages
from fredholm.lab.data.splits import SPLITS, place_of, split_at

from .sound_features import read_wav

RATE = 8_000
LANGUAGES = {"en": "English", "es": "Spanish", "fr": "French", "it": "Italian", "ru": "Russian"}
TEST = 0.2
"""Share of the phrases in the test set."""
QUIET = 0.25
"""Level of a window, relative to its clip's, below which it is a pause."""


@dataclass(frozen=True)
class PromptOptions(TimeSeriesOptions):
    """Options of :class:`TimeSeriesOptions` and one more.

    Attributes:
        seconds: duration of a sample, which is cut out of a clip.

    Raises:
        OptionError: a duration of less than two samples.
    """

    seconds: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        number = isinstance(self.seconds, int | float) and not isinstance(self.seconds, bool)
        if not number or not 2 / RATE <= self.seconds < float("inf"):
            raise OptionError(
                f"seconds: expected {2 / RATE:g} s (two samples) or more, got {self.seconds!r}"
            )

    @property
    def points(self) -> int:
        """Number of samples of a window at the full rate."""
        return round(self.seconds * RATE)


@dataclass(frozen=True)
class Clips:
    """The clips of one language.

    Attributes:
        samples: of all clips, one after the other, as 16-bit integers.
        names: of the clips.
        lengths: number of samples of each clip.
    """

    samples: np.ndarray
    names: list[str]
    lengths: list[int]


def gather(files: Iterable[tuple[str, bytes]]) -> dict[str, Clips]:
    """Return the clips of each language, sorted by name.

    The files are (path, content) of WAV files below folders such as ``en_US_f_Allison``. Clips of
    silence are left out.

    Raises:
        DataError: a file is not a WAV file of one channel at 8,000 samples per second.
    """
    found: dict[str, dict[str, np.ndarray]] = {}
    for path, content in files:
        voice, _, phrase = path.partition("/")
        language = voice.partition("_")[0]
        if language in LANGUAGES and not phrase.startswith("silence/"):
            samples = read_wav(Path(path), RATE, content) * 32768
            found.setdefault(language, {})[phrase] = samples.numpy().astype("<i2")

    languages: dict[str, Clips] = {}
    for language, by_name in found.items():
        names = sorted(by_name)
        clips = [by_name[name] for name in names]
        languages[language] = Clips(np.concatenate(clips), names, [len(clip) for clip in clips])
    return languages


def derive(archive: Path, folder: Path, advance: Callable[[int], None]) -> None:
    """Write ``en.npy`` and ``en.json`` (and so on) for the languages in an archive."""

    def files() -> Iterator[tuple[str, bytes]]:
        with tar_stream(archive, APT) as tar:
            for member in tar:
                _, sounds, path = member.name.partition("/sounds/")
                if not sounds or not path.endswith(".wav"):
                    continue
                stream = tar.extractfile(member)
                if stream is not None:
                    yield path, stream.read()

    found = gather(files())
    if not found:
        raise DataError(f"{archive}: expected voice prompts, got none; it is another package")
    for language, clips in found.items():
        np.save(folder / f"{language}.npy", clips.samples)
        listed = {"names": clips.names, "lengths": clips.lengths}
        (folder / f"{language}.json").write_text(json.dumps(listed), encoding="utf-8")
        advance(clips.samples.nbytes)


def read(folder: Path) -> dict[str, Clips]:
    """Read the files of :func:`derive`, or the folders of the packages.

    Raises:
        DataError: a language is missing, or files do not belong together.
    """
    if not any((folder / f"{language}.npy").is_file() for language in LANGUAGES):
        paths = sorted(folder.glob("*_*/**/*.wav"))
        found = gather((path.relative_to(folder).as_posix(), path.read_bytes()) for path in paths)
    else:
        found = {language: _stored(folder, language) for language in LANGUAGES}
    missing = [language for language in LANGUAGES if language not in found]
    if missing:
        raise DataError(
            f"{folder}: expected a folder of .wav files per language, such as en_US_f_Allison, got "
            f"no clips of {', '.join(missing)}; add them"
        )
    return {language: found[language] for language in LANGUAGES}


def _stored(folder: Path, language: str) -> Clips:
    """Read one language's files of :func:`derive`."""
    try:
        samples = np.load(folder / f"{language}.npy", mmap_mode="r")
        listed = json.loads((folder / f"{language}.json").read_text(encoding="utf-8"))
        clips = Clips(samples, listed["names"], listed["lengths"])
        names, total = len(clips.names), sum(clips.lengths)
    except (OSError, ValueError, EOFError, KeyError, TypeError) as error:
        raise DataError(
            f"{folder}: expected clips of {language}, got none ({error}); fetch voice-prompts "
            "again with --force"
        ) from error
    fitting = names == len(clips.lengths) and total == len(samples)
    if samples.dtype != np.int16 or not fitting:
        raise DataError(
            f"{folder}: expected {total:,} samples of {language}, got {len(samples):,}; fetch "
            "voice-prompts again with --force"
        )
    return clips


def windows(clips: Clips, points: int) -> tuple[list[int], list[str]]:
    """Return the starts of windows of ``points`` side by side in each clip, and their phrases.

    Pauses are left out, and so are samples at a clip's end that do not fill a window.

    Example:
        >>> loud = np.array([9, -9, 9, 0, 0, 0, 9, -9], dtype=np.int16)
        >>> windows(Clips(loud, ["one", "two"], [5, 3]), 2)
        ([0, 2, 5], ['one', 'one', 'two'])
    """
    starts, phrases, begin = [], [], 0
    for name, length in zip(clips.names, clips.lengths):
        count = length // points
        if count:
            clip = clips.samples[begin : begin + count * points].astype(np.float32)
            level = clip.reshape(count, points).std(1)
            for window in np.flatnonzero(level > QUIET * clip.std()):
                starts.append(begin + int(window) * points)
                phrases.append(name)
        begin += length
    return starts, phrases


def create(request: Request) -> SequenceDataset:
    """Return the data set of a request.

    The split of a phrase depends on its name and is the same in all languages. Amplitudes are
    standardised over the training windows, or in each window.
    """
    options: PromptOptions = request.options
    samples: list[np.ndarray] = []
    chosen: dict[str, list[tuple[int, int]]] = {split: [] for split in SPLITS}
    for number, clips in enumerate(read(source_folder(request, lambda file: True)).values()):
        samples.append(clips.samples)
        for start, phrase in zip(*windows(clips, options.points)):
            chosen[split_at(place_of(phrase), float(request.share), TEST)].append((number, start))

    def window(number: int, start: int) -> Float[Tensor, "n 1"]:
        cut = samples[number][start : start + options.points].astype(np.float32)
        return torch.from_numpy(cut)[:, None] / 32768

    windows_of_split = chosen[request.split]
    if not chosen["train"] or not windows_of_split:
        raise DataError(
            f"{request.split}: expected clips with a window of {options.seconds:g} seconds, got "
            "none; set a smaller options.seconds"
        )
    mean, std = mean_and_deviation(torch.cat([window(*one) for one in chosen["train"]]))
    key = SPLITS.index(request.split)

    def values(indices: Tensor) -> Float[Tensor, "b n c"]:
        rows = []
        for index in indices.tolist():
            row = window(*windows_of_split[index])
            if options.scale == "file":
                row = (row - mean) / std
            rows.append(observed(row, options, key, index))
        return padded(rows)

    result = SequenceDataset(
        request.entry.name,
        request.split,
        torch.tensor([number for number, _ in windows_of_split]),
        tuple(LANGUAGES.values()),
        values,
        shape=(options.points, 1),
        timed=options.timed,
    )
    return tell_rate(result, options, mean, std, RATE)


_ARCHIVES = {
    "en": (18272864, "2be3ea287d83299d143815fa804f11179a75b7affd4a758b98b55f5afc18a35d"),
    "es": (23767256, "9283a09a6d56fccdcc2bcfe86c48f0f844289cfbd46a3184d8785a6f7f569903"),
    "fr": (18516060, "8d4e1bc32ed5ba7fbda40841ca1825ed20cc6232724a473c90f8bb0e53e6073e"),
    "it": (18262124, "5a26638089e134b8ac39363fe249c5c93c50cd8bfdc9b2499ae61ec4a35e2fcb"),
    "ru": (18788860, "ccbfaebfa450b7a9ddf644ae0f3d1e9017d5df7c0aebe816e946345589d38201"),
}
ENTRY = Entry(
    name="voice-prompts",
    title="Voice prompts of a telephone exchange in five languages, raw sound; one speaker a "
    "language",
    licence_package="CC BY-SA 3.0 (Russian: CC BY 3.0)",
    licence_data="CC BY-SA 3.0 (Allison Smith, June Wallack, Carlo Flora); Russian CC BY 3.0 "
    "(Maxim Topal)",
    read=create,
    sources=(
        Packages(
            tuple(
                Package(
                    client=APT,
                    name=f"asterisk-core-sounds-{language}-wav",
                    version="1.6.1-1",
                    archive_bytes=size,
                    archive_sha256=digest,
                    derive=derive,
                    derived_bytes=25_000_000,
                )
                for language, (size, digest) in _ARCHIVES.items()
            )
        ),
    ),
    official="the folders en_US_f_Allison, ... of the packages' usr/share/asterisk/sounds",
    classes=tuple(LANGUAGES.values()),
    val_fraction=0.125,
    notes="8,000 samples a second; English and Spanish are one voice, the others one each. No "
    "official split: about 70 / 10 / 20% of the phrases, one in all languages; options: seconds "
    "(1), every, drop, timed, seed, scale",
    kind=SEQUENCES,
    options=PromptOptions,
)
register_dataset(ENTRY)
