"""Point clouds as a torch data set, their random changes, and triangle meshes to
sample them from.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from ..errors import DataError, OptionError, ShapeError
from .counter import hash64, uniform
from .datasets import LabelledDataset, Transform

_SCALE, _TURN, _JITTER, _ORDER = 21, 22, 23, 24  # one stream of random numbers each


class PointDataset(LabelledDataset):
    """Labelled clouds of the same number of stored points: a batch is (B, points, C), the first
    ``points`` of each.

    Args:
        name, split: what this is.
        clouds: (N, P, C) floats, in random order, coordinates first; NaN where a cloud has fewer
            points.
        labels, classes: class numbers and names.
        points: how many of a cloud a model reads; in training :class:`CloudAugment` draws others
            each time.

    Raises:
        ShapeError: clouds or labels of another shape, or more points than are stored.
        DataError: a cloud without any point, infinite coordinates, or labels outside the classes.

    Example:
        >>> clouds, labels = torch.rand(4, 9, 3), torch.zeros(4).long()
        >>> data = PointDataset("tiny", "train", clouds, labels, ("a", "b"), points=5)
        >>> data.batch([0, 1])[0].shape
        torch.Size([2, 5, 3])
    """

    def __init__(
        self,
        name: str,
        split: str,
        clouds: Tensor,
        labels: Tensor,
        classes: Sequence[str],
        points: int | None = None,
    ):
        super().__init__(name, split, labels.long(), classes)
        points = clouds.shape[1] if points is None else points
        if clouds.dim() != 3 or len(labels) != len(clouds) or not 1 <= points <= clouds.shape[1]:
            got = f"clouds {tuple(clouds.shape)}, labels {tuple(labels.shape)}, points {points}"
            raise ShapeError(f"{name}: received {got}; needs (N, P, C), (N,) and 1 to P points")
        if len(labels) and not 0 <= int(labels.min()) <= int(labels.max()) < len(classes):
            raise DataError(
                f"labels: from {int(labels.min())} to {int(labels.max())}; needs 0 to "
                f"{len(classes) - 1}"
            )
        missing = clouds.isnan().any(-1)
        bad = missing[:, :points].all(1) | clouds.isinf().flatten(1).any(1)
        if bool(bad.any()):
            raise DataError(
                f"{name} {split}: cloud {int(bad.nonzero()[0])} has no point, or an infinite "
                "coordinate"
            )
        self.clouds, self.points, self.channels = clouds, points, clouds.shape[2]

    def raw(self, indices: Tensor | Sequence[int]) -> tuple[Float[Tensor, "b n c"], Tensor]:
        indices = torch.as_tensor(indices, dtype=torch.int64)
        return self.clouds[indices].float(), self.labels[indices]

    def batch(
        self, indices: Tensor | Sequence[int], transform: Transform | None = None
    ) -> tuple[Float[Tensor, "b n c"], Tensor]:
        """Clouds and labels of ``indices``; ``transform`` changes all stored points, of which the
        first are then taken.
        """
        clouds, labels = self.raw(indices)
        clouds = clouds if transform is None else transform(clouds)
        return clouds[:, : self.points], labels

    def __repr__(self) -> str:
        size = f"{len(self)} clouds of {self.points} points"
        return f"PointDataset({self.name!r}, {self.split!r}, {size}, {len(self.classes)} classes)"


@dataclass(frozen=True)
class CloudAugment:
    """Another draw of points, a turn about an axis, a scale and a jitter for each cloud, from
    (seed, epoch, index).

    Args:
        resample: take the stored points in another random order.
        scale: factor from 1 / (1 + scale) to 1 + scale.
        jitter: standard deviation of noise on each coordinate.
        rotate: turn by any angle about the last coordinate (gravity).

    Raises:
        OptionError: a negative scale or jitter.

    Reference: ITNet K.3 (the amounts are lost in its text; ours are in the recipes).

    Example:
        >>> augment = CloudAugment(scale=0.2, jitter=0.01, rotate=True)
        >>> augment(torch.rand(2, 8, 3), torch.tensor([3, 4]), seed=0, epoch=1).shape
        torch.Size([2, 8, 3])
    """

    resample: bool = True
    scale: float = 0.0
    jitter: float = 0.0
    rotate: bool = False

    def __post_init__(self) -> None:
        if self.scale < 0 or self.jitter < 0:
            raise OptionError(
                f"scale and jitter: received {self.scale} and {self.jitter}; need 0 or more"
            )

    def __call__(
        self, clouds: Float[Tensor, "b n c"], indices: Int[Tensor, " b"], *, seed: int, epoch: int
    ) -> Float[Tensor, "b n c"]:
        """The changed clouds; ``indices`` are their numbers in the data set."""
        key = indices[:, None]
        if self.resample:
            order = hash64(seed, epoch, key, _ORDER, torch.arange(clouds.shape[1])).argsort(1)
            clouds = clouds.gather(1, order[..., None].expand_as(clouds))
        position, rest = clouds[..., :3], clouds[..., 3:]
        if self.rotate:
            angle = (2 * np.pi * uniform(seed, epoch, indices, _TURN)).float()
            zero, one = torch.zeros_like(angle), torch.ones_like(angle)
            c, s = angle.cos(), angle.sin()
            turn = torch.stack([c, -s, zero, s, c, zero, zero, zero, one], -1).view(-1, 3, 3)
            position = position @ turn.mT
        if self.scale:
            power = 2 * uniform(seed, epoch, indices, _SCALE).float() - 1
            position = position * (1 + self.scale) ** power[:, None, None]
        if self.jitter:
            position = position + self.jitter * _normal(position.shape, seed, epoch, key)
        return torch.cat([position, rest], -1)


def _normal(shape: torch.Size, seed: int, epoch: int, key: Tensor) -> Tensor:
    """Standard normal numbers (Box-Muller) for each point's coordinates."""
    place = torch.arange(shape[1] * shape[2])
    u, v = (uniform(seed, epoch, key, _JITTER, part, place) for part in (0, 1))
    return ((-2 * (1 - u).log()).sqrt() * (2 * np.pi * v).cos()).view(shape).float()


