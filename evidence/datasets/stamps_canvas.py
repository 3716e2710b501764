"""Stamps canvas: one stamp of Tux Paint, a photograph or drawing that is cut out, on a canvas among
fragments of others. Where it is, is known to the pixel.
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
from fredholm.lab.data.catalogue.copy_memory import SPLITS
from fredholm.lab.data.clients import APT, tar_stream
from fredholm.lab.data.counter import integers, permutation, uniform
from fredholm.lab.data.create import source_folder
from fredholm.lab.data.kinds.picture_files import decoded
from fredholm.lab.data.registry import Entry, Request, register_dataset
from fredholm.lab.data.sources import Package
from fredholm.lab.data.splits import place_of

from .composed import ComposedDataset

STORED, LEAST = 96, 32  # sides in pixels: of a stored stamp, of the smallest original that is kept
STAMPS, NAMES = "stamps.npy", "names.txt"
CLASSES = "animals", "food", "household", "plants", "seasonal", "symbols", "town", "vehicles"
SIZE, COARSE = (224, 224), 12
PARTS = ((0.2, 2), (0.3, 1), (1.0, 0))  # up to this hash: test, val, train
NOISE = 24  # largest value of it
_NUMBER = re.compile(r"\d+")


@dataclass(frozen=True)
class StampOptions:
    """``clutter``: fragments of other stamps; ``share``: the stamp's longer side over the canvas's
    shorter one; ``seed`` of the places; ``train``, ``val``, ``test``: how many canvases a split
    has, stamps again at other places where there are fewer, 0 for one a stamp.

    Raises:
        OptionError: negative numbers, or a stamp that the canvas does not hold.
    """

    clutter: int = 10
    share: float = 0.45
    seed: int = 0
    train: int = 0
    val: int = 0
    test: int = 0

    def __post_init__(self) -> None:
        for name in ("clutter", "seed", "train", "val", "test"):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < 0:
                raise OptionError(f"{name}: received {value!r}; needs a number, 0 or more")
        number = isinstance(self.share, int | float) and not isinstance(self.share, bool)
        if not number or not 0.05 <= self.share <= 1:
            raise OptionError(f"share: received {self.share!r}; needs a number in [0.05, 1]")


def cut_out(content: bytes, name: str) -> UInt8[np.ndarray, "4 s s"] | None:
    """A stamp as red, green, blue and opacity, its longer side :data:`STORED`; None of one that is
    too small or without a background to leave out.

    Raises:
        DataError: no picture.
    """
    whole = decoded(name, "RGBA", content)
    from PIL import Image  # which is here, or nothing would have been decoded

    box = whole.getchannel("A").point(lambda value: 255 * (value > 127)).getbbox()
    if box is None:
        return None
    cut = whole.crop(box)
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
    """All stamps of the classes in the order of their names: ``stamps.npy``, ``names.txt``."""
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
        raise DataError(f"{archive}: holds no stamps; it is another package")
    stamps, names = _in_order(found)
    np.save(folder / STAMPS, stamps)
    (folder / NAMES).write_text("\n".join(names) + "\n", encoding="utf-8")


def _in_order(found: dict[str, np.ndarray]) -> tuple[np.ndarray, list[str]]:
    """Stamps by the order of their names."""
    names = sorted(found)
    return np.stack([found[name] for name in names]), names


def read_stamps(folder: Path) -> tuple[np.ndarray, list[str]]:
    """The stamps of a folder, (M, 4, s, s), and their names: what :func:`derive` wrote, or the
    package's own, ``CLASS/…/NAME.png``.

    Raises:
        DataError: neither.
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
                f"{folder}: holds no stamps; needs the folders {', '.join(CLASSES)} of Tux Paint's "
                "stamps, or fetch stamps-canvas"
            )
        return _in_order(found)
    try:
        stamps = np.load(folder / STAMPS)
        names = (folder / NAMES).read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError, EOFError) as error:
        raise DataError(
            f"{folder}: no stored stamps ({error}); fetch stamps-canvas again with --force"
        ) from error
    classes = {name.split("/")[0] for name in names}
    shape = (len(names), 4, STORED, STORED)
    if stamps.shape != shape or stamps.dtype != np.uint8 or not classes <= set(CLASSES):
        raise DataError(
            f"{folder}: {stamps.shape} stamps of {stamps.dtype} for {len(names)} names; fetch "
            "stamps-canvas again with --force"
        )
    return stamps, names


