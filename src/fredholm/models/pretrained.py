"""Saving and loading models: safetensors for weights, JSON for the configuration. Loading executes
no code.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import nn

from ..configuration import Configuration, known_fields
from ..errors import CheckpointError, FredholmError, OptionError
from ..files import check_format, digest_json, replacing, storing
from ..registry import Registry
from ..tensor_files import CHECKSUM, read_tensors, write_tensors
from .config import ModelConfig, suggest_field

WEIGHTS, CONFIG = "model.safetensors", "config.json"
FORMAT = 2
PARTS = ("encoder", "body", "head")
# Classes beside Model that are saved whole: by the kind of their configuration.
SAVED: Registry[tuple[type[Any], type[Any]]] = Registry("saved model", home="fredholm.layers")
Module = TypeVar("Module", bound=type[nn.Module])
_UNBUILDABLE = (FredholmError, AttributeError, KeyError, TypeError, ValueError)


def save_pretrained(model: nn.Module, folder: str | Path, **extra: Any) -> Path:
    """Write ``model.safetensors`` and ``config.json`` into ``folder``, each in one atomic step and
    with a checksum of its content.

    Args:
        model: a :class:`fredholm.models.Model`, or of a class of :func:`register_saved`.
        extra: further JSON values kept under ``"extra"``, such as class names, beside those that
            the model was loaded with.

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

    ``overrides`` replace fields of its parts that change no weight's name or shape, such as the
    steps of a continuous body: ``{"body": {"steps": 8}}``.

    Raises:
        OptionError: an override that is no field, or has an impossible value.
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
    """The configuration of the model in ``folder``.

    Raises:
        CheckpointError: as :func:`from_pretrained`.
    """
    return _saved(Path(folder))[2]


def register_saved(config: type[Configuration]) -> Callable[[Module], Module]:
    """Make :func:`from_pretrained` build this class, which is no :class:`fredholm.models.Model`,
    from a configuration of its own; the configuration's ``kind`` tells them apart.
    """

    def register(cls: Module) -> Module:
        SAVED.add(config.kind, (cls, config))
        return cls

    return register


def _saved(folder: Path) -> tuple[dict[str, Any], type[Any], Any]:
    """What ``config.json`` says, the class that it is of, and its configuration."""
    # Imported here, because Model inherits from PretrainedMixin of this file.
    from .model import Model

    saved = _read_config(folder)
    try:
        given: Any = saved["config"]
        if "kind" not in given:
            return saved, Model, ModelConfig.from_dict(given)
        fields = {key: value for key, value in given.items() if key != "kind"}
        cls, config = SAVED[given["kind"]]
        return saved, cls, config(**known_fields(config, fields, SAVED.what))
    except _UNBUILDABLE as error:
        raise _no_model(folder, error) from error


def _changed(config: Any, overrides: dict[str, Any]) -> Any:
    if not isinstance(config, ModelConfig):
        return dataclasses.replace(config, **known_fields(type(config), overrides, SAVED.what))
    for key in overrides:
        if key not in PARTS:
            raise OptionError(f"model: no option {key!r}{suggest_field(key)}")
    return config.replace(**overrides)


def _no_model(folder: Path, error: Exception) -> CheckpointError:
    return CheckpointError(
        f"{folder / CONFIG} describes no model that can be built here: {error}{_own_code(folder)}"
    )


def _own_code(folder: Path) -> str:
    """Of the model of a run with code of its own: which files to trust, and how."""
    run = folder.resolve().parent
    files = sorted((run / "code").glob("*.py")) if (run / "recipe.yaml").is_file() else []
    if not files:
        return ""
    return (
        f"; its run imports {', '.join(repr(str(file)) for file in files)}: read them, and if you "
        f"trust them, fredholm.training.load_run({str(run)!r}, trust_code=True)"
    )


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
        # The first format did not name itself; it named a family of models.
        found = int(saved["format"] if "family" not in saved else saved.get("format", 1))
        if found == FORMAT and "config" not in saved:
            raise KeyError("no 'config'")
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(
            f"{path} is no model configuration ({error}); it needs 'format' and 'config'"
        ) from error
    check_format(path, found, FORMAT)
    # A user who changed the file on purpose removed its checksum, as the error below suggests.
    expected = saved.pop(CHECKSUM, None)
    if expected is not None and digest_json(saved) != expected:
        raise CheckpointError(
            f"{path} is not as it was saved (its content does not match its checksum); restore it, "
            f"or remove its line {CHECKSUM!r} if the change was meant"
        )
    return saved


def _same_kind(a: torch.dtype, b: torch.dtype) -> bool:
    """Whether both are real numbers of any precision, or complex ones, or of one other dtype."""
    return (a.is_floating_point and b.is_floating_point) or (
        (a.is_complex and b.is_complex) or a == b
    )


def load_weights(model: nn.Module, path: Path, fresh: tuple[str, ...] = ()) -> None:
    """Load the weights of a file, every name and shape accounted for.

    Args:
        model: the module; a weight takes the file's dtype.
        path: of the file.
        fresh: beginnings of names that keep the model's own weights.

    Raises:
        CheckpointError: an unreadable file, or names, shapes or dtypes that differ.
    """
    tensors = read_tensors(path, "restore it or train again")
    if fresh:
        tensors = {name: x for name, x in tensors.items() if not name.startswith(fresh)}
        own_state = model.state_dict().items()
        tensors |= {name: x for name, x in own_state if name.startswith(fresh)}
    own = model.state_dict()
    missing, unknown = sorted(own.keys() - tensors.keys()), sorted(tensors.keys() - own.keys())
    wrong = [
        f"{k} {tuple(tensors[k].shape)} for {tuple(own[k].shape)}"
        for k in own.keys() & tensors.keys()
        if tensors[k].shape != own[k].shape
    ]
    wrong += [
        f"{k} {tensors[k].dtype} for {own[k].dtype}"
        for k in sorted(own.keys() & tensors.keys())
        if not _same_kind(tensors[k].dtype, own[k].dtype)
    ]
    if missing or unknown or wrong:
        raise CheckpointError(
            f"{path} does not fit its configuration: missing {missing}, unknown {unknown}, shapes "
            f"and dtypes {wrong}"
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
