"""Pooling: averages, K(x, y) = [y in W(x)] / |W(x)|, and maxima, K(x, y; u) = [y = argmax of W(x)].

Three kernels (averages over windows, averages over the parts of an axis, maxima), then the
converters of ``torch.nn.AvgPool1d`` to ``3d``, ``AdaptiveAvgPool1d`` to ``3d`` and ``MaxPool1d`` to
``3d``. They share windows and one way through torch's images, so that they stay in one file.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from ..errors import OptionError
from ..integral import IntegralOperator, LatticeKernel, Layout, OwnForm, Problem
from ..integral.conversion import refuse, register_converter
from ..integral.lattice import call_on_grid, read_grid, write_points
from ..integral.window import Window
from .parts import at_queries, bind, by_axes

AVERAGE = {2: F.avg_pool2d, 3: F.avg_pool3d}
ADAPTIVE = {2: F.adaptive_avg_pool2d, 3: F.adaptive_avg_pool3d}
LARGEST = {2: F.max_pool2d_with_indices, 3: F.max_pool3d_with_indices}
KEYS = "mnp"


@dataclass(frozen=True)
class AdaptiveWindow:
    """Windows that divide n keys into m parts: output q reads the keys from ⌊q n / m⌋ up to, not
    including, ⌈(q + 1) n / m⌉.

    Attributes:
        outputs: m, or None for as many as there are keys.

    Example:
        >>> AdaptiveWindow(2).averages(torch.arange(2), 3, torch.float64).tolist()
        [[0.5, 0.5, 0.0], [0.0, 0.5, 0.5]]
    """

    outputs: int | None

    mode = "zeros"

    @property
    def keeps(self) -> bool:
        return self.outputs is None

    def size(self, n: int) -> int:
        """Return the number of outputs for n keys."""
        if self.outputs is None:
            return n
        return self.outputs

    def centre(self, outputs: Any, n: int) -> Any:
        """Return the middle of the output's part of the line."""
        spacing = n / self.size(n)
        return (outputs + 0.5) * spacing - 0.5

    def refusal(self, n: int) -> str | None:
        return None

    def averages(
        self,
        outputs: Int[Tensor, " r"],
        n: int,
        dtype: torch.dtype,
    ) -> Float[Tensor, "r n"]:
        """Return the weight with which an output reads a key along one axis."""
        m = self.size(n)
        start = (outputs * n).div(m, rounding_mode="floor")
        # The ceiling, as the negative floor of the negative.
        stop = -(-(outputs + 1) * n).div(m, rounding_mode="floor")
        keys = torch.arange(n, device=outputs.device)
        starts_before = start[:, None] <= keys
        stops_after = keys < stop[:, None]
        read = starts_before & stops_after
        count = stop - start
        return read.to(dtype) / count[:, None]


class _Average(LatticeKernel, OwnForm):
    """A weighted mean that is a product over the axes; every channel is a head."""

    def averages(
        self,
        axis: int,
        outputs: Tensor,
        n: int,
        dtype: torch.dtype,
    ) -> Tensor:
        """Return the weight with which an output reads a key along one axis, (R, n)."""
        raise NotImplementedError

    def _pool(self, image: Tensor) -> Tensor:
        """Return the mean by torch, (B, C, *grid)."""
        raise NotImplementedError

    def matrix(self, problem: Problem) -> Tensor:
        keys = problem.layout.keys or ()
        factors = []
        for axis, (outputs, n) in enumerate(zip(self.outputs(problem), keys)):
            averages = self.averages(
                axis,
                outputs,
                n,
                problem.uy.dtype,
            )
            factors.append(averages)

        # In two dimensions "rm,rn->rmn".
        axes = KEYS[: len(keys)]
        reads = ",".join(f"r{axis}" for axis in axes)
        formula = f"{reads}->r{axes}"
        dense = torch.einsum(formula, *factors)
        dense = dense.flatten(1)[:, :, None, None]
        batch = problem.uy.shape[0]
        return dense.expand(batch, self.heads, -1, -1, 1, 1)

    def evaluates(self, layout: Layout) -> bool:
        return not layout.pairs

    def evaluate(self, problem: Problem) -> Tensor:
        pooled = self._pool(read_grid(problem))
        return write_points(pooled, self.heads)


