"""A linear layer as an integral operator: a convolution with one tap."""

from __future__ import annotations

from torch import nn

from ...kernels.pointwise import PointwiseKernel
from ...operators import IntegralOperator
from .registry import refuse, register_converter


@register_converter("torch.nn.modules.linear.Linear")
def linear(module: nn.Linear) -> IntegralOperator:
    """The same map at every point, K = A δ; on any domain."""
    if not module.weight.is_floating_point():
        raise refuse(module, f"dtype={module.weight.dtype}", "real floating point")
    return IntegralOperator(
        module.in_features,
        kernel=PointwiseKernel(module),
        out_dim=module.out_features,
        residual=False,
        projection=False,
    )
