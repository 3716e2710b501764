"""Convolution: K(x, y) = Σ_t w_t [y = x + h (t d - p)], a stencil of taps on a regular grid.

The kernel, then the converters of ``torch.nn.Conv1d`` to ``Conv3d`` and of ``ConvTranspose1d`` to
``ConvTranspose3d``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..errors import OptionError
from ..integral import (
    CausalTransition,
    IntegralOperator,
    LatticeKernel,
    Layout,
    OwnForm,
    Point,
    Problem,
    with_offset,
)
from ..integral.bases import OWN_FIRST
from ..integral.conversion import refuse, register_converter
from ..integral.lattice import call_on_grid, read_grid, summed, write_points
from ..integral.sharing import own_parameter
from ..integral.window import Window
from ..ops.backend import at_least_single, cast, full_precision
from .parts import bias_offset, bind, by_axes, for_batch_of, own_bias

CONVOLVE = {2: F.conv2d, 3: F.conv3d}
SCATTER = {2: F.conv_transpose2d, 3: F.conv_transpose3d}


class Axis(NamedTuple):
    """Letters of one axis of a grid in an einsum: its taps and its keys."""

    tap: str
    key: str


AXES = (Axis("a", "m"), Axis("b", "n"), Axis("c", "p"))


class Reads(NamedTuple):
    """Arguments of torch's convolution, read off the windows of an image once.

    torch's convolution pads both ends of an axis with the same number of zeros. Any other padding
    is a separate step before it, by :func:`torch.nn.functional.pad`.

    Attributes:
        stride, dilation, padding: of each axis, in grid points; ``padding`` is 0 where the separate
            step pads.
        ends: of the separate step, the numbers of points (before, after) of each axis, the last
            axis first, as ``pad`` takes them; None if there is no such step.
        mode: of the separate step, by ``pad``'s name; ``constant`` pads with zeros.
    """

    stride: tuple[int, ...]
    dilation: tuple[int, ...]
    padding: tuple[int, ...]
    ends: list[int] | None
    mode: str

    @classmethod
    def of(cls, windows: tuple[Window, ...]) -> Reads:
        """Return the arguments for an image with one window per axis."""
        stride = tuple(w.stride for w in windows)
        dilation = tuple(w.dilation for w in windows)
        padding = tuple(w.before for w in windows)
        ends = None
        # All axes of a stencil have one mode. The first window may lack it: a line becomes an image
        # of one row, and a distributed grid has padded its first axis already.
        mode = windows[-1].mode
        if mode != "zeros" or any(w.before != w.after for w in windows):
            ends = []
            for window in reversed(windows):
                ends += [window.before, window.after]
            padding = (0,) * len(windows)
        if mode == "zeros":
            mode = "constant"
        return cls(stride, dilation, padding, ends, mode)

    def convolve(
        self,
        image: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        heads: int,
    ) -> Tensor:
        """Return torch's convolution of (B, C, *grid)."""
        if self.ends is not None:
            image = F.pad(image, self.ends, self.mode)
        convolve = CONVOLVE[len(self.stride)]
        return convolve(
            image,
            weight,
            bias,
            self.stride,
            self.padding,
            self.dilation,
            heads,
        )