def parse_off(content: bytes, where: Path | str) -> tuple[np.ndarray, np.ndarray]:
    """Vertices (V, 3) and triangles (T, 3) of an OFF file; larger polygons are cut into fans.

    ModelNet's files with the counts in the first line (``OFF123 45 0``) are read as well.

    Raises:
        DataError: anything else.
    """
    words = content.split()
    try:
        if words and words[0].upper().startswith(b"OFF") and len(words[0]) > 3:
            words[0:1] = [b"OFF", words[0][3:]]
        if not words or words[0].upper() != b"OFF":
            raise ValueError("no line OFF")
        count, faces = int(words[1]), int(words[2])
        numbers = np.array(words[4 : 4 + 3 * count], np.float64).reshape(count, 3)
        place, triangles = 4 + 3 * count, []
        for _ in range(faces):
            size = int(words[place])
            corners = [int(w) for w in words[place + 1 : place + 1 + size]]
            if size < 3 or len(corners) < size or not 0 <= min(corners) <= max(corners) < count:
                raise ValueError(f"a face of {size} corners")
            triangles += [(corners[0], corners[i], corners[i + 1]) for i in range(1, size - 1)]
            place += 1 + size
    except (ValueError, IndexError) as error:
        raise DataError(
            f"{where}: no OFF mesh ({error}); it is truncated or of another format"
        ) from error
    return numbers, np.array(triangles, np.int64).reshape(-1, 3)


_POINT = re.compile(rb"\bpoint\s*\[([^\]]*)\]")
_INDEX = re.compile(rb"\bcoordIndex\s*\[([^\]]*)\]")


