"""``Model(encoder, body, head)``, its parts and their configurations, and models by name."""

from .baselines import list_baselines
from .bodies import (
    BODIES,
    BackboneBody,
    BackboneConfig,
    Body,
    BodyConfig,
    ResidualBody,
    ResidualConfig,
    register_body,
)
from .config import ModelConfig
from .counting import count, counter
from .heads import HEADS, HeadConfig, LinearConfig, MLPConfig, TiedConfig, read_out, register_head
from .model import Model, TextState
from .operators import make_operator, position_options
from .pretrained import from_pretrained, save_pretrained
from .registry import create_model, list_models, model_config, register_model
from .shipped import list_pretrained, pretrained_card, pretrained_folder

from .presets import general as presets  # isort: skip  registers its names  # noqa: F401

__all__ = [
    "BODIES",
    "HEADS",
    "BackboneBody",
    "BackboneConfig",
    "Body",
    "BodyConfig",
    "HeadConfig",
    "LinearConfig",
    "MLPConfig",
    "Model",
    "ModelConfig",
    "ResidualBody",
    "ResidualConfig",
    "TextState",
    "TiedConfig",
    "count",
    "counter",
    "create_model",
    "from_pretrained",
    "list_baselines",
    "list_models",
    "list_pretrained",
    "make_operator",
    "model_config",
    "position_options",
    "pretrained_card",
    "pretrained_folder",
    "read_out",
    "register_body",
    "register_head",
    "register_model",
    "save_pretrained",
]
