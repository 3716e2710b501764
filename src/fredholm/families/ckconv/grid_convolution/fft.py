"""Convolution on a regular grid by FFT, hidden units before the readout: the form and its op; and
the direct one, for few points.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from ....errors import ShapeError
from ....integral import FFT, Exact, Facts, Form, Kernel, Problem, answering, prepared, with_offset
from ....integral.problem import weighed
from ....ops.backend import (
    at_least_single,
    cast,
    checkable,
    choose_backend,
    full_precision,
    promoted,
    values_alone,
    wants_triton,
)
from ..capabilities import LagFeatures
from .limits import spectrum_refusal
from .registration import convolve_with, grid_convolution_op, spectrum_of

CONVOLUTION = "the convolution"
KEPT = 1 << 24  # numbers of a kernel's spectrum that are kept between calls

FEW = 1 << 14
"""Samples times points times lags up to which the products cost less than the transforms, on a
processor: `python -m evidence time small tune`.
"""
CONVOLUTIONS = (F.conv1d, F.conv2d, F.conv3d)
WINDOWS = 1 << 17
"""Numbers that all points see, beside one another, up to which they are multiplied as a matrix."""


class DirectConvolution(Form):
    """The kernel is made once at all lags, and torch convolves with it: O(N²·d) per channel."""

    word = Exact
    name = "direct convolution"
    reason = (
        "the kernel depends on the displacement alone, and on few points a transform costs more "
        "than the products"
    )

    def refuses(self, kernel: Kernel, facts: Facts) -> str | None:
        layout, options = facts.layout, self.strategy
        grid = layout.grid
        if grid is None or layout.pairs or (layout.causal and len(grid) > 1):
            return "it needs a regular grid without pairs; an order on one axis"
        if len(grid) > len(CONVOLUTIONS) or getattr(options, "memory", None) is not None:
            return "torch convolves on up to three axes, with memory of its own"
        return None if isinstance(kernel, LagFeatures) else "it needs LagFeatures"

    def preferred(self, kernel: Kernel, facts: Facts) -> bool:
        grid = facts.layout.grid
        if facts.tracing or facts.device != "cpu" or grid is None:
            return False
        lags = prod(n if facts.layout.causal else 2 * n - 1 for n in grid)
        return facts.batch * facts.keys * lags <= FEW

    def respond(self, kernel: LagFeatures, problem: Problem) -> Tensor:
        q, u, (grid, causal) = problem.quadrature, problem.uy, _order(problem)
        dtype, lags = at_least_single(u.dtype), _lags(problem, longest_first=True)
        windows = len(grid) == 1 and kernel.heads > 1 and _windows(u, len(lags))
        blur = getattr(kernel, "blur", None)  # which may be changed between calls
        name = ("rows" if windows else "taps", grid, causal, dtype, blur)
        with full_precision(u):
            make = lambda: (_rows if windows else _taps)(kernel, problem, lags, dtype)  # noqa: E731
            taps = prepared(kernel, name, make, of=(lags,))
            through = _by_windows if windows else _by_convolution
            out = through(cast(weighed(u, q.mass), taps.dtype), taps, grid, causal)
        return finished(out, kernel, problem)


def _by_convolution(signal: Tensor, taps: Tensor, grid: tuple[int, ...], causal: bool) -> Tensor:
    """Signal (B, H, N, d_in) and taps (H·d_out, d_in, *lags) to (B, H, N, d_out), by torch."""
    b, heads, n, d = signal.shape
    # a causal convolution sees nothing after a point
    around = [k - 1 for n in reversed(grid) for k in (n, 1 if causal else n)]
    padded = F.pad(signal.mT.reshape(b, heads * d, *grid), around)
    out = CONVOLUTIONS[len(grid) - 1](padded, taps, groups=heads)
    return out.view(b, heads, out.shape[1] // heads, n).mT


def direct_convolution(
    signal: Float[Tensor, "b h n i"],
    hidden: Float[Tensor, "l w"],
    readout: Float[Tensor, "h o i w"],
    grid: Sequence[int],
    causal: bool,
) -> Float[Tensor, "b h n o"]:
    """:func:`grid_convolution` without transforms: the kernel at all lags, convolved by torch.
    O(N²).
    """
    heads, d_out, d_in, width = readout.shape
    lags = [n if causal else 2 * n - 1 for n in grid]
    taps = readout.reshape(-1, width) @ hidden.flip(0).mT
    return _by_convolution(signal, taps.reshape(heads * d_out, d_in, *lags), tuple(grid), causal)


def _windows(u: Tensor, lags: int) -> bool:
    """Whether the points that each output sees are laid out side by side, for one matrix product
    per head: where nothing but values is wanted, torch takes longer to plan a grouped convolution.
    """
    return 0 < u.numel() * lags <= WINDOWS and values_alone((u,))


def _by_windows(signal: Tensor, rows: Tensor, grid: tuple[int, ...], causal: bool) -> Tensor:
    """The same on a line from taps (H, d_out, lags·d_in)."""
    b, heads, n, d = signal.shape
    padded = torch.constant_pad_nd(signal, (0, 0, n - 1, 0 if causal else n - 1))
    points = padded.shape[2]
    # point i of a head begins i·d numbers into it, and what it sees lies behind in one run
    strides = (heads * points * d, points * d, d, 1)
    seen = padded.as_strided((b, heads, n, rows.shape[2]), strides)
    return torch.matmul(rows, seen.contiguous().mT).mT


def _rows(kernel: LagFeatures, problem: Problem, lags: Tensor, dtype: torch.dtype) -> Tensor:
    """κ at all lags of a line, the longest first: (H, d_out, lags·d_in)."""
    taps = _taps(kernel, problem, lags, dtype)
    return taps.mT.reshape(kernel.heads, taps.shape[0] // kernel.heads, -1)


def _taps(kernel: LagFeatures, problem: Problem, lags: Tensor, dtype: torch.dtype) -> Tensor:
    """κ at all lags as torch's convolutions take it, the longest first: (H·d_out, d_in, *lags)."""
    (grid, causal), (readout, bias) = _order(problem), kernel.readout()
    hidden = kernel.lag_features(lags)
    dtype = promoted(hidden.dtype, dtype)
    heads, d_out, d_in, width = readout.shape
    weight, rows = cast(readout, dtype).reshape(-1, width), cast(hidden, dtype).mT
    taps = (
        weight @ rows if bias is None else torch.addmm(cast(bias, dtype).view(-1, 1), weight, rows)
    )
    return taps.view(heads * d_out, d_in, *(n if causal else 2 * n - 1 for n in grid))


