"""ITNet: A Learnable Integral Transform That Subsumes Convolution, Attention, and Recurrence."""

from .compress import CompressionReport, compress
from .config import PRESETS, ITNetConfig
from .kernel import GROUPS, MLPKernel, ablations
from .low_rank import LowRankKernel
from .low_rank_operator import LowRankITNetOperator
from .model import ITNet
from .operator import ITNetOperator

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
