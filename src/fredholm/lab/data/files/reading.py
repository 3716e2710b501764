"""How a user's files are to be read: what the user declares, and what was recognised instead."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ....errors import DataError, OptionError, suggest
from .writing import PLAIN, Writing

KINDS = ("series", "rows", "texts", "images", "clouds", "fields")
TASKS = ("classification", "regression", "steps")
SPLIT_RULES = ("random", "group", "time")
SCALES = ("file", "sample", "none")
FORMS = ("rgb", "rgba", "rgb16", "rgba16")


def refuse_forecasting(task: Any) -> None:
    """Refuse forecasting, which many ask for and which is not supported yet.

    Raises:
        OptionError: the task is called forecast or forecasting.
    """
    # A list of the tasks alone would leave a reader to look for it under another name.
    if isinstance(task, str) and task.lower().startswith("forecast"):
        raise OptionError(
            f"task: expected one of {', '.join(TASKS)}, got {task!r}; forecasting is not supported "
            "yet: cut the series into windows, and give each the value that follows as its label "
            "(task regression)"
        )


@dataclass(frozen=True)
class Reading:
    """Contents of files, and the role of each column; None is recognised.

    Attributes:
        kind: ``series``, ``rows`` (feature columns), ``texts``, ``images``, ``clouds``, ``fields``.
        label: the column (in arrays: the name) to predict.
        time, id: columns of a long table of series: the time of a row, and the series it is of.
        group: a column whose values must not be in several splits, such as a patient.
        text: the column of texts; in a table of pictures or sounds, that of their paths.
        channels: the columns or arrays that a model reads, also as one text with commas (default:
            all that hold numbers).
        task: ``classification``, ``regression`` or ``steps`` (a class at every time).
        split: ``random`` (stratified), ``group`` or ``time`` (the latest are the test); with a
            ``group`` only ``group``, which it then is by default.
        test: share of the samples held out as the test set, unless the files hold one.
        seed: seed of the split.
        scale: for series, each channel to mean 0 and deviation 1 over the training samples
            (``file``, the default), over each ``sample``, or ``none``; for rows ``file`` or
            ``none``; for clouds each ``sample`` into the unit ball (the default) or ``none``;
            fields are scaled by ``file``, pictures to ImageNet's mean and deviation.
        points: points of a cloud that a model reads (default: as many as the smallest has, at most
            1,024).
        read: how a table is written, also as a mapping or as texts ``KEY=VALUE``.
        strict: refuse samples without a label, cells without a number, and files that cannot be
            read, which are otherwise left out and listed.
        pixels: form of pictures: ``rgb`` (bytes), ``rgba`` (with transparency), ``rgb16`` or
            ``rgba16`` (all 16 bits); default: the one that keeps everything in the files.

    Raises:
        OptionError: an unknown kind, task, rule or scale, or a share that leaves nothing.
    """

    kind: str | None = None
    label: str | None = None
    time: str | None = None
    id: str | None = None
    group: str | None = None
    text: str | None = None
    channels: str | Sequence[str] | None = None
    task: str | None = None
    split: str | None = None
    test: float = 0.2
    seed: int = 0
    scale: str | None = None
    points: int | None = None
    read: Writing | Mapping[str, Any] | Sequence[str] | str = PLAIN
    strict: bool = False
    pixels: str | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "read", Writing.of(self.read))
        refuse_forecasting(self.task)
        known = {
            "kind": KINDS,
            "task": TASKS,
            "split": SPLIT_RULES,
            "scale": SCALES,
            "pixels": FORMS,
        }
        for name, values in known.items():
            # Each is a word of the command line, where slips are frequent: suggest the nearest.
            value = getattr(self, name)
            if value is not None and value not in values:
                raise OptionError(
                    f"{name}: expected one of {', '.join(values)}, got {value!r}"
                    f"{suggest(str(value), values)}"
                )

        # Recipes and command lines give names with commas; JSON gives lists, which have no hash.
        channels = self.channels
        if isinstance(channels, str):
            channels = [name.strip() for name in channels.split(",")]
        if channels is not None:
            object.__setattr__(self, "channels", tuple(channels))

        _check_value("test", self.test, int | float, "a share between 0 and 1")
        _check_value("seed", self.seed, int, "a whole number")
        _check_value("points", self.points, int | None, "a whole number of 1 or more")
        _check_value("strict", self.strict, bool, "yes or no: true or false")
        if not 0 < self.test < 1:
            raise OptionError(
                f"test: expected a share between 0 and 1, got {self.test!r}; correct it"
            )
        if self.points is not None and self.points < 1:
            raise OptionError(f"points: expected 1 or more, got {self.points!r}; correct it")
        if self.split == "group" and self.group is None:
            raise OptionError(
                "split: expected the column of groups as well, got 'group' alone; name it: group"
            )

    @property
    def writing(self) -> Writing:
        """How a table is written, as far as the user declares it."""
        return Writing.of(self.read)

    def settled(self, **found: Any) -> Reading:
        """Return the same with recognised values in place of undeclared ones."""
        return dataclasses.replace(self, **found)

    def check_rule(self) -> None:
        """Refuse a rule that would put one group into several splits.

        Raises:
            OptionError: a group, and a rule other than ``group``.
        """
        if self.group is not None and self.split not in (None, "group"):
            raise OptionError(
                f"split: expected 'group' with group {self.group!r}, whose values must not be in "
                f"several splits, got {self.split!r}; leave one of the two out"
            )

    def to_dict(self) -> dict[str, Any]:
        """Return a dictionary that JSON can store, the arguments of the same reading."""
        result = dataclasses.asdict(self)
        if self.channels is not None:
            result["channels"] = list(self.channels)
        return result | {"read": self.writing.said}


def _check_value(
    name: str,
    value: Any,
    kinds: Any,
    needed: str,
) -> None:
    if not isinstance(value, kinds):
        raise OptionError(f"{name}: expected {needed}, got {value!r}; correct it")


def refuse_columns(
    place: Path,
    reading: Reading,
    names: Sequence[str],
    fix: str,
) -> None:
    """Refuse a reading that names columns of files that have none.

    Args:
        place: the file or folder.
        names: keys of the reading.
        fix: why there are no columns, and what to do.

    Raises:
        DataError: naming the first such key.
    """
    for name in names:
        value = getattr(reading, name)
        # Channels are shown as the user writes them.
        if isinstance(value, tuple):
            value = ",".join(value)
        if value is not None:
            raise DataError(f"{place}: {name}: expected no column, got {value!r}; {fix}")


def series_source(
    mean: Sequence[float],
    std: Sequence[float],
    scale: str = "file",
    *,
    timed: bool = False,
    every: int = 1,
    rate: int | None = None,
) -> dict[str, Any]:
    """Return the ``source`` of a data set of the catalogue: how its runs read further series.

    Args:
        mean, std: of each channel, by which it was scaled.
        scale: ``file``, or ``sample`` for series that are each scaled by their own moments.
        timed: whether times are irregular and read by the model.
        every: the training read every so many points.
        rate: of sounds, samples per second.
    """
    reading = Reading(kind="series", task="classification", scale=scale)
    scaling = {
        "mean": list(mean),
        "std": list(std),
        "step": 1 / (rate or 1),
        "timed": timed,
        "every": every,
        "clocked": rate is not None,
    }
    return {"reading": reading.to_dict(), "scaling": scaling, "files": ""}
