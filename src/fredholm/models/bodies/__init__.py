"""Bodies, between encoder and head: those that serve any operator, and those of papers."""

from .backbone import BackboneBody, BackboneConfig
from .body import BODIES, Body, BodyConfig, register_body
from .ckcnn import CKCNNBody, CKCNNConfig
from .continuous import ContinuousBody, ContinuousConfig
from .infvit import AccumulatedBody, InfViTConfig
from .residual import ResidualBody, ResidualConfig
from .stages import StagesBody, StagesConfig
from .two_streams import TwoStreamsBody, TwoStreamsConfig

__all__ = [
    "BODIES",
    "AccumulatedBody",
    "BackboneBody",
    "BackboneConfig",
    "Body",
    "BodyConfig",
    "CKCNNBody",
    "CKCNNConfig",
    "ContinuousBody",
    "ContinuousConfig",
    "InfViTConfig",
    "ResidualBody",
    "ResidualConfig",
    "StagesBody",
    "StagesConfig",
    "TwoStreamsBody",
    "TwoStreamsConfig",
    "register_body",
]
