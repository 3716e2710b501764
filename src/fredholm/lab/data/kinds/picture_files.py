"""Picture files: whether they can be read, their depth and transparency, and their pixels.

A folder is read in one form, a name of :data:`fredholm.lab.data.files.reading.FORMS`. A remark
names the files of which a form loses something.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from ....errors import DataError
from ....pictures import (
    COVER,
    covered,
    fit_of,
    in_shares,
    of_bytes,
    stretched,
    unknown_range,
)
from ....progress import steps
from ..files.collection import listed
from ..formats import opened_picture

THREADS = 4
# The tag of EXIF that says how the camera was held.
ORIENTATION = 0x0112


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
            _check_range(image, file)
            found = Look(
                deep=deep,
                coarse=not deep and _bits(image, file) > 8,
                alpha=not deep and _may_be_transparent(image),
                frames=getattr(image, "n_frames", 1),
            )
        # After verify() a picture of Pillow's cannot be used, so it is opened once more.
        with opened_picture(file) as image:
            image.verify()
    except DataError as error:
        return Look(error=str(error))
    return found


def _may_be_transparent(image: Any) -> bool:
    return "A" in image.getbands() or "transparency" in image.info


def _bits(image: Any, file: Path) -> int:
    """Return the bits of a channel in the file, which may be more than Pillow's picture has."""
    if image.format == "PNG":
        with file.open("rb") as opened:
            header = opened.read(25)
        return header[24]
    if image.format == "TIFF":
        # Tag 258 has the bits of every channel.
        bits = image.tag_v2.get(258, 8)
        return int(np.max(bits))
    if image.format == "PPM":
        return _bits_of_ppm(file)
    return 8


def _bits_of_ppm(file: Path) -> int:
    with file.open("rb") as opened:
        lines = opened.read(512).split(b"\n")
    # Remarks begin with #.
    header = [line.split(b"#")[0] for line in lines]
    # The header is the format, width, height and the largest value, which P1 and P4 do not have:
    # they hold bits.
    words = b" ".join(header).split()
    if words[0] not in (b"P2", b"P3", b"P5", b"P6"):
        return 8
    if int(words[3]) > 255:
        return 16
    return 8


def look_at_all(files: Sequence[Path]) -> list[Look]:
    """Return the contents of each of these picture files."""
    with ThreadPoolExecutor(THREADS) as pool:
        looks = pool.map(look, files)
        return list(steps("read pictures", looks, len(files)))


def form_of(looks: Sequence[Look]) -> str:
    """Return the form that keeps depth and transparency of all of these pictures."""
    form = "rgb"
    if any(found.alpha for found in looks):
        form += "a"
    if any(found.deep for found in looks):
        form += "16"
    return form


def remarks_on(
    files: Sequence[Path],
    looks: Sequence[Look],
    form: str,
) -> list[str]:
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


# --- pixels ---------------------------------------------------------------------------------------


def read_picture(
    file: Path,
    size: tuple[int, int],
    form: str = "rgb",
) -> Tensor:
    """Return one picture (C, h, w): resized (bicubic) until it just covers ``size`` = (h, w), then
    centre-cropped; bytes, or of a form of 16 bits shares of white in float32.

    Colours beneath full transparency are black, whatever the file has there.

    Raises:
        DataError: the file is missing, truncated, not a picture or a single pixel.
    """
    with _opened(file) as image:
        _check_range(image, file)
        return covered(image, size, form)


def _check_range(image: Any, file: Path | str) -> None:
    """Refuse pixels whose range is not in the file.

    Raises:
        DataError: floating-point pixels, or integers beyond 16 bits.
    """
    found = unknown_range(image)
    if found is not None:
        raise DataError(
            f"{file}: expected 8 or 16 bits per channel, got {found}, whose range is not in the "
            "file; scale them to 0 to 65,535 and save a PNG of 16 bits"
        )


def picture_size(file: Path) -> tuple[int, int]:
    """Return (height, width) of a picture from its header, turned as its camera was held.

    Raises:
        DataError: as :func:`read_picture`, as far as a header tells.
    """
    with _opened(file) as image:
        # Of EXIF's eight orientations, the last four exchange height and width.
        if image.getexif().get(ORIENTATION, 1) >= 5:
            return image.width, image.height
        return image.height, image.width


# The last bytes of files that are complete.
ENDS = {"JPEG": b"\xff\xd9", "PNG": b"IEND\xaeB`\x82"}


def check_picture(file: Path) -> None:
    """Read a picture's header, and all of it where its end is not that of its format.

    Raises:
        DataError: as :func:`read_picture`, as far as header and end tell.
    """
    with _opened(file) as image:
        end = ENDS.get(image.format)
        if end is None:
            return
        size = file.stat().st_size
        with file.open("rb") as opened:
            opened.seek(max(0, size - 12))
            tail = opened.read()
        # A truncated file is refused by its decoder; bytes behind the end are harmless.
        if not tail.endswith(end):
            image.load()


@contextmanager
def _opened(file: Path) -> Iterator[Any]:
    with opened_picture(file) as image:
        # Resized, a single pixel would become a uniform area that passes for a picture.
        if max(image.size) < 2:
            raise DataError(
                f"{file}: expected a picture of 2 pixels or more, got 1 x 1, often the placeholder "
                "of a failed download; replace or remove it"
            )
        yield image


def decoded(file: Path | str, mode: str, content: bytes | None = None) -> Any:
    """Return a picture of Pillow's in a ``mode`` such as RGB.

    Args:
        content: the bytes of the file, where it lies in an archive.

    Raises:
        DataError: no such file, or not a picture.
    """
    with opened_picture(file, content) as image:
        _check_range(image, file)
        return of_bytes(image).convert(mode)


def moments(
    files: Sequence[Path],
    size: tuple[int, int],
    form: str,
) -> tuple[list[float], list[float]]:
    """Return mean and standard deviation of each channel, over at most 256 of the files."""
    # Every n-th, so that all classes are among them, whose files follow one another.
    step = max(1, math.ceil(len(files) / 256))
    pictures = []
    for file in files[::step]:
        picture = read_picture(file, size, form)
        pictures.append(picture.flatten(1).double())
    pixels: Float[Tensor, "c m"] = torch.cat(pictures, 1)

    mean = pixels.mean(1)
    std = pixels.std(1, correction=0)
    # A constant channel is only shifted.
    std = torch.where(std > 0, std, 1.0)
    return mean.tolist(), std.tolist()


# --- pictures without a data set ------------------------------------------------------------------


def read_as_trained(
    file: Path,
    facts: Mapping[str, Any],
    channels: int,
    size: tuple[int, int] | None,
) -> Float[Tensor, "c h w"]:
    """Return one file in [0, 1] for a model that was saved with ``facts``.

    Pictures are cut if those of its training were. Those of the catalogue and those in memory are
    not: other pictures are stretched to their size.

    Raises:
        DataError: no such file, or not a picture.
    """
    if size is None or fit_of(facts) != COVER:
        return read_plain(file, channels, size)
    return in_shares(read_picture(file, size, facts.get("form", "rgb")))


def read_plain(
    path: Path,
    channels: int,
    size: tuple[int, int] | None,
) -> Float[Tensor, "c h w"]:
    """Return one file as (channels, height, width) in [0, 1], stretched to ``size``; with None it
    keeps its own.

    Raises:
        DataError: no such file, or not a picture.
    """
    with opened_picture(path) as image:
        _check_range(image, path)
        return stretched(image, size, channels)
