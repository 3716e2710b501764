"""CKConv: Continuous Kernel Convolution For Sequential Data."""

from .config import PRESETS, CKCNNConfig
from .finite_horizon import FiniteHorizonKernel
from .kernel import ContinuousConvolutionKernel
from .model import CKCNN
from .operator import CKConv
from .position_network import PositionNetwork

__all__ = [
    "CKCNN",
    "PRESETS",
    "CKCNNConfig",
    "CKConv",
    "ContinuousConvolutionKernel",
    "FiniteHorizonKernel",
    "PositionNetwork",
]
