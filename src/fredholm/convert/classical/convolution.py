"""Convolutions as integral operators (ITNet Theorem 1, Appendix C)."""

from __future__ import annotations

from torch import nn

from ...kernels.stencil import StencilKernel
from ...operators import IntegralOperator
from .registry import refuse, register_converter


@register_converter(*(f"torch.nn.modules.conv.Conv{axes}d" for axes in (1, 2, 3)))
def convolution(module: nn.Conv1d | nn.Conv2d | nn.Conv3d) -> IntegralOperator:
    """A convolution with any channels, groups, stride, dilation and padding; heads are its groups.

    Its default domain is the line with a mass of one a point; on a grid pass ``Domain.grid(h, w,
    measure="counting")``.
    """
    _check(module)
    reach = [d * (k - 1) for d, k in zip(module.dilation, module.kernel_size)]
    padding = module.padding
    if padding == "same":
        padding = [(r // 2, r - r // 2) for r in reach]
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
    return _bind(module, kernel)


@register_converter(*(f"torch.nn.modules.conv.ConvTranspose{axes}d" for axes in (1, 2, 3)))
def transposed_convolution(
    module: nn.ConvTranspose1d | nn.ConvTranspose2d | nn.ConvTranspose3d,
) -> IntegralOperator:
    """A transposed convolution; its output lives on the finer grid. ``output_size`` at a call is
    not served: set output_padding.
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
    return _bind(module, kernel)


def _check(module) -> None:
    if not module.weight.is_floating_point():
        raise refuse(module, f"dtype={module.weight.dtype}", "real floating point")


def _bind(module, kernel: StencilKernel) -> IntegralOperator:
    return IntegralOperator(
        module.in_channels,
        module.groups,
        kernel=kernel,
        out_dim=module.out_channels,
        residual=False,
        projection=False,
    )
