"""ITNet's operators: exact, with the kernel of Eqs. 1-4, and of low rank, in linear time.

Thin constructors: the formulas are in ``kernel.py`` and ``low_rank.py``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import torch

from ...errors import OptionError
from ...forms.monte_carlo.proposal import add_proposal
from ...integral import IntegralOperator, Strategy, register_operator
from ...integral.features import head_width
from .kernel import GROUPS, MLPKernel
from .low_rank import LowRankKernel


@register_operator("itnet")
class ITNetOperator(IntegralOperator):
    r"""ITNet's operator, with a learned matrix for every pair of points:
    :math:`(Tu)(x) = W u(x) + W_O\,[\int K_h(x, y, u_h(x), u_h(y))\,u_h(y)\,d\mu(y)]_h`.

    Head h reads and writes its own slice u_h of width d_h = dim / heads; K_h is
    :class:`fredholm.kernels.MLPKernel`. It is evaluated hidden units first: 2·w·d_h multiply-adds
    and w activations per pair and head, memory O(N).

    Args:
        dim: width d of u.
        heads: H, must divide ``dim``.
        position_dim: dimension p of the domain's positions.
        width: hidden width w of the kernel network.
        strategy, out_dim: see :class:`IntegralOperator`.
        proposal: options of the :class:`fredholm.kernels.Proposal` that ``MonteCarlo`` draws keys
            from; True for its defaults, False for none.
        start: the initial W, as a multiple of the identity. 1 is the paper's formula; the residual
            stream of a model then grows, because each block adds W u to u. With 0 its size stays
            nearly constant.
        kernel_options: further options of :class:`fredholm.kernels.MLPKernel`: ``depth``,
            ``groups``, ``frequencies``, ``sigma``, ``learned_frequencies``, ``per_head_hidden``,
            ``output``, ``rank``, ``activation``, ``epsilon``.

    Shape: (B, N, dim) to (B, N, out_dim).

    Reference: ITNet Eqs. 1-4.

    Example:
        >>> ITNetOperator(16, heads=2, width=8)(torch.randn(2, 5, 16)).shape
        torch.Size([2, 5, 16])
    """

    options_class = MLPKernel
    small: ClassVar[Mapping[str, Any]] = {
        "width": 16,
        "frequencies": 16,
        "sigma": 3.0,
    }

    def __init__(
        self,
        dim: int,
        heads: int = 1,
        *,
        position_dim: int = 1,
        width: int = 128,
        groups: tuple[str, ...] | list[str] = GROUPS,
        strategy: Strategy | str | Mapping[str, Any] = "auto",
        out_dim: int | None = None,
        proposal: bool | Mapping[str, Any] = False,
        start: float = 1.0,
        **kernel_options,
    ):
        kernel = MLPKernel(
            heads,
            head_width(dim, heads),
            position_dim=position_dim,
            width=width,
            groups=groups,
            **kernel_options,
        )
        super().__init__(
            dim,
            heads,
            kernel=kernel,
            strategy=strategy,
            out_dim=out_dim,
        )
        self.start = start
        self._scale_start()
        if proposal is True:
            add_proposal(self, position_dim)
        elif proposal is not False:
            add_proposal(self, position_dim, **_proposal_options(proposal))

    def reset_parameters(self) -> None:
        super().reset_parameters()
        self._scale_start()

    def _scale_start(self) -> None:
        if self.start != 1.0 and self.residual is not None:
            with torch.no_grad():
                self.residual.weight.mul_(self.start)


@register_operator("itnet_low_rank")
class LowRankITNetOperator(IntegralOperator):
    r"""ITNet's operator in linear time, with a matrix that is a product of two factors:
    :math:`(Tu)(x) = W u(x) + W_O\,[\Phi_h(x, u_h(x)) \int \Psi_h(y, u_h(y))^T u_h(y)\,d\mu(y)]_h`.

    Args:
        dim: width d of u.
        heads: H, must divide ``dim``.
        position_dim: dimension p of the domain's positions.
        rank: r, per head. A total rank R over the heads (the paper's "LR-64") is ``rank=ceil(R /
            heads)``.
        width: hidden width w of both factor networks.
        strategy, out_dim: see :class:`IntegralOperator`.
        kernel_options: further options of :class:`fredholm.kernels.LowRankKernel`: ``frequencies``,
            ``sigma``, ``learned_frequencies``, ``activation``.

    Shape: (B, N, dim) to (B, N, out_dim).

    Cost: O(N) time and memory, causal or not; ``step`` has a state of H·r numbers.

    Reference: ITNet §3.3, App. H.12, Table 17.

    Example:
        >>> operator = LowRankITNetOperator(16, heads=2, rank=4, width=8)
        >>> operator(torch.randn(2, 5, 16)).shape, operator.plan(Domain.line(5)).path
        (torch.Size([2, 5, 16]), 'hidden units pooled')
    """

    options_class = LowRankKernel
    small: ClassVar[Mapping[str, Any]] = {"rank": 4, **ITNetOperator.small}

    def __init__(
        self,
        dim: int,
        heads: int = 1,
        *,
        position_dim: int = 1,
        rank: int = 16,
        width: int = 128,
        strategy: Strategy | str | Mapping[str, Any] = "auto",
        out_dim: int | None = None,
        **kernel_options,
    ):
        kernel = LowRankKernel(
            heads,
            head_width(dim, heads),
            rank=rank,
            position_dim=position_dim,
            width=width,
            **kernel_options,
        )
        super().__init__(
            dim,
            heads,
            kernel=kernel,
            strategy=strategy,
            out_dim=out_dim,
        )


def _proposal_options(options: Mapping[str, Any]) -> dict[str, Any]:
    known = ("components", "width", "frequencies", "sigma")
    if not all(key in known for key in options):
        raise OptionError(
            f"proposal: expected true, or options among {', '.join(known)}, got {options!r}"
        )
    return dict(options)
