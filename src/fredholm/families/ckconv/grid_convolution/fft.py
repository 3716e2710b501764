"""Convolution on a regular grid: by FFT with hidden units before the readout, the form and its op;
and directly, for few points.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from ....errors import ShapeError
from ....integral import FFT, Exact, Facts, Form, Kernel, Problem, answering, prepared, with_offset
from ....integral.features import weighed
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
from .registration import convolve_with, grid_convolution_op, lags_of_axes, spectrum_of

CONVOLUTION = "the convolution"
"""The op's name in messages."""
KEPT = 1 << 24
"""Numbers of a kernel's spectrum up to which it is kept between calls."""

FEW = 1 << 14
"""Samples times points times lags up to which the products cost less than the transforms, on a
processor: ``python -m evidence time small tune``.
"""
CONVOLUTIONS = (F.conv1d, F.conv2d, F.conv3d)
WINDOWS = 1 << 17
"""Numbers in the windows of all points up to which they are copied side by side and multiplied as a
matrix (docs/log.md, 2026-11-23, "F.conv1d with groups on few points").
"""


class DirectConvolution(Form):
    """Convolution by torch with the kernel at all lags: O(N²·d) per channel."""

    word = Exact
    strategy: Exact
    name = "direct convolution"
    reason = (
        "the kernel depends on the displacement alone, and on few points a transform costs more "
        "than the products"
    )

    def refuses(self, kernel: Kernel, facts: Facts) -> str | None:
        layout = facts.layout
        grid = layout.grid
        if grid is None or layout.pairs or (layout.causal and len(grid) > 1):
            return "it needs a regular grid without pairs; an order on one axis"
        if len(grid) > len(CONVOLUTIONS) or self.strategy.memory is not None:
            return "torch convolves on up to three axes, with memory of its own"
        if not isinstance(kernel, LagFeatures):
            return "it needs LagFeatures"
        return None

    def preferred(self, kernel: Kernel, facts: Facts) -> bool:
        grid = facts.layout.grid
        if facts.tracing or facts.device != "cpu" or grid is None:
            return False
        lags = prod(lags_of_axes(grid, facts.layout.causal))
        return facts.batch * facts.keys * lags <= FEW

    def respond(self, kernel: LagFeatures, problem: Problem) -> Tensor:
        """Return ∫ K u dμ on the grid, (B, H, N, d_out), in float32 or better.

        The masses are multiplied into the signal before the convolution, and the queries' scale
        into its result.
        """
        u = problem.uy
        grid, causal = _order(problem)
        dtype = at_least_single(u.dtype)
        lags = _lags(problem, longest_first=True)

        # Several heads are a grouped convolution for torch, which is slow to plan on few points.
        # There, on a line and without gradients, the windows are copied and multiplied instead. The
        # two take the taps in different layouts, (H, d_out, L·d_in) and (H·d_out, d_in, *lags).
        on_a_line = len(grid) == 1 and kernel.heads > 1
        if on_a_line and _windows(u, len(lags)):
            layout = "rows"
            make_taps = _rows
            convolve = _by_windows
        else:
            layout = "taps"
            make_taps = _taps
            convolve = _by_convolution

        # `prepared` caches the taps under this name while a model only answers. A kernel's blur may
        # change between calls and changes its taps, so it is part of the name.
        blur = getattr(kernel, "blur", None)
        name = (layout, grid, causal, dtype, blur)

        def make() -> Tensor:
            return make_taps(kernel, problem, lags, dtype)

        with full_precision(u):
            taps = prepared(kernel, name, make, of=(lags,))
            massive = weighed(u, problem.quadrature.mass)
            signal = cast(massive, taps.dtype)
            out = convolve(signal, taps, grid, causal)
        return finished(out, kernel, problem)


