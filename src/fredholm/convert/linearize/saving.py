"""Converted models on disk: the source ecosystem's own files, and beside them what is new."""

from __future__ import annotations

import dataclasses
import importlib
import json
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from torch import nn

from ...errors import CheckpointError, ConversionError, require
from ...files import (
    CHECKSUM,
    digest_json,
    digest_tensors,
    read_tensors,
    replacing,
    storing,
    write_tensors,
)
from ...integral.conversion import LIBRARIES
from ...models.pretrained import from_pretrained, save_pretrained
from ..transformers_folder import load_local
from .interface import SLOT, Call, is_transformers
from .replace import attach, replace_attention
from .replaced import Replaced

ADAPTER, MAPS, WEIGHTS = (
    "linear_attention.json",
    "linear_attention.safetensors",
    "model.safetensors",
)
FORMAT = 1
ECOSYSTEMS = ("transformers", "torch", "fredholm")
KINDS = {"ecosystem": str, "class": str, "to": str, "options": dict, "layers": list}
FIELDS = {"name", "heads", "groups", "width", "causal", "dropout"}  # of a layer
FIX = "restore it or convert again"


def save_linearized(replaced: Replaced, folder: str | Path) -> Path:
    """Write a converted model: what its source library writes, ``linear_attention.safetensors``
    (the maps) and ``linear_attention.json`` (which layers, which map, and checksums).

    A transformers model is saved by its own ``save_pretrained``, so that the library itself still
    reads the folder, as the softmax model with these weights. A model of fredholm is written by its
    own ``save_pretrained``, maps and all, and read by ``from_pretrained``. A model of other classes
    is saved as ``model.safetensors``, its state under the converted names.

    Example:
        >>> import tempfile
        >>> layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval()
        >>> folder = save_linearized(replace_attention(layer), tempfile.mkdtemp())
        >>> sorted(path.name for path in folder.iterdir())
        ['linear_attention.json', 'linear_attention.safetensors', 'model.safetensors']
    """
    folder = Path(folder)
    if replaced.ecosystem == "transformers":
        _check_classes(replaced.model)
    with storing(folder):
        folder.mkdir(parents=True, exist_ok=True)
    new = replaced.new_tensors()
    rest = {name: value for name, value in replaced.model.state_dict().items() if name not in new}
    checksums: dict[str, str] = {}
    if replaced.ecosystem == "transformers":  # it writes no checksums itself, and empties ``rest``
        checksums["weights"] = digest_tensors(rest)
        replaced.model.save_pretrained(folder, state_dict=rest)
        checksums["configuration"] = digest_json(_json(folder / "config.json"))
    elif replaced.ecosystem == "fredholm":
        save_pretrained(replaced.model, folder)
    else:
        write_tensors(folder / WEIGHTS, rest)
    if replaced.ecosystem != "fredholm":
        write_tensors(folder / MAPS, new)
    adapter = {
        "format": FORMAT,
        "ecosystem": replaced.ecosystem,
        "class": f"{type(replaced.model).__module__}.{type(replaced.model).__qualname__}",
        "to": replaced.to,
        "options": replaced.options,
        "tied": replaced.tied,
        "layers": [dataclasses.asdict(layer) for layer in replaced.layers],
        "refused": replaced.refused,
        **checksums,
        **replaced.extra,
    }
    adapter[CHECKSUM] = digest_json(adapter)
    text = json.dumps(adapter, indent=2) + "\n"
    with replacing(folder / ADAPTER) as temporary:
        temporary.write_text(text, encoding="utf-8")
    return folder


def _check_classes(model: nn.Module) -> None:
    """ConversionError for parts that the model's class would not build again from its files."""
    if not type(model).__module__.startswith(LIBRARIES):  # of somebody's own code, which may
        return
    for name, part in model.named_modules():
        if f".{SLOT}" in name:  # a map may be anybody's: register_feature_map
            continue
        if not type(part).__module__.startswith(LIBRARIES):
            raise ConversionError(
                f"{type(part).__module__}.{type(part).__name__} at {name!r} is no layer of torch or "
                f"transformers (an adapter?), and loading {type(model).__name__} from its folder "
                "would not bring it back; merge it into the weights first"
            )


def load_linearized(folder: str | Path, model: nn.Module | None = None) -> Any:
    """The converted model in ``folder``, in evaluation mode; every weight comes from the folder and
    matches its checksum, or it is an error.

    Args:
        folder: written by :func:`save_linearized`.
        model: for models of torch and timm, which no configuration rebuilds, a fresh one of the
            source's class, whose weights are replaced; for a model of the transformers interface
            whose class is in nobody's library, any one of its class.

    Raises:
        CheckpointError: a missing, truncated, damaged or unreadable file, or weights that are
            missing, unknown or of other shapes.
        ConversionError: a model of a class that is not in its library, or none where one is needed.
    """
    folder = Path(folder)
    adapter = _adapter(folder)
    if adapter["ecosystem"] == "fredholm":
        return from_pretrained(folder)
    tensors = read_tensors(folder / MAPS, FIX)
    if adapter["ecosystem"] == "transformers":
        replaced = _load_transformers(folder, adapter, model)
    else:
        if model is None:
            raise ConversionError(
                f"{folder} holds a converted {adapter['class']}, which nothing but its code can "
                "build: pass "
                "load_linearized(folder, model=...), a fresh one of its class"
            )
        names = [layer["name"] for layer in adapter["layers"]]
        options = {
            "options": adapter["options"],
            "tied": adapter["tied"],
            "layers": names,
            "keep_refused": True,
        }
        replaced = replace_attention(model.eval(), adapter["to"], **options)
        tensors |= read_tensors(folder / WEIGHTS, FIX)
    _fill(replaced, tensors, folder)
    return replaced.model.eval()


