"""The Triton kernels and whole models on a GPU: ``PYTHONPATH=src python3 -m evidence time gpu``.

This needs no more packages than torch, triton, numpy, safetensors and jaxtyping.
"""

from __future__ import annotations

import os

from ..kit.page import DOCS
from ..kit.subject import Options, Subject

SUBJECT = Subject(
    __name__,
    times={"kernels": ":time"},
    runs={"tune": ":tune", "resources": ":resources"},
    pages={DOCS / "gpu.md": "page:page"},
)


def time(options: Options) -> None:
    """Time kernels and models, for at most 9 minutes; see :mod:`evidence.gpu.timing`."""
    _interpret(options)
    from .timing import time as run

    run(options)


def tune(options: Options) -> None:
    """Measure tile sizes and write the fastest to the kernels' tables."""
    _interpret(options)
    from .tune import run

    run(options)


def resources(options: Options) -> None:
    """Compile the kernels and read their needs from the machine code; this needs no GPU."""
    # With this variable Triton interprets the kernels instead of compiling them.
    os.environ.pop("TRITON_INTERPRET", None)
    from .resources import run

    run(options)


def _interpret(options: Options) -> None:
    """Let Triton interpret the kernels in a small run.

    Triton reads the variable when a kernel is defined, so it is set before any kernel's import.
    """
    if options.small:
        os.environ["TRITON_INTERPRET"] = "1"
