"""Programs of models, which run without this library and, but for one, without Python.

A program is traced by :func:`torch.export.export`, answers at any batch and at any size that its
model's encoder leaves free (lengths of texts, sides of pictures), and is compared with the model
before it is written:

- :func:`export_program`: torch's own format (``.pt2``), read by :func:`torch.export.load`;
- :func:`export_onnx`: ONNX, for ONNX Runtime and what else reads it;
- :func:`export_decoder`: prefill and step of a causal text model in ONNX, with their states;
- :func:`export_package`: native code by AOTInductor, for PyTorch without a compiler.
"""

from .decoder import DecoderErrors as DecoderErrors
from .decoder import DecoderPaths as DecoderPaths
from .decoder import decoder_errors as decoder_errors
from .decoder import export_decoder as export_decoder
from .onnx import export_onnx as export_onnx
from .package import export_package as export_package
from .program import Program as Program
from .program import export_program as export_program
from .program import largest_error as largest_error
from .program import trace as trace
from .signature import Signature as Signature
from .signature import signature_of as signature_of

__all__ = [
    "DecoderErrors",
    "DecoderPaths",
    "Program",
    "Signature",
    "decoder_errors",
    "export_decoder",
    "export_onnx",
    "export_package",
    "export_program",
    "largest_error",
    "signature_of",
    "trace",
]
