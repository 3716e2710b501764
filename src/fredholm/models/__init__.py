"""Models: the registry that maps a name to a factory, and the models of no one paper."""

from . import backbone, lra  # noqa: F401  registers their names
from .baselines import list_baselines
from .counting import count, counter
from .pretrained import from_pretrained, save_pretrained
from .registry import create_model, list_models, model_config, register_model

__all__ = [
    "count",
    "counter",
    "create_model",
    "from_pretrained",
    "list_baselines",
    "list_models",
    "model_config",
    "register_model",
    "save_pretrained",
]
