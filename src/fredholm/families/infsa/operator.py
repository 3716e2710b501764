"""The operators: pure InfSA by hops on the token graph, linear InfSA by a central query."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from ...domain import Domain
from ...errors import OptionError, StrategyError, suggest
from ...integral import IntegralOperator, Strategy, register_operator
from .centre_kernel import CentreKernel, StreamingCentreKernel
from .graph import Convergence
from .kernel import HopKernel
from .resolvent import Iterations, Resolvent

CAUSAL_FORMS = {"exact": CentreKernel, "streaming": StreamingCentreKernel}


@register_operator("infsa")
class InfSA(IntegralOperator):
    r"""Pure InfSA: hops over a token graph that is normalised by one norm,
    :math:`W_O\,[\gamma_h^l \hat A_h V_h u]_h` with
    :math:`\hat A = \phi(QK^\top) / (\|\phi(QK^\top)\|_F + \varepsilon)`.

    The strategy sets the number of hops: one with ``"auto"``, as in the paper and its code, up to
    ``hops`` with ``Neumann(hops)``, and all of them with ``Resolvent(tol)``,
    :math:`(I - \gamma \hat A)^{-1} - I`. All are matrix-free: O(N²) time per product, O(N) memory,
    forward and backward. In causal order
    the norm is that of the prefix.

    Args:
        dim: width of u.
        heads: H, must divide ``dim``.
        norm: ``"frobenius"`` or ``"rows"``.
        strategy, out_dim: see :class:`IntegralOperator`.
        kernel_options: further options of :class:`fredholm.kernels.TokenGraphKernel`: ``preset``,
            ``decay``, ``learned_decay``, ``power``, ``activation``, ``scale``, ``tied``, ``eps``,
            ``bias``, ``projections``.

    Shape: (B, N, dim) to (B, N, out_dim). Queries on another domain are refused.

    Reference: InfSA Eqs. 9-12.

    Example:
        >>> import torch
        >>> InfSA(16, heads=4, strategy="neumann")(torch.randn(2, 5, 16)).shape
        torch.Size([2, 5, 16])
    """

    options_class = HopKernel

    def __init__(
        self,
        dim: int,
        heads: int = 1,
        *,
        norm: str = "frobenius",
        strategy: Strategy | str | Mapping[str, Any] = "auto",
        out_dim: int | None = None,
        **kernel_options,
    ):
        kernel = HopKernel(dim, heads, norm=norm, **kernel_options)
        super().__init__(
            dim,
            heads,
            kernel=kernel,
            strategy=strategy,
            out_dim=out_dim,
            residual=False,
        )

    def convergence(self, u: Tensor, domain: Domain | None = None) -> Convergence:
        """Return how the resolvent of these tokens was solved: method, number of products, residual
        and spectral radius.

        Raises:
            StrategyError: a strategy other than :class:`Resolvent`.
            ConvergenceError: the iteration did not converge.

        Example:
            >>> import torch
            >>> operator = InfSA(8, strategy=Resolvent(tol=1e-4))
            >>> operator.convergence(torch.randn(1, 5, 8)).residual < 1e-4
            True
        """
        if not isinstance(self.strategy, Resolvent):
            raise StrategyError(
                f"expected the strategy Resolvent, which iterates to a tolerance, got "
                f"{self.strategy!r}"
            )
        problem = self.problem(u, domain)
        kernel = self.kernel
        assert isinstance(kernel, HopKernel)
        return Iterations(self.strategy).solve(kernel, problem).convergence


@register_operator("linear_infsa")
class LinearInfSA(IntegralOperator):
    r"""Linear InfSA: one centre per head that represents all queries,
    :math:`W_O\,[\gamma_h^l \int a_h(y)\,V_h u(y)\,d\mu(y)]_h`, a of
    :class:`fredholm.kernels.CentreKernel`.

    Without order or pairs all queries share one response: O(N·dim·(dim + H)) time, no value and no
    output is projected for every point. There are two causal forms:

    - ``causal="exact"``: a query's response is that of its prefix alone. O(N²) time (tiled), O(N)
      memory; a step costs O(t).
    - ``causal="streaming"``: a key is scored once, at its own time; O(N) time, and a step with a
      state of O(dim) numbers.

    Args:
        dim: width of u.
        heads: H, must divide ``dim``; the paper takes 64 where ``InfSA`` has 16.
        causal: the form on a causal domain, ``"exact"`` or ``"streaming"``.
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

    options_class = CentreKernel

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
        if causal not in CAUSAL_FORMS:
            raise OptionError(f"unknown causal form {causal!r}{suggest(causal, CAUSAL_FORMS)}")
        kernel = CAUSAL_FORMS[causal](dim, heads, **kernel_options)
        super().__init__(
            dim,
            heads,
            kernel=kernel,
            strategy=strategy,
            out_dim=out_dim,
            residual=False,
        )

    def _finish(
        self,
        response: Tensor,
        query: Tensor | None,
        valid: Tensor | None,
    ) -> Tensor:
        """Project a response that all queries share once."""
        assert query is not None
        out = super()._finish(response, query, valid)
        by_query = out.expand(-1, query.shape[1], -1)
        return by_query.contiguous()
