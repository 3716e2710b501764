"""Operator splitting: an evolution equation whose steps are the layers of a transformer."""

from .adjoint import solve
from .constraints import Constraint, MomentConstraint, PositivityConstraint
from .controls import Constant, Controls, Linear
from .convolution import ConvolutionalAttention, ConvolutionalEmbedding, ConvolutionTerm
from .encoder_terms import encoder_terms
from .evolution import Evolution, Observer, Substep
from .monitors import Monitor, energy, growth
from .orders import Convergence, convergence
from .schemes import Hybrid, Lie, Parallel, Relaxed, Scheme, Strang, resolve_scheme
from .term import SubstepError, Term
from .terms import FeedForwardTerm, LinearTerm, OperatorTerm

__all__ = [
    "Constant",
    "Constraint",
    "Controls",
    "Convergence",
    "ConvolutionTerm",
    "ConvolutionalAttention",
    "ConvolutionalEmbedding",
    "Evolution",
    "FeedForwardTerm",
    "Hybrid",
    "Lie",
    "Linear",
    "LinearTerm",
    "MomentConstraint",
    "Monitor",
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
    "convergence",
    "encoder_terms",
    "energy",
    "growth",
    "resolve_scheme",
    "solve",
]
