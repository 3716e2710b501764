"""Infinite Self-Attention."""

from .centres import CentreKernel, StreamingCentreKernel
from .config import PRESETS, InfViTConfig
from .hops import Neumann
from .kernel import CentralityKernel, GraphKernel
from .linear_operator import LinearInfSA
from .model import InfViT
from .operator import InfSA
from .resolvent import Resolvent

__all__ = [
    "PRESETS",
    "CentralityKernel",
    "CentreKernel",
    "GraphKernel",
    "InfSA",
    "InfViT",
    "InfViTConfig",
    "LinearInfSA",
    "Neumann",
    "Resolvent",
    "StreamingCentreKernel",
]
