"""Variants of the continuous convolution: a finite horizon, a blurred kernel, an activation with
norms.
"""

from __future__ import annotations

from ..cases import POINTS, CKConvCase

CASES = [
    CKConvCase(
        "ckconv",
        "ckconv-horizon",
        width=4,
        omega=2.0,
        length=POINTS,
        horizon=3,
        memory=POINTS,
        blur=0.5,
    ),
    CKConvCase(
        "ckconv",
        "ckconv-released-gelu",
        width=4,
        activation="gelu",
        length=POINTS,
        preset="released",
    ),
]
