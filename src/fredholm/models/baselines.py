"""Baselines by name: classical layers that a backbone uses instead of an operator."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..errors import OptionError
from ..integral import IntegralOperator
from ..registry import Registry

BASELINES: Registry[Callable[..., IntegralOperator]] = Registry("baseline", home="fredholm.layers")

register_baseline = BASELINES.register


def list_baselines() -> list[str]:
    """Return the names of the baselines, sorted.

    Example:
        >>> list_baselines()
        ['convolution', 'gru', 'lstm']
    """
    return BASELINES.names()


def make_baseline(
    name: str,
    dim: int,
    heads: int,
    *,
    position_dim: int,
    causal: bool,
    **options: Any,
) -> IntegralOperator:
    """Return a new baseline. Recurrences and convolutions have no heads, and ignore ``heads``.

    Raises:
        OptionError: an option that it does not have.
    """
    try:
        return BASELINES[name](dim, heads, position_dim=position_dim, causal=causal, **options)
    except TypeError as error:
        # Without options of the user's, the error is the library's own.
        if not options:
            raise
        raise OptionError(
            f"baseline {name!r}: expected its own options, got {', '.join(sorted(options))}; leave "
            "out those that it does not have"
        ) from error