def parse_vrml(content: bytes, where: Path | str) -> tuple[np.ndarray, np.ndarray]:
    """Vertices (V, 3) and triangles (T, 3) of all faces of a VRML 2 file; transforms between them
    are not read.

    Raises:
        DataError: lists of points and of indices that do not match, or no face at all.
    """
    points, indices = _POINT.findall(content), _INDEX.findall(content)
    if not points or len(points) != len(indices):
        raise DataError(
            f"{where}: {len(points)} lists of points, {len(indices)} of faces; needs as many of "
            "both"
        )
    vertices, triangles, before = [], [], 0
    for place, corners in zip(points, indices):
        numbers = np.array(place.replace(b",", b" ").split(), np.float64)
        faces = np.array(corners.replace(b",", b" ").split(), np.int64)
        if len(numbers) % 3 or not len(numbers):
            raise DataError(f"{where}: {len(numbers)} coordinates; needs three a point")
        mesh = _fans(faces)
        if len(mesh) and not 0 <= mesh.min() <= mesh.max() < len(numbers) // 3:
            raise DataError(f"{where}: a face names point {mesh.max()} of {len(numbers) // 3}")
        vertices.append(numbers.reshape(-1, 3))
        triangles.append(mesh + before)
        before += len(numbers) // 3
    return np.concatenate(vertices), np.concatenate(triangles)


def _fans(faces: np.ndarray) -> np.ndarray:
    """Triangles of polygons that end with −1 each."""
    if len(faces) and faces[-1] != -1:
        faces = np.append(faces, -1)
    if (
        len(faces) % 4 == 0
        and (faces.reshape(-1, 4)[:, 3] == -1).all()
        and (faces.reshape(-1, 4)[:, :3] >= 0).all()
    ):
        return faces.reshape(-1, 4)[:, :3]
    found = []
    for polygon in np.split(faces, np.flatnonzero(faces == -1)):
        corners = polygon[polygon >= 0]
        found += [(corners[0], corners[i], corners[i + 1]) for i in range(1, len(corners) - 1)]
    return np.array(found, np.int64).reshape(-1, 3)


def sample_surface(vertices: np.ndarray, triangles: np.ndarray, n: int, key: int) -> np.ndarray:
    """n points (n, 3), uniform over the triangles' area, centred, and scaled into the unit ball;
    random by ``key`` alone.

    Raises:
        DataError: a mesh without area, or with infinite coordinates.

    Example:
        >>> square = np.array([[0.0, 0, 0], [1, 0, 0], [1, 1, 0], [0, 1, 0]])
        >>> sample_surface(square, np.array([[0, 1, 2], [0, 2, 3]]), 64, key=1).shape
        (64, 3)
    """
    a, b, c = (vertices[triangles[:, i]] for i in range(3))
    area = np.linalg.norm(np.cross(b - a, c - a), axis=1).cumsum()
    if not len(area) or not np.isfinite(area[-1]) or area[-1] <= 0:
        raise DataError(
            "a mesh without area, or with coordinates that are no numbers; it holds no surface to "
            "sample"
        )
    chosen, u, v = (uniform(key, stream, torch.arange(n)).numpy() for stream in range(3))
    face = np.searchsorted(area, chosen * area[-1], side="right").clip(max=len(area) - 1)
    flip = u + v > 1
    u, v = np.where(flip, 1 - u, u)[:, None], np.where(flip, 1 - v, v)[:, None]
    points = a[face] + u * (b - a)[face] + v * (c - a)[face]
    return unit_ball(points)


def unit_ball(points: np.ndarray) -> np.ndarray:
    """Points (n, 3) with their mean at the origin and the farthest at distance 1 (all at the origin
    where they coincide).
    """
    points = points - points.mean(0)
    radius = np.linalg.norm(points, axis=1).max()
    return points / radius if radius > 0 else points
