"""Conversion: classical layers to operators and encoders to evolutions, exactly; pretrained models
to linear attention.
"""

from .integral import as_operator, convertible, register_converter
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
