"""Causal convolution through the fast Fourier transform."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from ..backend import full_precision


def causal_convolution(
    signal: Float[Tensor, " b #h n i"],
    taps: Float[Tensor, "h n o i"],
) -> Float[Tensor, "b h n o"]:
    r"""Return :math:`y_t = \sum_{s \le t} \kappa_{t-s} u_s` for taps κ at lags 0 to N - 1.

    Both are padded with zeros to at least 2N - 1 points, so that nothing wraps around. The result
    is in float32 or better.

    Args:
        signal: u; one head is shared by the taps of all heads.
        taps: κ, one matrix (d_out, d_in) for each head and lag.

    Cost: O(N log N) per channel, and d_out·d_in products per frequency.

    Example:
        >>> u = torch.tensor([1.0, 0.0, 2.0]).view(1, 1, 3, 1)
        >>> taps = torch.tensor([1.0, 0.5, 0.25]).view(1, 3, 1, 1)
        >>> [round(y, 3) for y in causal_convolution(u, taps).flatten().tolist()]
        [1.0, 0.5, 2.25]
    """
    n = signal.shape[2]
    length = _fast_length(2 * n)
    dtype = torch.promote_types(signal.dtype, taps.dtype)
    dtype = torch.promote_types(dtype, torch.float32)

    with full_precision(signal):
        # torch.fft raises on a tensor without elements; an einsum returns the empty result.
        if not torch.compiler.is_compiling() and signal.numel() == 0:
            return torch.einsum(
                "bhni,hmoi->bhno",
                signal.to(dtype),
                taps.to(dtype),
            )

        # Points come last: the transforms then read contiguous rows.
        u = torch.fft.rfft(signal.to(dtype).mT, length)
        kappa = torch.fft.rfft(
            taps.to(dtype).permute(0, 2, 3, 1),
            length,
        )

        heads, outputs, inputs, _ = kappa.shape
        if outputs == inputs == 1:
            product = u * kappa[None, :, 0]
        else:
            u = u.expand(-1, heads, -1, -1)
            product = torch.einsum("bhif,hoif->bhof", u, kappa)
        out = torch.fft.irfft(product, length)
        return out[..., :n].mT


def _fast_length(n: int) -> int:
    """Return the smallest number of the form 2^k or 3·2^k that is at least ``n``.

    Under tracing n is a symbol, of which no power of two can be taken: it is returned as it is.
    """
    if torch.compiler.is_compiling():
        return n
    power = 1 << (n - 1).bit_length()
    three_quarters = 3 * power // 4
    if three_quarters >= n:
        return three_quarters
    return power
