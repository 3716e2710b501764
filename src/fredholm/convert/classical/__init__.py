"""Classical layers as integral operators, exactly: one file a family of sources. A new file here is found by itself."""

import pkgutil
from importlib import import_module

from .registry import as_operator, convertible, refuse, register_converter

for _family in pkgutil.iter_modules(__path__):
    import_module(f".{_family.name}", __name__)

__all__ = ["as_operator", "convertible", "refuse", "register_converter"]
