"""Causal convolution through the fast Fourier transform."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from ..backend import full_precision


def causal_convolution(
    signal: Float[Tensor, " b #h n i"], taps: Float[Tensor, "h n o i"]
) -> Float[Tensor, "b h n o"]:
    r""":math:`y_t = \sum_{s \le t} \kappa_{t-s} u_s` for taps κ at lags 0 to N-1, without
    wrap-around.

    Both are padded with zeros to at least 2N - 1 points. O(N log N) per channel plus d_out·d_in
    products a frequency.

    Example:
        >>> u = torch.tensor([1.0, 0.0, 2.0]).view(1, 1, 3, 1)
        >>> taps = torch.tensor([1.0, 0.5, 0.25]).view(1, 3, 1, 1)
        >>> [round(y, 3) for y in causal_convolution(u, taps).flatten().tolist()]
        [1.0, 0.5, 2.25]
    """
    n = signal.shape[2]
    size = _fast_length(2 * n)
    dtype = torch.promote_types(torch.promote_types(signal.dtype, taps.dtype), torch.float32)
    with full_precision(signal):
        if not torch.compiler.is_compiling() and signal.numel() == 0:  # FFTs refuse it
            return torch.einsum("bhni,hmoi->bhno", signal.to(dtype), taps.to(dtype))
        # points last: transforms of contiguous rows
        u = torch.fft.rfft(signal.to(dtype).mT, size)
        kappa = torch.fft.rfft(taps.to(dtype).permute(0, 2, 3, 1), size)
        if kappa.shape[1] == kappa.shape[2] == 1:
            out = u * kappa[None, :, 0]
        else:
            out = torch.einsum("bhif,hoif->bhof", u.expand(-1, kappa.shape[0], -1, -1), kappa)
        return torch.fft.irfft(out, size)[..., :n].mT


def _fast_length(n: int) -> int:
    """The next length of the form 2^k or 3·2^k; traced code, where n is a symbol, takes n."""
    if torch.compiler.is_compiling():
        return n
    power = 1 << (n - 1).bit_length()
    return 3 * power // 4 if 3 * power // 4 >= n else power
