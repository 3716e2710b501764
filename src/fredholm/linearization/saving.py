"""Converted models on disk, written and read."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from torch import nn

from ..errors import CheckpointError, ConversionError, FredholmError, require
from ..files import read_json, storing
from ..models.pretrained import from_pretrained, save_pretrained
from ..registry import qualified_name
from ..tensor_files import read_tensors, write_tensors
from .description import FIX, describe, read_description, write_description
from .replace import replace_attention
from .replaced import Replaced
from .transformers_folder import load_local

MAPS, WEIGHTS = "linear_attention.safetensors", "model.safetensors"


def save_linearized(
    replaced: Replaced,
    folder: str | Path,
    *,
    processor: Any = None,
    lines: Sequence[str] = (),
) -> Path:
    """Write a converted model, and ``linear_attention.json``: which layers, which map, checksums.

    A transformers model is one safetensors file and a configuration of ``model_type:
    fredholm_linear``: after ``import fredholm.hf`` its Auto classes load it; without fredholm the
    library refuses the folder. A model of fredholm is written by its own ``save_pretrained``, maps,
    class names and all, and read by ``from_pretrained``. A model of other classes is
    ``model.safetensors``, its state under the converted names, and
    ``linear_attention.safetensors``, the maps.

    Args:
        processor: for a transformers model, a tokenizer or image processor to be saved with it.
        lines: description of the conversion in the model card of a transformers model.

    Example:
        >>> import tempfile
        >>> layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval()
        >>> folder = save_linearized(replace_attention(layer), tempfile.mkdtemp())
        >>> sorted(path.name for path in folder.iterdir())
        ['linear_attention.json', 'linear_attention.safetensors', 'model.safetensors']
    """
    folder, model = Path(folder), replaced.model
    with storing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        if replaced.ecosystem == "transformers":
            model.save_pretrained(folder, processor=processor, lines=lines)
            return folder
    if replaced.ecosystem == "fredholm":
        save_pretrained(model, folder, **getattr(model, "extra", {}))
    else:
        # A tensor with several names is written once, under the first.
        new = replaced.new_tensors()
        once = model.state_dict()
        for name in replaced.repeated():
            del once[name]
        rest = {name: value for name, value in once.items() if name not in new}
        write_tensors(folder / WEIGHTS, rest)
        write_tensors(folder / MAPS, {name: new[name] for name in new if name in once})
    description = {
        "ecosystem": replaced.ecosystem,
        "class": qualified_name(type(model)),
        "to": replaced.to,
        "options": replaced.options,
        "tied": replaced.tied,
        "layers": [describe(layer) for layer in replaced.layers],
        "refused": replaced.refused,
        **replaced.extra,
    }
    write_description(folder, description)
    return folder


def load_linearized(folder: str | Path, model: nn.Module | None = None) -> Any:
    """Return the converted model in ``folder``, in evaluation mode. Every weight comes from the
    folder and matches its checksum.

    Args:
        folder: written by :func:`save_linearized`.
        model: for models of torch and timm, which cannot be rebuilt from a configuration, a new
            model of the source's class, whose weights are replaced; likewise for a model with the
            transformers interface whose class belongs to no library.

    Raises:
        CheckpointError: a missing, truncated, damaged or unreadable file, or weights that are
            missing, unknown or of other shapes.
        ConversionError: a model of a class that is not in its library, or none where one is needed.
    """
    folder = Path(folder)
    adapter = read_description(folder)
    if adapter["ecosystem"] == "fredholm":
        return from_pretrained(folder)
    if adapter["ecosystem"] == "transformers":
        if model is None:
            kind = _source_class(folder, adapter["class"])
        else:
            kind = type(model)
        return _load_transformers(folder, kind, model).eval()
    if model is None:
        raise ConversionError(
            f"{folder} holds a converted {adapter['class']}, which nothing but its code can build: "
            "pass load_linearized(folder, model=...), a fresh one of its class"
        )
    names = [layer["name"] for layer in adapter["layers"]]
    options = {"options": adapter["options"], "tied": adapter["tied"], "layers": names}
    replaced = replace_attention(
        model.eval(),
        adapter["to"],
        **options,
        keep_refused=True,
        probe=False,
    )
    tensors = read_tensors(folder / MAPS, FIX) | read_tensors(folder / WEIGHTS, FIX)
    replaced.fill(tensors, folder)
    return replaced.model.eval()


def _load_transformers(folder: Path, kind: Any, given: Any) -> Any:
    # Imported here, because the file imports transformers, an extra.
    from .auto import linear_config, linear_model

    config = None
    if given is not None:
        # A user's own class, which may have a configuration of its own.
        saved = read_json(folder / "config.json", FIX)
        facts = {"linear_attention": saved["linear_attention"]}
        config = linear_config(type(given.config)).from_dict(saved["source"] | facts)
    with _reading(folder):
        return load_local(linear_model(kind), folder, config=config)


@contextmanager
def _reading(folder: Path) -> Iterator[None]:
    """Turn an error of transformers inside into a CheckpointError."""
    try:
        yield
    except FredholmError:
        raise
    except (OSError, ValueError, RuntimeError, SafetensorError) as error:
        raise CheckpointError(f"{folder}: transformers cannot read it ({error})") from error


def _source_class(folder: Path, name: str) -> Any:
    """Return the class of transformers that was converted, from its main module or a model's file.

    Raises:
        ConversionError: no class of this name.
    """
    library: Any = require("transformers", "hf", "loading a converted transformers model")
    module, _, short = name.rpartition(".")
    kind = getattr(library, short, None)
    if kind is None and module.startswith("transformers.models."):
        try:
            kind = getattr(importlib.import_module(module), short, None)
        except ImportError:
            kind = None
    known = isinstance(kind, type) and issubclass(kind, library.PreTrainedModel)
    if not known or not module.startswith("transformers."):
        raise ConversionError(
            f"{folder} holds a converted {name}, which is not a class of the installed "
            f"transformers {library.__version__}; pass a model of its class, "
            "load_linearized(folder, model=...)"
        )
    return kind
