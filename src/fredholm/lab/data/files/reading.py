"""How a user's files are to be read: what is said of them, and what was found where nothing was."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ....errors import OptionError, suggest
from .writing import PLAIN, Writing

KINDS = ("series", "rows", "texts", "images", "clouds", "fields")
TASKS = ("classification", "regression", "steps")
SPLIT_RULES = ("random", "group", "time")
SCALES = ("file", "sample", "none")
FORMS = ("rgb", "rgba", "rgb16", "rgba16")


def refuse_forecasting(task: Any) -> None:
    """Refuse a task that is asked for by name and is not there yet.

    Raises:
        OptionError: the continuation of a series is asked for.
    """
    if isinstance(task, str) and task.lower().startswith("forecast"):
        raise OptionError(
            f"task: expected one of {', '.join(TASKS)}, got {task!r}; forecasting is not supported "
            "yet: cut the series into windows, and give each the value that follows as its label "
            "(task regression)"
        )


@dataclass(frozen=True)
class Reading:
    """What files hold, and what stands for what; None is found out.

    Attributes:
        kind: ``series``, ``rows`` (feature columns), ``texts``, ``images``, ``clouds``, ``fields``.
        label: the column (of arrays: the name) of what is to be predicted.
        time, id: columns of a long table of series: when a row was measured, and of which series.
        group: a column whose values are not divided between the splits, such as a patient.
        text: the column of texts; of a table of pictures or sounds, that of their paths.
        channels: the columns or arrays that a model reads, also as one text with commas (default:
            all that are numbers).
        task: ``classification``, ``regression`` or ``steps`` (a class at every time).
        split: ``random`` (stratified), ``group`` or ``time`` (the latest are the test); with a
            ``group`` only ``group``, which it then is by default.
        test: the share of the samples held out as test, where the files hold no test set.
        seed: of the split.
        scale: of series, each channel to mean 0 and deviation 1 over the training samples
            (``file``, the default), over each ``sample``, or ``none``; of rows ``file`` or
            ``none``; of clouds each ``sample`` into the unit ball (the default) or ``none``;
            fields are scaled by ``file``. Pictures are brought to ImageNet's mean and deviation.
        points: of a cloud that a model reads (default: as many as the smallest has, at most 1,024).
        read: how a table is written, also as a mapping or as texts ``KEY=VALUE``.
        strict: refuse samples without a label, cells that hold no number, and files that cannot be
            read, which are otherwise left out and listed.
        pixels: of pictures, ``rgb`` (bytes), ``rgba`` (with transparency), ``rgb16`` or ``rgba16``
            (all 16 bits); default: what keeps everything that the files hold.

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
        known = {"kind": KINDS, "task": TASKS, "split": SPLIT_RULES, "scale": SCALES}
        known |= {"pixels": FORMS}
        for name, values in known.items():
            value = getattr(self, name)
            if name == "task":
                refuse_forecasting(value)
            if value is not None and value not in values:
                raise OptionError(f"{name}: received {value!r}{suggest(str(value), values)}")
        if isinstance(self.channels, str):
            words = tuple(name.strip() for name in self.channels.split(","))
            object.__setattr__(self, "channels", words)
        elif self.channels is not None:
            object.__setattr__(self, "channels", tuple(self.channels))
        numbers = {
            "test": (int | float, "a share between 0 and 1"),
            "seed": (int, "a whole number"),
            "points": (int | None, "a whole number of 1 or more"),
            "strict": (bool, "yes or no: true or false"),
        }
        for name, (kinds, what) in numbers.items():
            if not isinstance(getattr(self, name), kinds):
                raise OptionError(f"{name}: received {getattr(self, name)!r}; needs {what}")
        if not 0 < self.test < 1:
            raise OptionError(f"test: received {self.test!r}; needs a share between 0 and 1")
        if self.points is not None and self.points < 1:
            raise OptionError(f"points: received {self.points!r}; needs 1 or more")
        if self.split == "group" and self.group is None:
            raise OptionError("split: received 'group'; needs the column of groups as well: group")

    @property
    def writing(self) -> Writing:
        """How a table is written, as far as it is declared."""
        return Writing.of(self.read)

    def settled(self, **found: Any) -> Reading:
        """With what was found out in the place of what nobody said."""
        return dataclasses.replace(self, **found)

    def check_rule(self) -> None:
        """Where samples are to be divided.

        Raises:
            OptionError: a rule that would divide the groups.
        """
        if self.group is not None and self.split not in (None, "group"):
            raise OptionError(
                f"split: received {self.split!r} with group {self.group!r}, whose values it would "
                "put into several parts; needs 'group', or leave one of the two out"
            )

    def to_dict(self) -> dict[str, Any]:
        """As JSON takes it."""
        result = dataclasses.asdict(self)
        channels = None if self.channels is None else list(self.channels)
        return result | {"channels": channels, "read": self.writing.said}

    @classmethod
    def from_dict(cls, given: Mapping[str, Any]) -> Reading:
        """Read the result of :meth:`to_dict`."""
        return cls(**given)


def series_source(
    mean: Sequence[float],
    std: Sequence[float],
    scale: str = "file",
    *,
    timed: bool = False,
    every: int = 1,
    rate: int | None = None,
) -> dict[str, Any]:
    """The ``source`` of a data set of the catalogue: how a run on it reads further series, at the
    scale (by the channels' ``mean`` and ``std``, or by each ``sample``) and rate of its own;
    ``rate``: of sounds, samples a second.
    """
    reading = Reading(kind="series", task="classification", scale=scale)
    scaling = {"mean": list(mean), "std": list(std), "step": 1 / (rate or 1), "timed": timed}
    scaling |= {"every": every, "clocked": rate is not None}
    return {"reading": reading.to_dict(), "scaling": scaling, "files": ""}
