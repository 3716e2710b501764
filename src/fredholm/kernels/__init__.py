"""K, what interacts: one family per file. A new kernel needs one file: see CONTRIBUTING."""

from .attention import AttentionKernel, TransposedLinear
from .base import Kernel, Layout, Point, Problem
from .fourier import FourierFeatures
from .linear_attention import FEATURE_MAPS, LinearAttentionKernel
from .mlp import GROUPS, MLPKernel, ablations
from .rotary import Rotary
from .softmax import SoftmaxKernel
from .state_space import DiagonalStateSpaceKernel, StateSpaceKernel
from .traits import (
    CausalTransition,
    Expanded,
    HiddenReadout,
    JointScores,
    LagTaps,
    OwnForm,
    Separable,
    SoftmaxScores,
    SplitHidden,
    StateScan,
    WeightedValue,
    has_trait,
)

__all__ = [
    "FEATURE_MAPS",
    "GROUPS",
    "AttentionKernel",
    "CausalTransition",
    "DiagonalStateSpaceKernel",
    "Expanded",
    "FourierFeatures",
    "HiddenReadout",
    "JointScores",
    "Kernel",
    "LagTaps",
    "Layout",
    "LinearAttentionKernel",
    "MLPKernel",
    "OwnForm",
    "Point",
    "Problem",
    "Rotary",
    "Separable",
    "SoftmaxKernel",
    "SoftmaxScores",
    "SplitHidden",
    "StateScan",
    "StateSpaceKernel",
    "TransposedLinear",
    "WeightedValue",
    "ablations",
    "has_trait",
]
