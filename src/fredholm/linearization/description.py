"""``linear_attention.json``: what was converted, how, and the checksums of what lies beside it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from torch import nn

from ..errors import CheckpointError, ConversionError
from ..files import check_format, sealed, unsealed, write_json
from ..integral.code_path import LIBRARIES
from .interface import SLOT
from .replaced import Layer

ADAPTER = "linear_attention.json"
FORMAT = 2
ECOSYSTEMS = ("transformers", "torch", "fredholm")
# The types of some of the values, which a damaged file would not have.
KINDS = {"ecosystem": str, "class": str, "to": str, "options": dict, "layers": list}
# What is written of each layer, and what reading needs of it.
FIELDS = ("name", "kind", "heads", "groups", "width", "causal", "dropout")
NEEDED = set(FIELDS) - {"kind"}
FIX = "restore it or convert again"


def describe(layer: Layer) -> dict[str, Any]:
    """Return what a folder says of a layer."""
    return {name: getattr(layer, name) for name in FIELDS}


def write_description(folder: Path, description: dict[str, Any]) -> None:
    """Write a description into a folder, with its format and checksum."""
    write_json(folder / ADAPTER, sealed({"format": FORMAT, **description}))


def read_description(folder: Path) -> dict[str, Any]:
    """Return the description in a folder, checked.

    Raises:
        CheckpointError: there is none, or it is damaged, unknown or of another format.
    """
    path = folder / ADAPTER
    if not path.is_file():
        raise CheckpointError(
            f"no {ADAPTER} in {str(folder)!r}; give a folder written by save_linearized or "
            "linearize"
        )
    try:
        result = json.loads(path.read_text(encoding="utf-8"))
        found = int(result["format"])
        absent = {*KINDS, "tied", "refused"} - result.keys()
        wrong = [
            key for key, kind in KINDS.items() if not isinstance(result.get(key, kind()), kind)
        ]
        if any(NEEDED - layer.keys() for layer in result.get("layers", ())):
            wrong.append("layers")
        if result.get("ecosystem", "torch") not in ECOSYSTEMS:
            wrong.append("ecosystem")
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(f"{path} is no description of a conversion ({error})") from error
    check_format(path, found, FORMAT)
    if absent:
        raise CheckpointError(
            f"{path} is no description of a conversion: it lacks {', '.join(sorted(absent))}"
        )
    if wrong:
        raise CheckpointError(
            f"{path} is no description of a conversion: {wrong[0]}={result[wrong[0]]!r} is not "
            f"what is written there; {FIX}"
        )
    # A user who changed the file on purpose removed its checksum, as the error below suggests.
    return unsealed(path, result)


def check_classes(model: nn.Module, source: type) -> None:
    """Check that the class of a converted model builds all its parts again from its files.

    Raises:
        ConversionError: a part that neither torch nor transformers has.
    """
    # A user's own class may build parts of its own.
    if not source.__module__.startswith(LIBRARIES):
        return
    for name, part in model.named_modules():
        # A feature map may be a user's own, see `register_feature_map`.
        if part is model or f".{SLOT}" in name:
            continue
        if not type(part).__module__.startswith(LIBRARIES):
            raise ConversionError(
                f"{type(part).__module__}.{type(part).__name__} at {name!r} is not a layer of "
                f"torch or transformers (an adapter?), and loading {source.__name__} from its "
                "folder would not bring it back; merge it into the weights first"
            )
