"""Integration of a dense kernel matrix: the definition every operator is held to."""

from .naive import dense_apply, kernel_norm

__all__ = ["dense_apply", "kernel_norm"]
