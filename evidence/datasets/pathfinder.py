"""Pathfinder: are two dots joined by a dashed path? (Linsley et al., 2018; Tay et al., 2021)

The pictures are generated. Two long dashed paths grow in turn from seeds near the middle; then
short distractors fill the space. The dots mark the first end of one path and the last end of the
same path (class 1) or of the other one (class 0). Sizes are those of the Long Range Arena's 32 × 32
images: dashes of 2 pixels with gaps of 1, 14 dashes per path, five distractors of 4, dots of radius
1.5. Dashes that do not follow each other in a path are at least ``CLEARANCE`` apart, more than a
gap, so that the picture shows unambiguously which dashes belong together.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float, UInt8
from torch import Tensor

from fredholm.configuration import check_counts
from fredholm.errors import DataError, OptionError
from fredholm.lab.data.kinds.images import ArrayDataset
from fredholm.lab.data.kinds.picture_files import decoded
from fredholm.lab.data.kinds.sequences import SEQUENCES
from fredholm.lab.data.kinds.tokens import TokenDataset, image_tokens
from fredholm.lab.data.registry import Entry, Request, register_dataset
from fredholm.lab.data.splits import stratified

from .copy_memory import SPLITS
from .generated import generated

SIDE, PADDING, SEED_DISTANCE = 32, 1.0, 7.0
DASH, GAP, THICKNESS, CLEARANCE = 2.0, 1.0, 0.5, 1.75
RADIUS, INK = 1.5, 0.75
TURN = 0.6
"""Largest angle between consecutive dashes, in radians."""
TRIALS = 12
"""Number of directions that are tried for a dash."""
RETRIES = 60
"""Number of times that a path may be shortened before a picture starts again."""
FOLDERS = {6: "curv_baseline", 9: "curv_contour_length_9", 14: "curv_contour_length_14"}
Segment = Float[np.ndarray, "2 2"]


@dataclass(frozen=True)
class PathfinderOptions:
    """Options of the generator.

    Attributes:
        contour: number of dashes of a path.
        distractors: number of short paths with ``contour // 3`` dashes; by default they have about
            20 dashes together.
        train, val, test: numbers of samples.
        seed: of the pictures.

    Raises:
        OptionError: a size below 1, or paths that 32 pixels cannot hold.
    """

    contour: int = 14
    distractors: int | None = None
    train: int = 160000
    val: int = 20000
    test: int = 20000
    seed: int = 0

    def __post_init__(self) -> None:
        check_counts(self, "contour", "train", "val", "test")
        if not 3 <= self.contour <= 18 or not 0 <= self.count <= 10:
            raise OptionError(
                "contour, distractors: expected 3 to 18 dashes and 0 to 10 distractors, got "
                f"{self.contour} and {self.distractors}"
            )

    @property
    def count(self) -> int:
        """Number of distractors; the default is that of the official generator."""
        if self.distractors is not None:
            return self.distractors
        return 20 // max(1, self.contour // 3)


class Scene(NamedTuple):
    """Geometry of a picture, in pixels from the upper left corner.

    Attributes:
        dashes: (S, 2, 2), the two ends of each dash.
        paths: (S,), the number of each dash's path.
        dots: (2, 2).
        label: 1 if one path joins the dots, else 0.
    """

    dashes: Float[np.ndarray, "s 2 2"]
    paths: np.ndarray
    dots: Float[np.ndarray, "2 2"]
    label: int


def distances(
    points: Float[np.ndarray, "p 2"], dashes: Float[np.ndarray, "s 2 2"]
) -> Float[np.ndarray, "p s"]:
    """Return the distance of each point from each dash.

    Example:
        >>> distances(np.array([[0.0, 3.0]]), np.array([[[0.0, 0.0], [0.0, 2.0]]])).tolist()
        [[1.0]]
    """
    start, along = dashes[:, 0], dashes[:, 1] - dashes[:, 0]
    offset = points[:, None] - start
    share = ((offset * along).sum(-1) / (along * along).sum(-1)).clip(0.0, 1.0)
    return np.linalg.norm(offset - share[..., None] * along, axis=-1)


class _Drawing:
    """The paths so far, each a list of dashes, to which dashes are added where they fit."""

    def __init__(self, rng: np.random.Generator):
        self.rng = rng
        self.paths: list[list[Segment]] = []

    def fit(
        self, start: np.ndarray, angles: np.ndarray, others: np.ndarray, gap: float
    ) -> Segment | None:
        """Return the first dash that fits after ``start`` and a gap, in one of the directions.

        It must be inside the picture and at least the clearance away from ``others``.
        """
        directions = np.stack([np.sin(angles), np.cos(angles)], -1)
        begin = start + gap * directions
        ends = np.stack([begin, begin + DASH * directions], 1)
        fits = ((ends >= PADDING) & (ends <= SIDE - PADDING)).all((1, 2))
        if len(others):
            # If two dashes of this length are nearer than the clearance, an end or the middle of
            # one of them is.
            probes = np.concatenate([ends, ends.mean(1, keepdims=True)], 1)
            near = distances(probes.reshape(-1, 2), others).reshape(len(angles), -1).min(-1)
            fits &= np.minimum(near, distances(others.reshape(-1, 2), ends).min(0)) >= CLEARANCE
        fitting = np.flatnonzero(fits)
        if not len(fitting):
            return None
        return ends[fitting[0]]

    def seed(self, start: np.ndarray) -> bool:
        """Begin a path with a dash in any direction; return whether one fits."""
        angles = self.rng.uniform(-np.pi, np.pi, TRIALS)
        dash = self.fit(start, angles, self._dashes(), 0.0)
        if dash is None:
            return False
        self.paths.append([dash])
        return True

    def extend(self, path: list[Segment]) -> bool:
        """Add a dash to a path; return whether one fits."""
        last = path[-1]
        angle = np.arctan2(*(last[1] - last[0]))
        angles = angle + self.rng.uniform(-TURN, TURN, TRIALS)
        dash = self.fit(last[1], angles, self._dashes(last), GAP)
        if dash is None:
            return False
        path.append(dash)
        return True

    def _dashes(self, without: Segment | None = None) -> np.ndarray:
        """Return all dashes except one, (S, 2, 2)."""
        dashes = [dash for path in self.paths for dash in path if dash is not without]
        return np.array(dashes).reshape(-1, 2, 2)


def _two_paths(drawing: _Drawing, length: int) -> bool:
    """Draw two paths from seeds near the middle, adding a dash to each in turn.

    A path that cannot grow loses its last dashes. Returns False after too many retries.
    """
    rng = drawing.rng
    middle = rng.uniform(2 * SEED_DISTANCE, SIDE - 2 * SEED_DISTANCE, 2)
    around = rng.uniform(-np.pi, np.pi)
    for seed in (middle, middle + SEED_DISTANCE * np.array([np.sin(around), np.cos(around)])):
        if not drawing.seed(seed):
            return False
    patience = RETRIES
    while patience and min(map(len, drawing.paths)) < length:
        path = min(drawing.paths, key=len)
        if not drawing.extend(path):
            patience -= 1
            del path[max(1, len(path) - int(rng.integers(1, 6))) :]
    return patience > 0


def _distractor(drawing: _Drawing, length: int) -> None:
    """Draw a short path at a free position; if it does not fit, draw nothing."""
    for _ in range(TRIALS):
        if not drawing.seed(drawing.rng.uniform(PADDING, SIDE - PADDING, 2)):
            continue
        path = drawing.paths[-1]
        if all(drawing.extend(path) for _ in range(length - 1)):
            return
        drawing.paths.pop()


def scene(options: PathfinderOptions, split: str, index: int) -> Scene:
    """Return a sample's geometry, which depends only on the options, the split and the index.

    Example:
        >>> found = scene(PathfinderOptions(contour=6), "train", 0)
        >>> (found.paths == 0).sum().item(), (found.paths == 1).sum().item(), found.dots.shape
        (6, 6, (2, 2))
    """
    rng = np.random.default_rng([options.seed, SPLITS[split], index])
    label = int(rng.integers(2))
    while True:
        drawing = _Drawing(rng)
        if _two_paths(drawing, options.contour):
            break
    for _ in range(options.count):
        _distractor(drawing, max(1, options.contour // 3))
    first = int(rng.integers(2))
    last = first if label else 1 - first
    dots = np.stack([drawing.paths[first][0][0], drawing.paths[last][-1][1]])
    numbers = np.repeat(np.arange(len(drawing.paths)), [len(path) for path in drawing.paths])
    return Scene(np.concatenate(drawing.paths), numbers, dots, label)


def draw(found: Scene, scale: int = 1) -> UInt8[np.ndarray, "h w"]:
    """Draw antialiased dashes, and dots over them."""
    centres = (np.arange(SIDE * scale) + 0.5) / scale
    points = np.stack(np.meshgrid(centres, centres, indexing="ij"), -1).reshape(-1, 2)

    # The coverage of a pixel falls from 1 to 0 within one pixel around the edge of a shape.
    beside = distances(points, found.dashes).min(-1)
    lines = (0.5 + scale * (THICKNESS / 2 - beside)).clip(0.0, 1.0) * INK
    away = np.linalg.norm(points[:, None] - found.dots, axis=-1).min(-1)
    ink = np.maximum(lines, (0.5 + scale * (RADIUS - away)).clip(0.0, 1.0))
    return np.rint(255 * ink).astype(np.uint8).reshape(SIDE * scale, SIDE * scale)


def _made(options: PathfinderOptions, split: str) -> dict[str, Tensor]:
    scenes = [scene(options, split, i) for i in range(getattr(options, split))]
    images = np.stack([draw(result) for result in scenes])[:, None]
    return {
        "images": torch.from_numpy(images),
        "labels": torch.tensor([result.label for result in scenes]),
    }


def _tokens(request: Request, images: Tensor, labels: Tensor) -> TokenDataset:
    entry = request.entry
    return image_tokens(
        ArrayDataset(entry.name, request.split, images, labels, entry.classes, (0.5,), (0.5,))
    )


def create(request: Request) -> TokenDataset:
    """Return the generated data set of a request, which is stored in the data root."""
    options: PathfinderOptions = request.options
    key = {**dataclasses.asdict(options), "split": SPLITS[request.split], "version": 1}
    result = generated(
        request.root / request.entry.name, key, lambda: _made(options, request.split)
    )
    return _tokens(request, result["images"], result["labels"])


@dataclass(frozen=True)
class OfficialOptions:
    """Options of the official pictures.

    Attributes:
        contour: number of dashes of a path: 6, 9 or 14, which are the official folders
            ``curv_baseline``, ``curv_contour_length_9`` and ``curv_contour_length_14``.

    Raises:
        OptionError: another number.
    """

    contour: int = 14

    def __post_init__(self) -> None:
        if self.contour not in FOLDERS:
            raise OptionError(
                f"contour: expected one of {', '.join(map(str, FOLDERS))}, got {self.contour!r}"
            )


def read(folder: Path) -> tuple[UInt8[Tensor, "n 1 h w"], Tensor]:
    """Read the images and labels that ``metadata/*.npy`` list.

    Those files are texts with one line per image: its folder, file name, number and class.

    Raises:
        DataError: there are no such files, a line has another form, or an image another size.
    """
    lists = sorted((folder / "metadata").glob("*.npy"), key=lambda p: (len(p.stem), p.stem))
    if not lists:
        raise DataError(
            f"{folder}: expected metadata/*.npy, got none; give Pathfinder's official folder"
        )
    images, labels = [], []
    for file in lists:
        lines = file.read_bytes().decode("utf-8", errors="replace").splitlines()
        for count, line in enumerate(lines, 1):
            cells = line.split()
            if len(cells) < 4 or cells[3] not in ("0", "1"):
                raise DataError(
                    f"{file}, line {count}: expected a folder, a file, a number and 0 or 1, got "
                    f"{line[:60]!r}; check the file"
                )
            part, name, _, label = cells[:4]
            path = folder / part / name
            # The release has an empty image, which its official loader skips too.
            if path.is_file() and not path.stat().st_size:
                continue
            pixels = np.asarray(decoded(path, "L"))
            if images and pixels.shape != images[0].shape:
                raise DataError(
                    f"{path}: expected the first image's size {images[0].shape}, got "
                    f"{pixels.shape}; check the file"
                )
            images.append(pixels)
            labels.append(int(label))
    return torch.from_numpy(np.stack(images))[:, None], torch.tensor(labels)


def create_official(request: Request) -> TokenDataset:
    """Return the data set of a request from the user's folder.

    The splits are 80 / 10 / 10% of each class, in a fixed order.
    """
    folder = FOLDERS[request.options.contour]
    images, labels = read(request.folder / folder)
    rest, test = stratified(labels, 0.1)
    train, val = stratified(labels[rest], 1 / 9)
    chosen = {"train": rest[train], "val": rest[val], "test": test}[request.split]
    return _tokens(request, images[chosen], labels[chosen])


def _entry(
    name: str,
    title: str,
    source: str,
    make: Callable[[Request], TokenDataset],
    options: type,
    **more,
) -> Entry:
    return Entry(
        name=name,
        title=title,
        source=source,
        samples={"train": 160000, "val": 20000, "test": 20000},
        classes=("apart", "joined"),
        read=make,
        kind=SEQUENCES,
        options=options,
        **more,
    )


ENTRY = _entry(
    "pathfinder",
    "Pathfinder: are two dots joined by a dashed path? 32 × 32 grey pixels as tokens",
    "generated, by the rules of the Long Range Arena's images",
    create,
    PathfinderOptions,
    licence_package="none needed",
    licence_data="none needed",
    notes="options: contour (6, 9, 14 dashes are the official levels), distractors, train, val, "
    "test, seed",
)
register_dataset(ENTRY)
OFFICIAL = _entry(
    "lra-pathfinder",
    "Pathfinder of the Long Range Arena, its official images",
    "your folder: curv_contour_length_14/{imgs,metadata}",
    create_official,
    OfficialOptions,
    needs={"path": "the folder of the official pictures"},
    licence_package="yours",
    licence_data="Apache-2.0 (google-research/long-range-arena)",
    official="curv_contour_length_14/ of lra_release/pathfinder32",
    notes="options: contour; no official split but an order: a fixed one, 80 / 10 / 10% of each "
    "class",
)
register_dataset(OFFICIAL)
