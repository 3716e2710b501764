"""The algebra of recurrences: a nonlinear recurrence is a linear one along its trajectory.

- ``slopes.py``: secants and tangents, which stand for the nonlinearities.
- ``cells.py``: torch's cells, unrolled, with the coefficients of the affine recurrence.
- ``affine.py``: that recurrence driven forwards (responses) and backwards (rows of the kernel).
- ``line.py``: one direction of one layer, in the order in which it meets the points.
"""

from .affine import Trajectory, pull, push
from .cells import CELLS, Weights
from .slopes import LINEARIZATIONS, slope, tanh_secant

__all__ = [
    "CELLS",
    "LINEARIZATIONS",
    "Trajectory",
    "Weights",
    "pull",
    "push",
    "slope",
    "tanh_secant",
]
