"""Spectral convolutions of Fourier neural operators as integral operators on a periodic grid."""

from __future__ import annotations

from typing import Any

from torch import nn

from ...kernels.periodic import PeriodicKernel
from ...operators import IntegralOperator
from .registry import refuse, register_converter


@register_converter("neuralop.layers.spectral_convolution.SpectralConv")
def spectral_convolution(module: nn.Module) -> IntegralOperator:
    """A Fourier multiplier on a periodic grid, any factorisation of its weights; on
    ``Domain.grid(..., measure="counting")``.

    The library computes in single precision. It shifts modes in a way that loses the convolution on
    an odd number of points along all axes but the last, which is refused.
    """
    layer: Any = module
    expected = {
        "complex_data": False,
        "resolution_scaling_factor": None,
        "fno_block_precision": "full",
    }
    for option, value in expected.items():
        if getattr(layer, option) != value:
            raise refuse(module, f"{option}={getattr(layer, option)!r}", f"{option}={value!r}")
    kernel = PeriodicKernel(
        module,
        layer.in_channels,
        layer.out_channels,
        axes=layer.order,
        even=tuple(range(layer.order - 1)),
    )
    return IntegralOperator(
        layer.in_channels,
        kernel=kernel,
        out_dim=layer.out_channels,
        residual=False,
        projection=False,
    )
