"""Labelled time series in the ``.ts`` files of the UEA and UCR archives: JapaneseVowels, PLAID, and
any others in a user's folder.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import torch
from jaxtyping import Float
from torch import Tensor

from ....configuration import check_rates
from ....errors import DataError, OptionError
from ..clients import PIP
from ..counter import uniform
from ..create import source_folder
from ..files.reading import series_source
from ..files.ts import read_ts
from ..kinds.sequences import SEQUENCES, SequenceDataset, padded
from ..registry import Entry, Request, register_dataset
from ..sources import Package, files_in
from ..splits import SPLITS
from ..vocabulary import check_count


@dataclass(frozen=True)
class TimeSeriesOptions:
    """Options of sets of time series.

    Args:
        every: keep each n-th observation, from the first on.
        drop: the share of observations that is lost, drawn by ``seed`` and index.
        timed: keep the remaining observations with their times, in steps of the full rate; without
            it, lost ones are gaps of NaN.
        seed: of the losses.
        scale: to mean 0 and standard deviation 1 of each channel: ``"file"`` over the training
            file, or ``"series"`` over the remaining observations of the series itself, for
            amplitudes that differ by orders of magnitude.

    Raises:
        OptionError: a rate below 1, a share outside [0, 1), or another scale.
    """

    every: int = 1
    drop: float = 0.0
    timed: bool = False
    seed: int = 0
    scale: str = "file"

    def __post_init__(self) -> None:
        check_count("every", self.every)
        check_rates(self, "drop")
        if self.scale not in ("file", "series"):
            raise OptionError(f"scale: expected 'file' or 'series', got {self.scale!r}")


def observed(
    series: Float[Tensor, "n c"],
    options: TimeSeriesOptions,
    *key: int,
) -> Float[Tensor, "m d"]:
    """Return the observations of a series that the options keep, see :class:`TimeSeriesOptions`.

    Args:
        series: N observations of C channels.
        key: numbers from which the losses follow, beside the seed.

    Example:
        >>> observed(torch.arange(6.0)[:, None], TimeSeriesOptions(every=2, timed=True)).tolist()
        [[0.0, 0.0], [2.0, 2.0], [4.0, 4.0]]
    """
    times = torch.arange(0, len(series), options.every)
    values = series[:: options.every]
    kept = torch.ones(len(times), dtype=torch.bool)
    if options.drop:
        kept = uniform(options.seed, *key, times) >= options.drop
    # A series without any point could not be read.
    if not kept.any():
        kept[0] = True

    # Only after the losses: nobody knows the scale of observations that were not made.
    if options.scale == "series":
        mean, std = mean_and_deviation(values[kept])
        values = (values - mean) / std
    if options.timed:
        return torch.cat([times[kept, None].float(), values[kept]], 1)
    return torch.where(kept[:, None], values, torch.nan)


def mean_and_deviation(
    series: Float[Tensor, "n c"],
) -> tuple[Float[Tensor, " c"], Float[Tensor, " c"]]:
    """Return the mean and standard deviation of each channel, without NaN.

    The deviation of a channel that is constant up to rounding is 1: its rounding errors must not
    be scaled to the size of a signal.
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
    """Note in ``result`` its spacing, and how a run on it reads further series; return it.

    Args:
        options: those that the series were read with.
        mean, std: of each channel of the training file.
        rate: of sounds, samples per second.
    """
    result.spacing = 1.0 if options.timed else float(options.every)
    scale = "sample" if options.scale == "series" else "file"
    given = {"timed": options.timed, "every": options.every}
    result.source = series_source(mean.tolist(), std.tolist(), scale, rate=rate, **given)
    return result


