"""The Triton kernels and whole models on a GPU, with torch, triton, numpy, safetensors and jaxtyping
alone: ``PYTHONPATH=src python3 -m evidence time gpu``.
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
    """Kernels and models, for 9 minutes or ``--minutes``; see :mod:`evidence.gpu.timing`."""
    _interpret(options)
    from .timing import time as run

    run(options)


def tune(options: Options) -> None:
    """Tile sizes by measurement, written to the kernels' tables."""
    _interpret(options)
    from .tune import run

    run(options)


def resources(options: Options) -> None:
    """What the kernels need of a GPU, without one."""
    os.environ.pop("TRITON_INTERPRET", None)  # the interpreter would take the compiler's place
    from .resources import run

    run(options)


def _interpret(options: Options) -> None:
    """Triton asks for this when a kernel is defined: before any of them is imported."""
    if options.small:
        os.environ["TRITON_INTERPRET"] = "1"
