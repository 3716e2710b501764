"""Keys of recipes and names of options from before ``Model(encoder, body, head)``: where they are
now.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...errors import suggest

_ENCODER = (
    "image_size patch channels vocabulary max_length length timed spacing step mask causal scales "
    "position_dim neighbours eigenvectors off_edges measure views positions frequencies sigma"
)
_BODY = (
    "dim depth heads operator operator_options mlp_ratio dropout drop_path widths norm "
    "input_dropout depth_rule decay learned_decay chunk horizon steps scheme control penalty "
    "activation stages kernel"
)

# A field of a flat configuration -> where it is now.
MOVED: dict[str, str] = {
    **{name: f"encoder.{name}" for name in _ENCODER.split()},
    **{name: f"body.{name}" for name in _BODY.split()},
    "encoder": "encoder.kind",
    "point_features": "encoder.features",
    "embedding": "encoder.dim",
    "num_classes": "head.outputs",
    "pool": "head.pool",
    "head": "head.pool",
}
# Those that became something else.
BECAME: dict[str, str] = {
    "node_tokens": "encoder.vocabulary in the place of encoder.channels",
    "pair": "encoder.views=2",
    "hidden": "head.hidden, and body.mlp_ratio as a multiple of body.dim",
    "tied": "head.kind=tied",
}


def explain(key: str) -> str:
    """What became of a field of the flat configurations, for an error.

    Example:
        >>> explain("depth"), explain("depht")
        ("'depth' is now body.depth", "no option 'depht'; did you mean 'depth', now body.depth?")
    """
    if key in MOVED or key in BECAME:
        return f"{key!r} is now {MOVED.get(key) or BECAME[key]}"
    parts = ("data", "encoder", "body", "head")
    near = _near(key)
    result = suggest(key, parts) if near is None else f"; did you mean {near!r}, now {MOVED[near]}?"
    return f"no option {key!r}{result}"


def nearest(key: str) -> str:
    """For an error: the key of a recipe that a name without its part is near to, or nothing.

    Example:
        >>> nearest("dimm"), nearest("xyz")
        ('; did you mean model.body.dim?', '')
    """
    near = _near(key)
    return "" if near is None else f"; did you mean model.{MOVED[near]}?"


def _near(key: str) -> str | None:
    result = suggest(key, MOVED)
    return next((name for name in MOVED if f"did you mean {name!r}?" in result), None)


# --- recipes --------------------------------------------------------------------------------------


def old_keys(model: Any) -> list[str]:
    """Keys of a recipe's ``model`` section that are fields of flat configurations."""
    if not isinstance(model, Mapping):
        return []
    parts = ("encoder", "body", "head")
    return [
        key
        for key, value in model.items()
        if (key in parts and not isinstance(value, Mapping))
        or (key not in parts and (key in MOVED or key in BECAME))
    ]


def explain_key(key: str, value: Any) -> str:
    """One line for an old key of a recipe."""
    place = f"model.{MOVED[key]}" if key in MOVED else BECAME[key]
    return f"model.{key}: received {value!r}; it is now {place}, see docs/migration.md"


def migrate_recipe(raw: dict[str, Any]) -> dict[str, Any]:
    """A recipe as plain data, its model's keys where they are now; of today, as it is.

    Example:
        >>> migrate_recipe({"model": {"name": "itnet_nano", "patch": 2, "pool": "cls"}})["model"]
        {'name': 'itnet_nano', 'encoder': {'patch': 2}, 'head': {'pool': 'cls'}}
    """
    model = raw.get("model")
    if not isinstance(model, Mapping) or not old_keys(model):
        return raw
    old = set(old_keys(model))
    result: dict[str, Any] = {key: value for key, value in model.items() if key not in old}
    for key in model:
        if key not in old or (key in ("dim", "depth", "heads") and "stages" in old):
            continue
        for place, value in _moved(key, model):
            part, _, field = place.partition(".")
            result.setdefault(part, {})[field] = value
    return _with_first_presets({**raw, "model": result})


# InfViT's small presets had no biases in their queries, keys and values, and a class token without
# mass, when flat keys were written.
_FIRST_OPERATORS = {"infvit_linear_pico": "linear_infsa", "infvit_pure_pico": "infsa"}


def _with_first_presets(raw: dict[str, Any]) -> dict[str, Any]:
    """A recipe with the fields that its model's preset had when the recipe was written."""
    model, operator = raw["model"], raw.get("operator") or {}
    if not str(model.get("name")).startswith("infvit_") or "pico" not in model["name"]:
        return raw
    encoder = {"token": "reader", **model.get("encoder", {})}
    named = operator if isinstance(operator, Mapping) else {"name": operator}
    own = _FIRST_OPERATORS.get(model["name"])
    if own is not None and named.get("name") in (None, own):
        raw = {**raw, "operator": {"bias": False, **named, "name": own}}
    return {**raw, "model": {**model, "encoder": encoder}}


def migrate_override(text: str) -> str:
    """An override of a recipe, ``key=value``, its key where it is now.

    Example:
        >>> migrate_override("model.depth=4"), migrate_override("data.limit=9")
        ('model.body.depth=4', 'data.limit=9')
    """
    key, mark, value = text.partition("=")
    name = key.removeprefix("model.")
    moved = name != key and name in MOVED
    return f"model.{MOVED[name]}{mark}{value}" if moved else text


def _moved(key: str, model: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """Where a key of a recipe is now, and its value."""
    value = model[key]
    if key == "head" and value == "pooled":
        return []
    if key == "scales":
        return [("encoder.kind", "scales"), ("encoder.scales", value)]
    if key == "tied":
        return [("head.kind", "tied" if value else "linear")]
    if key == "hidden":
        dim = model.get("dim") or _preset(model).body.width
        return [("head.hidden", value), ("body.mlp_ratio", value / dim)]
    return [(MOVED[key], value)] if key in MOVED else []


def _preset(model: Mapping[str, Any]) -> Any:
    from ..registry import model_config

    return model_config(model["name"])
