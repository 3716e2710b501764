"""An operator with linear attention that still has its softmax, and adapters for its callers."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from ..domain import Domain
from ..families.infsa.kernel import TokenGraphKernel
from ..integral import AttentionKernel, IntegralOperator
from .divergence import Noted, divergence, exact_divergence


class LinearizedOperator(IntegralOperator):
    """Linear attention in a softmax operator's place, with that operator as its teacher.

    Args:
        teacher: the softmax operator, which shares its projections; it holds no parameters of its
            own.
        kernel: the linear one.

    Attributes:
        mode, loss: see :class:`fredholm.linearization.replaced.Part`.
    """

    def __init__(self, teacher: IntegralOperator, kernel: AttentionKernel):
        projection = teacher.projection
        if projection is None:
            projection = False
        self._graph = isinstance(kernel, TokenGraphKernel)
        super().__init__(
            kernel.d_in,
            kernel.heads,
            kernel=kernel,
            out_dim=teacher.out_dim,
            residual=False,
            projection=projection,
        )
        # In a tuple, so that its parameters, which are shared, are not registered again.
        self._teacher = (teacher,)
        self.mode = "linear"
        self.noted = Noted()

    @property
    def loss(self) -> Tensor | None:
        return self.noted.mean()

    def forward(self, u, domain=None, *, query=None, query_domain=None):
        if self.mode == "linear":
            return super().forward(u, domain, query=query, query_domain=query_domain)

        # Without its dropout, which would make the comparison random.
        (teacher,) = self._teacher
        teacher.eval()
        call: dict[str, Any] = {"query": query, "query_domain": query_domain}
        if self.mode in ("distil", "measure"):
            real = None
            if domain is not None and query_domain is None and domain.valid is not None:
                real = domain.valid.expand(u.shape[0], -1)

            weights = super().weights(u, domain, **call)
            if self._graph:
                # The rows of a token graph do not sum to one.
                totals = weights.sum(-1, keepdim=True)
                weights = weights / totals.clamp(min=1e-6)

            softmax = teacher.weights(u, domain, **call)
            if self.mode == "measure":
                self.noted.measure(exact_divergence(softmax, weights, real))
            else:
                visible = self.problem(u, domain, **call).quadrature.visible()
                self.noted.add(divergence(softmax, weights, real, visible))
        return teacher(u, domain, **call)

    def weights(
        self,
        u,
        domain=None,
        *,
        query=None,
        query_domain=None,
        rows=None,
    ) -> Tensor:
        """Return its own weights; in the teacher's modes those of softmax."""
        call: dict[str, Any] = {"query": query, "query_domain": query_domain, "rows": rows}
        if self.mode == "linear":
            return super().weights(u, domain, **call)
        (teacher,) = self._teacher
        return teacher.weights(u, domain, **call)

    def _finish(
        self,
        response: Tensor,
        query: Tensor | None,
        valid: Tensor | None,
    ) -> Tensor:
        if self._graph and query is not None:
            # Linear InfSA gives all queries one response.
            response = response.expand(-1, -1, query.shape[1], -1)
        return super()._finish(response, query, valid)


class TimmAdapter(nn.Module):
    """An adapter that gives an operator the call of timm's ``Attention``: ``forward(x,
    attn_mask=None, is_causal=False)``.

    Args:
        operator: the operator.
        proj_drop: the dropout of its output; None for no dropout.

    Shape: x (B, N, D) to (B, N, D).
    """

    def __init__(self, operator: IntegralOperator, proj_drop: nn.Module | None = None):
        super().__init__()
        self.operator = operator
        self.proj_drop = proj_drop
        self.num_heads = operator.heads

    def forward(
        self,
        x: Tensor,
        attn_mask: Tensor | None = None,
        is_causal: bool = False,
    ) -> Tensor:
        """Return the operator's response at the tokens of x.

        Args:
            x: (B, N, D).
            attn_mask: pairs, boolean (True is seen) or additive, of a shape that broadcasts to
                (B, H, N, N) as in torch's attention. Three dimensions are heads and pairs.
            is_causal: whether a token sees only itself and the tokens before it; a mask then hides
                further pairs.
        """
        # In half precision the positions of a long sequence would coincide.
        dtype = torch.promote_types(x.dtype, torch.float32)
        domain = Domain.line(
            x.shape[1],
            causal=is_causal,
            device=x.device,
            dtype=dtype,
        )
        if attn_mask is not None:
            # A domain takes three dimensions as one mask per sample.
            if attn_mask.dim() == 3:
                attn_mask = attn_mask[None]
            domain = domain.replace(pairs=attn_mask)
        response = self.operator(x, domain)
        if self.proj_drop is None:
            return response
        return self.proj_drop(response)
