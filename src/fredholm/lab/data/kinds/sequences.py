"""Sequences of numbers as torch data sets; NaN stands for missing values and padding."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Shaped
from torch import Tensor

from ....errors import DataError, ShapeError
from ..stored import StoredRows
from ..summaries import of_series
from .dataset import Cut, Indices, LabelledDataset, check_labels, index_tensor, stretched
from .images import ImageDataset
from .kind import Line, Page, Signal, register_kind

TASKS = ("classification", "steps", "regression")


class Sequences(Line):
    """Sequences of numbers (N, points, C), NaN where nothing was measured."""

    name = "sequence"
    one = "sequence"
    many = "sequences"
    encoder = "sequence"
    legend = " One line per channel, between the channel's smallest and largest value."
    axis = "time"
    unit = "1 is the longest sequence that the model takes"
    sampled = summarised = True

    def fits(self, inputs: Any) -> bool:
        return isinstance(inputs, Tensor) and inputs.dim() == 3 and inputs.is_floating_point()

    def summarise(self, inputs: Any, *, timed: bool = False) -> np.ndarray:
        return of_series(np.asarray(inputs, np.float64), timed)

    def prepare(self, inputs: Any, facts: Page) -> tuple[Any, list[Any] | None]:
        rows = inputs.detach().float().cpu().numpy()
        return inputs, [_signal(row, facts.timed) for row in rows]


SEQUENCES = register_kind(Sequences())


class Tables(Sequences):
    """Rows of a table (N, columns, 1): one point per column, NaN where a cell is empty."""

    name = "row"
    one = "row"
    many = "rows"
    legend = " One point per column, each on its own scale."
    point = axis = "column"
    sampled = False
    unit = "columns stand in the order of the file, 1 is the number of them"

    def fits(self, inputs: Any) -> bool:
        # Rows look like sequences of one channel; only their data set knows.
        return False

    def summarise(self, inputs: Any, *, timed: bool = False) -> np.ndarray:
        return np.asarray(inputs, np.float64)[..., 0]


TABLES = register_kind(Tables())


class SequenceDataset(LabelledDataset):
    """Sequences of numbers with C channels: ``batch(indices)`` returns (B, N, C) floats, padded to
    one length, and the labels.

    A point of padding or of a gap is NaN in every channel. If ``timed``, the first channel is
    time, and a point whose values alone are NaN is a missing observation. ``task`` is what a model
    predicts for a sequence: a class (``classification``), a class at every point (``steps``; the
    label -100 leaves a point out), or a number (``regression``).

    Args:
        name, split: of the data set.
        labels: classes (N,), a number each (N,), or classes at every point (N, points).
        classes: their names; empty for a regression.
        values: the padded sequences of some indices (int64), (B, N, C): a function, or
            :class:`fredholm.data.StoredRows` (N, points, C), which stay on disk.
        shape: points of the longest training sequence, and channels without time.
        task, timed: see above.

    Raises:
        DataError: an unknown task, labels outside the classes, or, when a batch is read, times
            that go back.

    Example:
        >>> walk = torch.randn(4, 9, 1)
        >>> rows, labels = walk.__getitem__, torch.zeros(4).long()
        >>> data = SequenceDataset("walk", "train", labels, ("a", "b"), rows, shape=(9, 1))
        >>> data.batch([1, 2])[0].shape
        torch.Size([2, 9, 1])
    """

    kind = SEQUENCES

    def __init__(
        self,
        name: str,
        split: str,
        labels: Tensor,
        classes: Sequence[str],
        values: Callable[[Tensor], Tensor] | StoredRows,
        *,
        shape: tuple[int, int],
        task: str = "classification",
        timed: bool = False,
    ):
        super().__init__(name, split, labels, classes)
        if task not in TASKS:
            raise DataError(f"task: expected one of {', '.join(TASKS)}, got {task!r}; choose one")
        if task != "regression":
            check_labels(labels, classes)

        self.values = values
        self.length, self.channels = shape
        self.task = task
        self.timed = timed

        # Defaults of a model, which a reader of files may change. ``spacing`` is n if only every
        # n-th point of the series is kept. ``pool`` is the pooling of the head if the data require
        # one: ``every`` for a class at every point.
        self.spacing = 1.0
        self.pool: str | None = None

    def raw(self, indices: Indices) -> tuple[Float[Tensor, "b n c"], Tensor]:
        indices = index_tensor(indices)
        values = self.values(indices)
        if self.timed:
            self._check_times(values[..., 0], indices)
        labels = self.labels[indices]
        # Labels at points are padded to the longest sequence of all, not of this batch.
        if self.task == "steps":
            labels = labels[:, : values.shape[1]]
        return values, labels

    def stretch(self, axis: int, cut: Cut) -> SequenceDataset | None:
        # A selection reads its rows through another data set, which would return whole sequences.
        if axis != 1 or "raw" in vars(self):
            return None
        if not isinstance(self.values, StoredRows):
            return None
        result = copy.copy(self)
        result.values = stretched(self.values, 1, cut)
        if self.task == "steps":
            points = self.values.shape[1]
            result.labels = stretched(self.labels[:, :points], 1, cut)
        return result

    def _check_times(self, times: Tensor, indices: Tensor) -> None:
        """Refuse times that decrease.

        A model relies on their order. The check is here, on the CPU, since a model may run on a
        device, where it would have to wait for the answer.
        """
        # The latest time so far: gaps, whose time is NaN, may lie between two points.
        known = torch.where(times.isnan(), -torch.inf, times)
        latest, _ = known.cummax(1)
        earlier = times[:, 1:] < latest[:, :-1]
        back = indices[earlier.any(1)]
        if len(back):
            raise DataError(
                f"{self.name}: expected times that increase, got others in sequence "
                f"{int(back[0])}; sort each sequence by its times, NaN behind the last"
            )

    def encoder(self) -> dict[str, Any]:
        fields = {
            **super().encoder(),
            "length": self.length,
            "channels": self.channels,
        }
        if self.spacing != 1:
            fields["spacing"] = self.spacing
        if self.timed:
            fields["timed"] = True
        return fields

    def head(self) -> dict[str, Any]:
        if self.pool is None:
            return {}
        return {"pool": self.pool}

    def example(self) -> Tensor:
        values = torch.zeros(1, self.length, self.channels)
        if not self.timed:
            return values
        times = torch.arange(self.length)[None, :, None]
        return torch.cat([times, values], 2)

    def __repr__(self) -> str:
        size = f"at most {self.length} points, {self.channels} channels"
        what = f"{self.name!r}, {self.split!r}, {len(self)} sequences"
        return f"SequenceDataset({what}, {size}, {self.task})"


def _signal(row: np.ndarray, timed: bool) -> Signal:
    """Return one sample up to the last point that was measured."""
    x = np.arange(len(row), dtype=np.float32)
    values = row
    if timed:
        x = row[:, 0]
        values = row[:, 1:]
    measured = ~np.isnan(values).all(1) & ~np.isnan(x)
    (points,) = measured.nonzero()
    end = int(points.max(initial=0)) + 1
    return Signal(x[:end], values[:end])


def padded(
    rows: Sequence[Tensor],
    padding: float = torch.nan,
) -> Shaped[Tensor, "b m ..."]:
    """Return sequences (n, …) of different lengths as one tensor, ``padding`` behind the shorter
    ones.

    Example:
        >>> padded([torch.ones(1, 1), torch.ones(2, 1)])[0].flatten().tolist()
        [1.0, nan]
    """
    return torch.nn.utils.rnn.pad_sequence(
        list(rows),
        batch_first=True,
        padding_value=padding,
    )


def image_sequences(images: ImageDataset, order: Tensor | None = None) -> SequenceDataset:
    """Return images as sequences of pixels, row after row, or in this ``order``: (H·W, C) each.

    Raises:
        ShapeError: an order of another number of pixels.
    """
    channels, height, width = images.shape
    if order is not None and len(order) != height * width:
        raise ShapeError(
            f"order: expected a place for each of {height * width} pixels, got {len(order)}; make "
            "one for this size"
        )

    def values(indices: Tensor) -> Tensor:
        pictures, _ = images.batch(indices)
        pixels = pictures.flatten(2).mT
        if order is not None:
            pixels = pixels[:, order]
        return pixels

    result = SequenceDataset(
        images.name,
        images.split,
        images.labels,
        images.classes,
        values,
        shape=(height * width, channels),
    )
    arranged = "in one fixed order"
    if order is None:
        arranged = "row after row"
    result.prepared = f"pixels of pictures, {arranged}"
    return result
