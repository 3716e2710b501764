"""Softmax attention's kernel: K(x, y; u) = exp(s ⟨Q u(x), K u(y)⟩) V / Z(x)."""

from __future__ import annotations

from math import prod

import torch
from torch import Tensor, nn

from ...domain import Domain, default_line
from ...errors import DomainError, OptionError
from ...forms import Fused, NeighbourAttention
from ...integral import AttentionKernel, Layout, Problem, Projections, Rotary, check_dropout
from ...integral.capabilities import SoftmaxScores
from ...ops.attention import attention_density


class SoftmaxKernel(AttentionKernel, SoftmaxScores):
    r"""Scaled dot-product attention:

    .. math:: K_h(x, y; u) = \exp(s\,\langle Q_h u(x), K_h u(y)\rangle)\,V_h / Z_h(x), \qquad
        Z_h(x) = \int \exp(s\,\langle Q_h u(x), K_h u(y)\rangle)\,d\mu(y)

    The normaliser Z is an integral over the entire signal, so K is not a function of four
    local arguments. Its definition is :meth:`weights`, a density against the measure. The value
    bias is an offset, because the weights integrate to one. Masks, windows, padding and additive
    biases belong to the domain.

    Args:
        dim, heads, bias, projections: see :class:`AttentionKernel`. A key bias cancels in the
            normaliser and never changes the output, unless keys are normalised or rotated after it.
        scale: s, default one over the root of a query's width.
        query_norm, key_norm: normalisations of the queries and keys of a head, (…, e) to (…, e).
        rotary: rotates queries and keys by their positions; the default domain then has positions
            0, 1, 2, …
        causal: whether points see only themselves and earlier points. The default domain is then
            causal, and others are refused.
        window: beside ``causal``, number of points that a point sees, itself and those before it.
            Longer default domains have these ``pairs``, and longer domains without pairs are
            refused.
        dropout: of a converted layer, on weights or output. In training mode such a layer is
            random, not an integral operator, and a call is refused.

    Cost: O(N²·dim) time; O(N) memory in the fused form.

    Raises:
        OptionError: ``rotary`` of more features than a head has; a ``window`` without ``causal``,
            or of no point.
        DomainError: a domain without order for ``causal``, or without pairs for ``window``.
        ConversionError: training mode with ``dropout``.

    Reference: Vaswani et al. 2017; ITNet, Theorem 2; Su et al. 2021 for ``rotary``.
    """

    forms = (Fused, NeighbourAttention)
    rowwise = True

    def __init__(
        self,
        dim: int,
        heads: int,
        *,
        bias: bool = True,
        projections: Projections | None = None,
        scale: float | None = None,
        query_norm: nn.Module | None = None,
        key_norm: nn.Module | None = None,
        rotary: Rotary | None = None,
        causal: bool = False,
        window: int | None = None,
        dropout: float = 0.0,
    ):
        super().__init__(dim, heads, bias=bias, projections=projections)
        if rotary is not None and rotary.width > self.width:
            raise OptionError(
                f"expected rotary positions for up to {self.width} features, the width of a head, "
                f"got {rotary.width}; give Rotary a width of {self.width} or less"
            )
        if window is not None and not causal:
            raise OptionError(
                f"expected causal=True beside window={window}, which counts the points before, got "
                "causal=False; give both, or hide pairs by the domain: Domain.line(n, reach=...)"
            )
        if window is not None and window < 1:
            raise OptionError(
                f"window: expected 1 point or more, the point itself included, got {window}"
            )
        self.scale = self.width**-0.5 if scale is None else scale
        self.query_norm = query_norm
        self.key_norm = key_norm
        self.rotary = rotary
        self.reads_position = rotary is not None
        self.causal = causal
        self.window = window
        self.dropout = dropout

    @property
    def factor(self) -> float:  # type: ignore[override]
        """s, by which the fused kernels multiply the scores themselves."""
        return self.scale

    def queries(self, x: Tensor, ux: Tensor) -> Tensor:
        query = self._heads(ux, 0)
        turned = self._turned(x, query, self.query_norm)
        return turned * self.scale

    def keys(self, y: Tensor, uy: Tensor) -> Tensor:
        key = self._heads(uy, 1)
        return self._turned(y, key, self.key_norm)

    def project(self, x: Tensor, u: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        query, key, value = self._all_heads(u)
        query = self._turned(x, query, self.query_norm)
        key = self._turned(x, key, self.key_norm)
        return query, key, value

    def weights(self, problem: Problem) -> Tensor:
        query = self.queries(problem.x, problem.ux)
        key = self.keys(problem.y, problem.uy)
        scores = query @ key.mT
        quadrature = problem.quadrature
        weights = quadrature.weights()
        visible = quadrature.visible()
        return attention_density(scores, weights, visible)

    def _turned(
        self,
        x: Tensor,
        u: Tensor,
        norm: nn.Module | None,
    ) -> Tensor:
        """Return queries or keys normalised and rotated by their positions."""
        if norm is not None:
            u = norm(u)
        if self.rotary is not None:
            u = self.rotary(x, u)
        return u

    # --- where the kernel lives -------------------------------------------------------------------

    def check(self, layout: Layout) -> None:
        if self.causal and not layout.causal:
            raise DomainError(
                "expected a causal domain, because this attention sees only points before, got one "
                "without an order; give it a domain with causal=True"
            )
        if self.window is not None and not layout.pairs:
            fits = layout.keys is not None and prod(layout.keys) <= self.window
            if not fits:
                raise DomainError(
                    f"expected a domain whose pairs hide all but {self.window} points, the window "
                    "of this attention, got one without pairs; give it pairs such as those of "
                    "operator.kernel.default_domain(n, ...)"
                )
        check_dropout(self.training, self.dropout)

    def default_domain(
        self,
        n: int,
        *,
        device: torch.device,
        dtype: torch.dtype,
    ) -> Domain:
        # A line of length 1 per point has the positions 0, 1, 2, … that rotary angles are made for.
        length = None
        if self.rotary is not None:
            length = 1.0
        line = default_line(
            n,
            length=length,
            causal=self.causal,
            device=device,
            dtype=dtype,
        )
        if self.window is None or n <= self.window:
            return line
        index = torch.arange(n, device=device)
        lag = index[:, None] - index
        return line.replace(pairs=lag < self.window)

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, scale={self.scale:.4g}, causal={self.causal}"
