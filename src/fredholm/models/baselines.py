"""Classical layers that a backbone takes in an operator's place, by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..errors import OptionError
from ..integral import IntegralOperator
from ..registry import Registry

BASELINES: Registry[Callable[..., IntegralOperator]] = Registry("baseline", home="fredholm.layers")

register_baseline = BASELINES.register


def list_baselines() -> list[str]:
    """Classical layers that a backbone takes in the place of an operator, sorted.

    Example:
        >>> list_baselines()
        ['convolution', 'gru', 'lstm']
    """
    return BASELINES.names()


def make_baseline(
    name: str, dim: int, heads: int, *, position_dim: int, causal: bool, **options: Any
) -> IntegralOperator:
    """A baseline by name; recurrences and convolutions have no heads.

    Raises:
        OptionError: an option that it does not have.
    """
    try:
        return BASELINES[name](dim, heads, position_dim=position_dim, causal=causal, **options)
    except TypeError as error:
        if not options:
            raise
        raise OptionError(
            f"baseline {name!r} has not all of the options {sorted(options)}"
        ) from error
