"""Continuous body: one evolution, solved by operator splitting."""

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
from .body import Body, operator_domain, register_body, rising_rates
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
        # Other norms act between the terms, as constraints.
        norm = "none"
        if self.norm == "pre":
            norm = "pre"

        options = position_options(
            self.operator,
            encoder.position_dim,
            self.operator_options,
            causal=config.causal,
        )

        def terms(drop_path: float) -> list[Term]:
            return encoder_terms(
                self.dim,
                self.heads,
                round(self.mlp_ratio * self.dim),
                norm=norm,
                operator=self.operator,
                activation=self.activation,
                dropout=self.dropout,
                drop_path=drop_path,
                **options,
            )

        evolution = make_evolution(
            self,
            terms,
            dim=self.dim,
            depth=self.depth,
            steps=self.steps,
            horizon=self.horizon,
        )
        return ContinuousBody([evolution], self.train_steps)


class ContinuousBody(Body):
    r""":math:`u_t = \text{attention} + \text{network} + \text{constraints}` solved on [0, T].

    Depth is a numerical choice: ``model(inputs, steps=N)`` takes N time steps with the same
    weights. With N = K = T and the Lie scheme the body is an ordinary encoder, post-norm or
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
        """The evolution; the last stage's if there are several."""
        return self.evolutions[-1]

    def forward(
        self,
        u: Tensor,
        domain: Domain,
        steps: int | None = None,
        observer: Observer | None = None,
    ) -> tuple[Tensor, Domain]:
        """Solve the evolution from features (B, N, D).

        Args:
            u, domain: u(0).
            steps: number of time steps. By default the evolution's own; in training a random one,
                if the body was built with ``train_steps``.
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
        """Return u(0) of the evolution (the last stage's if there are several) and its domain."""
        return u, evolution_domain(self.evolution, domain)

    @torch.no_grad()
    def trace(self, u: Tensor, domain: Domain) -> list[tuple[nn.Module, Tensor, Domain]]:
        """Return what the attention operator of each time step reads, in the order of the steps:
        (operator, u (B, N, D), domain).

        Only the last stage is recorded, with the evolution's default number of steps. If a scheme
        applies the attention term several times per step, the first application is recorded. With
        interpolated controls the operator is that of the nearest knot.

        Args:
            u, domain: features (B, N, D) from the encoder, and their domain.
        """
        first: dict[int, tuple[nn.Module, Tensor]] = {}

        def look(substep: Substep) -> None:
            term = substep.term
            if not isinstance(term, OperatorTerm) or substep.step in first:
                return
            # With norm="pre" the layer norm is inside the term, and the operator reads its output.
            read = substep.before
            if term.norm is not None:
                read = term.norm(read)
            first[substep.step] = (term.operator, read)

        # The earlier stages run without the observer.
        u, domain = self.start(u, domain)
        self.evolution(u, domain, observer=look)
        return [(operator, u, domain) for operator, u in first.values()]


def evolution_domain(evolution: Evolution, domain: Domain) -> Domain:
    """Return the domain that the attention term of an evolution integrates over."""
    # All knots have one kind of operator.
    for term in evolution.knots[0]:
        if isinstance(term, OperatorTerm):
            return operator_domain(term.operator, domain)
    return domain


def make_evolution(
    c: EvolutionConfig,
    terms: Any,
    *,
    dim: int,
    depth: int,
    steps: int | None,
    horizon: float | None,
) -> Evolution:
    """Return an evolution of width ``dim`` with ``depth`` knots, each of ``terms(drop_path)``."""
    count = depth
    if c.control == "shared":
        count = 1
    # Stochastic depth grows linearly, from 0 at the first knot.
    rates = rising_rates(c.drop_path, count)
    knots = [constrained(c, terms(rate), dim) for rate in rates]
    norm = None
    if c.norm != "post":
        _scale_outputs(knots, (2 * depth) ** -0.5)
        norm = nn.LayerNorm(dim)

    scheme = c.scheme
    if not isinstance(scheme, str):
        scheme = Hybrid(groups=scheme)
    # Parameters shared by all times are constant in time.
    controls = "constant"
    if c.control == "linear":
        controls = "linear"
    if horizon is None:
        horizon = float(depth)
    if steps is None:
        steps = depth
    return Evolution(
        knots,
        scheme=scheme,
        controls=controls,
        horizon=horizon,
        steps=steps,
        norm=norm,
    )


def constrained(c: EvolutionConfig, terms: list[Term], dim: int) -> list[Term]:
    """Return the terms of one knot, with the constraints that its kind of norm adds.

    Args:
        c: the configuration; its ``norm`` decides.
        terms: the knot's attention term and its network, in this order.
        dim: width D of the features, which the constraints normalise.

    Returns:
        For ``post`` and ``soft``: attention, constraint, network, constraint. For ``pre`` and
        ``none``: the terms as they are, since layer norms of ``pre`` are inside the terms.
    """
    if c.norm in ("pre", "none"):
        return terms
    # By default a constraint is a hard projection with a weight and a bias per feature, which is a
    # layer normalisation. A soft one needs one mean and one deviation, which define its set.
    options: Any = {}
    if c.norm == "soft":
        # A penalty of None is the default; zero is refused by the configuration.
        options = {"affine": "scalar", "penalty": c.penalty or PENALTY}

    # One constraint acts after the attention, the other after the network.
    *before, network = terms
    first = MomentConstraint(dim, **options)
    second = MomentConstraint(dim, **options)
    return [*before, first, network, second]


@torch.no_grad()
def _scale_outputs(knots: list[list[Term]], scale: float) -> None:
    """Shrink the output layers of attention and network: u(T) must not grow with the depth."""
    for terms in knots:
        for term in terms:
            if isinstance(term, OperatorTerm):
                for projection in output_layers(term.operator):
                    projection.weight.mul_(scale)
            elif isinstance(term, FeedForwardTerm):
                last: Any = term.layers[-1]
                last.weight.mul_(scale)
