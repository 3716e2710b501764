"""Attention as hops on a token graph: activated inner products over one norm of the whole graph."""

from __future__ import annotations

import math

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
from .capabilities import DecayingWeights, TokenGraphWeights
from .graph import ACTIVATIONS, NORMS, TokenGraph, activated
from .hops import HopRows, Hops, OneHop
from .neighbours import HopsAlongEdges, OneHopAlongEdges
from .resolvent import Iterations, Substitution, WalkRows

# What the paper says, and what its authors' code does where that differs. "tied" concerns the
# linear form.
CONSTANTS: dict[str, dict[str, object]] = {
    "paper": {"decay": 0.7, "scale": 1.0, "tied": True},
    "released": {"decay": 0.95, "scale": "width", "tied": False},
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
        scale: factor of the inner products; it cancels but for ε and GELU. ``"width"`` is one over
            the width of a query.
        tied: keys are the queries.
        eps: ε, added to norms and sums.

    Raises:
        OptionError: γ outside (0, 1), unknown names, a negative ε or power, a learned decay that
            acts nowhere.
        DomainError: queries on another domain than keys: a graph has one set of tokens.
    """

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
        gamma = CONSTANTS[preset]["decay"] if decay is None else decay
        scale = CONSTANTS[preset]["scale"] if scale is None else scale  # type: ignore[assignment]
        _check_options(gamma, learned_decay, power, activation, scale, eps)
        if tied and isinstance(projections, nn.Linear):
            raise OptionError(
                "tied keys need queries and values of their own: give projections=(query, query, "
                "value)"
            )
        super().__init__(dim, heads, bias=bias, projections=projections)
        self.tied, self.gamma, self.power = tied, float(gamma), power  # type: ignore[arg-type]
        if tied:
            if self.groups != heads:
                raise OptionError(
                    f"tied keys have as many heads as queries, {heads}; the projections give "
                    f"{self.groups}"
                )
            self.key = None  # type: ignore[assignment]
            self._aligned = None  # there is no third map
        self.activation, self.eps = activation, eps
        self.scale = 1.0 / self.width if scale == "width" else float(scale)  # type: ignore[arg-type]
        logit = math.log(self.gamma / (1 - self.gamma))
        self.decay_logit = nn.Parameter(torch.full((heads,), logit)) if learned_decay else None

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Xavier-uniform maps with zero biases; a learned decay at the ``decay`` it was given."""
        super().reset_parameters()
        logit: nn.Parameter | None = getattr(self, "decay_logit", None)  # not yet in __init__
        if logit is not None:
            logit.fill_(math.log(self.gamma / (1 - self.gamma)))

    def _map(self, part: int) -> tuple[Tensor, Tensor | None]:
        return super()._map(0 if part == 1 and getattr(self, "tied", False) else part)

    def tokens(self, u: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Scaled queries, keys and values (with their bias) of features (B, 1, N, dim): (B, H, N,
        ·) each.
        """
        query, key, value = self._all_heads(u)
        return query if self.scale == 1.0 else query * self.scale, key, self._with_bias(value)

    def _with_bias(self, value: Tensor) -> Tensor:
        bias = self._map(2)[1]
        return (
            value if bias is None else value + self._share(bias.view(1, self.groups, 1, self.d_out))
        )

    def decay(self) -> Tensor:
        """γ of each head, (H,)."""
        return prepared(self, ("decay", self.gamma), self._decay)

    def _decay(self) -> Tensor:
        if self.decay_logit is not None:
            return torch.sigmoid(self.decay_logit)
        return self._map(2)[0].new_full((self.heads,), self.gamma)

    def gain(self) -> Tensor | None:
        """Factor of the response beside the γ of its hops, :math:`\\gamma^{power - 1}`, (H,); None
        where it is one.
        """
        if self.power == 1:
            return None
        return prepared(
            self, ("gain", self.gamma, self.power), lambda: self.decay() ** (self.power - 1)
        )

    def weights(self, problem: Problem) -> Tensor:
        raise NotImplementedError(f"{type(self).__name__} must define weights(problem)")

    def offset(self, problem: Problem) -> Tensor | None:
        """The value bias, as often as a query's weights hold it: they do not integrate to one."""
        bias = self._map(2)[1]
        if bias is None:
            return None
        whole = (self.weights(problem) * problem.quadrature.weights()).sum(-1, keepdim=True)
        return whole * self._share(bias.view(1, self.groups, 1, self.d_out))

    def check(self, layout: Layout) -> None:
        if layout.cross:
            raise DomainError(
                f"{type(self).__name__} lets one set of tokens act on itself; queries on another "
                "domain are not defined. "
                "Use softmax or itnet for cross attention, or join the two domains"
            )

    def extra_repr(self) -> str:
        gamma = "learned" if self.decay_logit is not None else f"{self.gamma:g}"
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
            matrix of an absorbing chain as it is.
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

    def __init__(self, dim: int, heads: int, *, norm: str = "frobenius", **options):
        if norm not in NORMS:
            raise OptionError(f"unknown norm {norm!r}{suggest(norm, NORMS)}")
        super().__init__(dim, heads, **options)
        self.norm = norm

    def rules(self) -> dict[str, object]:
        """The options of :class:`fredholm.families.infsa.graph.TokenGraph`."""
        return {
            "decay": self.decay(),
            "activation": self.activation,
            "norm": self.norm,
            "eps": self.eps,
        }

    def weights(self, problem: Problem) -> Tensor:
        whole = problem if problem.parent is None else problem.parent
        query, key, value = self.tokens(whole.uy)
        with full_precision(whole.uy):
            graph = TokenGraph.of(query, key, whole.quadrature, **self.rules())  # type: ignore[arg-type]
            if problem.index is None:
                factor = graph.factor(graph.sizes(graph.edges()))
            else:
                factor = graph.start(value[..., :0])[1]
            if graph.scale is not None:
                factor = torch.where(
                    graph.scale > 0, factor / torch.where(graph.scale > 0, graph.scale, 1.0), 0.0
                )
            rows = graph.query
            if problem.index is not None:
                rows = rows.index_select(2, problem.index)
                factor = factor if factor.shape[-1] == 1 else factor.index_select(2, problem.index)
            density = activated(rows @ graph.key.mT, self.activation) * factor[..., None]
            gain = self.gain()
            return density if gain is None else density * gain[:, None, None]


def _check_options(gamma, learned: bool, power: int, activation: str, scale, eps: float) -> None:
    if not 0.0 < gamma < 1.0:
        raise OptionError(
            f"decay is γ in (0, 1), got {gamma}; at 1 or above the sum over hops has no limit"
        )
    if power < 0 or eps < 0:
        raise OptionError(f"power and eps are not negative, got {power} and {eps}")
    if learned and power == 0:
        raise OptionError(
            "power=0 leaves γ out of the response, so that a learned decay would never change; "
            "take power=1"
        )
    find_activation(activation, ACTIVATIONS)
    if scale != "width" and (isinstance(scale, str) or not scale > 0):
        raise OptionError(f"scale is a positive number or 'width', got {scale!r}")
