"""Kernels, which define what interacts: bases, capabilities and the kernels of all families.

A new kernel takes one file: see CONTRIBUTING.
"""

from .families.ckconv.capabilities import LagFeatures
from .families.ckconv.finite_horizon import FiniteHorizonKernel
from .families.ckconv.kernel import ContinuousConvolutionKernel
from .families.ckconv.position_network import PositionNetwork
from .families.infsa.capabilities import TokenGraphWeights
from .families.infsa.centre_kernel import CentreKernel, StreamingCentreKernel
from .families.infsa.kernel import HopKernel, TokenGraphKernel
from .families.itnet.capabilities import Pooled, SplitHidden
from .families.itnet.kernel import GROUPS, MLPKernel, ablations
from .families.itnet.low_rank import LowRankKernel
from .families.luna.kernel import Banked, LunaKernel, LunaMap
from .families.softmax.feature_maps import (
    FourierRandomFeatures,
    HedgehogFeatures,
    PositiveRandomFeatures,
    T2RFeatures,
)
from .families.softmax.kernel import SoftmaxKernel
from .families.softmax.linear import LinearAttentionKernel
from .forms.monte_carlo.proposal import Proposal, add_proposal, auxiliary_loss
from .integral import (
    AttentionKernel,
    CausalTransition,
    FeatureMap,
    FourierFeatures,
    HiddenKernel,
    HiddenReadout,
    Kernel,
    LatticeKernel,
    Layout,
    MatrixKernel,
    OwnForm,
    PairKernel,
    Point,
    Problem,
    Rotary,
    SeparableKernel,
    WeightedKernel,
    register_feature_map,
)
from .integral.addition import SumKernel
from .integral.capabilities import (
    Expanded,
    LagTaps,
    Separable,
    SoftmaxScores,
    StateScan,
    WeightedValue,
)
from .integral.feature_map import FEATURE_MAPS
from .integral.projections import TransposedLinear
from .integral.window import Window
from .layers.continuous_time import ContinuousStateSpaceKernel
from .layers.convolution import StencilKernel
from .layers.diagonal_state_space import DiagonalStateSpaceKernel
from .layers.graph import AdjacencyKernel
from .layers.graph_attention import AdditiveAttentionKernel, DynamicAttentionKernel
from .layers.linear import PointwiseKernel
from .layers.mamba import MambaKernel
from .layers.pooling import AdaptivePoolKernel, AveragePoolKernel, MaxPoolKernel
from .layers.recurrence import RecurrentKernel
from .layers.selective import SelectiveKernel
from .layers.spectral import PeriodicKernel
from .layers.state_space import StateSpaceKernel

__all__ = [
    "FEATURE_MAPS",
    "GROUPS",
    "AdaptivePoolKernel",
    "AdditiveAttentionKernel",
    "AdjacencyKernel",
    "AttentionKernel",
    "AveragePoolKernel",
    "Banked",
    "CausalTransition",
    "CentreKernel",
    "ContinuousConvolutionKernel",
    "ContinuousStateSpaceKernel",
    "DiagonalStateSpaceKernel",
    "DynamicAttentionKernel",
    "Expanded",
    "FeatureMap",
    "FiniteHorizonKernel",
    "FourierFeatures",
    "FourierRandomFeatures",
    "HedgehogFeatures",
    "HiddenKernel",
    "HiddenReadout",
    "HopKernel",
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
    "StateScan",
    "StateSpaceKernel",
    "StencilKernel",
    "StreamingCentreKernel",
    "SumKernel",
    "T2RFeatures",
    "TokenGraphKernel",
    "TokenGraphWeights",
    "TransposedLinear",
    "WeightedKernel",
    "WeightedValue",
    "Window",
    "ablations",
    "add_proposal",
    "auxiliary_loss",
    "register_feature_map",
]
