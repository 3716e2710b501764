"""Models by name."""

from __future__ import annotations

import fnmatch
from collections.abc import Callable, Mapping
from typing import Any

from ..errors import OptionError
from ..registry import Registry
from .config import Given, ModelConfig, suggest_field
from .model import Model
from .shipped import pretrained_model

Preset = Callable[[], ModelConfig]
PRESETS: Registry[Preset] = Registry("model", home="fredholm.models")


def register_model(preset: Preset) -> Preset:
    """Register a preset under its name: a function without arguments that returns a configuration.
    ``CONTRIBUTING.md`` has an example.

    Raises:
        OptionError: a name that is taken.
    """
    return PRESETS.add(getattr(preset, "__name__", ""), preset)


def list_models(pattern: str = "*") -> list[str]:
    """Return the names of models that match a shell pattern, sorted.

    Example:
        >>> list_models("itnet_s*")
        ['itnet_s', 'itnet_s_compact']
    """
    # Unlike fnmatch.filter, fnmatchcase tells capitals apart on every operating system.
    return sorted(name for name in PRESETS.names() if fnmatch.fnmatchcase(name, pattern))


def model_config(
    name: str,
    *,
    data: Mapping[str, Any] | None = None,
    encoder: Given = None,
    body: Given = None,
    head: Given = None,
    **others: Any,
) -> ModelConfig:
    """Return the configuration of a named model with some fields of its parts replaced, see
    :meth:`ModelConfig.replace`. All ``others`` are unknown: the error suggests where they belong.

    Example:
        >>> model_config("itnet_nano", body={"depth": 2}).body.depth
        2

    Raises:
        OptionError: an unknown model, part or field.
    """
    base = PRESETS[name]()
    if others:
        lines = [f"model {name!r}: no option {key!r}{suggest_field(key)}" for key in others]
        raise OptionError("\n".join(lines))
    return base.replace(data=data, encoder=encoder, body=body, head=head)


def create_model(name: str, *, pretrained: str | None = None, **parts: Any) -> Model:
    """Return a new model by name; ``parts`` as in :func:`model_config`.

    The model is newly initialised, or has ``pretrained`` weights that come with the package
    (:func:`list_pretrained`) and is in evaluation mode. A different ``head`` is then initialised:
    ``create_model("itnet_nano", pretrained="digits", head={"outputs": 3})``.

    Raises:
        OptionError: an unknown model, part or field; no weights of this name, or of another model.
        CheckpointError: parts that the pretrained weights do not fit.

    Example:
        >>> import torch
        >>> model = create_model("itnet_nano", body={"operator": "softmax"}, head={"outputs": 3})
        >>> model(torch.zeros(1, 1, 28, 28)).shape
        torch.Size([1, 3])
    """
    if pretrained is not None:
        PRESETS[name]  # an unknown model is named first
        return pretrained_model(name, pretrained, parts)
    return Model(model_config(name, **parts))
