"""Conversion: classical layers to operators, exactly; pretrained models to linear ones, by distillation."""

from .classical import as_operator, convertible, register_converter

__all__ = ["as_operator", "convertible", "register_converter"]
