"""Models by name: the papers' own, one file per paper, and the general ones."""

from . import ckconv, continuous, general, infsa, itnet

__all__ = ["ckconv", "continuous", "general", "infsa", "itnet"]
