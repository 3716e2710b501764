"""Operators inside models."""

from __future__ import annotations

import inspect
from typing import Any

from torch import nn

from ..integral import create_operator, operator_factory


def position_options(name: str, position_dim: int, options: dict[str, Any]) -> dict[str, Any]:
    """Options of a registered operator for positions of this dimension; operators that read no
    positions are not told it.
    """
    if "position_dim" in inspect.signature(operator_factory(name)).parameters:
        return {"position_dim": position_dim, **options}
    return dict(options)


def make_operator(
    name: str, dim: int, heads: int, *, position_dim: int, **options: Any
) -> nn.Module:
    """A registered operator for positions of this dimension."""
    return create_operator(name, dim, heads, **position_options(name, position_dim, options))