def create(request: Request) -> SequenceDataset:
    """Return the data set of a request."""
    options = request.options
    folder = source_folder(request)
    arrays, labels, classes = read_ts(find(folder, "TRAIN"))
    train = [torch.from_numpy(array) for array in arrays]
    classes = classes or tuple(sorted(set(labels)))
    series = train
    if request.split == "test":
        arrays, labels, _ = read_ts(find(folder, "TEST"))
        series = [torch.from_numpy(array) for array in arrays]
    if series[0].shape[1] != train[0].shape[1] or not set(labels) <= set(classes):
        raise DataError(
            f"{folder}: expected the dimensions and classes of the training file in the test file, "
            "got others; take both from one archive"
        )
    numbers = torch.tensor([classes.index(label) for label in labels])
    chosen = request.chosen(numbers)
    if chosen is not None:
        series = [series[i] for i in chosen.tolist()]
        numbers = numbers[chosen]

    # The scale and the longest series of the training file hold for all splits, so that a model
    # learns nothing of the test set from them.
    mean, std = mean_and_deviation(torch.cat(train))
    longest = max(len(each) for each in train)
    if options.scale == "file":
        series = [(each - mean) / std for each in series]
    key = SPLITS.index(request.split)
    rows = [observed(each, options, key, i) for i, each in enumerate(series)]
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
    """Return the one file NAME_TRAIN.ts or NAME_TEST.ts of a folder.

    Raises:
        DataError: none, or several.
    """
    files = sorted(folder.glob(f"*_{part}.ts"))
    if len(files) != 1:
        raise DataError(
            f"{folder}: expected one file *_{part}.ts, got {len(files)}; give each data set a "
            "folder"
        )
    return files[0]


MEMBERS = "sktime/datasets/data"
# sktime brings the files of many data sets; each data set takes its own.
SKTIME = Package(
    client=PIP,
    name="sktime",
    version="1.2.0",
    archive_bytes=8201107,
    archive_sha256="dbffc6731d2d683b668dceb5e2bbc5804bebc8446b4c580803a281684d90e4ae",
)
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
JAPANESE_VOWELS = replace(
    TS_FOLDER,
    name="japanese-vowels",
    title="Japanese vowels: two vowels by nine speakers, 12 channels (Kudo, Toyama and Shimbo, "
    "1999)",
    source="",
    needs={},
    licence_package="BSD-3-Clause",
    licence_data="CC BY 4.0 (UCI repository)",
    samples={"train": 270, "test": 370},
    classes=tuple("123456789"),
    sources=(
        replace(
            SKTIME,
            files=files_in(
                f"{MEMBERS}/JapaneseVowels",
                (
                    "JapaneseVowels_TRAIN.ts",
                    487971,
                    "68a430eabd919cc77f40b1f5f3bc0dcafacc1486bca9260785aeb7d262cc78cd",
                ),
                (
                    "JapaneseVowels_TEST.ts",
                    649132,
                    "b3d41d6a0ca3bcad3afb9ca7d4365382aa51341e2e58bae2a574babdda5b9462",
                ),
            ),
        ),
    ),
    official="JapaneseVowels_TRAIN.ts and JapaneseVowels_TEST.ts of the UEA and UCR archives",
    val_fraction=0.2,
    notes=f"lengths 7 to 29; {TS_FOLDER.notes}",
)
register_dataset(JAPANESE_VOWELS)
PLAID = replace(
    JAPANESE_VOWELS,
    name="plaid",
    title="PLAID: electric current of 11 kinds of household appliances (Gao et al., 2014)",
    licence_data="CC BY 4.0 (PLAID)",
    samples={"train": 537, "test": 537},
    classes=tuple(str(i) for i in range(11)),
    sources=(
        replace(
            SKTIME,
            files=files_in(
                f"{MEMBERS}/PLAID",
                (
                    "PLAID_TRAIN.ts",
                    1491100,
                    "40deb3bc6bd1e1aa0e6db6e6bfd3cecc4a23bf57f6a6d6ab90fb75e4a2c72344",
                ),
                (
                    "PLAID_TEST.ts",
                    1503139,
                    "aa6da0dc1461e8d374e068a940ce37d1b0bb1a9844596d818920c8af696d656d",
                ),
            ),
        ),
    ),
    official="PLAID_TRAIN.ts and PLAID_TEST.ts of the UEA and UCR archives",
    notes=f"lengths 100 to 1,344; {TS_FOLDER.notes}",
)
register_dataset(PLAID)
