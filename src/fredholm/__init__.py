"""Attention, convolution and recurrence as one object: integral transforms with learned kernels."""

from .domain import Domain
from .models import create_model, list_models
from .operators import (
    IntegralOperator,
    ITNetOperator,
    SoftmaxAttention,
    create_operator,
    list_operators,
    register_operator,
)

__version__ = "0.1.0"

__all__ = [
    "Domain",
    "ITNetOperator",
    "IntegralOperator",
    "SoftmaxAttention",
    "__version__",
    "create_model",
    "create_operator",
    "list_models",
    "list_operators",
    "register_operator",
]
