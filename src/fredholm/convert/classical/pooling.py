"""Pooling as integral operators: averages are stencils, a maximum is exact along the signal."""

from __future__ import annotations

from torch import nn

from ...errors import OptionError
from ...integral import Window
from ...kernels import Kernel
from ...kernels.pooling import AdaptivePoolKernel, AveragePoolKernel, MaxPoolKernel
from ...operators import IntegralOperator
from .registry import refuse, register_converter


@register_converter(*(f"torch.nn.modules.pooling.AvgPool{axes}d" for axes in (1, 2, 3)))
def average_pooling(
    module: nn.AvgPool1d | nn.AvgPool2d | nn.AvgPool3d, *, dim: int | None = None
) -> IntegralOperator:
    """A mean over windows; ``dim`` is the number of channels, which the layer itself does not know."""
    kernel = AveragePoolKernel(
        _width(module, dim),
        _windows(module),
        include_padding=module.count_include_pad,
        divisor=getattr(module, "divisor_override", None),
    )
    return _bind(kernel)


@register_converter(*(f"torch.nn.modules.pooling.AdaptiveAvgPool{axes}d" for axes in (1, 2, 3)))
def adaptive_pooling(
    module: nn.AdaptiveAvgPool1d | nn.AdaptiveAvgPool2d | nn.AdaptiveAvgPool3d,
    *,
    dim: int | None = None,
) -> IntegralOperator:
    """A mean over the parts of each axis; ``dim`` is the number of channels."""
    return _bind(AdaptivePoolKernel(_width(module, dim), _each(module, module.output_size)))


@register_converter(*(f"torch.nn.modules.pooling.MaxPool{axes}d" for axes in (1, 2, 3)))
def max_pooling(
    module: nn.MaxPool1d | nn.MaxPool2d | nn.MaxPool3d, *, dim: int | None = None
) -> IntegralOperator:
    """The largest value of a window; ``dim`` is the number of channels."""
    if module.return_indices:
        raise refuse(module, "return_indices=True", "False: an operator returns values")
    return _bind(MaxPoolKernel(_width(module, dim), _windows(module)))


def _axes(module: nn.Module) -> int:
    """``MaxPool2d``, or a subclass of it, pools over two axes."""
    names = [c.__name__ for c in type(module).__mro__ if c.__module__ == "torch.nn.modules.pooling"]
    return int(names[0][-2])


def _each(module: nn.Module, value) -> tuple:
    return (value,) * _axes(module) if value is None or isinstance(value, int) else tuple(value)


def _windows(module) -> tuple[Window, ...]:
    sizes = (module.kernel_size, module.stride, module.padding, getattr(module, "dilation", 1))
    return tuple(
        Window(k, s, d, p, p, ceil=module.ceil_mode)
        for k, s, p, d in zip(*(_each(module, size) for size in sizes))
    )


def _width(module: nn.Module, dim: int | None) -> int:
    if dim is None or dim < 1:
        name = type(module).__name__
        raise OptionError(
            f"{name} does not know its channels: as_operator(module, dim=channels); got dim={dim}"
        )
    return dim


def _bind(kernel: Kernel) -> IntegralOperator:
    return IntegralOperator(
        kernel.heads, kernel.heads, kernel=kernel, residual=False, projection=False
    )
