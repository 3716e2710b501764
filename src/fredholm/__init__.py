"""Integral operators with learned kernels."""
__version__ = "0.1.0"
