"""Stamps canvas: one stamp of Tux Paint (a cut-out photograph or drawing) on a canvas among
fragments of others, with a mask of the stamp.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, UInt8
from torch import Tensor
from torch.nn import functional

from fredholm.errors import DataError, OptionError
from fredholm.lab.data.clients import APT, tar_stream
from fredholm.lab.data.counter import integers, permutation, uniform
from fredholm.lab.data.create import source_folder
from fredholm.lab.data.kinds.picture_files import decoded
from fredholm.lab.data.registry import Entry, Request, register_dataset
from fredholm.lab.data.sources import Package
from fredholm.lab.data.splits import place_of

from .checks import check_integers
from .composed import ComposedDataset
from .copy_memory import SPLITS

STORED = 96
"""Side of a stored stamp, in pixels."""
LEAST = 32
"""Smallest side of an original stamp."""
STAMPS, NAMES = "stamps.npy", "names.txt"
CLASSES = "animals", "food", "household", "plants", "seasonal", "symbols", "town", "vehicles"
SIZE, COARSE = (224, 224), 12
# Upper limits of a stamp's hash in [0, 1): below 0.2 it is in test (2), below 0.3 in val (1).
PARTS = ((0.2, 2), (0.3, 1), (1.0, 0))
NOISE = 24
"""Largest value of the noise."""
_NUMBER = re.compile(r"\d+")


@dataclass(frozen=True)
class StampOptions:
    """Options of the data set.

    Attributes:
        clutter: number of fragments of other stamps.
        share: the stamp's longer side over the canvas's shorter side.
        seed: of the positions.
        train, val, test: numbers of canvases; 0 for one per stamp. If there are fewer stamps, they
            occur again at other positions.

    Raises:
        OptionError: a negative number, or a stamp that does not fit into the canvas.
    """

    clutter: int = 10
    share: float = 0.45
    seed: int = 0
    train: int = 0
    val: int = 0
    test: int = 0

    def __post_init__(self) -> None:
        check_integers(self, 0, "clutter", "seed", "train", "val", "test")
        number = isinstance(self.share, int | float) and not isinstance(self.share, bool)
        if not number or not 0.05 <= self.share <= 1:
            raise OptionError(f"share: expected a number in [0.05, 1], got {self.share!r}")


def cut_out(content: bytes, name: str) -> UInt8[np.ndarray, "4 s s"] | None:
    """Cut out a stamp as red, green, blue and opacity, with its longer side :data:`STORED`.

    Returns None for a stamp that is too small or does not have a transparent background.

    Raises:
        DataError: the content is not a picture.
    """
    picture = decoded(name, "RGBA", content)
    # Decoding has succeeded, so PIL is installed.
    from PIL import Image

    box = picture.getchannel("A").point(lambda value: 255 * (value > 127)).getbbox()
    if box is None:
        return None
    cut = picture.crop(box)
    opaque = np.asarray(cut.getchannel("A")) > 127
    if max(cut.size) < LEAST or opaque.mean() > 0.98:
        return None
    scale = STORED / max(cut.size)
    size = tuple(max(1, round(scale * side)) for side in cut.size)
    small = cut.resize(size, Image.Resampling.LANCZOS)
    result = np.zeros((4, STORED, STORED), dtype=np.uint8)
    left, top = ((STORED - side) // 2 for side in size)
    pixels = np.asarray(small).transpose(2, 0, 1)
    result[:, top : top + size[1], left : left + size[0]] = pixels
    return result


def derive(archive: Path, folder: Path, advance: Callable[[int], None]) -> None:
    """Write all stamps of the classes, sorted by name: ``stamps.npy`` and ``names.txt``."""
    found: dict[str, np.ndarray] = {}
    with tar_stream(archive, APT) as tar:
        for member in tar:
            path = PurePosixPath(member.name)
            if path.suffix != ".png" or not member.isfile() or "stamps" not in path.parts:
                continue
            name = "/".join(path.parts[path.parts.index("stamps") + 1 :])
            stream = tar.extractfile(member)
            one = None if stream is None else cut_out(stream.read(), name)
            if one is not None and name.split("/")[0] in CLASSES:
                found[name] = one
                advance(one.nbytes)
    if not found:
        raise DataError(f"{archive}: expected stamps, got none; it is another package")
    stamps, names = _in_order(found)
    np.save(folder / STAMPS, stamps)
    (folder / NAMES).write_text("\n".join(names) + "\n", encoding="utf-8")


def _in_order(found: dict[str, np.ndarray]) -> tuple[np.ndarray, list[str]]:
    """Return the stamps in the order of their names, and the names."""
    names = sorted(found)
    return np.stack([found[name] for name in names]), names


def read_stamps(folder: Path) -> tuple[np.ndarray, list[str]]:
    """Read the stamps of a folder, (M, 4, s, s), and their names.

    They are the files of :func:`derive`, or those of the package, ``CLASS/…/NAME.png``.

    Raises:
        DataError: the folder has neither, or its files are damaged.
    """
    if not (folder / STAMPS).is_file():
        found = {}
        for name in CLASSES:
            for path in sorted((folder / name).rglob("*.png")):
                one = cut_out(path.read_bytes(), str(path))
                if one is not None:
                    found[path.relative_to(folder).as_posix()] = one
        if not found:
            raise DataError(
                f"{folder}: expected the folders {', '.join(CLASSES)} of Tux Paint's stamps, got "
                "none; give their folder, or fetch stamps-canvas"
            )
        return _in_order(found)
    try:
        stamps = np.load(folder / STAMPS)
        names = (folder / NAMES).read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError, EOFError) as error:
        raise DataError(
            f"{folder}: expected stored stamps, got none ({error}); fetch stamps-canvas again with "
            "--force"
        ) from error
    classes = {name.split("/")[0] for name in names}
    shape = (len(names), 4, STORED, STORED)
    if stamps.shape != shape or stamps.dtype != np.uint8 or not classes <= set(CLASSES):
        raise DataError(
            f"{folder}: expected stamps {shape} of uint8, got {stamps.shape} of {stamps.dtype}; "
            "fetch stamps-canvas again with --force"
        )
    return stamps, names


def parts_of(names: Sequence[str], stamps: UInt8[np.ndarray, "m 4 s s"]) -> list[int]:
    """Return 0 (train), 1 (val) or 2 (test) for each stamp; similar stamps are in one part.

    Stamps are similar if their names differ only in numbers or in ``_mirror``, or if their outlines
    or mirrored outlines are equal at :data:`COARSE` pixels.
    """
    # Union-find over names and outlines: each stamp joins the groups of its name and its outline.
    parent: dict[str, str] = {}

    def root(key: str) -> str:
        while parent.setdefault(key, key) != key:
            key = parent[key]
        return key

    words = []
    for name, stamp in zip(names, stamps):
        word = _NUMBER.sub("#", name.removesuffix(".png").replace("_mirror", ""))
        one, other = sorted((root(f"name {word}"), root(f"outline {_outline(stamp[3])}")))
        parent[other] = one
        words.append(word)
    groups: dict[str, list[int]] = defaultdict(list)
    for index, word in enumerate(words):
        groups[root(f"name {word}")].append(index)

    parts = [0] * len(names)
    for indices in groups.values():
        hashed = place_of(min(words[index] for index in indices))
        part = next(part for limit, part in PARTS if hashed < limit)
        for index in indices:
            parts[index] = part
    return parts


def _outline(opacity: UInt8[np.ndarray, "s s"]) -> str:
    """Return a coarse outline, the same for a stamp and its mirror images."""
    side = STORED // COARSE
    small = opacity.reshape(COARSE, side, COARSE, side).mean((1, 3)) > 127
    turned = (small, small[::-1], small[:, ::-1], small[::-1, ::-1])
    return min(np.packbits(one).tobytes().hex() for one in turned)


def compose(
    stamps: UInt8[Tensor, "m 4 s s"],
    which: Tensor,
    indices: Tensor,
    size: tuple[int, int],
    options: StampOptions,
    *keys: int,
) -> tuple[UInt8[Tensor, "b 3 h w"], Tensor]:
    """Compose canvases of the stamps ``which``, and the stamps' masks (B, H, W).

    They depend only on keys and indices. A canvas has a colour gradient and noise, over it
    fragments of random stamps with a third of the stamp's side, and over both the stamp.

    Example:
        >>> stamps = torch.full((2, 4, 8, 8), 255, dtype=torch.uint8)
        >>> one = torch.tensor([1])
        >>> canvas, mask = compose(stamps, one, one, (40, 20), StampOptions(share=0.5), 7)
        >>> mask.sum().item(), bool((canvas[0][:, mask[0]] == 255).all())
        (100, True)
    """
    height, width = size
    side = max(1, round(options.share * min(size)))
    piece = max(1, side // 3)
    canvases, masks = [], []
    for stamp, index in zip(which.tolist(), indices):
        paint = _background(size, *keys, index)
        for number in range(options.clutter):
            draw = [float(uniform(*keys, 2, number, part, index)) for part in range(5)]
            chosen, cut_y, cut_x, put_y, put_x = draw
            other = _scaled(stamps[int(chosen * len(stamps))], side)
            y, x = int(cut_y * (side - piece + 1)), int(cut_x * (side - piece + 1))
            fragment = other[:, y : y + piece, x : x + piece]
            top, left = int(put_y * (height - piece + 1)), int(put_x * (width - piece + 1))
            _over(paint, fragment, top, left)

        top = int(integers(height - side + 1, *keys, 3, index))
        left = int(integers(width - side + 1, *keys, 4, index))
        scaled = _scaled(stamps[stamp], side)
        _over(paint, scaled, top, left)
        mask = torch.zeros(height, width, dtype=torch.bool)
        mask[top : top + side, left : left + side] = scaled[3] > 0.5
        canvases.append((255 * paint).round().clamp(0, 255).byte())
        masks.append(mask)
    if not canvases:
        return torch.zeros(0, 3, *size, dtype=torch.uint8), torch.zeros(0, *size, dtype=torch.bool)
    return torch.stack(canvases), torch.stack(masks)


def _background(size: tuple[int, int], *keys: int | Tensor) -> Float[Tensor, "3 h w"]:
    """Paint a gradient between two colours in a random direction, with noise."""
    height, width = size
    *fixed, index = keys

    def colour(end: int) -> Tensor:
        channels = [uniform(*fixed, 0, end, channel, index) for channel in range(3)]
        return torch.stack(channels).float()

    first, last = colour(0), colour(1)
    angle = 2 * torch.pi * uniform(*fixed, 0, 2, 0, index).float()
    y = torch.linspace(-1, 1, height)[:, None] * angle.sin()
    x = torch.linspace(-1, 1, width) * angle.cos()
    along = ((y + x) / 2**0.5 + 1) / 2
    pixel = torch.arange(height * width).view(height, width)
    noise = (uniform(*fixed, 1, index, pixel).float() - 0.5) * (NOISE / 255)
    return first[:, None, None] + (last - first)[:, None, None] * along + noise


def _scaled(stamp: UInt8[Tensor, "4 s s"], side: int) -> Float[Tensor, "4 t t"]:
    """Return colours times opacity, and opacity, in [0, 1] at another size.

    Premultiplied colours do not mix with those of transparent pixels.
    """
    pixels = stamp[None].float() / 255
    premultiplied = torch.cat([pixels[:, :3] * pixels[:, 3:], pixels[:, 3:]], 1)
    options: Any = {"mode": "bilinear", "antialias": True, "align_corners": False}
    return functional.interpolate(premultiplied, (side, side), **options)[0]


def _over(paint: Tensor, stamp: Tensor, top: int, left: int) -> None:
    """Paint a premultiplied stamp over the canvas, in place."""
    rows, columns = stamp.shape[1:]
    window = paint[:, top : top + rows, left : left + columns]
    window.mul_(1 - stamp[3]).add_(stamp[:3])


def create(request: Request) -> ComposedDataset:
    """Return the data set of a request; reading a sample composes a canvas of ``image_size``."""
    entry, options = request.entry, request.options
    size = request.image_size or SIZE
    stored, names = read_stamps(source_folder(request, lambda file: True))
    key = SPLITS[request.split]
    wanted = ("train", "val", "test").index(request.split)
    parts = parts_of(names, stored)
    chosen = [i for i, part in enumerate(parts) if part == wanted]
    if not chosen:
        raise DataError(
            f"{request.split}: expected some of the {len(names)} stamps, got none; add stamps"
        )
    stamps = torch.from_numpy(stored[chosen])
    labels = torch.tensor([CLASSES.index(names[i].split("/")[0]) for i in chosen])
    order = permutation(len(chosen), options.seed, key)
    count = getattr(options, request.split) or len(chosen)
    which = order[torch.arange(count) % len(chosen)]
    return ComposedDataset(
        entry.name,
        request.split,
        labels[which],
        entry.classes,
        entry.mean,
        entry.std,
        (3, size[0], size[1]),
        lambda indices: compose(stamps, which[indices], indices, size, options, options.seed, key),
    )


ENTRY = Entry(
    name="stamps-canvas",
    title="Tux Paint's stamps, photographs and drawings cut out, on cluttered canvases, with masks",
    licence_package="GPL-2",
    licence_data="GPL-2 (Tux Paint's contributors)",
    read=create,
    sources=(
        Package(
            client=APT,
            name="tuxpaint-stamps-default",
            version="2022.06.04-1",
            archive_bytes=160880444,
            archive_sha256="6db6c1bfc870a47f1499d6203b083522eacb57c5f9c87d468f2e92eb6d9d5f34",
            derive=derive,
            derived_bytes=26_000_000,
        ),
    ),
    official="the folders animals, food, ... of the package's usr/share/tuxpaint/stamps",
    classes=CLASSES,
    shape=(3, *SIZE),
    mean=(0.4930, 0.4931, 0.4696),
    std=(0.2457, 0.2419, 0.2500),
    notes="eight folders as classes; no official split: about 70 / 10 / 20% of the stamps, those "
    "alike together (numbers, mirrors, outlines); options: clutter, share (of the stamp's side), "
    "seed, train, val, test; image_size is the canvas's (default 224)",
    options=StampOptions,
)
register_dataset(ENTRY)
