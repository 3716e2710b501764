"""Sound: samples of a WAV file, and mel-frequency cepstral coefficients."""

from __future__ import annotations

import io
import math
import wave
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from ..errors import DataError, OptionError


def read_wav(
    path: Path, rate: int, content: bytes | None = None, *, empty: bool = False
) -> Float[Tensor, " samples"]:
    """The samples of a one-channel file of 16-bit integers, from -1 to 1; ``content``: of the
    file, where it lies in an archive; ``empty``: one without samples is none.

    Raises:
        DataError: a missing or damaged file, another rate, several channels, or samples of another
            size.
    """
    try:
        with wave.open(str(path) if content is None else io.BytesIO(content), "rb") as file:
            result = file.getframerate(), file.getnchannels(), file.getsampwidth()
            frames = file.readframes(file.getnframes())
            expected = file.getnframes() * result[1] * result[2]
    except (OSError, EOFError, wave.Error) as error:
        raise DataError(f"{path}: cannot be read as WAV ({error}); copy it again") from error
    if result != (rate, 1, 2):
        raise DataError(
            f"{path}: {result[0]:,} samples a second, {result[1]} channels, {8 * result[2]} bits; "
            f"needs {rate:,}, 1 and 16"
        )
    if (not frames and not empty) or len(frames) != expected:
        raise DataError(
            f"{path}: {len(frames):,} of {expected:,} bytes of samples; it is truncated, copy it "
            "again"
        )
    return torch.from_numpy(np.frombuffer(frames, "<i2").astype(np.float32)) / 32768.0


def mel_filters(frequencies: int, filters: int, rate: int) -> Float[Tensor, "frequencies filters"]:
    r"""Triangles that overlap by half, equally spaced from 0 to ``rate / 2`` on the scale
    :math:`m(f) = 2595 \log_{10}(1 + f / 700)` (O'Shaughnessy 1987).

    Example:
        >>> mel_filters(201, 20, 16_000).shape
        torch.Size([201, 20])
    """
    top = 2595 * math.log10(1 + rate / 2 / 700)
    edges = 700 * (10 ** (torch.linspace(0, top, filters + 2, dtype=torch.float64) / 2595) - 1)
    f = torch.linspace(0, rate / 2, frequencies, dtype=torch.float64)[:, None]
    low, centre, high = edges[:-2], edges[1:-1], edges[2:]
    return (
        torch.minimum((f - low) / (centre - low), (high - f) / (high - centre)).clamp(min=0).float()
    )


def cosine_basis(filters: int, coefficients: int) -> Float[Tensor, "filters coefficients"]:
    """The orthonormal discrete cosine transform of type II as a matrix."""
    n, k = (
        torch.arange(filters, dtype=torch.float64)[:, None],
        torch.arange(coefficients, dtype=torch.float64),
    )
    basis = torch.cos(math.pi / filters * (n + 0.5) * k) * math.sqrt(2 / filters)
    basis[:, 0] /= math.sqrt(2)
    return basis.float()


def mfcc(
    samples: Float[Tensor, "*b n"],
    rate: int,
    coefficients: int = 20,
    *,
    window: int = 200,
    hop: int = 100,
    filters: int = 64,
    floor: float = 1e-6,
) -> Float[Tensor, "*b frames c"]:
    """Mel-frequency cepstral coefficients: power spectra of Hann windows centred every ``hop``
    samples (the ends reflected), their sums under :func:`mel_filters`, the logarithm of those (plus
    ``floor``), and of it the first terms of a cosine transform.

    Shape: (..., n) to (..., 1 + n // hop, coefficients). Cost: O(n / hop · window · log window).

    Raises:
        OptionError: more coefficients than filters, or a signal of no more than half a window.

    Reference: Davis and Mermelstein 1980.

    Example:
        >>> mfcc(torch.randn(2, 16_000), 16_000).shape
        torch.Size([2, 161, 20])
    """
    if coefficients > filters:
        raise OptionError(
            f"coefficients: received {coefficients}; needs at most the {filters} filters"
        )
    if samples.shape[-1] <= window // 2:
        raise OptionError(
            f"samples: received {samples.shape[-1]}; needs more than {window // 2}, half of a "
            "window"
        )
    flat = samples.reshape(-1, samples.shape[-1])
    spectrum = torch.stft(
        flat,
        window,
        hop,
        window=torch.hann_window(window),
        center=True,
        pad_mode="reflect",
        return_complex=True,
    )
    power = spectrum.abs().square().mT  # (b, frames, frequencies)
    energy = torch.log(power @ mel_filters(power.shape[-1], filters, rate) + floor)
    result = energy @ cosine_basis(filters, coefficients)
    return result.reshape(*samples.shape[:-1], *result.shape[1:])