def _by_convolution(
    signal: Tensor,
    taps: Tensor,
    grid: tuple[int, ...],
    causal: bool,
) -> Tensor:
    """Return the convolution by torch, (B, H, N, d_out).

    Args:
        signal: (B, H, N, d_in).
        taps: (H·d_out, d_in, *lags), the longest lag first.
        grid, causal: see :func:`grid_convolution`.
    """
    b, heads, n, d = signal.shape

    # n - 1 points before and after each axis, from the last axis to the first. A causal convolution
    # sees nothing after a point.
    around = []
    for extent in reversed(grid):
        before = after = extent - 1
        if causal:
            after = 0
        around += [before, after]
    on_grid = signal.mT.reshape(b, heads * d, *grid)
    padded = F.pad(on_grid, around)

    convolve = CONVOLUTIONS[len(grid) - 1]
    out = convolve(padded, taps, groups=heads)
    d_out = out.shape[1] // heads
    return out.view(b, heads, d_out, n).mT


def direct_convolution(
    signal: Float[Tensor, "b h n i"],
    hidden: Float[Tensor, "l w"],
    readout: Float[Tensor, "h o i w"],
    grid: Sequence[int],
    causal: bool,
) -> Float[Tensor, "b h n o"]:
    """Return :func:`grid_convolution` without transforms, by torch with the kernel at all lags.

    Args:
        signal, hidden, readout, grid, causal: see :func:`grid_convolution`.

    Cost: O(N²·d_out·d_in) per head.

    Example:
        >>> u, h = torch.tensor([1.0, 0.0, 2.0]), torch.tensor([[1.0], [10.0], [100.0]])
        >>> readout = torch.ones(1, 1, 1, 1)
        >>> direct_convolution(u.view(1, 1, 3, 1), h, readout, (3,), True).flatten().tolist()
        [1.0, 10.0, 102.0]
    """
    heads, d_out, d_in, width = readout.shape
    longest_first = hidden.flip(0)
    lags = lags_of_axes(grid, causal)
    taps = readout.reshape(-1, width) @ longest_first.mT
    taps = taps.reshape(heads * d_out, d_in, *lags)
    return _by_convolution(signal, taps, tuple(grid), causal)


def _windows(u: Tensor, lags: int) -> bool:
    """Return whether the window of each output is copied, for one matrix product per head.

    On small problems torch takes longer to plan a grouped convolution. For values alone: the copies
    would be saved for a backward.
    """
    return 0 < u.numel() * lags <= WINDOWS and values_alone((u,))


def _by_windows(
    signal: Tensor,
    rows: Tensor,
    grid: tuple[int, ...],
    causal: bool,
) -> Tensor:
    """Return the convolution on a line by windows, (B, H, N, d_out).

    Args:
        signal: (B, H, N, d_in).
        rows: taps (H, d_out, lags·d_in), the longest lag first.
        grid, causal: see :func:`grid_convolution`.
    """
    b, heads, n, d = signal.shape
    before = after = n - 1
    if causal:
        after = 0
    padded = torch.constant_pad_nd(signal, (0, 0, before, after))

    # The window of point i begins i·d numbers into its head, and lies behind that in one run.
    points = padded.shape[2]
    strides = (heads * points * d, points * d, d, 1)
    shape = (b, heads, n, rows.shape[2])
    windows = padded.as_strided(shape, strides)
    out = torch.matmul(rows, windows.contiguous().mT)
    return out.mT


def _rows(
    kernel: LagFeatures,
    problem: Problem,
    lags: Tensor,
    dtype: torch.dtype,
) -> Tensor:
    """Return κ at all lags of a line, the longest first: (H, d_out, lags·d_in)."""
    taps = _taps(kernel, problem, lags, dtype)
    d_out = taps.shape[0] // kernel.heads
    return taps.mT.reshape(kernel.heads, d_out, -1)


