"""Linear InfSA: every key counts by its likeness to a centre of the queries."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from ...errors import OptionError, suggest
from ...integral import IntegralOperator, Strategy, register_operator
from .centres import CentreKernel, StreamingCentreKernel

FORMS = {"exact": CentreKernel, "streaming": StreamingCentreKernel}


@register_operator("linear_infsa")
class LinearInfSA(IntegralOperator):
    r"""Linear InfSA, :math:`W_O\,[\gamma_h^l \int a_h(y)\,V_h u(y)\,d\mu(y)]_h`, a of
    :class:`fredholm.kernels.CentreKernel`.

    Without order or pairs all queries share one response: O(N·dim·(dim + H)) time, no value and no
    output is projected for every point. Two causal forms, by name:

    - ``causal="exact"``: a query's response is that of its prefix alone. O(N²) time (tiled), O(N)
      memory; a step costs O(t).
    - ``causal="streaming"``: a key is scored once, at its own time; O(N) time, and a step with a
      state of O(dim) numbers.

    Args:
        dim: width of u.
        heads: H, must divide ``dim``; the paper takes 64 where ``InfSA`` has 16.
        causal: ``"exact"`` or ``"streaming"``, what is done on a causal domain.
        strategy, out_dim: see :class:`IntegralOperator`.
        kernel_options: ``steps``, ``centres``, ``tied`` of :class:`fredholm.kernels.CentreKernel`
            and the options of
            :class:`fredholm.kernels.TokenGraphKernel`.

    Shape: (B, N, dim) to (B, N, out_dim). Queries on another domain are refused.

    Reference: InfSA Eqs. 16-21.

    Example:
        >>> import torch
        >>> out = LinearInfSA(16, heads=8)(torch.randn(2, 5, 16))
        >>> bool((out[:, 0] == out[:, 4]).all())
        True
    """

    kernel_class = CentreKernel

    def __init__(
        self,
        dim: int,
        heads: int = 1,
        *,
        causal: str = "exact",
        strategy: Strategy | str | Mapping[str, Any] = "auto",
        out_dim: int | None = None,
        **kernel_options,
    ):
        if causal not in FORMS:
            raise OptionError(f"unknown causal form {causal!r}{suggest(causal, FORMS)}")
        kernel = FORMS[causal](dim, heads, **kernel_options)
        super().__init__(
            dim, heads, kernel=kernel, strategy=strategy, out_dim=out_dim, residual=False
        )

    def _finish(self, response: Tensor, query: Tensor | None, valid: Tensor | None) -> Tensor:
        """A response that all queries share is projected once."""
        assert query is not None
        return super()._finish(response, query, valid).expand(-1, query.shape[1], -1).contiguous()