class HiddenConvolution(Form):
    """The hidden units are functions of the displacement: O(N log N) per hidden unit and channel.

    Padded with zeros to twice the grid, so that nothing wraps around.
    """

    word = FFT
    name = "FFT convolution, hidden units first"
    reason = "the hidden units depend on the displacement alone, and the points form a regular grid"
    triton = True

    def refuses(self, kernel: Kernel, facts: Facts) -> str | None:
        layout = facts.layout
        grid = layout.grid
        ordered = layout.causal and grid is not None and len(grid) > 1
        if grid is None or layout.pairs or ordered:
            return f"it needs {FFT.needs}; use {FFT.instead} instead"
        return None if isinstance(kernel, LagFeatures) else "it needs LagFeatures"

    def respond(self, kernel: LagFeatures, problem: Problem) -> Tensor:
        options: Any = self.strategy
        q, (grid, causal) = problem.quadrature, _order(problem)
        hidden = kernel.lag_features(_lags(problem))
        readout, bias = kernel.readout()
        signal = weighed(problem.uy, q.mass)
        kept = answering(kernel) and not wants_triton(options.backend) and _small(readout, grid)
        if kept and signal.numel():
            dtype = _dtype(signal, hidden)

            def make() -> Tensor:
                units, weight = with_bias(hidden, readout, bias)
                return spectrum_of(units.to(dtype), weight.to(dtype), grid, causal)

            given = (hidden, readout) if bias is None else (hidden, readout, bias)
            with full_precision(signal):
                spectrum = prepared(kernel, ("spectrum", grid, causal, dtype), make, of=given)
                out = convolve_with(signal.to(dtype), spectrum, grid, causal)
        else:
            hidden, readout = with_bias(hidden, readout, bias)
            out = grid_convolution(
                signal, hidden, readout, grid, causal=causal, backend=options.backend
            )
        return finished(out, kernel, problem)


def _order(problem: Problem) -> tuple[tuple[int, ...], bool]:
    """The extents of a problem's grid, and whether it is causal."""
    grid = problem.layout.grid
    assert grid is not None
    return grid, problem.layout.causal


def _lags(problem: Problem, *, longest_first: bool = False) -> Tensor:
    """Displacements of a grid, in causal order those to the past alone; in row-major order, or that
    of a convolution's taps.
    """
    grid, causal = _order(problem)

    def make() -> Tensor:
        displacements, _ = problem.displacements()
        lags = displacements[grid[0] - 1 :] if causal else displacements
        return lags.flip(0) if longest_first else lags

    if problem.domain is None:
        return make()
    return problem.domain.kept(("lags", causal, longest_first, problem.x.dtype), make)


