"""Attention as hops on a token graph: activated inner products over one norm of the whole graph."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ...errors import DomainError, OptionError, suggest
from ...integral import (
    AttentionKernel,
    Layout,
    Problem,
    Projections,
    prepared,
)
from ...ops.backend import full_precision
from ...ops.tiles import find_activation
from .capabilities import DecayingWeights, QueryKeyValue, TokenGraphWeights
from .graph import ACTIVATIONS, NORMS, TokenGraph, activated
from .hops import HopRows, Hops, OneHop
from .neighbours import HopsAlongEdges, OneHopAlongEdges
from .resolvent import Iterations, Substitution, WalkRows


class Constants(NamedTuple):
    """Defaults of a preset, see :class:`TokenGraphKernel`; ``tied`` is that of the linear form."""

    decay: float
    scale: float | str
    tied: bool


# The values of the paper, and those of its authors' code, which differ.
CONSTANTS = {
    "paper": Constants(decay=0.7, scale=1.0, tied=True),
    "released": Constants(decay=0.95, scale="width", tied=False),
}


class TokenGraphKernel(AttentionKernel, DecayingWeights):
    r"""Base of kernels on a token graph: queries, keys and values, a decay γ, an activation φ.

    Args:
        dim, heads, bias, projections: see :class:`AttentionKernel`.
        preset: ``"paper"`` or ``"released"``, the defaults of ``decay``, ``scale`` and the linear
            form's ``tied``.
        decay: γ in (0, 1).
        learned_decay: one γ per head, the sigmoid of a parameter, started at ``decay``.
        power: exponent of γ in the response of one hop: block l of a stack has ``power=l``; 0
            leaves γ out.
        activation: φ, ``"relu"``, ``"gelu"`` or ``"abs"``.
        scale: factor of the inner products; it cancels except with ε and GELU. ``"width"`` is one
            over the width of a query.
        tied: keys equal queries.
        eps: ε, added to norms and sums.

    Raises:
        OptionError: γ outside (0, 1), unknown names, a negative ε or power, a learned decay that
            acts nowhere.
        DomainError: queries on another domain than keys: a graph has one set of tokens.
    """

    reads_position = False

    def __init__(
        self,
        dim: int,
        heads: int,
        *,
        bias: bool = False,
        projections: Projections | None = None,
        preset: str = "paper",
        decay: float | None = None,
        learned_decay: bool = False,
        power: int = 1,
        activation: str = "relu",
        scale: float | str | None = None,
        tied: bool = False,
        eps: float = 1e-6,
    ):
        if preset not in CONSTANTS:
            raise OptionError(f"unknown preset {preset!r}{suggest(preset, CONSTANTS)}")
        if decay is None:
            decay = CONSTANTS[preset].decay
        if scale is None:
            scale = CONSTANTS[preset].scale
        if learned_decay and power == 0:
            raise OptionError(
                "expected a power of 1 or more beside a learned decay, got power=0, which leaves γ "
                "out of the response: it would never change; take power=1"
            )
        _check_options(decay, power, activation, scale, eps)
        if tied and isinstance(projections, nn.Linear):
            raise OptionError(
                "expected separate maps beside tied keys, got one layer for all three; give "
                "projections=(query, query, value)"
            )
        super().__init__(dim, heads, bias=bias, projections=projections)
        if tied and self.groups != heads:
            raise OptionError(
                f"expected tied keys with as many heads as queries, {heads}, got projections of "
                f"{self.groups}; give projections=(query, query, value)"
            )
        self.tied = tied
        self.gamma = float(decay)
        self.power = power
        if tied:
            self.key = None  # type: ignore[assignment]
        self.activation = activation
        self.eps = eps
        self.scale = 1.0 / self.width
        if not isinstance(scale, str):
            self.scale = float(scale)
        self.decay_logit: nn.Parameter | None = None
        if learned_decay:
            start = torch.full((heads,), self._start_logit())
            self.decay_logit = nn.Parameter(start)

    def _start_logit(self) -> float:
        """Return the number whose sigmoid is the decay that was given."""
        odds = self.gamma / (1 - self.gamma)
        return math.log(odds)

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Reset the maps to Xavier-uniform weights with zero biases, and a learned decay to the
        ``decay`` that was given.
        """
        super().reset_parameters()

        # The base class calls this in its constructor, before there is a decay.
        logit: nn.Parameter | None = getattr(self, "decay_logit", None)
        if logit is not None:
            logit.fill_(self._start_logit())

    def _map(self, part: int) -> tuple[Tensor, Tensor | None]:
        if part == 1 and getattr(self, "tied", False):
            part = 0
        return super()._map(part)

    def tokens(self, u: Tensor) -> QueryKeyValue:
        """Return scaled queries, keys and values (with their bias) of features (B, 1, N, dim)."""
        query, key, value = self._all_heads(u)
        return QueryKeyValue(
            self._scaled(query),
            key,
            self._with_bias(value),
        )

    def _scaled(self, query: Tensor) -> Tensor:
        if self.scale == 1.0:
            return query
        return query * self.scale

    def _with_bias(self, value: Tensor) -> Tensor:
        bias = self.value_bias()
        if bias is None:
            return value
        return value + bias

    def decay(self) -> Tensor:
        """Return γ of each head, (H,)."""
        return prepared(self, ("decay", self.gamma), self._decay)

    def _decay(self) -> Tensor:
        if self.decay_logit is not None:
            return torch.sigmoid(self.decay_logit)
        value_map = self._map(2)[0]
        return value_map.new_full((self.heads,), self.gamma)

    def gain(self) -> Tensor | None:
        """Return the factor of the response beside the γ of its hops,
        :math:`\\gamma^{power - 1}`, (H,), or None where it is one.
        """
        if self.power == 1:
            return None
        name = ("gain", self.gamma, self.power)

        def make() -> Tensor:
            return self.decay() ** (self.power - 1)

        return prepared(self, name, make)

    def weights(self, problem: Problem) -> Tensor:
        raise NotImplementedError(f"{type(self).__name__} must define weights(problem)")

    def offset(self, problem: Problem) -> Tensor | None:
        """Return the value bias times the integral of a query's weights, which may not be 1."""
        bias = self.value_bias()
        if bias is None:
            return None
        weights = self.weights(problem)
        seen = problem.quadrature.weights()
        integral = (weights * seen).sum(-1, keepdim=True)
        return integral * bias

    def check(self, layout: Layout) -> None:
        if layout.sharded and layout.edges:
            raise DomainError(
                f"{type(self).__name__}: expected edges in one process, got edges in shards; one "
                "norm is taken over the edges of all tokens, which no rank has: leave the domain "
                "whole"
            )
        if layout.cross:
            raise DomainError(
                f"{type(self).__name__}: expected queries at the domain's own points, got another "
                "domain; one set of tokens acts on itself. Use softmax or itnet for cross "
                "attention, or join the two domains"
            )

    def extra_repr(self) -> str:
        gamma = f"{self.gamma:g}"
        if self.decay_logit is not None:
            gamma = "learned"
        options = (
            f"decay={gamma}, power={self.power}, activation={self.activation}, tied={self.tied}"
        )
        return f"{super().extra_repr()}, {options}"


