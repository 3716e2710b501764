"""Bodies: what stands between encoder and head, those that serve any operator. A paper's own lies
in its family.
"""

from .backbone import BackboneBody, BackboneConfig
from .body import BODIES, Body, BodyConfig, register_body
from .residual import ResidualBody, ResidualConfig
from .two_streams import TwoStreamsBody, TwoStreamsConfig

__all__ = [
    "BODIES",
    "BackboneBody",
    "BackboneConfig",
    "Body",
    "BodyConfig",
    "ResidualBody",
    "ResidualConfig",
    "TwoStreamsBody",
    "TwoStreamsConfig",
    "register_body",
]
