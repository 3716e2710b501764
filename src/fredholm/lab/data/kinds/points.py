"""Point clouds as a torch data set, and their random changes."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from ....errors import DataError, OptionError, ShapeError
from ..counter import hash64, uniform
from ..stored import StoredRows
from ..summaries import of_clouds
from .dataset import Cut, Indices, LabelledDataset, Transform, check_labels, index_tensor, stretched
from .kind import Cloud, Line, Page, register_kind

# One stream of random numbers for each change.
_SCALE, _TURN, _JITTER, _ORDER = 21, 22, 23, 24


class Points(Line):
    """Point clouds (N, points, p), coordinates first."""

    name = "points"
    one = "cloud"
    many = "point clouds"
    encoder = "points"
    assumed = False
    summarised = True
    takes = ("augment.scale", "augment.jitter", "augment.rotate")
    legend = " Seen along the axis of least extent."

    def fits(self, inputs: Any) -> bool:
        return isinstance(inputs, Tensor) and inputs.dim() == 3

    def summarise(self, inputs: Any, *, timed: bool = False) -> np.ndarray:
        return of_clouds(np.asarray(inputs, np.float64))

    def prepare(self, inputs: Any, facts: Page) -> tuple[Any, list[Any] | None]:
        places = inputs[..., :3].detach()
        places = places.float().cpu().numpy()
        return inputs, [Cloud(points) for points in places]

    def made_of(self, encoder: Any) -> str:
        return "on points"


POINTS = register_kind(Points())


class PointDataset(LabelledDataset):
    """Labelled clouds of the same number of stored points: a batch is (B, points, C), the first
    ``points`` of each.

    Args:
        name, split: names of the data set and of its part, for errors and reports.
        clouds: (N, P, C) floats, in random order, coordinates first; NaN where a cloud has fewer
            points. A tensor, or :class:`fredholm.data.StoredRows`, which stay on disk and are
            checked when a batch is read.
        labels, classes: class numbers and names.
        points: how many points of a cloud a model reads (default all); in training
            :class:`CloudAugment` draws others each time.
        coordinates: how many of the channels, the first ones, are coordinates (default all).
        task: ``classification``, or ``regression``: the labels are numbers.

    Raises:
        ShapeError: clouds or labels of another shape, or more points than are stored.
        DataError: a cloud without any point, infinite coordinates, or labels outside the classes.

    Example:
        >>> clouds, labels = torch.rand(4, 9, 3), torch.zeros(4).long()
        >>> data = PointDataset("tiny", "train", clouds, labels, ("a", "b"), points=5)
        >>> data.batch([0, 1])[0].shape
        torch.Size([2, 5, 3])
    """

    kind = POINTS

    def __init__(
        self,
        name: str,
        split: str,
        clouds: Tensor | StoredRows,
        labels: Tensor,
        classes: Sequence[str],
        points: int | None = None,
        coordinates: int | None = None,
        task: str = "classification",
    ):
        if points is None:
            points = clouds.shape[1]
        fits = clouds.dim() == 3 and len(labels) == len(clouds)
        if not fits or not 1 <= points <= clouds.shape[1]:
            got = f"clouds {tuple(clouds.shape)}, labels {tuple(labels.shape)}, points {points}"
            raise ShapeError(
                f"{name}: expected clouds (N, P, C), labels (N,) and 1 to P points, got {got}; "
                "give as many labels as clouds, and no more points than are stored"
            )
        if task == "regression":
            labels = labels.float()
        else:
            labels = labels.long()
            check_labels(labels, classes)
        super().__init__(name, split, labels, classes)
        self.task = task
        self.coordinates = coordinates
        self.clouds = clouds
        self.points = points
        self.channels = clouds.shape[2]
        # Whether all points are read: the part of a cloud that one rank reads may be empty.
        self.whole = True
        if isinstance(clouds, Tensor):
            self._check(torch.arange(len(clouds)), clouds)

    def _check(self, rows: Tensor, clouds: Tensor) -> None:
        """Refuse clouds ``rows`` without a point, or with infinite coordinates."""
        missing = clouds.isnan().any(-1)
        infinite = clouds.isinf().flatten(1)
        wrong = {
            "no point": missing[:, : self.points].all(1) & self.whole,
            "an infinite coordinate": infinite.any(1),
        }
        for got, clouds_with in wrong.items():
            if not clouds_with.any():
                continue
            first = clouds_with.nonzero()[0]
            number = int(rows[first])
            raise DataError(
                f"{self.name} {self.split}: expected one finite point or more, got {got} in "
                f"cloud {number}; leave the cloud out"
            )

    def raw(self, indices: Indices) -> tuple[Float[Tensor, "b n c"], Tensor]:
        indices = index_tensor(indices)
        clouds = self.clouds[indices]
        if isinstance(self.clouds, StoredRows):
            self._check(indices, clouds)
        return clouds.float(), self.labels[indices]

    def batch(
        self,
        indices: Indices,
        transform: Transform | None = None,
    ) -> tuple[Float[Tensor, "b n c"], Tensor]:
        """Return clouds and labels; ``transform`` changes all stored points, of which the first
        are then taken.
        """
        clouds, labels = super().batch(indices, transform)
        return clouds[:, : self.points], labels

    def stretch(self, axis: int, cut: Cut) -> PointDataset | None:
        # A selection reads its rows through another data set, which would return whole clouds.
        if axis != 1 or "raw" in vars(self):
            return None
        result = copy.copy(self)
        # Ranks share the points that a model reads, not all that are stored.
        start, stop = cut(self.points)
        result.clouds = stretched(self.clouds, 1, lambda stored: (start, stop))
        result.points = stop - start
        result.whole = False
        return result

    def encoder(self) -> dict[str, Any]:
        fields = {**super().encoder(), "channels": self.channels}
        if self.coordinates is not None:
            fields["position_dim"] = self.coordinates
        return fields

    def describe(self) -> dict[str, Any]:
        return super().describe() | {"points": self.points}

    def augmentation(self, options: Mapping[str, Any]) -> CloudAugment:
        known = ("scale", "jitter", "rotate")
        self.refuse(options, known)
        # Without a number, colours or normals may follow the three coordinates of space.
        coordinates = self.coordinates
        if coordinates is None:
            coordinates = min(3, self.channels)
        given = {key: options[key] for key in known if key in options}
        return CloudAugment(**given, coordinates=coordinates)

    def __repr__(self) -> str:
        size = f"{len(self)} clouds of {self.points} points, {len(self.classes)} classes"
        return f"PointDataset({self.name!r}, {self.split!r}, {size})"


@dataclass(frozen=True)
class CloudAugment:
    """Another draw of points, a rotation, a scale and a jitter for each cloud, from (seed, epoch,
    index).

    Args:
        resample: take the stored points in another random order; NaN, where a cloud has fewer,
            stays behind them.
        scale: factor from 1 / (1 + scale) to 1 + scale.
        jitter: standard deviation of noise on each coordinate.
        rotate: rotate by a random angle about the third coordinate (gravity).
        coordinates: how many of the channels, the first ones, are changed.

    Raises:
        OptionError: a negative scale or jitter, or a rotation in fewer than three coordinates.

    Reference: ITNet K.3, without its amounts, which its text has lost; ours are in the recipes.

    Example:
        >>> augment = CloudAugment(scale=0.2, jitter=0.01, rotate=True)
        >>> augment(torch.rand(2, 8, 3), torch.tensor([3, 4]), seed=0, epoch=1).shape
        torch.Size([2, 8, 3])
    """

    resample: bool = True
    scale: float = 0.0
    jitter: float = 0.0
    rotate: bool = False
    coordinates: int = 3

    def __post_init__(self) -> None:
        for name in ("scale", "jitter"):
            value = getattr(self, name)
            if value < 0:
                raise OptionError(f"{name}: expected 0 or more, got {value}")
        if self.rotate and self.coordinates < 3:
            raise OptionError(
                "rotate: expected clouds of three coordinates or more, got "
                f"{self.coordinates}; leave it out"
            )

    def __call__(
        self,
        clouds: Float[Tensor, "b n c"],
        indices: Int[Tensor, " b"],
        *,
        seed: int,
        epoch: int,
    ) -> Float[Tensor, "b n c"]:
        """Return the changed clouds; ``indices`` are their numbers in the data set."""
        key = indices[:, None]
        if self.resample:
            points = torch.arange(clouds.shape[1])
            hashes = hash64(seed, epoch, key, _ORDER, points)
            clouds = _reordered(clouds, hashes)

        position = clouds[..., : self.coordinates]
        rest = clouds[..., self.coordinates :]
        if self.rotate:
            turn = uniform(seed, epoch, indices, _TURN)
            angle = 2 * np.pi * turn
            position = _rotated(position, angle.float())
        # Uniform on a logarithmic scale, so that clouds shrink as often as they grow.
        if self.scale:
            share = uniform(seed, epoch, indices, _SCALE).float()
            power = 2 * share - 1
            factor = (1 + self.scale) ** power[:, None, None]
            position = position * factor
        if self.jitter:
            noise = _normal(position.shape, seed, epoch, key)
            position = position + self.jitter * noise
        return torch.cat([position, rest], -1)


def _reordered(clouds: Float[Tensor, "b n c"], hashes: Int[Tensor, "b n"]) -> Tensor:
    """Return the points of each cloud in the order of their hashes, missing ones behind."""
    missing = clouds.isnan().any(-1)
    largest = torch.iinfo(torch.int64).max
    hashes = hashes.masked_fill(missing, largest)
    order = hashes.argsort(1)[..., None]
    return clouds.gather(1, order.expand_as(clouds))


def _rotated(position: Tensor, angle: Tensor) -> Tensor:
    """Rotate clouds (B, N, d) by angles (B,), in radians, about the axis of their third coordinate.

    Coordinates after the third stay as they are.
    """
    zero = torch.zeros_like(angle)
    one = torch.ones_like(angle)
    c = angle.cos()
    s = angle.sin()
    rows = [
        *(c, -s, zero),
        *(s, c, zero),
        *(zero, zero, one),
    ]
    # One matrix per cloud, (B, 3, 3). Points are rows, so they are multiplied by its transpose.
    matrix = torch.stack(rows, -1).view(-1, 3, 3)
    turned = position[..., :3] @ matrix.mT
    return torch.cat([turned, position[..., 3:]], -1)


def _normal(shape: torch.Size, seed: int, epoch: int, key: Tensor) -> Tensor:
    """Return standard normal numbers (Box-Muller) for each point's coordinates."""
    place = torch.arange(shape[1] * shape[2])
    u = uniform(seed, epoch, key, _JITTER, 0, place)
    v = uniform(seed, epoch, key, _JITTER, 1, place)
    # u may be 0, whose logarithm is infinite; 1 − u is never 0.
    radius = (-2 * (1 - u).log()).sqrt()
    cosine = (2 * np.pi * v).cos()
    normal = radius * cosine
    return normal.view(shape).float()
