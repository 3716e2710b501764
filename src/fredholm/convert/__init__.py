"""Conversion: classical layers to operators and encoders to evolutions, exactly; pretrained models
to linear attention.
"""

from ..integral import as_operator, convertible, register_converter
from .encoder import correspondence, encoder_domain, from_encoder, to_encoder
from .linearize import ConversionReport, load_linearized, replace_attention, save_linearized

__all__ = [
    "ConversionReport",
    "as_operator",
    "convertible",
    "correspondence",
    "encoder_domain",
    "from_encoder",
    "load_linearized",
    "register_converter",
    "replace_attention",
    "save_linearized",
    "to_encoder",
]
