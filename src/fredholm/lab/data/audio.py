"""Samples of a WAV file."""

from __future__ import annotations

import io
import struct
import warnings
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float

from ...errors import DataError, require


def read_sound(
    path: Path, content: bytes | None = None
) -> tuple[Float[np.ndarray, "samples channels"], int]:
    """The samples of a WAV file of integers or floats, and how many there are in a second. Integers
    are divided by the largest of their size, to lie from -1 to 1; ``content``: of the file, where
    it lies in an archive.

    Raises:
        DataError: a missing, truncated or damaged file, or one of compressed samples.
        MissingExtraError: when scipy is not installed.
    """
    wavfile: Any = require("scipy.io.wavfile", "train", "reading sounds")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", wavfile.WavFileWarning)
            warnings.filterwarnings("ignore", "Chunk ", wavfile.WavFileWarning)  # such as of a tool
            rate, samples = wavfile.read(path if content is None else io.BytesIO(content))
    except FileNotFoundError as error:
        raise DataError(f"{path}: no such file; restore it, or correct the path") from error
    except (OSError, ValueError, struct.error, wavfile.WavFileWarning) as error:
        raise DataError(
            f"{path}: no whole WAV file of plain samples ({error}); copy it again if damaged, "
            "convert it if of another format"
        ) from error
    samples = samples[:, None] if samples.ndim == 1 else samples
    if samples.dtype.kind == "f":
        return samples, int(rate)
    half = 2.0 ** (8 * samples.itemsize - 1)
    middle = half if samples.dtype.kind == "u" else 0.0  # bytes have no sign
    return ((samples - middle) / half).astype(np.float32), int(rate)
