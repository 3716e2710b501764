"""Inputs of sound as in the papers' tables: one channel at a fixed rate, or mel-frequency cepstral
coefficients.
"""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from fredholm.errors import DataError, OptionError
from fredholm.lab.data.files.sounds import read_sound


def read_wav(path: Path, rate: int, content: bytes | None = None) -> Float[Tensor, " samples"]:
    """Read the samples of a file with one channel, see :func:`read_sound`.

    Raises:
        DataError: another rate, several channels, or as in :func:`read_sound`.
    """
    samples, found = read_sound(path, content)
    if (found, samples.shape[1]) != (rate, 1):
        raise DataError(
            f"{path}: expected {rate:,} samples per second in one channel, got {found:,} in "
            f"{samples.shape[1]}; convert the file"
        )
    return torch.from_numpy(samples[:, 0].astype(np.float32))


def mel_filters(frequencies: int, filters: int, rate: int) -> Float[Tensor, "frequencies filters"]:
    r"""Return triangular filters from 0 to ``rate / 2`` that overlap by half.

    They are equally spaced on the mel scale, :math:`m(f) = 2595 \log_{10}(1 + f / 700)`
    (O'Shaughnessy 1987).

    Example:
        >>> mel_filters(201, 20, 16_000).shape
        torch.Size([201, 20])
    """
    top = 2595 * math.log10(1 + rate / 2 / 700)
    edges = 700 * (10 ** (torch.linspace(0, top, filters + 2, dtype=torch.float64) / 2595) - 1)
    f = torch.linspace(0, rate / 2, frequencies, dtype=torch.float64)[:, None]
    low, centre, high = edges[:-2], edges[1:-1], edges[2:]
    rising, falling = (f - low) / (centre - low), (high - f) / (high - centre)
    return torch.minimum(rising, falling).clamp(min=0).float()


def cosine_basis(filters: int, coefficients: int) -> Float[Tensor, "filters coefficients"]:
    """Return the matrix of the orthonormal discrete cosine transform of type II."""
    n = torch.arange(filters, dtype=torch.float64)[:, None]
    k = torch.arange(coefficients, dtype=torch.float64)
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
    """Compute mel-frequency cepstral coefficients.

    They are the first terms of the cosine transform of log(energy + ``floor``). The energies are
    the power spectra of Hann windows, centred every ``hop`` samples with reflected ends, summed
    under :func:`mel_filters`.

    Shape: (..., n) to (..., 1 + n // hop, coefficients). Cost: O(n / hop · window · log window).

    Raises:
        OptionError: more coefficients than filters, or a signal of at most half a window.

    Reference: Davis and Mermelstein 1980.

    Example:
        >>> mfcc(torch.randn(2, 16_000), 16_000).shape
        torch.Size([2, 161, 20])
    """
    if coefficients > filters:
        raise OptionError(
            f"coefficients: expected at most the {filters} filters, got {coefficients}"
        )
    if samples.shape[-1] <= window // 2:
        raise OptionError(
            f"samples: expected more than {window // 2}, half of a window, got {samples.shape[-1]}"
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
    # (b, frames, frequencies)
    power = spectrum.abs().square().mT
    energy = torch.log(power @ mel_filters(power.shape[-1], filters, rate) + floor)
    result = energy @ cosine_basis(filters, coefficients)
    return result.reshape(*samples.shape[:-1], *result.shape[1:])
