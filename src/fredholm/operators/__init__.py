"""Operators: a kernel bound to a strategy. What users stack."""

from ..integral import (
    Anchors,
    CausalState,
    Exact,
    IntegralOperator,
    Linear,
    MonteCarlo,
    Plan,
    Strategy,
    create_operator,
    import_file,
    list_operators,
    operator_factory,
    register_operator,
)
from ..kernels.hops import Neumann
from ..kernels.resolvent import Resolvent
from .ckconv import CKConv
from .compress import CompressionReport, compress
from .infsa import InfSA
from .itnet import ITNetOperator
from .itnet_low_rank import LowRankITNetOperator
from .linear_attention import LinearAttention
from .linear_infsa import LinearInfSA
from .luna import LunaAttention
from .multihead import MultiheadAdapter
from .softmax import SoftmaxAttention

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