def finished(out: Tensor, kernel: Kernel, problem: Problem) -> Tensor:
    """An integral with the queries' scale and the kernel's offset."""
    scale = problem.quadrature.scale
    if scale is not None:
        out = out * cast(scale, out.dtype)[..., None]
    return with_offset(out, kernel, problem)


def with_bias(hidden: Tensor, readout: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor]:
    """The readout's bias as one more hidden unit, which is constant."""
    if bias is None:
        return hidden, readout
    hidden = torch.cat([hidden, torch.ones_like(hidden[:, :1])], -1)
    return hidden, torch.cat([readout, bias[..., None]], -1)


def _small(readout: Tensor, grid: tuple[int, ...]) -> bool:
    """Whether the spectrum of the whole kernel may be kept."""
    return readout[..., 0].numel() * prod(2 * n for n in grid) <= KEPT


def _dtype(signal: Tensor, hidden: Tensor) -> torch.dtype:
    return torch.promote_types(torch.promote_types(signal.dtype, hidden.dtype), torch.float32)


@checkable(CONVOLUTION)
def grid_convolution(
    signal: Float[Tensor, "b h n i"],
    hidden: Float[Tensor, "l w"],
    readout: Float[Tensor, "h o i w"],
    grid: tuple[int, ...],
    *,
    causal: bool = False,
    backend: str = "auto",
) -> Float[Tensor, "b h n o"]:
    r""":math:`out_x = \sum_y \kappa(x - y)\,u_y` on a grid, with
    :math:`\kappa(\delta) = \sum_k R_k\,h_k(\delta)`.

    The readout is linear, so that :math:`\hat\kappa = \sum_k R_k \hat h_k`: w transforms of hidden
    units instead of d_out·d_in of kernel entries, and one real matrix product. Zero-padded to 2n or
    more per axis: what wraps around lands outside the part that is kept. The kernel's spectrum is
    made a block of frequencies at a time, and again in the backward.

    Args:
        signal: u times its masses, points of the grid in row-major order.
        hidden: h at the displacements, (L, w), row-major: from 1 - n to n - 1 an axis, or from 0 to
            n - 1 where ``causal``.
        readout: R.
        grid: extents n of the axes; their product is N.
        causal: lags of a causal line only.
        backend: see :mod:`fredholm.ops.backend`. ``"triton"`` fuses the kernel's spectrum and the
            product at each frequency, so that the former is never in memory.

    Cost: O((w + B(d_in + d_out)) N log N + (w + B) d_in d_out N) time; memory O((w + B(d_in +
    d_out)) N), in second derivatives that of the kernel's whole spectrum.

    Raises:
        BackendError: a requested backend that cannot run.
        ShapeError: numbers of points or lags that do not fit the grid, or a causal grid of several
            axes.

    Reference: CKConv §4.1, evaluated hidden units first.

    Example:
        >>> u, h = torch.tensor([1.0, 0.0, 2.0]), torch.tensor([[1.0], [10.0], [100.0]])
        >>> readout = torch.ones(1, 1, 1, 1)
        >>> out = grid_convolution(u.view(1, 1, 3, 1), h, readout, (3,), causal=True)
        >>> out.flatten().round().tolist()
        [1.0, 10.0, 102.0]
    """
    _check(signal, hidden, grid, causal)
    dtype = _dtype(signal, hidden)

    def refusal() -> str | None:
        return spectrum_refusal(dtype, hidden, readout)

    chosen = choose_backend(backend, CONVOLUTION, signal.device, refusal)
    with full_precision(signal):
        if chosen == "triton":
            from ..triton.op import grid_convolution_triton

            return grid_convolution_triton(
                signal.to(dtype), hidden.to(dtype), readout.to(dtype), list(grid), causal
            )
        return grid_convolution_op(
            signal.to(dtype), hidden.to(dtype), readout.to(dtype), list(grid), causal
        )


def _check(signal: Tensor, hidden: Tensor, grid: tuple[int, ...], causal: bool) -> None:
    points, lags = 1, 1
    for n in grid:
        points, lags = points * n, lags * (n if causal else 2 * n - 1)
    if causal and len(grid) != 1:
        raise ShapeError(f"lags of a causal grid are ordered on one axis only, got the grid {grid}")
    if signal.shape[2] != points or hidden.shape[0] != lags:
        got = f"{signal.shape[2]} points and {hidden.shape[0]} lags"
        raise ShapeError(f"the grid {grid} has {points} points and {lags} displacements, got {got}")
