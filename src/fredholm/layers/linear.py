"""A linear map at every point: K(x, y) = A [x = y], a convolution with one tap.

The kernel, then the converter of ``torch.nn.Linear``.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ..errors import DomainError
from ..integral import (
    CausalTransition,
    DefaultLine,
    IntegralOperator,
    Layout,
    MatrixKernel,
    OwnForm,
    Point,
    Problem,
)
from ..integral.bases import OWN_FIRST
from ..integral.conversion import refuse, register_converter
from ..integral.features import weighed
from ..ops.backend import cast
from .parts import bias_offset, bind


class PointwiseKernel(MatrixKernel, OwnForm, CausalTransition):
    r"""One linear map at every point: :math:`K(x, y) = A\,[x = y]`, under a mass of one per point.

    Points are the same when they have the same index, so that any domain will do.

    Args:
        linear: A, with a bias or without; the kernel uses its parameters, not copies.

    Shape: u (B, N, in) to (B, N, out).

    Cost: O(N); the definition O(N²).

    Raises:
        DomainError: queries on another domain, or an order together with ``pairs``.

    Example:
        >>> from fredholm.operators import IntegralOperator
        >>> layer = nn.Linear(2, 3)
        >>> kernel = PointwiseKernel(layer)
        >>> op = IntegralOperator(2, kernel=kernel, out_dim=3, residual=False, projection=False)
        >>> u = torch.randn(1, 4, 2)
        >>> torch.allclose(op(u), layer(u))
        True
    """

    reads_query = False
    line = DefaultLine(measure="counting")
    sums = True
    forms = OWN_FIRST

    def __init__(self, linear: nn.Linear):
        super().__init__(1, linear.in_features, linear.out_features)
        self.linear = linear

    def check(self, layout: Layout) -> None:
        if layout.given:
            raise DomainError(
                "PointwiseKernel reads each point at itself; leave query and query_domain out"
            )
        if layout.causal and layout.pairs:
            raise DomainError(
                "PointwiseKernel takes no pairs in an order; build the domain with causal=False"
            )

    def matrix(self, problem: Problem) -> Tensor:
        batch, _, n, _ = problem.uy.shape
        weight = self.linear.weight
        keys = torch.arange(n, device=problem.uy.device)
        queries = keys
        if problem.index is not None:
            queries = problem.index
        # Points are the same when their indices are.
        same = queries[:, None] == keys
        unit = same.to(weight.dtype)
        unit = unit[:, :, None, None]
        dense = unit * weight
        return dense.expand(batch, 1, -1, -1, -1, -1)

    def offset(self, problem: Problem) -> Tensor | None:
        return bias_offset(self.linear.bias, self)

    def evaluates(self, layout: Layout) -> bool:
        return not layout.pairs

    def evaluate(self, problem: Problem) -> Tensor:
        u = problem.uy
        q = problem.quadrature
        # Under the counting measure each mass is one, and padding is zero already.
        if problem.layout.measure != "counting":
            u = weighed(u, q.mass)
        signal = cast(q.scaled(u), problem.uy.dtype)
        return self.linear(signal)

    def start(self, u: Tensor) -> dict[str, Tensor]:
        """Return an empty memory."""
        return {}

    def advance(
        self,
        point: Point,
        memory: dict[str, Tensor],
    ) -> tuple[Tensor, dict[str, Tensor]]:
        u = point.scaled(point.weighed())
        u = cast(u, point.u.dtype)
        return self.linear(u), memory


@register_converter("torch.nn.modules.linear.Linear")
def linear(module: nn.Linear) -> IntegralOperator:
    """Convert the same map at every point, K = A δ; on any domain."""
    if not module.weight.is_floating_point():
        raise refuse(module, f"dtype={module.weight.dtype}", "real floating point")
    return bind(PointwiseKernel(module))
