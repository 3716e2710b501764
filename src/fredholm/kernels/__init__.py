"""K, what interacts: one family per file. A new kernel needs one file: see CONTRIBUTING."""

from .base import Kernel, Problem
from .fourier import FourierFeatures
from .mlp import GROUPS, MLPKernel, ablations
from .softmax import SoftmaxKernel
from .traits import HiddenReadout, SoftmaxScores, SplitHidden, WeightedValue, has_trait

__all__ = [
    "GROUPS",
    "FourierFeatures",
    "HiddenReadout",
    "Kernel",
    "MLPKernel",
    "Problem",
    "SoftmaxKernel",
    "SoftmaxScores",
    "SplitHidden",
    "WeightedValue",
    "ablations",
    "has_trait",
]
