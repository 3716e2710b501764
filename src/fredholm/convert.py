"""Conversion: classical layers to operators and encoders to evolutions, exactly; pretrained models
to linear attention.
"""

import sys
from types import ModuleType
from typing import Any

from .integral import as_operator, register_converter
from .integral.conversion import convertible
from .layers.encoder import correspondence, encoder_domain, from_encoder, to_encoder
from .linearization import (
    CacheSize,
    ConversionReport,
    cache_size,
    load_linearized,
    replace_attention,
    save_linearized,
    smaller_from,
)

__all__ = [
    "CacheSize",
    "ConversionReport",
    "as_operator",
    "cache_size",
    "convertible",
    "correspondence",
    "encoder_domain",
    "from_encoder",
    "load_linearized",
    "register_converter",
    "replace_attention",
    "save_linearized",
    "smaller_from",
    "to_encoder",
]


def __getattr__(name: str) -> Any:
    # Pickled caches name their class by this module. The class needs transformers, an extra.
    if name == "LinearState":
        from .linearization.cache import LinearState

        return LinearState
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


# Caches pickled by earlier versions name the class by one of these modules.
for _earlier in ("linearize", "linearize.cache"):
    _module: Any = ModuleType(f"{__name__}.{_earlier}")
    _module.__getattr__ = __getattr__
    sys.modules[_module.__name__] = _module
