"""Fields of models by short names, for tests that vary one of them."""

from __future__ import annotations

from typing import Any

from fredholm.models.bodies import BODIES
from fredholm.models.encoders import ENCODERS
from fredholm.models.heads import HEADS

# Fields with another name in the tests.
NAMES = {
    "encoder": "encoder.kind",
    "point_features": "encoder.features",
    "embedding": "encoder.dim",
    "num_classes": "head.outputs",
    "head": "head.pool",
}


def parts(**fields: Any) -> dict[str, Any]:
    """Return each field in the part that has it.

    ``parts(dim=8, pool="cls")`` is ``{"body": {"dim": 8}, "head": {"pool": "cls"}}``. The fields
    ``encoder`` and ``head`` are a kind and a read-out.
    """
    found: dict[str, Any] = {}
    for name, value in fields.items():
        part, _, field = NAMES.get(name, f"{_part(name)}.{name}").partition(".")
        found.setdefault(part, {})[field] = value
    return found


def _part(name: str) -> str:
    tables: dict[str, Any] = {"body": BODIES, "encoder": ENCODERS, "head": HEADS}
    for part, table in tables.items():
        if any(name in table[kind].fields() for kind in table.names()):
            return part
    # The body refuses the field.
    return "body"
