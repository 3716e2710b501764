"""Fields of models by their own names, for tests that vary one of them."""

from __future__ import annotations

from typing import Any

from fredholm.models.migrate import MOVED


def parts(**fields: Any) -> dict[str, Any]:
    """``parts(dim=8, pool="cls")`` is ``{"body": {"dim": 8}, "head": {"pool": "cls"}}``: each field
    in the part that has it; ``encoder`` and ``head`` are a kind and a read-out.
    """
    found: dict[str, Any] = {}
    for name, value in fields.items():
        part, _, field = MOVED.get(name, f"body.{name}").partition(".")
        found.setdefault(part, {})[field] = value
    return found
