"""How an integral is computed: one strategy a file. A strategy is frozen and has no parameters."""

from .base import Plan, Strategy, resolve
from .exact import Exact
from .linear import Linear

__all__ = ["Exact", "Linear", "Plan", "Strategy", "resolve"]
