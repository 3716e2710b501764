"""Operators: a kernel bound to a strategy. What users stack."""

from .ckconv import CKConv
from .integral import CausalState, IntegralOperator
from .itnet import ITNetOperator
from .registry import create_operator, import_file, list_operators, operator_factory, register_operator
from .softmax import SoftmaxAttention
from .strategies import Exact, Linear, Plan, Strategy

__all__ = [
    "CKConv",
    "CausalState",
    "Exact",
    "ITNetOperator",
    "IntegralOperator",
    "Linear",
    "Plan",
    "SoftmaxAttention",
    "Strategy",
    "create_operator",
    "import_file",
    "list_operators",
    "operator_factory",
    "register_operator",
]