def _taps(
    kernel: LagFeatures,
    problem: Problem,
    lags: Tensor,
    dtype: torch.dtype,
) -> Tensor:
    """Return κ at all lags for torch's convolutions, the longest first: (H·d_out, d_in, *lags)."""
    grid, causal = _order(problem)
    readout, bias = kernel.readout()
    hidden = kernel.lag_features(lags)
    dtype = promoted(hidden.dtype, dtype)

    # κ = R h + R₀ at all lags, one product (H·d_out·d_in, w) @ (w, L).
    heads, d_out, d_in, width = readout.shape
    weight = cast(readout, dtype).reshape(-1, width)
    units = cast(hidden, dtype).mT
    if bias is None:
        taps = weight @ units
    else:
        bias = cast(bias, dtype).view(-1, 1)
        taps = torch.addmm(bias, weight, units)
    lags_per_axis = lags_of_axes(grid, causal)
    return taps.view(heads * d_out, d_in, *lags_per_axis)


class HiddenConvolution(Form):
    """Convolution by FFT with hidden units, functions of the displacement, before the readout.

    O(N log N) per hidden unit and channel. The grid is padded with zeros to twice its extents, so
    that nothing wraps around.
    """

    word = FFT
    strategy: FFT
    name = "FFT convolution, hidden units first"
    reason = "the hidden units depend on the displacement alone, and the points form a regular grid"
    triton = True

    def refuses(self, kernel: Kernel, facts: Facts) -> str | None:
        layout = facts.layout
        grid = layout.grid
        ordered = layout.causal and grid is not None and len(grid) > 1
        if grid is None or layout.pairs or ordered:
            return f"it needs {FFT.needs}; use {FFT.instead} instead"
        if not isinstance(kernel, LagFeatures):
            return "it needs LagFeatures"
        return None

    def respond(self, kernel: LagFeatures, problem: Problem) -> Tensor:
        backend = self.strategy.backend
        grid, causal = _order(problem)
        lags = _lags(problem)
        hidden = kernel.lag_features(lags)
        readout, bias = kernel.readout()
        signal = weighed(problem.uy, problem.quadrature.mass)

        # A model that only answers keeps its spectrum, which is then one transform less per unit.
        # Its size is looked at last: in a traced program the comparison would bound the grid.
        answers = answering(kernel) and not wants_triton(backend)
        keeps_spectrum = answers and _small(readout, grid)
        if keeps_spectrum and signal.numel():
            out = _with_kept_spectrum(kernel, problem, signal, hidden)
        else:
            hidden, readout = with_bias(hidden, readout, bias)
            out = grid_convolution(
                signal,
                hidden,
                readout,
                grid,
                causal=causal,
                backend=backend,
            )
        return finished(out, kernel, problem)


def _with_kept_spectrum(
    kernel: LagFeatures,
    problem: Problem,
    signal: Tensor,
    hidden: Tensor,
) -> Tensor:
    """Return the convolution with a spectrum that is made once for as long as weights stay."""
    grid, causal = _order(problem)
    readout, bias = kernel.readout()
    dtype = _dtype(signal, hidden)

    def make() -> Tensor:
        units, weight = with_bias(hidden, readout, bias)
        units = units.to(dtype)
        weight = weight.to(dtype)
        return spectrum_of(units, weight, grid, causal)

    made_from = [hidden, readout]
    if bias is not None:
        made_from.append(bias)
    name = ("spectrum", grid, causal, dtype)
    with full_precision(signal):
        spectrum = prepared(kernel, name, make, of=made_from)
        return convolve_with(signal.to(dtype), spectrum, grid, causal)


def _order(problem: Problem) -> tuple[tuple[int, ...], bool]:
    """Return the extents of a problem's grid, and whether it is causal."""
    grid = problem.layout.grid
    assert grid is not None
    return grid, problem.layout.causal


def _lags(problem: Problem, *, longest_first: bool = False) -> Tensor:
    """Return the displacements of a grid (L, p), in causal order only those to the past.

    They are in row-major order, or reversed where a convolution takes the longest lag first. The
    domain keeps them.
    """
    grid, causal = _order(problem)

    def make() -> Tensor:
        lags, _ = problem.displacements()
        # From 1 - n to n - 1: the past has lags from 0 on.
        if causal:
            lags = lags[grid[0] - 1 :]
        if longest_first:
            lags = lags.flip(0)
        return lags

    if problem.domain is None:
        return make()
    name = ("lags", causal, longest_first, problem.x.dtype)
    return problem.domain.kept(name, make)