class StencilKernel(LatticeKernel, OwnForm, CausalTransition):
    r"""Taps on a regular grid of spacing h: :math:`K(x, y) = \sum_t w_t\,[y = x + h\,(t d - p)]`,
    under a mass of one per point.

    torch cross-correlates, so that the kernel at displacement :math:`\delta = (x - y)/h` is the
    weight at the centre minus δ. With a stride queries are a sub-grid, x = s q; a transposed
    stencil exchanges the roles of x and y. Padding other than zeros reads a real point instead, and
    K sums all taps that read the same point.

    On a causal line the output at a point is the one with the point's index, and taps that would
    read ahead are hidden: a layer padded by d (k - 1) has all taps in the past, and its operator
    omits the outputs after the last point.

    Args:
        weight: taps as torch stores them, ``(out, in / heads, *taps)``, or
            ``(in, out / heads, *taps)`` where ``transposed``.
        bias: (out,) or None.
        heads: number of groups; each reads and writes a slice of the channels.
        stride, dilation: s and d, one number, or one per axis.
        padding: p: one number, or one per axis, or (before, after) per axis. A transposed stencil
            cuts as many outputs.
        padding_mode: ``"zeros"``, ``"reflect"``, ``"replicate"`` or ``"circular"``.
        transposed: keys write taps instead of queries reading them.
        output_padding: outputs that a transposed stencil keeps at the far end, one number, or one
            per axis.

    Shape: u (B, N, in) with N points of the grid in row-major order to (B, M, out), M points of the
    output grid.

    Cost: that of the layer in the fast form; the definition is O(Nq·Nk·d_out·d_in).

    Raises:
        OptionError: sizes that do not fit.
        DomainError: no regular grid with the stencil's number of axes, or one that the padding does
            not fit; a causal grid of several axes, with stride, pairs or other padding than zeros.

    Reference: ITNet Theorem 1, Appendix C.

    Example:
        >>> from fredholm.operators import IntegralOperator
        >>> kernel = StencilKernel(torch.tensor([[[1.0, -2.0, 1.0]]]), padding=1)
        >>> op = IntegralOperator(1, kernel=kernel, residual=False, projection=False)
        >>> op.kernel_matrix(torch.zeros(1, 4, 1)).squeeze().tolist()[1]
        [1.0, -2.0, 1.0, 0.0]
    """

    ordered = True
    counts_padding = True  # taps count the grid's points, padding among them
    forms = OWN_FIRST

    def __init__(
        self,
        weight: Tensor,
        bias: Tensor | None = None,
        *,
        heads: int = 1,
        stride: int | Sequence[int] = 1,
        dilation: int | Sequence[int] = 1,
        padding: int | Sequence[int] | Sequence[tuple[int, int]] = 0,
        padding_mode: str = "zeros",
        transposed: bool = False,
        output_padding: int | Sequence[int] = 0,
    ):
        taps = tuple(weight.shape[2:])
        strides = _each(stride, len(taps))
        dilations = _each(dilation, len(taps))
        spare = _each(output_padding, len(taps))
        _check_transposed(transposed, padding_mode, spare)
        if any(o >= max(s, d) for o, s, d in zip(spare, strides, dilations)):
            raise OptionError(f"output_padding: expected less than stride or dilation, got {spare}")

        windows = []
        ends_of_axes = _each(padding, len(taps))
        for k, s, d, ends, o in zip(taps, strides, dilations, ends_of_axes, spare):
            if isinstance(ends, int):
                ends = (ends, ends)
            before, after = ends
            window = Window(
                k,
                s,
                d,
                before,
                after - o,
                padding_mode,
                transposed,
            )
            windows.append(window)

        channels = weight.shape[0]
        if channels % heads:
            raise OptionError(
                f"heads: expected a divisor of the {channels} channels, got {heads}, which does "
                "not divide them"
            )
        d_out = channels // heads
        d_in = weight.shape[1]
        if transposed:
            d_out, d_in = d_in, d_out
        if bias is not None and bias.shape != (heads * d_out,):
            raise OptionError(f"bias: expected shape ({heads * d_out},), got {tuple(bias.shape)}")
        super().__init__(heads, d_in, d_out, tuple(windows))
        self.weight = own_parameter(weight)
        self.bias = own_bias(bias)
        self.transposed = transposed
        self.reads = Reads.of(self.image_windows)

    def taps(self) -> Tensor:
        """Return the weights as (H, d_out, d_in, *taps)."""
        grouped = self.weight.unflatten(0, (self.heads, -1))
        if self.transposed:
            return grouped.transpose(1, 2)
        return grouped

    # --- the definition ---------------------------------------------------------------------------

    def matrix(self, problem: Problem) -> Tensor:
        keys = problem.layout.keys or ()
        taps = self.taps()
        # Along each axis: whether query r reads key k by tap t, (R, K, T).
        factors = []
        for window, outputs, n in zip(self.windows, self.outputs(problem), keys):
            incidence = window.incidence(outputs, n, taps.dtype)
            factors.append(incidence)

        # In two dimensions "hoiab,rma,rnb->hrmnoi".
        axes = AXES[: len(keys)]
        all_taps = "".join(axis.tap for axis in axes)
        all_keys = "".join(axis.key for axis in axes)
        reads = ",".join(f"r{axis.key}{axis.tap}" for axis in axes)
        formula = f"hoi{all_taps},{reads}->hr{all_keys}oi"
        dense = torch.einsum(formula, taps, *factors)
        # All axes of keys as one.
        dense = dense.flatten(2, 1 + len(keys))
        return for_batch_of(problem, dense[None])

    def offset(self, problem: Problem) -> Tensor | None:
        return bias_offset(self.bias, self)

    # --- as torch computes it ---------------------------------------------------------------------

    def evaluates(self, layout: Layout) -> bool:
        return not layout.pairs

    def evaluate(self, problem: Problem) -> Tensor:
        image = read_grid(problem)
        weight, bias = self.image_taps(problem, image.dtype)
        with summed(problem):
            if self.transposed:
                out = self._scatter(image, weight, bias)
            else:
                out = self.reads.convolve(image, weight, bias, self.heads)
        out = write_points(out, self.heads)
        if problem.layout.causal:
            points = problem.uy.shape[2]
            out = out[:, :, :points]
        return self.scaled(out, problem)

    def image_taps(
        self,
        problem: Problem,
        dtype: torch.dtype,
    ) -> tuple[Tensor, Tensor | None]:
        """Return the taps of an image of a dtype, and the bias where no scale comes between."""
        weight = self.weight
        if problem.layout.causal:
            # Taps that read ahead weigh nothing.
            is_past = [away <= 0 for away in self.windows[0].offsets]
            past = torch.tensor(is_past, device=weight.device)
            weight = weight * past.to(weight.dtype)
        if len(self.windows) == 1:
            # A line is an image of one row.
            weight = weight.unsqueeze(2)
        weight = cast(weight, dtype)
        if self.bias is None or problem.quadrature.scale is not None:
            return weight, None
        return weight, cast(self.bias, dtype)

    def scaled(self, out: Tensor, problem: Problem) -> Tensor:
        """Return the sums ``out`` times the queries' scale, and the bias that had to wait for
        it.
        """
        q = problem.quadrature
        if q.scale is None:
            return out
        return with_offset(q.scaled(out), self, problem)

    def _scatter(self, image: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """Return torch's transposed convolution of (B, C, *grid)."""
        windows = self.image_windows
        stride = [w.stride for w in windows]
        dilation = [w.dilation for w in windows]
        cut = [w.before for w in windows]
        # Outputs kept at the end beyond those that torch cuts like the ones at the start.
        spare = [w.before - w.after for w in windows]
        more = [max(0, s) for s in spare]
        scatter = SCATTER[len(windows)]
        out = scatter(
            image,
            weight,
            bias,
            stride,
            cut,
            more,
            self.heads,
            dilation,
        )
        if min(spare) < 0:
            # torch cuts no more outputs at the end than at the start.
            extents = out.shape[2:]
            kept = []
            for n, s in zip(extents, spare):
                kept.append(slice(0, n + min(0, s)))
            out = out[(..., *kept)]
        return out

    # --- one point at a time ----------------------------------------------------------------------

    def start(self, u: Tensor) -> dict[str, Tensor]:
        """Return the inputs, times their masses, that the next outputs may read:
        (B, H, d_in, lags).
        """
        lags = [-away for away in self.windows[0].offsets]
        longest = max(0, *lags)
        past = u.new_zeros(*u.shape, longest, dtype=at_least_single(u.dtype))
        return {"past": past}

    def advance(
        self,
        point: Point,
        memory: dict[str, Tensor],
    ) -> tuple[Tensor, dict[str, Tensor]]:
        now = point.weighed()[..., None]
        seen = torch.cat([memory["past"], now], -1)
        last = seen.shape[-1] - 1
        # Taps in the past, and the inputs that they read.
        offsets = self.windows[0].offsets
        taps = [t for t, away in enumerate(offsets) if away <= 0]
        places = [last + offsets[t] for t in taps]
        read_places = torch.tensor(places, device=seen.device)
        read = seen.index_select(-1, read_places)
        weight = cast(self.taps(), read.dtype)
        read_taps = torch.tensor(taps, device=seen.device)
        weight = weight.index_select(-1, read_taps)
        with full_precision(read):
            out = torch.einsum("hoit,bhit->bho", weight, read)
            out = point.scaled(out)
        if self.bias is not None:
            bias = self.bias.view(1, self.heads, self.d_out)
            out = out + bias
        return out, {"past": seen[..., 1:]}

    def extra_repr(self) -> str:
        parts = [super().extra_repr()]
        for name in ("taps", "stride", "dilation"):
            values = tuple(getattr(window, name) for window in self.windows)
            parts.append(f"{name}={values}")
        return f"{', '.join(parts)}, padding_mode={self.windows[0].mode!r}"


def _check_transposed(
    transposed: bool,
    padding_mode: str,
    output_padding: tuple,
) -> None:
    if transposed and padding_mode != "zeros":
        raise OptionError(
            "padding_mode: expected 'zeros' for a transposed stencil, which cuts outputs, got "
            f"{padding_mode!r}"
        )
    if not transposed and any(output_padding):
        raise OptionError(
            f"output_padding: expected 0 unless transposed=True, got {output_padding}"
        )


def _each(value: Any, axes: int) -> tuple:
    """Return one value per axis."""
    if isinstance(value, int):
        return (value,) * axes
    if len(value) != axes:
        raise OptionError(f"expected one value, or {axes} for {axes} axes, got {tuple(value)}")
    return tuple(value)


@register_converter(*by_axes("torch.nn.modules.conv.Conv"), call=call_on_grid)
def convolution(module: nn.Conv1d | nn.Conv2d | nn.Conv3d) -> IntegralOperator:
    """Convert a convolution with any channels, groups, stride, dilation and padding; heads are its
    groups.

    Its default domain is the line with a mass of one per point; on a grid pass ``Domain.grid(h, w,
    measure="counting")``.
    """
    _check(module)
    padding = module.padding
    if padding == "same":
        reach = [d * (k - 1) for d, k in zip(module.dilation, module.kernel_size)]
        # An odd reach pads one more point at the end.
        padding = []
        for r in reach:
            padding.append((r // 2, r - r // 2))
    elif padding == "valid":
        padding = 0
    kernel = StencilKernel(
        module.weight,
        module.bias,
        heads=module.groups,
        stride=module.stride,
        dilation=module.dilation,
        padding=padding,  # type: ignore[arg-type]
        padding_mode=module.padding_mode,
    )
    return bind(kernel)


@register_converter(*by_axes("torch.nn.modules.conv.ConvTranspose"), call=call_on_grid)
def transposed_convolution(
    module: nn.ConvTranspose1d | nn.ConvTranspose2d | nn.ConvTranspose3d,
) -> IntegralOperator:
    """Convert a transposed convolution; its output lives on the finer grid.

    ``output_size`` at a call has no counterpart here: set ``output_padding``.
    """
    _check(module)
    kernel = StencilKernel(
        module.weight,
        module.bias,
        heads=module.groups,
        stride=module.stride,
        dilation=module.dilation,
        padding=module.padding,  # type: ignore[arg-type]
        transposed=True,
        output_padding=module.output_padding,
    )
    return bind(kernel)


def _check(module: nn.modules.conv._ConvNd) -> None:
    if not module.weight.is_floating_point():
        raise refuse(module, f"dtype={module.weight.dtype}", "real floating point")
