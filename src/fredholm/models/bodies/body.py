"""Base classes of bodies, which map features on a domain to features on a domain, and of their
configurations.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from ...configuration import (
    Configuration,
    check_counts,
    check_heads,
    check_rates,
    check_ratio,
)
from ...domain import Domain
from ...errors import OptionError
from ...integral import IntegralOperator
from ...registry import Registered, Registry
from ..encoders import Encoder, EncoderConfig
from ..operators import OperatorSum, averaging, counting, counts

Seen = tuple[nn.Module, Tensor, Domain]
"""An operator, its input u (B, N, D) and the domain of u."""


class Body(nn.Module):
    """A map from features (B, N, D) and their domain to the features for the read-out and their
    domain.

    A body that can process a causal domain point by point also defines :meth:`init_state`,
    :meth:`prefill` and :meth:`step`.
    """

    @property
    def operators(self) -> list[nn.Module]:
        """Operators that :meth:`trace` records, in the order of the layers."""
        raise NotImplementedError

    @property
    def layer_names(self) -> list[str]:
        """Names of the entries of :meth:`trace` on pages; empty: they are numbered."""
        return []

    def forward(self, u: Tensor, domain: Domain) -> tuple[Tensor, Domain]:
        raise NotImplementedError

    @torch.no_grad()
    def trace(self, u: Tensor, domain: Domain) -> list[Seen]:
        """Return the input of each operator: (operator, u (B, N, D), domain)."""
        # Hooks take it from the calls of one forward, and are gone afterwards.
        seen: list[Seen] = []

        def note(module: nn.Module, given: tuple[Any, ...], named: dict[str, Any]) -> None:
            seen.append((module, *signal_of(module, given, named)))

        with ExitStack() as hooks:
            for operator in self.operators:
                hooks.enter_context(operator.register_forward_pre_hook(note, with_kwargs=True))
            self(u, domain)
        return seen

    def init_state(self, batch: int, domain: Domain) -> tuple[Any, ...]:
        """Return the states of all layers before the first point of a causal domain.

        Raises:
            OptionError: a body that cannot process points one by one.
        """
        raise OptionError(
            f"init_state: expected a body that goes point by point, got {type(self).__name__}; "
            "choose another body"
        )

    def prefill(self, u: Tensor, states: tuple[Any, ...]) -> tuple[Tensor, tuple[Any, ...]]:
        """Return the features for the read-out at the next n points (B, n, D), and the states
        after the last.
        """
        return self.advance(u, states, "prefill")

    def step(self, u: Tensor, states: tuple[Any, ...]) -> tuple[Tensor, tuple[Any, ...]]:
        """Return the same for one point, (B, D)."""
        return self.advance(u, states, "step")

    def advance(
        self,
        u: Tensor,
        states: tuple[Any, ...],
        move: str,
    ) -> tuple[Tensor, tuple[Any, ...]]:
        """Advance all layers by their operators' ``move``: ``prefill`` or ``step``."""
        raise NotImplementedError


def signal_of(
    operator: nn.Module,
    given: tuple[Any, ...],
    named: Mapping[str, Any],
) -> tuple[Tensor, Domain]:
    """Return an operator's input and its domain, from the arguments of its call.

    Without a domain it is the operator's default; other modules integrate over a line.
    """
    u, *rest = given or (named["u"],)
    domain = next(iter(rest), named.get("domain"))
    if domain is not None:
        return u, domain
    if isinstance(operator, IntegralOperator):
        return u, operator.default_domain(u)
    return u, Domain.line(u.shape[1], device=u.device)


def operator_domain(operator: nn.Module, domain: Domain) -> Domain:
    """Return the domain that an operator of a body integrates over: with a mass of one per point
    where the operator is defined for that, or a part of a sum is.
    """
    if counts(operator, domain):
        return counting(domain)
    if isinstance(operator, OperatorSum):
        return averaging(domain)
    return domain


def rising_rates(last: float, count: int) -> list[float]:
    """Return rates of stochastic depth that rise linearly from 0 to ``last`` over ``count`` blocks.

    Example:
        >>> rising_rates(0.5, 3)
        [0.0, 0.25, 0.5]
    """
    return [last * i / max(1, count - 1) for i in range(count)]


@dataclass(frozen=True)
class BodyConfig(Configuration):
    """Base of configurations of bodies; its kind is the ``kind`` of a recipe's ``model.body``.

    Attributes:
        any_width: whether it reads features of any width (those of encoders with ``own_width``);
            else only of its own ``width``.
        encoders: kinds of encoders that it can follow; empty: all with this width.
        fixed_axes: names of the encoder's free sizes (:class:`.Axis`) that it fixes.
        dropout: after the embedding, which the encoder applies.
    """

    any_width: ClassVar[bool] = False
    encoders: ClassVar[tuple[str, ...]] = ()
    fixed_axes: ClassVar[tuple[str, ...]] = ()
    dropout = 0.0

    @property
    def width(self) -> int:
        """Width D of the features that are read out."""
        raise NotImplementedError

    @property
    def reduction(self) -> int:
        """Cells of the encoder's grid, along an axis, per cell that is read out."""
        return 1

    def build(self, encoder: Encoder, config: EncoderConfig) -> Body:
        """Return the body for an encoder, whose configuration describes the data."""
        raise NotImplementedError


class StackConfig(BodyConfig):
    """Base of configurations of bodies of equal blocks: an operator and a feed-forward network."""

    dim: int
    depth: int
    heads: int
    mlp_ratio: float
    dropout: float

    def __post_init__(self) -> None:
        super().__post_init__()
        check_counts(self, "dim", "depth", "heads")
        check_heads(self.dim, self.heads)
        check_rates(self, "dropout")
        check_ratio(self.mlp_ratio)

    @property
    def width(self) -> int:
        return self.dim


BODIES: Registry[type[BodyConfig]] = Registry(
    "body",
    home="fredholm.models.bodies",
    attribute="kind",
)


def register_body(kind: str) -> Callable[[Registered], Registered]:
    """Register a body's configuration as ``kind``, for ``model.body.kind`` of recipes.

    Raises:
        OptionError: a kind that is already registered.
    """

    return BODIES.register(kind)
