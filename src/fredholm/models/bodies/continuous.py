"""The continuous body: one evolution by operator splitting."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ...configuration import check_counts, check_heads
from ...domain import Domain
from ...families.continuous.splitting import (
    Evolution,
    FeedForwardTerm,
    Hybrid,
    MomentConstraint,
    Observer,
    OperatorTerm,
    Substep,
    Term,
    encoder_terms,
)
from ..depth import output_layers
from ..encoders import Encoder, EncoderConfig
from ..operators import position_options
from .body import Body, register_body
from .continuous_config import PENALTY, EvolutionConfig


@register_body("continuous")
@dataclass(frozen=True)
class ContinuousConfig(EvolutionConfig):
    """One evolution, see :class:`EvolutionConfig` for the fields that are not here.

    Attributes:
        dim, heads: width d of the features, heads H of the attention term.
        depth: K, the number of knots.
    """

    dim: int = 64
    heads: int = 4
    depth: int = 4

    def __post_init__(self) -> None:
        super().__post_init__()
        check_counts(self, "dim", "heads", "depth")
        check_heads(self.dim, self.heads)

    @property
    def width(self) -> int:
        return self.dim

    def build(self, encoder: Encoder, config: EncoderConfig) -> ContinuousBody:
        # Every other norm acts outside the terms, see constrained.
        term_norm = "none"
        if self.norm == "pre":
            term_norm = "pre"

        def terms(drop_path: float) -> list[Term]:
            return encoder_terms(
                self.dim,
                self.heads,
                round(self.mlp_ratio * self.dim),
                norm=term_norm,
                operator=self.operator,
                activation=self.activation,
                dropout=self.dropout,
                drop_path=drop_path,
                **position_options(self.operator, encoder.position_dim, self.operator_options),
            )

        sizes = {"dim": self.dim, "depth": self.depth}
        return ContinuousBody(
            [make_evolution(self, terms, **sizes, steps=self.steps, horizon=self.horizon)],
            self.train_steps,
        )


class ContinuousBody(Body):
    r""":math:`u_t = \text{attention} + \text{network} + \text{constraints}` solved on [0, T].

    Depth is a numerical choice: ``model(inputs, steps=N)`` takes N time steps with the same
    weights. At N = K = T and the Lie scheme the body is that of an ordinary encoder, post-norm or
    pre-norm.

    Initialisation: Xavier-uniform terms, output layers scaled by :math:`1/\sqrt{2K}` unless
    post-norm.

    Reference: continuous transformer, Eq. 10, 13, 16-21, 57.

    Example:
        >>> from fredholm.models import create_model
        >>> model = create_model("continuous_text_micro", encoder={"vocabulary": 10})
        >>> tokens = torch.tensor([[4, 2, 0], [3, 9, 9]])
        >>> model(tokens).shape, model(tokens, steps=16).shape
        (torch.Size([2, 2]), torch.Size([2, 2]))
    """

    def __init__(self, evolutions: list[Evolution], train_steps: tuple[int, int] | None = None):
        super().__init__()
        self.evolutions: Any = nn.ModuleList(evolutions)
        self.train_steps = train_steps

    @property
    def evolution(self) -> Evolution:
        """The evolution, of the last stage where there are several."""
        return self.evolutions[-1]

    def forward(
        self,
        u: Tensor,
        domain: Domain,
        steps: int | None = None,
        observer: Observer | None = None,
    ) -> tuple[Tensor, Domain]:
        """Evolve u over [0, T].

        Args:
            u: features (B, N, D) at time 0.
            domain: the domain of u.
            steps: number of time steps. None for the evolution's own number, or in training for one
                drawn from ``train_steps``.
            observer: called after every substep.
        """
        if steps is None and self.training and self.train_steps is not None:
            least, most = self.train_steps
            steps = int(torch.randint(least, most + 1, ()))
        u, domain = self.start(u, domain, steps, observer)
        return self.evolution(u, domain, steps=steps, observer=observer), domain

    def start(
        self,
        u: Tensor,
        domain: Domain,
        steps: int | None = None,
        observer: Observer | None = None,
    ) -> tuple[Tensor, Domain]:
        """Return u(0) of the evolution and its domain; with several stages, those of the last."""
        return u, domain

    @torch.no_grad()
    def trace(self, u: Tensor, domain: Domain) -> list[tuple[nn.Module, Tensor, Domain]]:
        """Return for each step of the last stage the operator, its input (B, N, D) and the domain.

        Where a scheme applies the operator more than once per step, the input is that of the first
        time. With interpolated controls the operator is that of the nearest knot.
        """
        first: dict[int, tuple[nn.Module, Tensor]] = {}

        def look(substep: Substep) -> None:
            term = substep.term
            if not isinstance(term, OperatorTerm) or substep.step in first:
                return
            seen = substep.before
            if term.norm is not None:
                seen = term.norm(seen)
            first[substep.step] = term.operator, seen

        u, domain = self.start(u, domain)
        self.evolution(u, domain, observer=look)
        return [(operator, u, domain) for operator, u in first.values()]


def make_evolution(
    c: EvolutionConfig,
    terms: Any,
    *,
    dim: int,
    depth: int,
    steps: int | None,
    horizon: float | None,
) -> Evolution:
    """Return an evolution of width ``dim`` with ``depth`` knots, each of ``terms(drop_path)``.

    ``steps`` and ``horizon`` are ``depth`` where they are None: one step of length 1 per knot.
    """
    knot_count = depth
    if c.control == "shared":
        knot_count = 1

    # Stochastic depth grows linearly from 0 at the first knot to ``drop_path`` at the last.
    rates = [c.drop_path * k / max(1, knot_count - 1) for k in range(knot_count)]
    knots = [constrained(c, terms(rate), dim) for rate in rates]

    # Two terms per knot are added to the stream: scaled by 1/√(2K) their sum has the size of one.
    # A projection after each term needs neither that nor a last norm.
    norm = None
    if c.norm != "post":
        _scale_outputs(knots, (2 * depth) ** -0.5)
        norm = nn.LayerNorm(dim)

    scheme = c.scheme
    if not isinstance(scheme, str):
        scheme = Hybrid(groups=scheme)
    controls = "constant"
    if c.control == "linear":
        controls = "linear"
    if horizon is None:
        horizon = float(depth)
    if steps is None:
        steps = depth
    return Evolution(
        knots, scheme=scheme, controls=controls, horizon=horizon, steps=steps, norm=norm
    )


def constrained(c: EvolutionConfig, terms: list[Term], dim: int) -> list[Term]:
    """Return the terms of one knot, with the constraints that its norm asks for."""
    if c.norm in ("pre", "none"):
        return terms
    options: Any = {}
    if c.norm == "soft":
        penalty = c.penalty
        if penalty is None:
            penalty = PENALTY
        options = {"affine": "scalar", "penalty": penalty}

    # One constraint after the attention, one after the network, which is the last term.
    *before, network = terms
    first = MomentConstraint(dim, **options)
    second = MomentConstraint(dim, **options)
    return [*before, first, network, second]


@torch.no_grad()
def _scale_outputs(knots: list[list[Term]], scale: float) -> None:
    """Scale the output layers of attention and network, so that u(T) does not grow with depth."""
    for terms in knots:
        for term in terms:
            if isinstance(term, OperatorTerm):
                for projection in output_layers(term.operator):
                    projection.weight.mul_(scale)
            elif isinstance(term, FeedForwardTerm):
                last: Any = term.layers[-1]
                last.weight.mul_(scale)
