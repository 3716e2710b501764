"""Forms: one algorithm for the integral, one class. Those here integrate any kernel with the
capability that they need; forms of one paper's kernel lie in its family.
"""

# Kernels' base classes list forms, and forms are written against the contract. The contract's room
# is loaded first, whichever of the two a program begins with.
from .. import integral as integral
from .dense import Dense
from .fused import Fused
from .hidden import HiddenBlocks
from .keys import KeyForm, KeyRing
from .monte_carlo import AnchorKeys, Anchors, LatticeKeys, MonteCarlo, SampledKeys
from .neighbourhoods.attention import NeighbourAttention
from .neighbourhoods.hidden import NeighbourMoments
from .neighbourhoods.inner_products import NeighbourSums
from .own import OwnResponse
from .quadratic import Quadratic
from .scan import StatesScan
from .separable import Chunks, RunningMoment, SeparableForm, Sums
from .taps import TapConvolution
from .transition import Transition
from .weights import WeightBlocks
from .windowed import WindowChunks, WindowMoment

__all__ = [
    "AnchorKeys",
    "Anchors",
    "Chunks",
    "Dense",
    "Fused",
    "HiddenBlocks",
    "KeyForm",
    "KeyRing",
    "LatticeKeys",
    "MonteCarlo",
    "NeighbourAttention",
    "NeighbourMoments",
    "NeighbourSums",
    "OwnResponse",
    "Quadratic",
    "RunningMoment",
    "SampledKeys",
    "SeparableForm",
    "StatesScan",
    "Sums",
    "TapConvolution",
    "Transition",
    "WeightBlocks",
    "WindowChunks",
    "WindowMoment",
]
