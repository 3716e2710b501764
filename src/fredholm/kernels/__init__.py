"""K, what interacts: one family per file. A new kernel needs one file: see CONTRIBUTING."""

from .attention import AttentionKernel, TransposedLinear
from .base import Kernel, Layout, Point, Problem
from .continuous_time import AffineSystemKernel, ContinuousStateSpaceKernel
from .fourier import FourierFeatures
from .linear_attention import FEATURE_MAPS, LinearAttentionKernel
from .mamba import MambaKernel
from .mlp import GROUPS, MLPKernel, ablations
from .recurrent import RecurrentKernel
from .rotary import Rotary
from .selective import SelectiveKernel
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
    "AffineSystemKernel",
    "AttentionKernel",
    "CausalTransition",
    "ContinuousStateSpaceKernel",
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
    "MambaKernel",
    "OwnForm",
    "Point",
    "Problem",
    "RecurrentKernel",
    "Rotary",
    "SelectiveKernel",
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
