"""Softmax attention as a kernel."""

from __future__ import annotations

from torch import Tensor, nn

from ..ops.attention import attention_density
from .base import Kernel, Problem, head_width, split_heads


class SoftmaxKernel(Kernel):
    r"""Scaled dot-product attention: :math:`K_h(x, y; u) = Z_h(x)^{-1} \exp(\langle Q_h u(x), K_h u(y)\rangle / \sqrt{d_h})\,V_h`.

    The normaliser Z is an integral over the whole signal, so K is no function of four local arguments; its
    definition is :meth:`weights`, a density against the measure. The value bias is an offset, because the weights integrate to one.

    Args:
        dim: width of u; every head reads all of it.
        heads: H; must divide ``dim``.
        bias: biases of queries, keys and values. The key bias cancels in the normaliser and never changes the output.

    Reference: Vaswani et al. 2017; ITNet, Theorem 2.
    """

    whole = True

    def __init__(self, dim: int, heads: int, *, bias: bool = True):
        super().__init__(heads, dim, head_width(dim, heads))
        self.query, self.key, self.value = (nn.Linear(dim, dim, bias=bias) for _ in range(3))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Xavier-uniform weights, zero biases."""
        for layer in (self.query, self.key, self.value):
            nn.init.xavier_uniform_(layer.weight)
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)

    def queries(self, ux: Tensor) -> Tensor:
        return split_heads(self.query(ux[:, 0]), self.heads) * self.d_out**-0.5

    def keys(self, uy: Tensor) -> Tensor:
        return split_heads(self.key(uy[:, 0]), self.heads)

    def values(self, uy: Tensor) -> Tensor:
        return split_heads(nn.functional.linear(uy[:, 0], self.value.weight), self.heads)

    def value_map(self) -> Tensor:
        return self.value.weight.unflatten(0, (self.heads, self.d_out))

    def offset(self, problem: Problem) -> Tensor | None:
        return None if self.value.bias is None else self.value.bias.view(1, self.heads, 1, self.d_out)

    def weights(self, problem: Problem) -> Tensor:
        scores = self.queries(problem.ux) @ self.keys(problem.uy).mT
        q = problem.quadrature
        return attention_density(scores, q.weights().to(scores.dtype), q.visible())