class AveragePoolKernel(_Average):
    r"""Averages over windows: :math:`K(x, y) = [y \in W(x)] / |W(x)|`, under a mass of one per
    point; every channel is a head.

    Args:
        dim: channels.
        windows: one :class:`Window` per axis, of zero padding; a last window may reach over the
            end (``ceil``).
        include_padding: ``|W|`` counts the padding that the window covers.
        divisor: ``|W|`` for every window instead.

    Shape: u (B, N, dim) with N points of the grid in row-major order to (B, M, dim).

    Cost: O(N) times the window; the definition O(N·M).

    Raises:
        DomainError: no regular grid with as many axes as windows, or a causal one.

    Reference: ITNet Appendix C, a stencil with equal taps.

    Example:
        >>> from fredholm.operators import IntegralOperator
        >>> kernel = AveragePoolKernel(1, (Window(2, stride=2),))
        >>> op = IntegralOperator(1, kernel=kernel, residual=False, projection=False)
        >>> op(torch.tensor([[[1.0], [3.0], [5.0], [7.0]]])).flatten().tolist()
        [2.0, 6.0]
    """

    def __init__(
        self,
        dim: int,
        windows: Sequence[Window],
        *,
        include_padding: bool = True,
        divisor: int | None = None,
    ):
        super().__init__(dim, 1, 1, tuple(windows))
        self.include_padding = include_padding
        self.divisor = divisor

    def padding_refusal(self) -> str | None:
        reaches_over = any(w.ceil for w in self.windows)
        if self.divisor is None and (reaches_over or not self.include_padding):
            return "windows at the end of the real points have other divisors"
        return super().padding_refusal()

    def averages(
        self,
        axis: int,
        outputs: Tensor,
        n: int,
        dtype: torch.dtype,
    ) -> Tensor:
        window = self.windows[axis]
        incidence = window.incidence(outputs, n, dtype)
        read = incidence.sum(-1)
        if self.divisor is not None:
            # One divisor for the product over all axes.
            if axis == 0:
                return read / self.divisor
            return read
        count = read.sum(-1)
        if self.include_padding:
            # A window counts up to the end of the padding.
            start = outputs * window.stride - window.before
            end = n + window.after
            stop = (start + window.taps).clamp(max=end)
            count = (stop - start).to(dtype)
        return read / count[:, None]

    def _pool(self, image: Tensor) -> Tensor:
        windows = self.image_windows
        return AVERAGE[len(windows)](
            image,
            [w.taps for w in windows],
            [w.stride for w in windows],
            [w.before for w in windows],
            windows[-1].ceil,
            self.include_padding,
            self.divisor,
        )


class AdaptivePoolKernel(_Average):
    r"""Averages over the m parts of each axis, :math:`K(x, y) = [y \in W(x)] / |W(x)|`; every
    channel is a head.

    Args:
        dim: channels.
        sizes: outputs per axis; None for the number of points.

    Shape: u (B, N, dim) with N points of the grid in row-major order to (B, M, dim).

    Raises:
        DomainError: no regular grid with as many axes as sizes, a causal one, or padding.

    Example:
        >>> from fredholm.operators import IntegralOperator
        >>> kernel = AdaptivePoolKernel(1, (1,))
        >>> op = IntegralOperator(1, kernel=kernel, residual=False, projection=False)
        >>> op(torch.tensor([[[1.0], [3.0], [5.0]]])).flatten().tolist()
        [3.0]
    """

    def __init__(self, dim: int, sizes: Sequence[int | None]):
        windows = tuple(AdaptiveWindow(m) for m in sizes)
        super().__init__(dim, 1, 1, windows)

    def padding_refusal(self) -> str | None:
        return "the parts of a padded axis are not those of the real points"

    def averages(
        self,
        axis: int,
        outputs: Tensor,
        n: int,
        dtype: torch.dtype,
    ) -> Tensor:
        window = self.windows[axis]
        return window.averages(outputs, n, dtype)

    def _pool(self, image: Tensor) -> Tensor:
        sizes = [w.outputs for w in self.windows]
        if len(sizes) == 1:
            # A line is an image of one row.
            sizes = [1, *sizes]
        pool = ADAPTIVE[image.dim() - 2]
        return pool(image, sizes)


