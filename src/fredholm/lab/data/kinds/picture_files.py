"""Picture files as they are: their depth and transparency, and whether they can be read.

A folder is read in one form, a name of :data:`fredholm.lab.data.files.reading.FORMS`. What a form
cannot hold of a file is said.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from ....errors import DataError
from ....progress import steps
from ..formats import opened_picture
from .images import check_picture, of_bytes, read_picture

LISTED = 100  # files that a remark names one by one
THREADS = 4
WHOLE = 65_535  # white, of 16 bits


@dataclass(frozen=True)
class Look:
    """The contents of a picture file, as far as its header tells.

    Attributes:
        deep: whether its one channel has 16 bits.
        coarse: whether its channels have 16 bits of which Pillow reads the upper 8.
        alpha: whether pixels may be transparent.
        frames: how many pictures are in it.
        error: why it cannot be read; None where it can.
    """

    deep: bool = False
    coarse: bool = False
    alpha: bool = False
    frames: int = 1
    error: str | None = None


def look(file: Path) -> Look:
    """Return what a picture file holds; one that cannot be read says why.

    A PNG is read to its end, where its check sums are compared.
    """
    try:
        check_picture(file)
        with opened_picture(file) as image:
            deep = image.mode.startswith("I")
            if deep or image.mode == "F":
                of_bytes(image, file)  # refuses a range that no file tells
            found = Look(
                deep=deep,
                coarse=not deep and _bits(image, file) > 8,
                alpha=not deep and ("A" in image.getbands() or "transparency" in image.info),
                frames=getattr(image, "n_frames", 1),
            )
        with opened_picture(file) as image:
            image.verify()
    except DataError as error:
        return Look(error=str(error))
    return found


def _bits(image: Any, file: Path) -> int:
    """Return the bits of a channel in the file, which may be more than Pillow's picture has."""
    if image.format == "PNG":
        with file.open("rb") as opened:
            return opened.read(25)[24]
    if image.format == "TIFF":
        bits = image.tag_v2.get(258, (8,))
        return int(max(bits)) if isinstance(bits, tuple) else int(bits)
    if image.format == "PPM":
        with file.open("rb") as opened:
            lines = [line.split(b"#")[0] for line in opened.read(512).split(b"\n")]
        words = b" ".join(lines).split()
        # P1 and P4 hold bits, and no largest value.
        return 16 if words[0] in (b"P2", b"P3", b"P5", b"P6") and int(words[3]) > 255 else 8
    return 8


def look_at_all(files: Sequence[Path]) -> list[Look]:
    """Return what each of some picture files holds."""
    with ThreadPoolExecutor(THREADS) as pool:
        return list(steps("read pictures", pool.map(look, files), len(files)))


def form_of(looks: Sequence[Look]) -> str:
    """Return the form that keeps depth and transparency of all of them."""
    alpha = any(found.alpha for found in looks)
    deep = any(found.deep for found in looks)
    return f"rgb{'a' if alpha else ''}{'16' if deep else ''}"


def remarks_on(files: Sequence[Path], looks: Sequence[Look], form: str) -> list[str]:
    """Return what is said of files of which a form does not hold everything."""

    def those(lose: Any) -> list[Path]:
        return [file for file, found in zip(files, looks) if lose(found)]

    said = [
        (
            those(lambda found: found.deep) if not form.endswith("16") else [],
            "have 16 bits per pixel, of which 8 are read; data.options.pixels=rgb16 keeps all",
        ),
        (
            those(lambda found: found.alpha) if not form.startswith("rgba") else [],
            "have transparent pixels, which are read as opaque; data.options.pixels=rgba keeps "
            "transparency as a fourth channel",
        ),
        (
            those(lambda found: found.coarse),
            "have 16 bits in each of several channels, of which 8 are read; save one channel per "
            "file to keep all",
        ),
        (
            those(lambda found: found.frames > 1),
            "have several frames, of which the first is read; save each as a file of its own to "
            "read all",
        ),
    ]
    return [
        f"{len(some):,} of {len(files):,} pictures {what}: {listed_files(some)}"
        for some, what in said
        if some
    ]


def listed_files(files: Sequence[Path | str]) -> str:
    """Return the names of files, of very many the first."""
    shown = [str(file) for file in files[:LISTED]]
    if len(files) > LISTED:
        shown.append(f"and {len(files) - LISTED:,} more")
    return "; ".join(shown)


def read_form(file: Path, size: tuple[int, int], form: str) -> Tensor:
    """Return one picture (C, h, w), cut as :func:`.images.read_picture` cuts: bytes, or of a form
    of 16 bits shares of white in float32.

    Colours beneath full transparency are black, whatever the file has there.

    Raises:
        DataError: as :func:`.images.read_picture`.
    """
    if form == "rgb":
        return read_picture(file, size)
    deep = form.endswith("16")
    channels = 4 if form.startswith("rgba") else 3
    from PIL import Image, ImageOps

    height, width = size
    with opened_picture(file) as image:
        if deep and image.mode.startswith("I"):
            upright = ImageOps.exif_transpose(image)
            of_bytes(image, file)  # refuses a range that no file tells
            values = np.asarray(upright).astype(np.float32) / WHOLE
            plain = Image.fromarray(values)
            fitted = ImageOps.fit(plain, (width, height), Image.Resampling.BICUBIC)
            shares = torch.from_numpy(np.array(fitted)).clamp(0, 1).expand(3, -1, -1)
            opaque = torch.ones(channels - 3, height, width)
            return torch.cat([shares, opaque])
        coloured = of_bytes(image, file).convert("RGBA" if channels == 4 else "RGB")
        # Pillow multiplies colours by their opacity before it resizes.
        fitted = ImageOps.fit(coloured, (width, height), Image.Resampling.BICUBIC)
        pixels = torch.from_numpy(np.array(fitted)).permute(2, 0, 1).clone()
    if channels == 4:
        pixels[:3, pixels[3] == 0] = 0
    return pixels.float() / 255 if deep else pixels


def moments(
    files: Sequence[Path], size: tuple[int, int], form: str, most: int = 256
) -> tuple[list[float], list[float]]:
    """Return mean and deviation of each channel, over at most so many of some files."""
    some = files[:: max(1, -(-len(files) // most))]
    pixels: Float[Tensor, "c m"] = torch.cat(
        [read_form(file, size, form).flatten(1).double() for file in some], 1
    )
    deviation = pixels.std(1, correction=0)
    return pixels.mean(1).tolist(), torch.where(deviation > 0, deviation, 1.0).tolist()
