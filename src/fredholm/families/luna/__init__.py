"""LUNA: Linear Universal Neural Attention with Generalization Guarantees."""

from .kernel import LunaKernel, LunaMap
from .operator import LunaAttention

__all__ = ["LunaAttention", "LunaKernel", "LunaMap"]
