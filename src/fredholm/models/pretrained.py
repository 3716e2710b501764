"""Saving and loading models: safetensors for weights, JSON for the configuration. Loading executes
no code.
"""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ..errors import CheckpointError, FredholmError, OptionError, suggest
from ..files import CHECKSUM, digest_json, read_tensors, replacing, storing, write_tensors
from .registry import family as find_family

WEIGHTS, CONFIG = "model.safetensors", "config.json"
FORMAT = 1


def save_pretrained(model: nn.Module, folder: str | Path, **extra: Any) -> Path:
    """Write ``model.safetensors`` and ``config.json`` into ``folder``, each in one atomic step and
    with a checksum of its content.

    Args:
        model: a model of a registered family (it has ``family`` and ``config``).
        extra: further JSON values kept under ``"extra"``, such as class names.

    Raises:
        StorageError: a full disk, a folder that cannot be written.
    """
    folder = Path(folder)
    with storing(folder):
        folder.mkdir(parents=True, exist_ok=True)
    config = {"format": FORMAT, "family": model.family, "config": dataclasses.asdict(model.config)}  # type: ignore
    if extra:
        config["extra"] = extra
    config[CHECKSUM] = digest_json(config)
    # Before anything is written: extra may hold what JSON cannot.
    text = json.dumps(config, indent=2) + "\n"
    write_tensors(folder / WEIGHTS, model.state_dict())
    with replacing(folder / CONFIG) as temporary:
        temporary.write_text(text, encoding="utf-8")
    return folder


def from_pretrained(
    folder: str | Path,
    *,
    device: str | torch.device = "cpu",
    overrides: dict[str, Any] | None = None,
) -> Any:
    """The model in ``folder``, in evaluation mode, its ``extra`` dictionary as ``model.extra``.

    ``overrides`` replace fields of its configuration that change no weight's name or shape, such as
    the steps of a continuous transformer.

    Raises:
        OptionError: an override that is no field, or has an impossible value.
        CheckpointError: a missing, unreadable, truncated or damaged file (one that does not match
            its checksum), an unknown family or option, or weights whose names or shapes differ from
            the configuration's.
    """
    folder = Path(folder)
    saved = _read_config(folder)
    try:
        found = find_family(saved["family"])
        known = [f.name for f in dataclasses.fields(found.config)]
        for key in saved["config"]:
            if key not in known:
                raise CheckpointError(
                    f"{folder / CONFIG} has an unknown option {key!r}{suggest(key, known)}"
                )
        # JSON has no tuples: a field that is a list was one.
        options = {
            key: tuple(v) if isinstance(v, list) else v for key, v in saved["config"].items()
        }
        config = found.config(**options)
    except CheckpointError:
        raise
    except (FredholmError, AttributeError, KeyError, TypeError, ValueError) as error:
        raise CheckpointError(
            f"{folder / CONFIG} describes no model that can be built here: {error}"
        ) from error
    if overrides:
        config = _changed(config, overrides)
    try:
        model = found.model(config)
    except (FredholmError, AttributeError, KeyError, TypeError, ValueError) as error:
        raise CheckpointError(
            f"{folder / CONFIG} describes no model that can be built here: {error}"
        ) from error
    _load_weights(model, folder / WEIGHTS)
    model.extra = saved.get("extra", {})  # type: ignore[assignment]
    return model.to(device).eval()


def _changed(config: Any, overrides: dict[str, Any]) -> Any:
    known = [f.name for f in dataclasses.fields(config)]
    for key in overrides:
        if key not in known:
            raise OptionError(f"model has no option {key!r}{suggest(key, known)}")
    return dataclasses.replace(config, **overrides)


def _read_config(folder: Path) -> dict[str, Any]:
    path = folder / CONFIG
    if not path.is_file():
        raise CheckpointError(
            f"no {CONFIG} in {str(folder)!r}; give a folder written by save_pretrained, or a run's "
            "model/"
        )
    try:
        with storing(path):
            text = path.read_text(encoding="utf-8")
        saved = json.loads(text)
        newer = saved.get("format", FORMAT) > FORMAT
        absent = {"family", "config"} - saved.keys()
        if absent and not newer:
            raise KeyError(f"no {sorted(absent)}")
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(
            f"{path} is no model configuration ({error}); it needs 'family' and 'config'"
        ) from error
    if newer:
        found = saved["format"]
        raise CheckpointError(
            f"{path} has format {found}, this version reads up to {FORMAT}; update fredholm"
        )
    expected = saved.pop(CHECKSUM, None)  # absent from files of earlier versions
    if expected is not None and digest_json(saved) != expected:
        raise CheckpointError(
            f"{path} is not as it was saved (its content does not match its checksum); restore it, "
            f"or remove its line {CHECKSUM!r} if the change was meant"
        )
    return saved


def _load_weights(model: nn.Module, path: Path) -> None:
    tensors = read_tensors(path, "restore it or train again")
    own = model.state_dict()
    missing, unknown = sorted(own.keys() - tensors.keys()), sorted(tensors.keys() - own.keys())
    wrong = [
        f"{k} {tuple(tensors[k].shape)} for {tuple(own[k].shape)}"
        for k in own.keys() & tensors.keys()
        if tensors[k].shape != own[k].shape
    ]
    if missing or unknown or wrong:
        raise CheckpointError(
            f"{path} does not fit its configuration: missing {missing}, unknown {unknown}, shapes "
            f"{wrong}"
        )
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        if name in tensors:  # a model saved in another precision comes back in it, bit for bit
            tensor.data = tensor.data.to(tensors[name].dtype)
    model.load_state_dict(tensors, strict=True)


class PretrainedMixin:
    """``model.save_pretrained(folder)`` and ``Model.from_pretrained(folder)``."""

    def save_pretrained(self, folder: str | Path, **extra: Any) -> Path:
        """See :func:`save_pretrained`."""
        return save_pretrained(self, folder, **extra)  # type: ignore[arg-type]

    @classmethod
    def from_pretrained(cls, folder: str | Path, **options: Any) -> Any:
        """See :func:`from_pretrained`; raises CheckpointError where the folder holds a model of
        another class.
        """
        model = from_pretrained(folder, **options)
        if not isinstance(model, cls):
            raise CheckpointError(
                f"{str(folder)!r} holds a {type(model).__name__}, not a {cls.__name__}"
            )
        return model
