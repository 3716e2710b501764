"""Attention, convolution and recurrence as one object: integral transforms with learned kernels."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from .convert import as_operator as as_operator
    from .domain import Domain as Domain
    from .families.ckconv.operator import CKConv as CKConv
    from .families.infsa.operator import InfSA as InfSA
    from .families.infsa.operator import LinearInfSA as LinearInfSA
    from .families.itnet.operator import ITNetOperator as ITNetOperator
    from .families.itnet.operator import LowRankITNetOperator as LowRankITNetOperator
    from .families.luna.operator import LunaAttention as LunaAttention
    from .families.softmax.operator import SoftmaxAttention as SoftmaxAttention
    from .integral import IntegralOperator as IntegralOperator
    from .integral import create_operator as create_operator
    from .integral import inference as inference
    from .integral import list_operators as list_operators
    from .integral import register_operator as register_operator
    from .lab.training import linearize as linearize
    from .models import create_model as create_model
    from .models import list_models as list_models

# Names are looked up when they are first used, so that ``fredholm --help`` does not wait for torch.
_PLACES = {
    "CKConv": "operators",
    "Domain": "domain",
    "ITNetOperator": "operators",
    "InfSA": "operators",
    "IntegralOperator": "operators",
    "LinearInfSA": "operators",
    "LowRankITNetOperator": "operators",
    "LunaAttention": "operators",
    "SoftmaxAttention": "operators",
    "as_operator": "convert",
    "create_model": "models",
    "create_operator": "operators",
    "inference": "integral",
    "linearize": "training",
    "list_models": "models",
    "list_operators": "operators",
    "register_operator": "operators",
}

__all__ = ["__version__", *_PLACES]  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module 'fredholm' has no attribute {name!r}")
    return getattr(import_module(f".{_PLACES[name]}", __name__), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