def finished(out: Tensor, kernel: Kernel, problem: Problem) -> Tensor:
    """Return an integral with the queries' scale and the kernel's offset."""
    q = problem.quadrature
    if q.scale is not None:
        out = q.scaled(out)
    return with_offset(out, kernel, problem)


class UnitsAndReadout(NamedTuple):
    """Hidden units (L, w) of a kernel and their readout (H, d_out, d_in, w)."""

    hidden: Tensor
    readout: Tensor


def with_bias(
    hidden: Tensor,
    readout: Tensor,
    bias: Tensor | None,
) -> UnitsAndReadout:
    """Return hidden units and readout with the bias as one more unit, which is constant."""
    if bias is None:
        return UnitsAndReadout(hidden, readout)
    ones = torch.ones_like(hidden[:, :1])
    return UnitsAndReadout(
        hidden=torch.cat([hidden, ones], -1),
        readout=torch.cat([readout, bias[..., None]], -1),
    )


def _small(readout: Tensor, grid: tuple[int, ...]) -> bool:
    """Return whether the kernel's spectrum at all frequencies may be kept."""
    frequencies = prod(2 * n for n in grid)
    return readout[..., 0].numel() * frequencies <= KEPT


def _dtype(signal: Tensor, hidden: Tensor) -> torch.dtype:
    dtype = torch.promote_types(signal.dtype, hidden.dtype)
    return at_least_single(dtype)


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
    r"""Return a convolution on a regular grid, with a kernel linear in hidden units:

    .. math:: out_x = \sum_y \kappa(x - y)\,u_y, \qquad \kappa(\delta) = \sum_k R_k\,h_k(\delta)

    Since the readout is linear, :math:`\hat\kappa = \sum_k R_k \hat h_k`: w transforms of hidden
    units instead of d_out·d_in of kernel entries, and one real matrix product. Axes are padded with
    zeros to 2n points or more, so that only points outside the result wrap around. The kernel's
    spectrum is made a block of frequencies at a time, and again in the backward.

    Args:
        signal: u times its masses, points of the grid in row-major order.
        hidden: h at the displacements, (L, w), row-major: from 1 - n to n - 1 an axis, or from 0 to
            n - 1 where ``causal``.
        readout: R.
        grid: extents n of the axes; their product is N.
        causal: lags of a causal line only.
        backend: see :mod:`fredholm.ops.backend`. ``"triton"`` fuses the kernel's spectrum and the
            product at each frequency, so that the spectrum is never in memory.

    Cost: O((w + B(d_in + d_out)) N log N + (w + B) d_in d_out N) time; memory O((w + B(d_in +
    d_out)) N), and in second derivatives that of the kernel's spectrum at all frequencies.

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
        signal = signal.to(dtype)
        hidden = hidden.to(dtype)
        readout = readout.to(dtype)
        if chosen == "triton":
            # Imported here, because Triton may not be installed.
            from ..triton.op import grid_convolution_triton

            return grid_convolution_triton(
                signal,
                hidden,
                readout,
                list(grid),
                causal,
            )
        return grid_convolution_op(
            signal,
            hidden,
            readout,
            list(grid),
            causal,
        )


def _check(
    signal: Tensor,
    hidden: Tensor,
    grid: tuple[int, ...],
    causal: bool,
) -> None:
    """Raise ShapeError unless points and lags are those of the grid."""
    if causal and len(grid) != 1:
        raise ShapeError(
            f"expected one axis in causal order, got the grid {grid}; leave the order out"
        )
    points = prod(grid)
    lags = prod(lags_of_axes(grid, causal))
    if signal.shape[2] != points or hidden.shape[0] != lags:
        raise ShapeError(
            f"expected {points} points and {lags} displacements on the grid {grid}, got "
            f"{signal.shape[2]} and {hidden.shape[0]}; give the hidden units at all displacements"
        )
