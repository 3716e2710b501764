"""Operators: modules that bind a kernel to a strategy, to be stacked in models."""

from .families.ckconv.operator import CKConv
from .families.infsa.hops import Neumann
from .families.infsa.operator import InfSA, LinearInfSA
from .families.infsa.resolvent import Resolvent
from .families.itnet.compress import CompressionReport, compress
from .families.itnet.operator import ITNetOperator, LowRankITNetOperator
from .families.luna.operator import LunaAttention
from .families.softmax.operator import LinearAttention, SoftmaxAttention
from .forms.monte_carlo import Anchors, MonteCarlo
from .integral import (
    CausalState,
    Exact,
    IntegralOperator,
    Linear,
    Plan,
    Strategy,
    create_operator,
    list_operators,
    register_operator,
)
from .integral.multihead import MultiheadAdapter
from .integral.registry import import_file, operator_factory
from .models.operators import OperatorSum

__all__ = [
    "Anchors",
    "CKConv",
    "CausalState",
    "CompressionReport",
    "Exact",
    "ITNetOperator",
    "InfSA",
    "IntegralOperator",
    "Linear",
    "LinearAttention",
    "LinearInfSA",
    "LowRankITNetOperator",
    "LunaAttention",
    "MonteCarlo",
    "MultiheadAdapter",
    "Neumann",
    "OperatorSum",
    "Plan",
    "Resolvent",
    "SoftmaxAttention",
    "Strategy",
    "compress",
    "create_operator",
    "import_file",
    "list_operators",
    "operator_factory",
    "register_operator",
]
