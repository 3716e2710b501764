"""Transformer encoders as evolutions, exactly, and back."""

from .back import to_encoder
from .bridge import correspondence, from_encoder
from .masks import encoder_domain

__all__ = ["correspondence", "encoder_domain", "from_encoder", "to_encoder"]
