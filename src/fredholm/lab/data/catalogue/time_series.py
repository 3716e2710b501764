"""Labelled time series in the ``.ts`` files of the UEA and UCR archives: JapaneseVowels, PLAID, and
any other from a user's folder.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from jaxtyping import Float
from torch import Tensor

from ....errors import DataError, OptionError
from ..clients import PIP
from ..counter import uniform
from ..create import source_folder
from ..files.reading import series_source
from ..files.ts import read_ts
from ..kinds.sequences import SEQUENCES, SequenceDataset, padded
from ..registry import Entry, Request, register_dataset
from ..sources import Package, PinnedFile
from ..splits import SPLITS, stratified


@dataclass(frozen=True)
class TimeSeriesOptions:
    """``every``: keep each n-th sample, from the first on; ``drop``: the share of observations that
    is lost, drawn by ``seed`` and index; ``timed``: what is left brings its times, in steps of the
    full rate, otherwise what is lost is a gap of NaN. ``scale``: to mean 0 and standard deviation 1
    of each channel, ``"file"`` over the training file, ``"series"`` over what is left of the series
    itself, where amplitudes differ by orders of magnitude.

    Raises:
        OptionError: a rate below 1, a share outside [0, 1), or another scale.
    """

    every: int = 1
    drop: float = 0.0
    timed: bool = False
    seed: int = 0
    scale: str = "file"

    def __post_init__(self) -> None:
        if not isinstance(self.every, int) or isinstance(self.every, bool) or self.every < 1:
            raise OptionError(f"every: received {self.every!r}; needs an integer of 1 or more")
        if not isinstance(self.drop, int | float) or not 0 <= self.drop < 1:
            raise OptionError(f"drop: received {self.drop!r}; needs a share in [0, 1)")
        if self.scale not in ("file", "series"):
            raise OptionError(f"scale: received {self.scale!r}; needs 'file' or 'series'")


def observed(
    series: Float[Tensor, "n c"], options: TimeSeriesOptions, *key: int
) -> Float[Tensor, "m d"]:
    """What is left of a series at the rate and with the losses of the options; see
    :class:`TimeSeriesOptions`.

    Example:
        >>> observed(torch.arange(6.0)[:, None], TimeSeriesOptions(every=2, timed=True)).tolist()
        [[0.0, 0.0], [2.0, 2.0], [4.0, 4.0]]
    """
    times = torch.arange(0, len(series), options.every)
    kept = series[:: options.every]
    here = torch.ones(len(times), dtype=torch.bool)
    if options.drop:
        here = uniform(options.seed, *key, times) >= options.drop
    if not bool(here.any()):
        here[0] = True
    if options.scale == "series":
        mean, std = mean_and_deviation(kept[here])
        kept = (kept - mean) / std
    if options.timed:
        return torch.cat([times[here, None].float(), kept[here]], 1)
    return torch.where(here[:, None], kept, torch.nan)


def mean_and_deviation(
    series: Float[Tensor, "n c"],
) -> tuple[Float[Tensor, " c"], Float[Tensor, " c"]]:
    """Of each channel; NaN counts for nothing, and the deviation of a channel that is constant to
    rounding is 1.
    """
    mean = series.nanmean(0)
    std = (series - mean).square().nanmean(0).sqrt()
    rounding = 8 * torch.finfo(series.dtype).eps * series.nan_to_num().abs().amax(0)
    return mean, torch.where(std > rounding, std, 1.0)


def tell_rate(
    result: SequenceDataset,
    options: TimeSeriesOptions,
    mean: Tensor,
    std: Tensor,
    rate: int | None = None,
) -> SequenceDataset:
    """``result`` with its spacing, and how a run on it reads further series: at its rate, and at
    the scale of its files, ``mean`` and ``std`` of each channel, or of each series; ``rate``: of
    sounds, samples a second.
    """
    result.spacing = 1.0 if options.timed else float(options.every)
    scale = "sample" if options.scale == "series" else "file"
    given = {"timed": options.timed, "every": options.every}
    result.source = series_source(mean.tolist(), std.tolist(), scale, rate=rate, **given)
    return result


def create(request: Request) -> SequenceDataset:
    """The data set of a request: classes, and series as :class:`TimeSeriesOptions` has them."""
    options = request.options
    folder = source_folder(request, lambda file: True)
    found, labels, classes = read_ts(find(folder, "TRAIN"))
    train = [torch.from_numpy(s) for s in found]
    longest = max(len(s) for s in train)
    classes = classes or tuple(sorted(set(labels)))
    series = train
    if request.split == "test":
        found, labels, _ = read_ts(find(folder, "TEST"))
        series = [torch.from_numpy(s) for s in found]
    if series[0].shape[1] != train[0].shape[1] or not set(labels) <= set(classes):
        raise DataError(
            f"{folder}: the test file has other dimensions or classes than the training file"
        )
    numbers = torch.tensor([classes.index(label) for label in labels])
    if request.split != "test":
        fraction = request.share
        rest, held = stratified(numbers, fraction)
        chosen = held if request.split == "val" else rest
        series, numbers = [series[i] for i in chosen.tolist()], numbers[chosen]
    key = SPLITS.index(request.split)
    mean, std = mean_and_deviation(torch.cat(train))
    if options.scale == "file":
        series = [(s - mean) / std for s in series]
    rows = [observed(s, options, key, i) for i, s in enumerate(series)]
    result = SequenceDataset(
        request.entry.name,
        request.split,
        numbers,
        classes,
        lambda indices: padded([rows[i] for i in indices.tolist()]),
        shape=(longest, train[0].shape[1]),
        timed=options.timed,
    )
    return tell_rate(result, options, mean, std)


def find(folder: Path, part: str) -> Path:
    """The one file NAME_TRAIN.ts or NAME_TEST.ts of a folder.

    Raises:
        DataError: none, or several.
    """
    files = sorted(folder.glob(f"*_{part}.ts"))
    if len(files) != 1:
        raise DataError(f"{folder}: has {len(files)} files *_{part}.ts; needs one")
    return files[0]


def _entry(
    name: str, folder: str, title: str, classes: tuple[str, ...], licence: str, notes: str, files
) -> Entry:
    pinned = tuple(
        PinnedFile(
            name=f"{folder}_{part}.ts",
            member=f"sktime/datasets/data/{folder}/{folder}_{part}.ts",
            bytes=size,
            sha256=digest,
        )
        for part, size, digest in files
    )
    return Entry(
        name=name,
        title=title,
        licence_package="BSD-3-Clause",
        licence_data=licence,
        samples={
            "JapaneseVowels": {"train": 270, "test": 370},
            "PLAID": {"train": 537, "test": 537},
        }[folder],
        classes=classes,
        read=create,
        sources=(
            Package(
                client=PIP,
                name="sktime",
                version="1.2.0",
                archive_bytes=8201107,
                archive_sha256="dbffc6731d2d683b668dceb5e2bbc5804bebc8446b4c580803a281684d90e4ae",
                files=pinned,
            ),
        ),
        official=f"{folder}_TRAIN.ts and {folder}_TEST.ts of the UEA and UCR archives",
        val_fraction=0.2,
        notes=f"{notes}; options: every, drop, timed, seed, scale",
        kind=SEQUENCES,
        options=TimeSeriesOptions,
    )


JAPANESE_VOWELS = _entry(
    "japanese-vowels",
    "JapaneseVowels",
    "Japanese vowels: two vowels by nine speakers, 12 channels (Kudo, Toyama and Shimbo, 1999)",
    tuple("123456789"),
    "CC BY 4.0 (UCI repository)",
    "lengths 7 to 29",
    (
        ("TRAIN", 487971, "68a430eabd919cc77f40b1f5f3bc0dcafacc1486bca9260785aeb7d262cc78cd"),
        ("TEST", 649132, "b3d41d6a0ca3bcad3afb9ca7d4365382aa51341e2e58bae2a574babdda5b9462"),
    ),
)
register_dataset(JAPANESE_VOWELS)
PLAID = _entry(
    "plaid",
    "PLAID",
    "PLAID: electric current of 11 kinds of household appliances (Gao et al., 2014)",
    tuple(str(i) for i in range(11)),
    "CC BY 4.0 (PLAID)",
    "lengths 100 to 1,344",
    (
        ("TRAIN", 1491100, "40deb3bc6bd1e1aa0e6db6e6bfd3cecc4a23bf57f6a6d6ab90fb75e4a2c72344"),
        ("TEST", 1503139, "aa6da0dc1461e8d374e068a940ce37d1b0bb1a9844596d818920c8af696d656d"),
    ),
)
register_dataset(PLAID)
TS_FOLDER = Entry(
    name="ts-folder",
    title="Labelled time series from your own folder of .ts files, such as CharacterTrajectories",
    source="your folder: NAME_TRAIN.ts and NAME_TEST.ts",
    needs={"path": "the folder of NAME_TRAIN.ts and NAME_TEST.ts"},
    licence_package="yours",
    licence_data="yours",
    read=create,
    official="NAME_TRAIN.ts and NAME_TEST.ts of the UEA and UCR archives",
    notes="options: every, drop, timed, seed, scale",
    kind=SEQUENCES,
    options=TimeSeriesOptions,
)
register_dataset(TS_FOLDER)
