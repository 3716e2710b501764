"""Models: one folder a family, and a registry that maps a name to a factory."""

from . import ckcnn, continuous, infvit, itnet  # noqa: F401  registers their names
from .counting import count
from .pretrained import from_pretrained, save_pretrained
from .registry import create_model, list_models, model_config, register_model

__all__ = [
    "count",
    "create_model",
    "from_pretrained",
    "list_models",
    "model_config",
    "register_model",
    "save_pretrained",
]
