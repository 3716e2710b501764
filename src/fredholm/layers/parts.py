"""Parts that several kinds of layers share: their operator, their parameters, their queries."""

from __future__ import annotations

from torch import Tensor, nn

from ..integral import IntegralOperator, Kernel, Problem
from ..integral.sharing import own_parameter


def bind(kernel: Kernel, projection: nn.Linear | None = None) -> IntegralOperator:
    """Return the operator that integrates a kernel, and nothing else beside the layer's own output
    projection: it has no pointwise term W.
    """
    slices = kernel.heads
    if kernel.whole:
        slices = 1
    out_dim = kernel.heads * kernel.d_out
    own_projection: nn.Linear | bool = False
    if projection is not None:
        out_dim = projection.out_features
        own_projection = projection
    return IntegralOperator(
        slices * kernel.d_in,
        kernel.heads,
        kernel=kernel,
        out_dim=out_dim,
        residual=False,
        projection=own_projection,
    )


def own_bias(bias: Tensor | None) -> nn.Parameter | None:
    """Return a layer's bias as a parameter, itself if it is one; None for a layer without."""
    if bias is None:
        return None
    return own_parameter(bias)


def bias_offset(bias: Tensor | None, kernel: Kernel) -> Tensor | None:
    """Return a layer's bias (H · d_out,) as the offset of its kernel, (1, H, 1, d_out)."""
    if bias is None:
        return None
    return bias.view(1, kernel.heads, 1, kernel.d_out)


def at_queries(x: Tensor, problem: Problem) -> Tensor:
    """Return the problem's queries among those of the complete one, points on dimension 2."""
    if problem.index is None:
        return x
    return x.index_select(2, problem.index)


def for_batch_of(problem: Problem, dense: Tensor) -> Tensor:
    """Return matrices (1, ...) that all samples share for each sample of a problem."""
    others = (-1,) * (dense.dim() - 1)
    return dense.expand(problem.uy.shape[0], *others)


def by_axes(name: str) -> list[str]:
    """Return the names of torch's classes of a kind on lines, images and volumes.

    Example:
        >>> by_axes("torch.nn.modules.conv.Conv")[0]
        'torch.nn.modules.conv.Conv1d'
    """
    return [f"{name}{axes}d" for axes in (1, 2, 3)]
