"""ITNet: A Learnable Integral Transform That Subsumes Convolution, Attention, and Recurrence."""

from .compress import CompressionReport, compress
from .config import PRESETS, ITNetConfig
from .kernel import GROUPS, MLPKernel, ablations
from .low_rank import LowRankKernel
from .model import ITNet
from .operator import ITNetOperator, LowRankITNetOperator

__all__ = [
    "GROUPS",
    "PRESETS",
    "CompressionReport",
    "ITNet",
    "ITNetConfig",
    "ITNetOperator",
    "LowRankITNetOperator",
    "LowRankKernel",
    "MLPKernel",
    "ablations",
    "compress",
]
