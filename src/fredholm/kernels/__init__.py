"""K, what interacts: one family per file. A new kernel needs one file: see CONTRIBUTING."""

from .base import Kernel, Layout, Point, Problem
from .fourier import FourierFeatures
from .mlp import GROUPS, MLPKernel, ablations
from .softmax import SoftmaxKernel
from .traits import CausalTransition, HiddenReadout, OwnForm, SoftmaxScores, SplitHidden, WeightedValue, has_trait

__all__ = [
    "GROUPS",
    "CausalTransition",
    "FourierFeatures",
    "HiddenReadout",
    "Kernel",
    "Layout",
    "MLPKernel",
    "OwnForm",
    "Point",
    "Problem",
    "SoftmaxKernel",
    "SoftmaxScores",
    "SplitHidden",
    "WeightedValue",
    "ablations",
    "has_trait",
]