def parts_of(names: Sequence[str], stamps: UInt8[np.ndarray, "m 4 s s"]) -> list[int]:
    """0 (train), 1 (val) or 2 (test) of each stamp, those alike together: by names that differ in
    numbers or in being mirrored, or by outlines, mirrored too, that are one at :data:`COARSE`
    pixels.
    """
    above: dict[str, str] = {}

    def first(key: str) -> str:
        while above.setdefault(key, key) != key:
            key = above[key]
        return key

    keys = []
    for name, stamp in zip(names, stamps):
        word = _NUMBER.sub("#", name.removesuffix(".png").replace("_mirror", ""))
        one, other = sorted((first(f"name {word}"), first(f"outline {_outline(stamp[3])}")))
        above[other] = one
        keys.append(word)
    groups: dict[str, list[int]] = defaultdict(list)
    for place, word in enumerate(keys):
        groups[first(f"name {word}")].append(place)
    result = [0] * len(names)
    for places in groups.values():
        where = place_of(min(keys[place] for place in places))
        part = next(part for limit, part in PARTS if where < limit)
        for place in places:
            result[place] = part
    return result


def _outline(opacity: UInt8[np.ndarray, "s s"]) -> str:
    """A coarse outline, the same of a stamp and its mirror images."""
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
    """Canvases and the pixels (B, H, W) of the stamps ``which`` on them, from keys and indices
    alone.

    From one colour to another and noise, then fragments of stamps drawn from all, a third of the
    whole one's side, then the whole one.

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
            other = _scaled(stamps[int(draw[0] * len(stamps))], side)
            cut_y, cut_x = (int(d * (side - piece + 1)) for d in draw[1:3])
            fragment = other[:, cut_y : cut_y + piece, cut_x : cut_x + piece]
            top, left = (int(d * (n - piece + 1)) for d, n in zip(draw[3:5], size))
            _over(paint, fragment, top, left)
        top, left = (
            int(integers(n - side + 1, *keys, place, index))
            for place, n in ((3, height), (4, width))
        )
        own = _scaled(stamps[stamp], side)
        _over(paint, own, top, left)
        mask = torch.zeros(height, width, dtype=torch.bool)
        mask[top : top + side, left : left + side] = own[3] > 0.5
        canvases.append((255 * paint).round().clamp(0, 255).byte())
        masks.append(mask)
    if not canvases:
        return torch.zeros(0, 3, *size, dtype=torch.uint8), torch.zeros(0, *size, dtype=torch.bool)
    return torch.stack(canvases), torch.stack(masks)


def _background(size: tuple[int, int], *keys: int | Tensor) -> Float[Tensor, "3 h w"]:
    """From one colour to another along a direction, and noise."""
    height, width = size
    *fixed, index = keys
    first, last = (
        torch.stack([uniform(*fixed, 0, end, channel, index) for channel in range(3)]).float()
        for end in (0, 1)
    )
    angle = 2 * torch.pi * uniform(*fixed, 0, 2, 0, index).float()
    y = torch.linspace(-1, 1, height)[:, None] * angle.sin()
    x = torch.linspace(-1, 1, width) * angle.cos()
    along = ((y + x) / 2**0.5 + 1) / 2
    pixel = torch.arange(height * width).view(height, width)
    noise = (uniform(*fixed, 1, index, pixel).float() - 0.5) * (NOISE / 255)
    return first[:, None, None] + (last - first)[:, None, None] * along + noise


def _scaled(stamp: UInt8[Tensor, "4 s s"], side: int) -> Float[Tensor, "4 t t"]:
    """Colours times opacity, and opacity, in [0, 1] at another size."""
    whole = stamp[None].float() / 255
    whole = torch.cat([whole[:, :3] * whole[:, 3:], whole[:, 3:]], 1)
    options: Any = {"mode": "bilinear", "antialias": True, "align_corners": False}
    return functional.interpolate(whole, (side, side), **options)[0]


def _over(paint: Tensor, stamp: Tensor, top: int, left: int) -> None:
    """Put a stamp over a place of the canvas."""
    rows, columns = stamp.shape[1:]
    place = paint[:, top : top + rows, left : left + columns]
    place.mul_(1 - stamp[3]).add_(stamp[:3])


def create(request: Request) -> ComposedDataset:
    """The data set of a request; a canvas is made when asked for, of ``image_size``."""
    entry, options = request.entry, request.options
    size = request.image_size or SIZE
    stored, names = read_stamps(source_folder(request, lambda file: True))
    key = SPLITS[request.split]
    wanted = ("train", "val", "test").index(request.split)
    parts = parts_of(names, stored)
    chosen = [i for i, part in enumerate(parts) if part == wanted]
    if not chosen:
        raise DataError(f"{request.split}: none of the {len(names)} stamps belongs to it")
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
