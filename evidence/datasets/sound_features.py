"""Sound as the papers' tables read it: one channel at one rate, and mel-frequency cepstral
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
    """The samples of a file of one channel; see :func:`read_sound`.

    Raises:
        DataError: as :func:`read_sound`, another rate, or several channels.
    """
    samples, found = read_sound(path, content)
    if (found, samples.shape[1]) != (rate, 1):
        raise DataError(
            f"{path}: {found:,} samples a second in {samples.shape[1]} channels; needs {rate:,} in "
            "one"
        )
    return torch.from_numpy(samples[:, 0].astype(np.float32))


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
