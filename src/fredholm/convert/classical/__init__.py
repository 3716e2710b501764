"""Classical layers as integral operators, exactly: one file a family of sources. A new file here is
found by itself.
"""

import pkgutil
from importlib import import_module

from .continuous_time import affine_system
from .recurrence import memory_profile
from .registry import as_operator, convertible, refuse, register_converter
from .state_space import diagonal_system, linear_system

for _family in pkgutil.iter_modules(__path__):
    import_module(f".{_family.name}", __name__)

__all__ = [
    "affine_system",
    "as_operator",
    "convertible",
    "diagonal_system",
    "linear_system",
    "memory_profile",
    "refuse",
    "register_converter",
]
