"""The picture at the top of the README: one of the gallery's."""

from __future__ import annotations

import runpy
from typing import Any

from .kit.page import IMAGES, ROOT, save_picture
from .kit.subject import Subject

SUBJECT = Subject(__name__, draw=":draw")
EXAMPLE = ROOT / "examples" / "plot_one_equation.py"


def draw() -> None:
    """Draw docs/images/three-layers.png."""
    save_picture(lambda theme: _figure(), IMAGES / "three-layers.png")


def _figure() -> Any:
    """Return the figure of the example about three layers."""
    return runpy.run_path(str(EXAMPLE))["figure"]
