"""Convolution by FFT, hidden units first."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from ...errors import ShapeError


def grid_convolution(
    signal: Float[Tensor, "b h n i"],
    hidden: Float[Tensor, "l w"],
    readout: Float[Tensor, "h o i w"],
    grid: tuple[int, ...],
    *,
    causal: bool = False,
) -> Float[Tensor, "b h n o"]:
    r""":math:`out_x = \sum_y \kappa(x - y)\,u_y` on a grid, with :math:`\kappa(\delta) = \sum_k R_k\,h_k(\delta)`.

    The readout is linear, so that :math:`\hat\kappa = \sum_k R_k \hat h_k`: w transforms of hidden units instead of d_out·d_in of
    kernel entries, and one real matrix product. Zero-padded to 2n or more an axis: what wraps around lands outside the part that is kept.

    Args:
        signal: u times its masses, points of the grid in row-major order.
        hidden: h at the displacements, (L, w), row-major: from 1 - n to n - 1 an axis, or from 0 to n - 1 where ``causal``.
        readout: R.
        grid: extents n of the axes; their product is N.
        causal: lags of a causal line only.

    Cost: O((w + B(d_in + d_out)) N log N + (w + B) d_in d_out N) time; memory O((w + d_in d_out) N), for any batch.

    Raises:
        ShapeError: numbers of points or lags that do not fit the grid, or a causal grid of several axes.

    Reference: CKConv §4.1, evaluated hidden units first.

    Example:
        >>> u, h = torch.tensor([1.0, 0.0, 2.0]).view(1, 1, 3, 1), torch.tensor([[1.0], [10.0], [100.0]])
        >>> grid_convolution(u, h, torch.ones(1, 1, 1, 1), (3,), causal=True).flatten().round().tolist()
        [1.0, 10.0, 102.0]
    """
    lags = _check(signal, hidden, grid, causal)
    axes = len(grid)
    sizes = [_fast_size(2 * n) for n in grid]
    dims = tuple(range(-axes, 0))
    dtype = torch.promote_types(torch.promote_types(signal.dtype, hidden.dtype), torch.float32)
    with torch.autocast(signal.device.type, enabled=False):
        u = torch.fft.rfftn(signal.to(dtype).mT.unflatten(-1, grid), s=sizes, dim=dims).flatten(-axes)
        h = torch.fft.rfftn(hidden.to(dtype).mT.unflatten(-1, lags), s=sizes, dim=dims).flatten(-axes)
        product = _frequencies(u, h, readout.to(dtype))
        half = [*sizes[:-1], sizes[-1] // 2 + 1]
        full = torch.fft.irfftn(product.unflatten(-1, half), s=sizes, dim=dims)
    starts = [0 if causal else n - 1 for n in grid]
    cut = full[(..., *(slice(s, s + n) for s, n in zip(starts, grid)))]
    return cut.flatten(-axes).mT


def _frequencies(u: Tensor, h: Tensor, readout: Tensor) -> Tensor:
    """κ̂ û at every frequency, (B, H, d_out, F) from û (B, H, d_in, F) and ĥ (w, F).

    In real numbers, frequencies first: R is real, so κ̂ is one real matrix product, and a small complex product a frequency would
    be copied once for every operand that is conjugated in the backward.
    """
    heads, d_out, d_in, width = readout.shape
    batch = u.shape[0]
    columns = torch.view_as_real(h).permute(2, 1, 0).reshape(-1, width)
    kernel = (columns @ readout.reshape(-1, width).mT).view(2, -1, heads, d_out, d_in)
    parts = torch.view_as_real(u).permute(3, 1, 2, 4, 0).flatten(-2)
    crossed = (kernel @ parts).unflatten(-1, (2, batch))
    real = crossed[0, ..., 0, :] - crossed[1, ..., 1, :]
    imaginary = crossed[1, ..., 0, :] + crossed[0, ..., 1, :]
    return torch.complex(real, imaginary).permute(3, 1, 2, 0)


def _check(signal: Tensor, hidden: Tensor, grid: tuple[int, ...], causal: bool) -> tuple[int, ...]:
    """Numbers of lags an axis."""
    points, lags = 1, tuple(n if causal else 2 * n - 1 for n in grid)
    count = 1
    for n, m in zip(grid, lags):
        points, count = points * n, count * m
    if causal and len(grid) != 1:
        raise ShapeError(f"lags of a causal grid are ordered on one axis only, got the grid {grid}")
    if signal.shape[2] != points or hidden.shape[0] != count:
        got = f"{signal.shape[2]} points and {hidden.shape[0]} lags"
        raise ShapeError(f"the grid {grid} has {points} points and {count} displacements, got {got}")
    return lags


def _fast_size(n: int) -> int:
    """The next size that is a product of 2, 3 and 5; traced code, where n is a symbol, takes n itself."""
    if torch.compiler.is_compiling():
        return n
    while True:
        rest = n
        for prime in (2, 3, 5):
            while rest % prime == 0:
                rest //= prime
        if rest == 1:
            return n
        n += 1
