"""Saving and loading models: safetensors for weights, JSON for the configuration. Loading executes
no code.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import torch
from torch import nn

from ..configuration import Configuration, known_fields
from ..errors import CheckpointError, FredholmError, OptionError
from ..files import check_format, sealed, storing, unsealed, write_json
from ..registry import Registry
from ..tensor_files import list_misfits, misfits, read_tensors, write_tensors
from .config import PARTS, ModelConfig, suggest_field

WEIGHTS, CONFIG = "model.safetensors", "config.json"
FORMAT = 2

# Other classes than Model that can be saved, by the kind of their configuration.
SAVED: Registry[tuple[type[Any], type[Any]]] = Registry("saved model", home="fredholm.layers")
Module = TypeVar("Module", bound=type[nn.Module])
_UNBUILDABLE = (FredholmError, AttributeError, KeyError, TypeError, ValueError)


def save_pretrained(model: nn.Module, folder: str | Path, **extra: Any) -> Path:
    """Write ``model.safetensors`` and ``config.json`` into ``folder``, each atomically and with a
    checksum of its content.

    Args:
        model: a :class:`fredholm.models.Model`, or of a class of :func:`register_saved`.
        extra: further JSON values to store under ``"extra"``, such as class names, in addition to
            those with which the model was loaded. Numbers as keys of mappings become texts.

    Raises:
        StorageError: a full disk, a folder that cannot be written.
    """
    folder = Path(folder)
    with storing(folder):
        folder.mkdir(parents=True, exist_ok=True)
    config: dict[str, Any] = {"format": FORMAT, "config": model.config.to_dict()}  # type: ignore
    extra = {**(getattr(model, "extra", None) or {}), **extra}
    if extra:
        config["extra"] = extra
    # Before anything is written: extra may hold what JSON cannot.
    content = sealed(config)
    write_tensors(folder / WEIGHTS, model.state_dict())
    write_json(folder / CONFIG, content)
    return folder


def from_pretrained(
    folder: str | Path,
    *,
    device: str | torch.device = "cpu",
    overrides: dict[str, Any] | None = None,
) -> Any:
    """Load the model in ``folder``, in evaluation mode, with its ``extra`` dictionary as
    ``model.extra``.

    Args:
        folder: written by :func:`save_pretrained`.
        device: of the model.
        overrides: fields of its parts that change no weight's name or shape, such as the steps of a
            continuous body, ``{"body": {"steps": 8}}``.

    Raises:
        OptionError: an override of an unknown field, or with an impossible value.
        CheckpointError: a missing, unreadable, truncated or damaged file (one that does not match
            its checksum) or of another format, an unknown kind or option, or weights whose names or
            shapes differ from the configuration's.
    """
    folder = Path(folder)
    saved, cls, config = _saved(folder)
    if overrides:
        config = _changed(config, overrides)
    try:
        model = cls(config)
    except _UNBUILDABLE as error:
        raise _no_model(folder, error) from error
    load_weights(model, folder / WEIGHTS)
    model.extra = saved.get("extra", {})
    return model.to(device).eval()


def read_config(folder: str | Path) -> ModelConfig:
    """Return the configuration of the model in ``folder``.

    Raises:
        CheckpointError: as :func:`from_pretrained`.
    """
    return _saved(Path(folder)).config


def read_extra(folder: str | Path) -> dict[str, Any]:
    """Return the ``extra`` dictionary of the model in ``folder``.

    Raises:
        CheckpointError: as :func:`from_pretrained`.
    """
    return _saved(Path(folder)).content.get("extra", {})


def register_saved(config: type[Configuration]) -> Callable[[Module], Module]:
    """Let :func:`from_pretrained` build another class than :class:`fredholm.models.Model`.

    The class has a configuration of its own, whose ``kind`` in the file identifies it.
    """

    def register(cls: Module) -> Module:
        SAVED.add(config.kind, (cls, config))
        return cls

    return register


class Saved(NamedTuple):
    """Content of a folder's ``config.json``.

    Attributes:
        content: all of it.
        cls: class of the model.
        config: its configuration.
    """

    content: dict[str, Any]
    cls: type[Any]
    config: Any


def _saved(folder: Path) -> Saved:
    """Read ``config.json``."""
    # Model inherits from the mixin below.
    from .model import Model

    saved = _read_config(folder)
    try:
        given: Any = saved["config"]
        if "kind" not in given:
            return Saved(saved, Model, ModelConfig.from_dict(given))
        fields = {key: value for key, value in given.items() if key != "kind"}
        cls, config = SAVED[given["kind"]]
        return Saved(saved, cls, config(**known_fields(config, fields, SAVED.what)))
    except _UNBUILDABLE as error:
        raise _no_model(folder, error) from error


def _changed(config: Any, overrides: dict[str, Any]) -> Any:
    if not isinstance(config, ModelConfig):
        return dataclasses.replace(config, **known_fields(type(config), overrides, SAVED.what))
    for key in overrides:
        if key not in PARTS:
            raise OptionError(f"model: expected known options, got {key!r}{suggest_field(key)}")
    return config.replace(**overrides)


def _no_model(folder: Path, error: Exception) -> CheckpointError:
    return CheckpointError(
        f"{folder / CONFIG}: expected a model that can be built here, got one that cannot: {error}"
        f"{_own_code(folder)}"
    )


def _own_code(folder: Path) -> str:
    """Return the fix for the model of a run that imports code: which files to trust, and how."""
    run = folder.resolve().parent
    files = sorted((run / "code").glob("*.py"))
    if not files or not (run / "recipe.yaml").is_file():
        return ""
    names = ", ".join(repr(str(file)) for file in files)
    return (
        f"; its run imports {names}: read them, and if you trust them, "
        f"fredholm.training.load_run({str(run)!r}, trust_code=True)"
    )


def _read_config(folder: Path) -> dict[str, Any]:
    path = folder / CONFIG
    if not path.is_file():
        raise CheckpointError(
            f"{folder}: expected a folder with {CONFIG}, got none; give one written by "
            "save_pretrained, or a run's model/"
        )
    try:
        with storing(path):
            text = path.read_text(encoding="utf-8")
        saved = json.loads(text)
        # The first format had no number, but a family of models.
        if "family" in saved:
            found = int(saved.get("format", 1))
        else:
            found = int(saved["format"])
        if found == FORMAT and "config" not in saved:
            raise KeyError("no 'config'")
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(
            f"{path}: expected the configuration of a model with 'format' and 'config', got "
            f"{error}; restore it"
        ) from error
    check_format(path, found, FORMAT)
    # A user who changed the file on purpose removed its checksum, as the error below suggests.
    return unsealed(path, saved)


def _same_kind(a: torch.dtype, b: torch.dtype) -> bool:
    """Return whether both dtypes are real, or complex, of any precision, or else the same."""
    if a.is_floating_point and b.is_floating_point:
        return True
    if a.is_complex and b.is_complex:
        return True
    return a == b


def load_weights(model: nn.Module, path: Path, fresh: tuple[str, ...] = ()) -> None:
    """Load the weights of a file, whose names and shapes must be those of the module.

    Args:
        model: the module; a weight takes the file's dtype.
        path: of the file.
        fresh: prefixes of names that keep the model's own weights.

    Raises:
        CheckpointError: an unreadable file, or names, shapes or dtypes that differ.
    """
    tensors = read_tensors(path, "restore it or train again")
    own = model.state_dict()
    if fresh:
        tensors = {name: x for name, x in tensors.items() if not name.startswith(fresh)}
        tensors |= {name: x for name, x in own.items() if name.startswith(fresh)}
    faults = misfits(own, tensors)
    kinds = [
        f"{name} {x.dtype} for {own[name].dtype}"
        for name, x in tensors.items()
        if name in own and not _same_kind(x.dtype, own[name].dtype)
    ]
    if kinds:
        faults["of another dtype"] = kinds
    if faults:
        raise CheckpointError(
            f"{path}: expected the weights of its configuration, got others "
            f"({list_misfits(faults)}); restore the folder as it was saved"
        )

    # A model that was saved in another precision comes back in it, bit for bit.
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        if name in tensors:
            tensor.data = tensor.data.to(tensors[name].dtype)
    model.load_state_dict(tensors, strict=True)


class PretrainedMixin:
    """Methods ``model.save_pretrained(folder)`` and ``Model.from_pretrained(folder)``."""

    def save_pretrained(self, folder: str | Path, **extra: Any) -> Path:
        """Save the model, see :func:`save_pretrained`."""
        return save_pretrained(self, folder, **extra)  # type: ignore[arg-type]

    @classmethod
    def from_pretrained(cls, folder: str | Path, **options: Any) -> Any:
        """Load a model, see :func:`from_pretrained`.

        Raises:
            CheckpointError: also for a model of another class.
        """
        model = from_pretrained(folder, **options)
        if not isinstance(model, cls):
            raise CheckpointError(
                f"{folder}: expected a {cls.__name__}, got a {type(model).__name__}; load it with "
                "that class"
            )
        return model
