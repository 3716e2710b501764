"""Importing this module lets transformers load converted models, and models of this library, by its
own Auto classes.

Example:
    >>> import fredholm.hf
    >>> from transformers import AutoConfig
    >>> AutoConfig.for_model("fredholm_linear").model_type
    'fredholm_linear'
    >>> AutoConfig.for_model("fredholm").num_labels
    10
"""

from __future__ import annotations

from typing import Any

from .errors import require

require("transformers", "hf", "loading converted models")

import transformers  # noqa: E402

from .export.transformers_models import (  # noqa: E402
    FredholmConfig,
    FredholmForImageClassification,
    FredholmForSequenceClassification,
    FredholmImageProcessor,
    register,
)
from .linearization.auto import (  # noqa: E402
    PREFIX,
    FredholmLinearConfig,
    linear_config,
    linear_model,
    register_config,
)
from .linearization.hub import push_folder  # noqa: E402

__all__ = [
    "FredholmConfig",
    "FredholmForImageClassification",
    "FredholmForSequenceClassification",
    "FredholmImageProcessor",
    "FredholmLinearConfig",
    "push_folder",
]

register_config()
register()


def __getattr__(name: str) -> Any:
    """Classes of converted models and of their configurations, by the name of the source's:
    ``FredholmLinearLlamaForCausalLM``; and ``FredholmLinearTrainer``, of their checkpoints.
    """
    if name == f"{PREFIX}Trainer":
        # Imported here, because transformers' Trainer takes its time to import.
        from .linearization.trainer import FredholmLinearTrainer

        return FredholmLinearTrainer
    source = getattr(transformers, name.removeprefix(PREFIX), None)
    if name.startswith(PREFIX) and isinstance(source, type):
        if issubclass(source, transformers.PreTrainedModel):
            return linear_model(source)
        if issubclass(source, transformers.PreTrainedConfig):
            return linear_config(source)
    raise AttributeError(f"module 'fredholm.hf' has no attribute {name!r}")