class MaxPoolKernel(LatticeKernel, OwnForm):
    r"""The largest value of a window, exactly along the signal:
    :math:`K(x, y; u) = [y = \arg\max_{W(x)} u]`; every channel is a head.

    Args:
        dim: channels.
        windows: one :class:`Window` per axis; padding never wins.

    Shape: u (B, N, dim) with N points of the grid in row-major order to (B, M, dim).

    Raises:
        DomainError: no regular grid with as many axes as windows, a causal one, or padding.

    Example:
        >>> from fredholm.operators import IntegralOperator
        >>> kernel = MaxPoolKernel(1, (Window(2, stride=2),))
        >>> op = IntegralOperator(1, kernel=kernel, residual=False, projection=False)
        >>> op.kernel_matrix(torch.tensor([[[1.0], [3.0], [9.0], [7.0]]])).squeeze().tolist()
        [[0.0, 1.0, 0.0, 0.0], [0.0, 0.0, 1.0, 0.0]]
    """

    def __init__(self, dim: int, windows: Sequence[Window]):
        super().__init__(dim, 1, 1, tuple(windows))

    def padding_refusal(self) -> str | None:
        return "padded points count as zeros, and a zero may be the largest value"

    def _pool(self, image: Tensor) -> tuple[Tensor, Tensor]:
        """Return values and the index of each in its image, (B, C, *grid)."""
        windows = self.image_windows
        return LARGEST[len(windows)](
            image,
            [w.taps for w in windows],
            [w.stride for w in windows],
            [w.before for w in windows],
            [w.dilation for w in windows],
            windows[-1].ceil,
            True,
        )

    def chosen(self, problem: Problem) -> Tensor:
        """Return the index of the key with the largest value for each output, (B, H, M)."""
        image = read_grid(problem, masses=False)
        _, places = self._pool(image)
        return places.flatten(2)

    def matrix(self, problem: Problem) -> Tensor:
        chosen = at_queries(self.chosen(problem), problem)
        keys = problem.uy.shape[2]
        dense = F.one_hot(chosen, keys)
        dense = dense.to(problem.uy.dtype)
        return dense[..., None, None]

    def evaluates(self, layout: Layout) -> bool:
        return not layout.pairs

    def evaluate(self, problem: Problem) -> Tensor:
        image = read_grid(problem)
        if problem.layout.measure == "counting":
            values, _ = self._pool(image)
            return write_points(values, self.heads)
        # The largest value is chosen before masses multiply it, which might choose another.
        places = self.chosen(problem)
        points = image.flatten(2)
        values = points.gather(2, places)
        return values[..., None]


@register_converter(*by_axes("torch.nn.modules.pooling.AvgPool"), call=call_on_grid)
def average_pooling(
    module: nn.AvgPool1d | nn.AvgPool2d | nn.AvgPool3d,
    *,
    dim: int | None = None,
) -> IntegralOperator:
    """Convert a mean over windows; ``dim`` is the number of channels, which the layer does not
    know.
    """
    kernel = AveragePoolKernel(
        _width(module, dim),
        _windows(module),
        include_padding=module.count_include_pad,
        divisor=getattr(module, "divisor_override", None),
    )
    return bind(kernel)


@register_converter(*by_axes("torch.nn.modules.pooling.AdaptiveAvgPool"), call=call_on_grid)
def adaptive_pooling(
    module: nn.AdaptiveAvgPool1d | nn.AdaptiveAvgPool2d | nn.AdaptiveAvgPool3d,
    *,
    dim: int | None = None,
) -> IntegralOperator:
    """Convert a mean over the parts of each axis; ``dim`` is the number of channels."""
    width = _width(module, dim)
    sizes = _each(module, module.output_size)
    return bind(AdaptivePoolKernel(width, sizes))


@register_converter(*by_axes("torch.nn.modules.pooling.MaxPool"), call=call_on_grid)
def max_pooling(
    module: nn.MaxPool1d | nn.MaxPool2d | nn.MaxPool3d,
    *,
    dim: int | None = None,
) -> IntegralOperator:
    """Convert the largest value of a window; ``dim`` is the number of channels."""
    if module.return_indices:
        raise refuse(module, "return_indices=True", "False: an operator returns values")
    width = _width(module, dim)
    return bind(MaxPoolKernel(width, _windows(module)))


def _axes(module: nn.Module) -> int:
    """Return the number of axes: ``MaxPool2d``, or a subclass of it, pools over two."""
    # "MaxPool2d"[-2] is the number of axes.
    names = []
    for base in type(module).__mro__:
        if base.__module__ == "torch.nn.modules.pooling":
            names.append(base.__name__)
    return int(names[0][-2])


def _each(module: nn.Module, value: Any) -> tuple:
    """Return one value per axis of the layer.

    torch keeps an option as it was given: a number stands for all axes. None, of an adaptive layer,
    leaves the length of every axis as it is.
    """
    if value is None or isinstance(value, int):
        return (value,) * _axes(module)
    return tuple(value)


def _windows(module: Any) -> tuple[Window, ...]:
    taps = _each(module, module.kernel_size)
    strides = _each(module, module.stride)
    paddings = _each(module, module.padding)
    dilations = _each(module, getattr(module, "dilation", 1))
    windows = []
    for k, s, d, p in zip(taps, strides, dilations, paddings):
        window = Window(k, s, d, p, p, ceil=module.ceil_mode)
        windows.append(window)
    return tuple(windows)


def _width(module: nn.Module, dim: int | None) -> int:
    if dim is None or dim < 1:
        raise OptionError(
            f"{type(module).__name__}: expected the number of channels, which the layer does not "
            f"know, got dim={dim}; call as_operator(module, dim=channels)"
        )
    return dim
