"""K, what interacts: one family per file. A new kernel needs one file: see CONTRIBUTING."""

from .additive import AdditiveAttentionKernel
from .adjacency import AdjacencyKernel
from .attention import AttentionKernel, TransposedLinear
from .base import Kernel, Layout, Point, Problem
from .centrality import CentralityKernel, GraphKernel
from .centres import CentreKernel, StreamingCentreKernel
from .continuous_convolution import ContinuousConvolutionKernel
from .continuous_time import AffineSystemKernel, ContinuousStateSpaceKernel
from .feature_map import (
    FEATURE_MAPS,
    FeatureMap,
    FourierRandomFeatures,
    HedgehogFeatures,
    PositiveRandomFeatures,
    T2RFeatures,
    register_feature_map,
)
from .finite_horizon import FiniteHorizonKernel
from .fourier import FourierFeatures
from .lattice import LatticeKernel, Window
from .linear_attention import LinearAttentionKernel
from .low_rank import LowRankKernel
from .luna import LunaKernel, LunaMap
from .mamba import MambaKernel
from .mlp import GROUPS, MLPKernel, ablations
from .periodic import PeriodicKernel
from .pointwise import PointwiseKernel
from .pooling import AdaptivePoolKernel, AveragePoolKernel, MaxPoolKernel
from .position_network import PositionNetwork
from .proposal import Proposal, add_proposal, auxiliary_loss
from .recurrent import RecurrentKernel
from .rotary import Rotary
from .selective import SelectiveKernel
from .softmax import SoftmaxKernel
from .state_space import DiagonalStateSpaceKernel, StateSpaceKernel
from .stencil import StencilKernel
from .traits import (
    Banked,
    CausalTransition,
    Expanded,
    GraphDiffusion,
    HiddenReadout,
    JointScores,
    LagFeatures,
    LagTaps,
    OwnForm,
    Pooled,
    Separable,
    SoftmaxScores,
    SplitHidden,
    Stabilised,
    StateScan,
    WeightedValue,
    has_trait,
)

__all__ = [
    "FEATURE_MAPS",
    "GROUPS",
    "AdaptivePoolKernel",
    "AdditiveAttentionKernel",
    "AdjacencyKernel",
    "AffineSystemKernel",
    "AttentionKernel",
    "AveragePoolKernel",
    "Banked",
    "CausalTransition",
    "CentralityKernel",
    "CentreKernel",
    "ContinuousConvolutionKernel",
    "ContinuousStateSpaceKernel",
    "DiagonalStateSpaceKernel",
    "Expanded",
    "FeatureMap",
    "FiniteHorizonKernel",
    "FourierFeatures",
    "FourierRandomFeatures",
    "GraphDiffusion",
    "GraphKernel",
    "HedgehogFeatures",
    "HiddenReadout",
    "JointScores",
    "Kernel",
    "LagFeatures",
    "LagTaps",
    "LatticeKernel",
    "Layout",
    "LinearAttentionKernel",
    "LowRankKernel",
    "LunaKernel",
    "LunaMap",
    "MLPKernel",
    "MambaKernel",
    "MaxPoolKernel",
    "OwnForm",
    "PeriodicKernel",
    "Point",
    "PointwiseKernel",
    "Pooled",
    "PositionNetwork",
    "PositiveRandomFeatures",
    "Problem",
    "Proposal",
    "RecurrentKernel",
    "Rotary",
    "SelectiveKernel",
    "Separable",
    "SoftmaxKernel",
    "SoftmaxScores",
    "SplitHidden",
    "Stabilised",
    "StateScan",
    "StateSpaceKernel",
    "StencilKernel",
    "StreamingCentreKernel",
    "T2RFeatures",
    "TransposedLinear",
    "WeightedValue",
    "Window",
    "ablations",
    "add_proposal",
    "auxiliary_loss",
    "has_trait",
    "register_feature_map",
]
