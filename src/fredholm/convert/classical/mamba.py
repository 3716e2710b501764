"""Mamba mixers as integral operators, whole: from the projection of the input to that of the
output.
"""

from __future__ import annotations

from typing import Any

from torch import nn

from ...kernels.mamba import MambaKernel
from ...operators import IntegralOperator
from .registry import refuse, register_converter


@register_converter("transformers.models.mamba.modeling_mamba.MambaMixer")
def from_transformers(module: nn.Module) -> IntegralOperator:
    """Hugging Face's mixer, called without a cache or a mask; padding is the domain's ``valid``.

    The mixer casts parts of its scan to float32 whatever its dtype; the operator computes in the
    dtype of its parameters, float32 at the least.
    """
    activation: Any = getattr(module, "activation", None)
    if activation not in ("silu", "swish"):
        raise refuse(module, f"hidden_act={activation!r}", "'silu', 'swish'")
    return _operator(module)


@register_converter("mambapy.mamba.MambaBlock")
def from_mambapy(module: nn.Module) -> IntegralOperator:
    """mamba.py's block, in either of its scan modes."""
    options: Any = module.config
    if options.inner_layernorms:
        raise refuse(module, "inner_layernorms=True", "inner_layernorms=False")
    if options.use_cuda:
        raise refuse(module, "use_cuda=True", "use_cuda=False")
    return _operator(module)


def _operator(module: Any) -> IntegralOperator:
    """The operator of a module with the layers and names of the authors' released code."""
    if module.dt_proj.bias is None:
        raise refuse(module, "dt_proj without bias", "a bias of the step")
    kernel = MambaKernel(
        module.in_proj, module.conv1d, module.x_proj, module.dt_proj, module.A_log, module.D
    )
    project = module.out_proj
    return IntegralOperator(
        project.out_features,
        kernel=kernel,
        out_dim=project.out_features,
        residual=False,
        projection=project,
    )
