"""How an integral is computed: one strategy a file. A strategy is frozen and has no parameters."""

from .base import Plan, Strategy, resolve
from .exact import Exact

__all__ = ["Exact", "Plan", "Strategy", "resolve"]
