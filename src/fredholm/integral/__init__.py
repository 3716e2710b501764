"""The integral: what an operator, a kernel and a form are, and the algorithms for any kernel.

Nothing here knows a paper; the papers' kernels and the forms for them alone lie in
:mod:`fredholm.families`.
"""

from .attention import AttentionKernel, FeatureAttentionKernel
from .bases import HiddenKernel, MatrixKernel, PairKernel, SeparableKernel, WeightedKernel
from .capabilities import CausalTransition, HiddenReadout, OwnForm, Windowed
from .checks import check_dropout
from .contract import (
    DefaultLine,
    Form,
    Kernel,
    Memory,
    Part,
    answering,
    choose,
    prepared,
    with_offset,
)
from .conversion import as_operator, refuse, register_converter
from .facts import Facts, Layout
from .feature_map import FeatureMap, register_feature_map
from .fourier import FourierFeatures
from .lattice import LatticeKernel
from .memo import inference
from .operator import IntegralOperator
from .problem import Problem
from .projections import Projections
from .registry import create_operator, list_operators, operator_options, register_operator
from .rotary import Rotary
from .state import CausalState, load_state
from .steps import Point
from .strategy import FFT, Exact, Linear, Plan, Scan, Strategy, register_strategy

__all__ = [
    "FFT",
    "AttentionKernel",
    "CausalState",
    "CausalTransition",
    "DefaultLine",
    "Exact",
    "Facts",
    "FeatureAttentionKernel",
    "FeatureMap",
    "Form",
    "FourierFeatures",
    "HiddenKernel",
    "HiddenReadout",
    "IntegralOperator",
    "Kernel",
    "LatticeKernel",
    "Layout",
    "Linear",
    "MatrixKernel",
    "Memory",
    "OwnForm",
    "PairKernel",
    "Part",
    "Plan",
    "Point",
    "Problem",
    "Projections",
    "Rotary",
    "Scan",
    "SeparableKernel",
    "Strategy",
    "WeightedKernel",
    "Windowed",
    "answering",
    "as_operator",
    "check_dropout",
    "choose",
    "create_operator",
    "inference",
    "list_operators",
    "load_state",
    "operator_options",
    "prepared",
    "refuse",
    "register_converter",
    "register_feature_map",
    "register_operator",
    "register_strategy",
    "with_offset",
]
