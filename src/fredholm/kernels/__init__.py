"""K, what interacts: one family per file. A new kernel needs one file: see CONTRIBUTING."""

from ..integral import (
    AttentionKernel,
    Banked,
    CausalTransition,
    Expanded,
    FourierFeatures,
    GraphDiffusion,
    HiddenKernel,
    HiddenReadout,
    JointScores,
    Kernel,
    LagFeatures,
    LagTaps,
    LatticeKernel,
    Layout,
    MatrixKernel,
    OwnForm,
    PairKernel,
    Point,
    Pooled,
    Problem,
    Proposal,
    Rotary,
    Separable,
    SeparableKernel,
    SoftmaxScores,
    SplitHidden,
    Stabilised,
    StateScan,
    TransposedLinear,
    WeightedKernel,
    WeightedValue,
    Window,
    add_proposal,
    auxiliary_loss,
    has_trait,
)
from .additive import AdditiveAttentionKernel
from .adjacency import AdjacencyKernel
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
from .linear_attention import LinearAttentionKernel
from .low_rank import LowRankKernel
from .luna import LunaKernel, LunaMap
from .mamba import MambaKernel
from .mlp import GROUPS, MLPKernel, ablations
from .periodic import PeriodicKernel
from .pointwise import PointwiseKernel
from .pooling import AdaptivePoolKernel, AveragePoolKernel, MaxPoolKernel
from .position_network import PositionNetwork
from .recurrent import RecurrentKernel
from .selective import SelectiveKernel
from .softmax import SoftmaxKernel
from .state_space import DiagonalStateSpaceKernel, StateSpaceKernel
from .stencil import StencilKernel

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
    "HiddenKernel",
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
    "MatrixKernel",
    "MaxPoolKernel",
    "OwnForm",
    "PairKernel",
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
    "SeparableKernel",
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
    "WeightedKernel",
    "WeightedValue",
    "Window",
    "ablations",
    "add_proposal",
    "auxiliary_loss",
    "has_trait",
    "register_feature_map",
]
