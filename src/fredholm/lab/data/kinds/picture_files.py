"""Picture files: their depth and transparency, and whether they can be read.

A folder is read in one form, a name of :data:`fredholm.lab.data.files.reading.FORMS`. A remark
names the files of which a form loses something.
"""

from __future__ import annotations

import math
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
from ..files.collection import listed
from ..formats import opened_picture
from .images import check_picture, of_bytes, read_picture

THREADS = 4
# White in 16 bits.
WHOLE = 65_535


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
    """Return the contents of a picture file, or the reason why it cannot be read.

    A PNG is read to its end, where its checksums are compared.
    """
    try:
        check_picture(file)
        with opened_picture(file) as image:
            deep = image.mode.startswith("I")
            # Refuses pixels whose range is not in the file.
            if deep or image.mode == "F":
                of_bytes(image, file)
            found = Look(
                deep=deep,
                coarse=not deep and _bits(image, file) > 8,
                alpha=not deep and ("A" in image.getbands() or "transparency" in image.info),
                frames=getattr(image, "n_frames", 1),
            )
        # After verify() a picture of Pillow's cannot be used, so it is opened once more.
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
        # Tag 258 has the bits of every channel.
        return int(np.max(image.tag_v2.get(258, 8)))
    if image.format == "PPM":
        with file.open("rb") as opened:
            lines = [line.split(b"#")[0] for line in opened.read(512).split(b"\n")]
        # The header is the format, width, height and the largest value, which P1 and P4 do not
        # have: they hold bits.
        words = b" ".join(lines).split()
        if words[0] in (b"P2", b"P3", b"P5", b"P6") and int(words[3]) > 255:
            return 16
    return 8


def look_at_all(files: Sequence[Path]) -> list[Look]:
    """Return the contents of each of these picture files."""
    with ThreadPoolExecutor(THREADS) as pool:
        return list(steps("read pictures", pool.map(look, files), len(files)))


def form_of(looks: Sequence[Look]) -> str:
    """Return the form that keeps depth and transparency of all of these pictures."""
    form = "rgb"
    if any(found.alpha for found in looks):
        form += "a"
    if any(found.deep for found in looks):
        form += "16"
    return form


def remarks_on(files: Sequence[Path], looks: Sequence[Look], form: str) -> list[str]:
    """Return remarks on the files of which a form does not keep everything."""
    shallow = not form.endswith("16")
    opaque = not form.startswith("rgba")
    losses = {
        "have 16 bits per pixel, of which 8 are read; data.options.pixels=rgb16 keeps all": [
            shallow and found.deep for found in looks
        ],
        "have transparent pixels, which are read as opaque; data.options.pixels=rgba keeps "
        "transparency as a fourth channel": [opaque and found.alpha for found in looks],
        "have 16 bits in each of several channels, of which 8 are read; save one channel per "
        "file to keep all": [found.coarse for found in looks],
        "have several frames, of which the first is read; save each as a separate file to read "
        "all": [found.frames > 1 for found in looks],
    }
    remarks = []
    for remark, lost in losses.items():
        some = [str(file) for file, yes in zip(files, lost) if yes]
        if some:
            counts = f"{len(some):,} of {len(files):,} pictures"
            remarks.append(f"{counts} {remark}: {listed(some)}")
    return remarks


def read_form(file: Path, size: tuple[int, int], form: str) -> Tensor:
    """Return one picture (C, h, w), cut as :func:`.images.read_picture` cuts: bytes, or of a form
    of 16 bits shares of white in float32.

    Colours beneath full transparency are black, whatever the file has there.

    Raises:
        DataError: as :func:`.images.read_picture`.
    """
    if form == "rgb":
        return read_picture(file, size)
    from PIL import Image, ImageOps

    deep = form.endswith("16")
    height, width = size
    with opened_picture(file) as image:
        if deep and image.mode.startswith("I"):
            # Refuses pixels whose range is not in the file.
            of_bytes(image, file)
            upright = ImageOps.exif_transpose(image)
            values = np.asarray(upright).astype(np.float32) / WHOLE
            fitted = ImageOps.fit(
                Image.fromarray(values), (width, height), Image.Resampling.BICUBIC
            )
            # Such pictures are grey and opaque. Bicubic curves may leave the range.
            grey = torch.from_numpy(np.array(fitted)).clamp(0, 1)
            opacity = torch.ones(form.count("a"), height, width)
            return torch.cat([grey.expand(3, -1, -1), opacity])

        mode = form.removesuffix("16").upper()
        coloured = of_bytes(image, file).convert(mode)
        # Pillow multiplies colours by their opacity before it resizes.
        fitted = ImageOps.fit(coloured, (width, height), Image.Resampling.BICUBIC)
        pixels = torch.from_numpy(np.array(fitted)).permute(2, 0, 1).clone()
    if mode == "RGBA":
        pixels[:3, pixels[3] == 0] = 0
    if deep:
        return pixels.float() / 255
    return pixels


def moments(
    files: Sequence[Path], size: tuple[int, int], form: str
) -> tuple[list[float], list[float]]:
    """Return mean and standard deviation of each channel, over at most 256 of the files."""
    # Every n-th, so that all classes are among them, whose files follow one another.
    step = max(1, math.ceil(len(files) / 256))
    pictures = [read_form(file, size, form).flatten(1).double() for file in files[::step]]
    pixels: Float[Tensor, "c m"] = torch.cat(pictures, 1)
    deviation = pixels.std(1, correction=0)
    # A constant channel is only shifted.
    return pixels.mean(1).tolist(), torch.where(deviation > 0, deviation, 1.0).tolist()
