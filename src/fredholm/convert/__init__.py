"""Conversion: classical layers to operators and encoders to evolutions, exactly."""

from .classical import as_operator, convertible, register_converter
from .encoder import correspondence, encoder_domain, from_encoder, to_encoder

__all__ = [
    "as_operator",
    "convertible",
    "correspondence",
    "encoder_domain",
    "from_encoder",
    "register_converter",
    "to_encoder",
]
