"""Decayed accumulation over layers: deeper layers count less."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from ...domain import Domain
from ...errors import OptionError
from ...stochastic_depth import StochasticDepth
from .residual import FeedForward


class Accumulation(nn.Module):
    r"""A stack of any operators T_l whose responses are summed with a decay,
    :math:`S_L = \sum_{l=1}^{L} \gamma^l Z^{(l)}`.

    Two readings of the responses Z:

    - ``residual=True``, the stack of the paper's models: :math:`Z^{(l)} = T_l(\mathrm{LN}\,h)`,
      added to a residual stream with its feed-forward network,
      :math:`h \leftarrow h + \gamma^l Z^{(l)}`,
      :math:`h \leftarrow h + \mathrm{FFN}(\mathrm{LN}\,h)`; the output is h.
    - ``residual=False``, the series itself: :math:`Z^{(l)} = T_l Z^{(l-1)}`, :math:`Z^{(0)} = u`;
      the output is S_L. With one linear T this is the truncation of
      :math:`(I - \gamma T)^{-1}u - u`.

    :meth:`accumulate` returns S_L beside the output in both.

    Args:
        operators: T_1 … T_L, each maps (B, N, dim) on a domain to (B, N, dim). An InfSA brings a γ
            of its own: give it ``power=0``.
        dim: width of u.
        decay: γ in (0, 1).
        learned_decay: γ is the sigmoid of a parameter, started at ``decay``.
        residual: see above.
        ratio: expansion of the feed-forward networks of a residual stack; 0 leaves them out.
        dropout, drop_path, chunk: as in :class:`ResidualBlock`; of a residual stack.

    Raises:
        OptionError: no operator, γ outside (0, 1).

    Reference: InfSA Eqs. 9, 12, 23; the two readings are equal only without residuals and
    feed-forward networks.

    Example:
        >>> from fredholm.operators import create_operator
        >>> stack = Accumulation([create_operator("softmax", 8, heads=2) for _ in range(3)], 8)
        >>> stack(torch.zeros(1, 4, 8), Domain.line(4)).shape
        torch.Size([1, 4, 8])
    """

    def __init__(
        self,
        operators: Iterable[nn.Module],
        dim: int,
        *,
        decay: float = 0.7,
        learned_decay: bool = False,
        residual: bool = True,
        ratio: float = 4.0,
        dropout: float = 0.0,
        drop_path: float = 0.0,
        chunk: int | None = None,
    ):
        super().__init__()
        self.operators = nn.ModuleList(operators)
        if not self.operators:
            raise OptionError("operators: expected one or more, got none; give some")
        if not 0.0 < decay < 1.0:
            raise OptionError(
                f"expected a decay γ in (0, 1), got {decay}; for γ = 1 stack ResidualBlocks"
            )
        self.decay = decay
        self.residual = residual
        self.decay_logit = None
        if learned_decay:
            self.decay_logit = nn.Parameter(torch.tensor(math.log(decay / (1 - decay))))

        # A residual stack has a norm for each operator, and beside it a network and its norm.
        blocks = 0
        if residual:
            blocks = len(self.operators)
        networks = range(0)
        if ratio:
            networks = range(blocks)
        options: Any = {"ratio": ratio, "dropout": dropout, "chunk": chunk}
        self.norms = nn.ModuleList(nn.LayerNorm(dim) for _ in range(blocks))
        self.network_norms = nn.ModuleList(nn.LayerNorm(dim) for _ in networks)
        self.networks = nn.ModuleList(FeedForward(dim, **options) for _ in networks)
        self.dropout = nn.Dropout(dropout)
        self.drop_path = StochasticDepth(drop_path)

    def forward(self, u: Tensor, domain: Domain) -> Tensor:
        out, _ = self.accumulate(u, domain)
        return out

    def accumulate(self, u: Tensor, domain: Domain) -> tuple[Tensor, Tensor]:
        """Return the output and S_L, both (B, N, dim)."""
        gamma: Any = self.decay
        if self.decay_logit is not None:
            gamma = torch.sigmoid(self.decay_logit).to(u.dtype)

        stream = response = u
        total = torch.zeros_like(u)
        for layer, operator in enumerate(self.operators):
            # Layers are counted from 1 in the formula.
            weight = gamma ** (layer + 1)
            if not self.residual:
                response = operator(response, domain)
                total = total + weight * response
                continue

            branch = self.dropout(operator(self.norms[layer](stream), domain))
            part = weight * self.drop_path(branch, domain.shards)
            total = total + part
            stream = stream + part
            if self.networks:
                branch = self.networks[layer](self.network_norms[layer](stream))
                stream = stream + self.drop_path(branch, domain.shards)
        if self.residual:
            return stream, total
        return total, total

    def extra_repr(self) -> str:
        gamma = f"{self.decay:g}"
        if self.decay_logit is not None:
            gamma = "learned"
        return f"decay={gamma}, residual={self.residual}"
