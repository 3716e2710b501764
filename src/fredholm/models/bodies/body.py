"""Base of bodies, from features on a domain to features on a domain, and of their
configurations.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from ...configuration import Configuration
from ...domain import Domain
from ...errors import OptionError
from ...integral import IntegralOperator
from ...registry import Registered, Registry
from ..encoders import Encoder, EncoderConfig

Seen = tuple[nn.Module, Tensor, Domain]


class Body(nn.Module):
    """Features (B, N, D) and their domain to the features that are read out, and theirs.

    One that goes point by point through a causal domain defines :meth:`init_state`,
    :meth:`prefill` and :meth:`step` as well.
    """

    @property
    def operators(self) -> list[nn.Module]:
        """The operators that :meth:`trace` looks at, the first layer's first."""
        raise NotImplementedError

    @property
    def layer_names(self) -> list[str]:
        """What pages call what :meth:`trace` gives; empty: by number."""
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

        hooks = [
            operator.register_forward_pre_hook(note, with_kwargs=True)
            for operator in self.operators
        ]
        try:
            self(u, domain)
        finally:
            for hook in hooks:
                hook.remove()
        return seen

    def init_state(self, batch: int, domain: Domain) -> tuple[Any, ...]:
        """Return the states of all layers before the first point of a causal domain.

        Raises:
            OptionError: a body that does not go point by point.
        """
        raise OptionError(f"init_state: {type(self).__name__} does not go point by point")

    def prefill(self, u: Tensor, states: tuple[Any, ...]) -> tuple[Tensor, tuple[Any, ...]]:
        """Features of the next n points (B, n, D) to what is read out there, and the states after
        the last.
        """
        raise NotImplementedError

    def step(self, u: Tensor, states: tuple[Any, ...]) -> tuple[Tensor, tuple[Any, ...]]:
        """The same of one point, (B, D)."""
        raise NotImplementedError


def signal_of(
    operator: nn.Module, given: tuple[Any, ...], named: Mapping[str, Any]
) -> tuple[Tensor, Domain]:
    """An operator's input and its domain, from the arguments of its call; where it is given none,
    that which it takes, of a baseline a line.
    """
    u, *rest = given or (named["u"],)
    domain = rest[0] if rest else named.get("domain")
    if domain is None and isinstance(operator, IntegralOperator):
        domain = operator.default_domain(u)
    return u, Domain.line(u.shape[1], device=u.device) if domain is None else domain


@dataclass(frozen=True)
class BodyConfig(Configuration):
    """What a body is built from; its kind is the ``kind`` of a recipe's ``model.body``.

    Attributes:
        any_width: whether it takes features of any width (those of encoders with ``own_width``);
            else of its own, ``width``.
        encoders: kinds of encoders that it takes, where not all of that width.
        fixed_axes: names of the encoder's free sizes (:class:`.Axis`) that it fixes.
        dropout: after the embedding, which the encoder applies.
    """

    any_width: ClassVar[bool] = False
    encoders: ClassVar[tuple[str, ...]] = ()
    fixed_axes: ClassVar[tuple[str, ...]] = ()
    dropout = 0.0

    @property
    def width(self) -> int:
        """D of the features that are read out."""
        raise NotImplementedError

    @property
    def reduction(self) -> int:
        """How many cells along an axis of the encoder's grid make one of what is read out."""
        return 1

    def build(self, encoder: Encoder, config: EncoderConfig) -> Body:
        """The body behind an encoder, of which ``config`` says what the data are."""
        raise NotImplementedError


BODIES: Registry[type[BodyConfig]] = Registry(
    "body", home="fredholm.models.bodies", attribute="kind"
)


def register_body(kind: str) -> Callable[[Registered], Registered]:
    """Make a body's configuration known as ``kind``, for ``model.body.kind`` of recipes.

    Raises:
        OptionError: a kind that is taken.
    """

    return BODIES.register(kind)
