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
from torch.nn import functional

from ....errors import DataError
from ....progress import steps
from ..files.collection import listed
from ..formats import opened_picture

THREADS = 4
# White in 16 bits.
WHOLE = 65_535
# How a folder's picture becomes a sample, saved with a model: resized until it covers the sample's
# size, then cut.
COVER = "cover"
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
            # Refuses pixels whose range is not in the file.
            if deep or image.mode == "F":
                of_bytes(image, file)
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
    from PIL import Image, ImageOps

    deep = form.endswith("16")
    height, width = size

    def fitted(picture: Any) -> Tensor:
        result = ImageOps.fit(picture, (width, height), Image.Resampling.BICUBIC)
        return torch.from_numpy(np.array(result))

    with _opened(file) as image:
        if deep and image.mode.startswith("I"):
            # Refuses pixels whose range is not in the file.
            of_bytes(image, file)
            upright = ImageOps.exif_transpose(image)
            values = np.asarray(upright).astype(np.float32) / WHOLE
            # Such pictures are grey and opaque. Bicubic curves may leave the range.
            grey = fitted(Image.fromarray(values)).clamp(0, 1)
            colours = grey.expand(3, -1, -1)
            opacity = torch.ones(form.count("a"), height, width)
            return torch.cat([colours, opacity])

        # Pillow multiplies colours by their opacity before it resizes.
        mode = form.removesuffix("16").upper()
        picture = of_bytes(image, file).convert(mode)
        pixels = fitted(picture).permute(2, 0, 1)
    if mode == "RGBA":
        pixels[:3, pixels[3] == 0] = 0
    if deep:
        return pixels.float() / 255
    return pixels


def of_bytes(image: Any, file: Path | str) -> Any:
    """Return an opened picture with 8 bits per channel, turned as its camera was held (EXIF's
    orientation).

    Raises:
        DataError: floating-point pixels, or integers beyond 16 bits, whose range is in no file.
    """
    from PIL import Image, ImageOps

    image = ImageOps.exif_transpose(image)
    if not image.mode.startswith(("I", "F")):
        return image

    # Pillow's own conversion would cut off all values above 255. Division by 257, rounded to the
    # nearest, maps 65,535 to 255.
    pixels = np.asarray(image)
    if image.mode == "F" or pixels.min() < 0 or pixels.max() > 65_535:
        raise DataError(
            f"{file}: expected 8 or 16 bits per channel, got pixels from {pixels.min():g} to "
            f"{pixels.max():g} (Pillow's mode {image.mode!r}), whose range is not in the file; "
            "scale them to 0 to 65,535 and save a PNG of 16 bits"
        )
    shades = (pixels.astype(np.int64) + 128) // 257
    return Image.fromarray(shades.astype(np.uint8))


def picture_size(file: Path) -> tuple[int, int]:
    """Return (height, width) of a picture, turned as :func:`of_bytes` turns it, from its header.

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
        return of_bytes(image, file).convert(mode)


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
    not: other pictures are stretched to their size. :mod:`fredholm.export` has the same rule.

    Raises:
        DataError: no such file, or not a picture.
    """
    form = facts.get("form", "rgb")
    # Models of earlier versions did not save "fit"; those of files have a "source", as those of
    # pictures in memory have, which save the scale of their "pixels" in it.
    source = facts.get("source") or {}
    from_files = bool(source) and "pixels" not in source
    cut = form != "rgb" or facts.get("fit") == COVER or from_files
    if not cut or size is None:
        return read_plain(file, channels, size)
    image = read_picture(file, size, form)
    if image.is_floating_point():
        return image
    return image.float() / 255


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
    mode = "RGB"
    if channels == 1:
        mode = "L"
    shades = np.array(decoded(path, mode))
    pixels = torch.from_numpy(shades).float().div(255)
    # Pillow's grey pictures have no axis of channels.
    if channels == 1:
        image = pixels[None]
    else:
        image = pixels.permute(2, 0, 1)
    if size is None:
        return image
    return resized(image[None], size)[0]


def resized(
    images: Float[Tensor, "n c h w"],
    size: tuple[int, int],
) -> Float[Tensor, "n c i j"]:
    """Return images at another size, antialiased bilinear; those that have it stay as they are."""
    if tuple(images.shape[-2:]) == tuple(size):
        return images
    return functional.interpolate(
        images,
        tuple(size),
        mode="bilinear",
        antialias=True,
        align_corners=False,
    )
