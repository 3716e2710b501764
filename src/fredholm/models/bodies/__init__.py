"""Bodies, between encoder and head: those that serve any operator, and those of papers."""

from .backbone import BackboneBody, BackboneConfig
from .body import BODIES, Body, BodyConfig, register_body
from .ckcnn import CKCNNBody, CKCNNConfig
from .continuous import ContinuousBody, ContinuousConfig
from .infvit import AccumulatedBody, InfViTConfig
from .residual import ResidualBody, ResidualConfig
from .stages import StagesBody, StagesConfig

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
    "register_body",
]
