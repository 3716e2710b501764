"""Additive attention as a kernel: what graph attention does on the edges of a graph."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from ..errors import OptionError
from ..integral import Problem, WeightedKernel, check_dropout, own_parameter
from ..ops.attention import attention_density


class AdditiveAttentionKernel(WeightedKernel):
    r"""Attention with additive scores:
    :math:`K_h(x, y; u) = Z_h(x)^{-1} \exp(\sigma(a_h \cdot V_h u(x) + b_h \cdot V_h u(y)))\,V_h`.

    σ is the leaky ReLU. The normaliser integrates over the points that x sees: on ``Domain.graph``
    over its neighbours.

    Args:
        value: V, the weight (H · d_out, dim) that maps u to all heads; every head reads all of u.
        query, key: a and b, (H, d_out), or any shape of as many elements.
        heads: H.
        bias: (H · d_out,) or None.
        slope: of σ where its argument is negative.
        dropout: of a converted layer; in training mode it is random and no integral operator.

    Shape: u (B, N, dim) to (B, Nq, H · d_out).

    Cost: O(N²), a block of queries at a time.

    Raises:
        OptionError: sizes that do not fit.
        ConversionError: training mode with ``dropout``.

    Reference: Velickovic et al. 2018, Eqs. 1-6.

    Example:
        >>> from fredholm.domain import Domain
        >>> from fredholm.operators import IntegralOperator
        >>> kernel = AdditiveAttentionKernel(torch.randn(4, 3), torch.randn(2, 2), torch.randn(2, 2), heads=2)
        >>> op = IntegralOperator(3, 2, kernel=kernel, out_dim=4, residual=False, projection=False)
        >>> graph = Domain.graph(torch.tensor([[0, 1], [1, 2]]), 3)
        >>> op.weights(torch.randn(1, 3, 3), graph)[0, 0, 0].tolist()
        [1.0, 0.0, 0.0]
    """

    whole = True

    def __init__(
        self,
        value: Tensor,
        query: Tensor,
        key: Tensor,
        *,
        heads: int,
        bias: Tensor | None = None,
        slope: float = 0.2,
        dropout: float = 0.0,
    ):
        width, dim = value.shape
        for name, size in (("query", query.numel()), ("key", key.numel())):
            if size != width or width % heads:
                raise OptionError(
                    f"{heads} heads that read {width} features do not fit {size} of {name}"
                )
        super().__init__(heads, dim, width // heads)
        self.slope, self.dropout = slope, dropout
        self.value, self.query, self.key = (own_parameter(x) for x in (value, query, key))
        self.bias = None if bias is None else own_parameter(bias)

    def value_map(self) -> Tensor:
        return self.value.unflatten(0, (self.heads, self.d_out))

    def offset(self, problem: Problem) -> Tensor | None:
        return None if self.bias is None else self.bias.view(1, self.heads, 1, self.d_out)

    def weights(self, problem: Problem) -> Tensor:
        check_dropout(self.training, self.dropout)
        values = self.value_map()
        of_query, of_key = (
            u[:, 0] @ torch.einsum("hoi,ho->ih", values, a.view(self.heads, -1))
            for a, u in ((self.query, problem.ux), (self.key, problem.uy))
        )
        scores = F.leaky_relu(of_query.mT[..., None] + of_key.mT[:, :, None], self.slope)
        q = problem.quadrature
        return attention_density(scores, q.weights().to(scores.dtype), q.visible())