def _load_transformers(folder: Path, adapter: dict[str, Any], given: Any = None) -> Replaced:
    kind = _source_class(folder, adapter["class"]) if given is None else type(given)
    name = kind.__name__
    try:
        model, info = load_local(kind, folder, output_loading_info=True)
    except (OSError, ValueError, RuntimeError, SafetensorError) as error:
        raise CheckpointError(f"{folder}: transformers cannot read it ({error})") from error
    assert is_transformers(model)
    faults = {
        key: sorted(map(str, info.get(key) or ()))
        for key in ("missing_keys", "unexpected_keys", "mismatched_keys")
    }
    if any(faults.values()):
        raise CheckpointError(f"{folder}: the weights do not fit {name}: {faults}")
    found = {
        "weights": lambda: digest_tensors(model.state_dict()),
        "configuration": lambda: digest_json(_json(folder / "config.json")),
    }
    for what, digest in found.items():  # absent from folders of earlier versions
        if what in adapter and digest() != adapter[what]:
            raise CheckpointError(
                f"{folder}: the {what} that transformers reads there differ from what was saved "
                f"(by their checksum); {FIX}"
            )
    calls = [
        Call(x["name"], x["heads"], x["groups"], x["width"], x["causal"], None, x["dropout"])
        for x in adapter["layers"]
    ]
    absent = [call.name for call in calls if not _has(model, call.name)]
    if absent:
        raise CheckpointError(f"{folder}: {name} has no attention {', '.join(absent)}; {FIX}")
    return attach(
        model, calls, adapter["to"], adapter["options"], adapter["tied"], adapter["refused"]
    )


def _source_class(folder: Path, name: str) -> Any:
    """The class of transformers that was converted, of its main module or of a model's own file.

    Raises:
        ConversionError: there is none of this name.
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
            f"{folder} holds a converted {name}, which is no class of the installed transformers "
            f"{library.__version__}; pass a model of its class, load_linearized(folder, model=...)"
        )
    return kind


def _has(model: nn.Module, name: str) -> bool:
    try:
        return isinstance(model.get_submodule(name), nn.Module)
    except AttributeError:
        return False


def _fill(replaced: Replaced, tensors: dict[str, Any], folder: Path) -> None:
    """Copy the tensors into their places, all of them and nothing else."""
    own = replaced.model.state_dict()
    wanted = replaced.new_tensors() if replaced.ecosystem == "transformers" else own
    missing, unknown = (
        sorted(wanted.keys() - tensors.keys()),
        sorted(tensors.keys() - wanted.keys()),
    )
    both = wanted.keys() & tensors.keys()
    wrong = [
        f"{k} {tuple(tensors[k].shape)} for {tuple(own[k].shape)}"
        for k in both
        if tensors[k].shape != own[k].shape
    ]
    if missing or unknown or wrong:
        raise CheckpointError(
            f"{folder}: the maps do not fit: missing {missing}, unknown {unknown}, shapes {wrong}"
        )
    replaced.model.load_state_dict(tensors, strict=replaced.ecosystem != "transformers")


def _adapter(folder: Path) -> dict[str, Any]:
    path = folder / ADAPTER
    if not path.is_file():
        raise CheckpointError(
            f"no {ADAPTER} in {str(folder)!r}; give a folder written by save_linearized or "
            "linearize"
        )
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        newer = found["format"] > FORMAT
        absent = {"ecosystem", "class", "to", "options", "tied", "layers", "refused"} - found.keys()
        wrong = [key for key, kind in KINDS.items() if not isinstance(found.get(key, kind()), kind)]
        wrong += (
            ["layers"] if any(FIELDS - layer.keys() for layer in found.get("layers", ())) else []
        )
        wrong += ["ecosystem"] if found.get("ecosystem", "torch") not in ECOSYSTEMS else []
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(f"{path} is no description of a conversion ({error})") from error
    if newer:
        raise CheckpointError(
            f"{path} has format {found['format']}, this version reads up to {FORMAT}; update "
            "fredholm"
        )
    if absent:
        raise CheckpointError(
            f"{path} is no description of a conversion: it lacks {', '.join(sorted(absent))}"
        )
    if wrong:
        raise CheckpointError(
            f"{path} is no description of a conversion: {wrong[0]}={found[wrong[0]]!r} is not what "
            f"is written there; {FIX}"
        )
    expected = found.pop(CHECKSUM, None)  # absent from files of earlier versions
    if expected is not None and digest_json(found) != expected:
        raise CheckpointError(
            f"{path} is not as it was saved (its content does not match its checksum); {FIX}, or "
            f"remove its line {CHECKSUM!r} if the change was meant"
        )
    return found


def _json(path: Path) -> Any:
    with storing(path):
        return json.loads(path.read_text(encoding="utf-8"))
