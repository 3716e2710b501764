"""Operator splitting: an evolution equation whose steps are the layers of a transformer."""

from .constraints import Constraint, MomentConstraint, PositivityConstraint
from .controls import Constant, Controls, Linear
from .evolution import Evolution, Observer, Substep
from .presets import encoder_terms
from .schemes import Hybrid, Lie, Parallel, Relaxed, Scheme, Strang, resolve_scheme
from .term import SubstepError, Term
from .terms import FeedForwardTerm, LinearTerm, OperatorTerm

__all__ = [
    "Constant",
    "Constraint",
    "Controls",
    "Evolution",
    "FeedForwardTerm",
    "Hybrid",
    "Lie",
    "Linear",
    "LinearTerm",
    "MomentConstraint",
    "Observer",
    "OperatorTerm",
    "Parallel",
    "PositivityConstraint",
    "Relaxed",
    "Scheme",
    "Strang",
    "Substep",
    "SubstepError",
    "Term",
    "encoder_terms",
    "resolve_scheme",
]
