"""Infinite Self-Attention."""

from .centres import CentreKernel, StreamingCentreKernel
from .config import PRESETS, InfViTConfig
from .hops import Neumann
from .kernel import HopKernel, TokenGraphKernel
from .linear_operator import LinearInfSA
from .model import InfViT
from .operator import InfSA
from .resolvent import Resolvent

__all__ = [
    "PRESETS",
    "CentreKernel",
    "HopKernel",
    "InfSA",
    "InfViT",
    "InfViTConfig",
    "LinearInfSA",
    "Neumann",
    "Resolvent",
    "StreamingCentreKernel",
    "TokenGraphKernel",
]
