"""The integral: what an operator, a kernel and a form are, and the algorithms that serve any kernel.

Nothing here knows a paper; the papers' kernels and their own forms lie in :mod:`fredholm.families`.
"""

from .attention import AttentionKernel, Projections, TransposedLinear
from .bases import (
    HiddenKernel,
    MatrixKernel,
    PairKernel,
    SeparableKernel,
    WeightedKernel,
)
from .capabilities import (
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
from .choose import choose
from .displacements import grid_displacements
from .forms import Anchors, Form, KeyForm, Memory, MonteCarlo, with_offset
from .forms.monte_carlo.proposal import Proposal, add_proposal, auxiliary_loss
from .fourier import FourierFeatures
from .kernel import (
    Kernel,
    check_dropout,
    head_width,
    identity,
    merge_heads,
    own_parameter,
    split_heads,
)
from .lattice import LatticeKernel, Window, read_grid, write_points
from .operator import CausalState, IntegralOperator
from .problem import Facts, Layout, Point, Problem
from .registry import (
    create_operator,
    import_file,
    list_operators,
    operator_factory,
    operator_options,
    register_operator,
)
from .rotary import Rotary
from .strategy import (
    EXACT,
    FFT,
    Exact,
    Linear,
    Plan,
    Scan,
    Strategy,
    read_strategy,
    register_strategy,
)

__all__ = [
    "EXACT",
    "FFT",
    "Anchors",
    "AttentionKernel",
    "Banked",
    "CausalState",
    "CausalTransition",
    "Exact",
    "Expanded",
    "Facts",
    "Form",
    "FourierFeatures",
    "GraphDiffusion",
    "HiddenKernel",
    "HiddenReadout",
    "IntegralOperator",
    "JointScores",
    "Kernel",
    "KeyForm",
    "LagFeatures",
    "LagTaps",
    "LatticeKernel",
    "Layout",
    "Linear",
    "MatrixKernel",
    "Memory",
    "MonteCarlo",
    "OwnForm",
    "PairKernel",
    "Plan",
    "Point",
    "Pooled",
    "Problem",
    "Projections",
    "Proposal",
    "Rotary",
    "Scan",
    "Separable",
    "SeparableKernel",
    "SoftmaxScores",
    "SplitHidden",
    "Stabilised",
    "StateScan",
    "Strategy",
    "TransposedLinear",
    "WeightedKernel",
    "WeightedValue",
    "Window",
    "add_proposal",
    "auxiliary_loss",
    "check_dropout",
    "choose",
    "create_operator",
    "grid_displacements",
    "has_trait",
    "head_width",
    "identity",
    "import_file",
    "list_operators",
    "merge_heads",
    "operator_factory",
    "operator_options",
    "own_parameter",
    "read_grid",
    "read_strategy",
    "register_operator",
    "register_strategy",
    "split_heads",
    "with_offset",
    "write_points",
]