class HopKernel(TokenGraphKernel, TokenGraphWeights):
    r"""One hop on the token graph:

    .. math:: K_h(x, y; u) = \gamma_h^l\,
              \frac{\phi(\langle Q_h u(x), K_h u(y)\rangle)}{n_h(x) + \varepsilon}\,V_h

    The norm n is one number per head and sample, :math:`n^2 = \iint \phi^2\,d\mu\,d\mu`; in causal
    order one per prefix, so that it never sees the future. With equal masses this is
    :math:`\gamma^l \hat A V`, ‖Â‖_F = 1. A bias or density of pairs is part of the graph: it
    multiplies φ in the norm as well.

    Args:
        norm: ``"frobenius"``, the paper's, bounds the spectral radius by 1 and not the row sums,
            which reach √N; ``"rows"`` divides by the largest row sum, so that γÂ is the transition
            matrix of an absorbing chain.
        options: see :class:`TokenGraphKernel`.

    Reference: InfSA Eqs. 11, 12; masses, order and ``"rows"`` are ours.

    Example:
        >>> HopKernel(8, 2, decay=0.5).decay().tolist()
        [0.5, 0.5]
    """

    forms = (
        OneHop,
        Hops,
        HopRows,
        Iterations,
        Substitution,
        WalkRows,
        OneHopAlongEdges,
        HopsAlongEdges,
    )

    def __init__(
        self,
        dim: int,
        heads: int,
        *,
        norm: str = "frobenius",
        **options,
    ):
        if norm not in NORMS:
            raise OptionError(f"unknown norm {norm!r}{suggest(norm, NORMS)}")
        super().__init__(dim, heads, **options)
        self.norm = norm

    def rules(self) -> dict[str, Any]:
        """Return the options of :class:`fredholm.families.infsa.graph.TokenGraph`."""
        return {
            "decay": self.decay(),
            "activation": self.activation,
            "norm": self.norm,
            "eps": self.eps,
        }

    def weights(self, problem: Problem) -> Tensor:
        # The norm is that of the whole graph, also where weights of some queries are wanted.
        whole = problem if problem.parent is None else problem.parent
        query, key, value = self.tokens(whole.uy)
        with full_precision(whole.uy):
            graph = TokenGraph.of(
                query,
                key,
                whole.quadrature,
                **self.rules(),
            )
            if problem.index is None:
                sizes = graph.sizes(graph.edges())
                factor = graph.factor(sizes)
            else:
                # Tiles of the whole graph, without a product: no column of the values is needed.
                factor = graph.start(value[..., :0]).factor

            # Weights are multiplied by the quadrature's, which hold the scale already.
            if graph.scale is not None:
                seen = graph.scale > 0
                scale = torch.where(seen, graph.scale, 1.0)
                factor = torch.where(seen, factor / scale, 0.0)
            rows = graph.query
            if problem.index is not None:
                rows = rows.index_select(2, problem.index)
                if factor.shape[-1] > 1:
                    factor = factor.index_select(2, problem.index)
            factor = factor[..., None]
            density = activated(rows @ graph.key.mT, self.activation) * factor

            gain = self.gain()
            if gain is not None:
                density = density * gain[:, None, None]
            return density


def _check_options(
    decay: float,
    power: int,
    activation: str,
    scale: float | str,
    eps: float,
) -> None:
    """OptionError where an option has an impossible value."""
    if not 0.0 < decay < 1.0:
        raise OptionError(
            f"expected a decay γ in (0, 1), got {decay}; at 1 or above the sum over hops has no "
            "limit"
        )
    if power < 0 or eps < 0:
        raise OptionError(f"expected power and eps of 0 or more, got {power} and {eps}")
    find_activation(activation, ACTIVATIONS)
    if scale != "width" and (isinstance(scale, str) or not scale > 0):
        raise OptionError(f"expected a positive scale or 'width', got {scale!r}")
