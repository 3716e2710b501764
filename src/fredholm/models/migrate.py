"""The first release's models: their flat configurations, the names of their weights, their recipes.

It had six families, each with a class and a configuration of its own; now each is a
:class:`fredholm.models.Model` of three parts. What was saved is read through here; what a user
writes anew is refused, with the new name (``docs/migration.md``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ..encoders import ENCODERS
from ..errors import OptionError, suggest
from .bodies import BODIES

Flat = Mapping[str, Any]
Parts = dict[str, dict[str, Any]]

# --- fields ---------------------------------------------------------------------------------------

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
    found = suggest(key, parts) if near is None else f"; did you mean {near!r}, now {MOVED[near]}?"
    return f"no option {key!r}{found}"


def nearest(key: str) -> str:
    """For an error: the key of a recipe that a name without its part is near to, or nothing.

    Example:
        >>> nearest("dimm"), nearest("xyz")
        ('; did you mean model.body.dim?', '')
    """
    near = _near(key)
    return "" if near is None else f"; did you mean model.{MOVED[near]}?"


def _near(key: str) -> str | None:
    found = suggest(key, MOVED)
    return next((name for name in MOVED if f"did you mean {name!r}?" in found), None)


# --- saved configurations -------------------------------------------------------------------------


def migrate_config(family: str, flat: Flat) -> Parts:
    """A flat configuration of one of the six families as those of encoder, body and head.

    Raises:
        OptionError: a family that there was not.

    Example:
        >>> migrate_config("lra", {"dim": 8, "hidden": 16, "pool": "cls"})["head"]
        {'kind': 'mlp', 'pool': 'cls', 'hidden': 16}
    """
    if family not in _FAMILIES:
        raise OptionError(f"unknown model family {family!r}{suggest(family, _FAMILIES)}")
    parts = _FAMILIES[family](flat)
    tables: dict[str, Any] = {"encoder": ENCODERS, "body": BODIES}
    for name, table in tables.items():  # fields that played no role
        kind, part = parts[name]["kind"], parts[name]
        for field in table[kind].idle({k: v for k, v in part.items() if k != "kind"}):
            part.pop(field, None)
    if "num_classes" in flat:
        parts["head"]["outputs"] = flat["num_classes"]
    return parts


def _pick(flat: Flat, kind: str, names: str, **renamed: Any) -> dict[str, Any]:
    """A part of this kind, with the named fields as far as they are there, and others."""
    fields = {name: flat[name] for name in names.split() if name in flat}
    return {"kind": kind, **fields, **{k: v for k, v in renamed.items() if v is not None}}


def _encoder(flat: Flat) -> dict[str, Any]:
    """The encoders that ITNet, the backbone and the continuous transformer had in common."""
    kind, fourier = flat.get("encoder", "image"), "frequencies sigma"
    if kind == "image" and flat.get("scales"):
        names = f"image_size channels scales {fourier}"
        return _pick(flat, "scales", names, measure=flat.get("measure"))
    if kind == "image":
        return _pick(flat, "image", f"image_size channels patch {fourier}")
    if kind == "points":
        features = flat.get("point_features")
        names = f"channels position_dim neighbours {fourier}"
        return _pick(flat, "points", names, features=features)
    if kind == "text":
        return _pick(flat, "text", f"vocabulary max_length causal positions {fourier}")
    if kind == "graph":
        nodes = "vocabulary" if flat.get("node_tokens") else "channels"
        return _pick(flat, "graph", f"{nodes} eigenvectors off_edges")
    if kind == "multimodal":
        names = f"image_size channels patch vocabulary max_length views {fourier}"
        return _pick(flat, "multimodal", names, measure=flat.get("measure"))
    if kind == "sequence":
        return _pick(flat, "sequence", f"channels length timed spacing causal {fourier}")
    if kind == "field":
        return _pick(flat, "field", f"channels {fourier}")
    raise OptionError(f"unknown encoder {kind!r}")


_BLOCKS = "dim depth heads operator operator_options mlp_ratio dropout"


def _itnet(flat: Flat) -> Parts:
    encoder = _encoder(flat)
    pools = {"points": "mean", "scales": "mean", "field": "every"}
    pool = pools.get(encoder["kind"], flat.get("pool", "mean"))
    return {
        "encoder": encoder,
        "body": _pick(flat, "residual", f"{_BLOCKS} drop_path"),
        "head": {"kind": "linear", "pool": pool},
    }


def _backbone(flat: Flat) -> Parts:
    encoder = _encoder(flat)
    # The mean was one over points, whatever time they stand for.
    pool = "points" if flat.get("timed") and encoder["kind"] == "sequence" else "mean"
    pool = "last" if flat.get("causal") else pool
    if flat.get("head") == "every" or encoder["kind"] == "field":
        pool = "every"
    return {
        "encoder": encoder,
        "body": _pick(flat, "backbone", _BLOCKS),
        "head": {"kind": "linear", "pool": pool},
    }


def _lra(flat: Flat) -> Parts:
    hidden, dim = flat.get("hidden", 128), flat.get("dim", 64)
    names = "dim depth heads operator operator_options dropout"
    body = _pick(flat, "residual", names, mlp_ratio=hidden / dim, scaled=False)
    views = 2 if flat.get("pair") else 1
    encoder = _pick(flat, "text", "vocabulary max_length", positions="learned", views=views)
    return {
        "encoder": encoder,
        "body": body,
        "head": {"kind": "mlp", "pool": flat.get("pool", "mean"), "hidden": hidden},
    }


def _ckcnn(flat: Flat) -> Parts:
    kind = flat.get("encoder", "sequence")
    if kind == "text":
        names = "vocabulary max_length causal"
        encoder = _pick(flat, "tokens", names, dim=flat.get("embedding"))
    elif kind == "image":
        encoder = _pick(flat, "pixels", "image_size channels")
    else:
        encoder = _pick(flat, "samples", "channels length timed spacing step mask causal")
    names = "widths norm operator operator_options dropout input_dropout"
    head: dict[str, Any] = {"kind": "linear", "pool": flat.get("head", "last")}
    head |= {"kind": "tied"} if flat.get("tied") else {"initial": "kaiming"}
    return {"encoder": encoder, "body": _pick(flat, "ckcnn", names), "head": head}


def _infvit(flat: Flat) -> Parts:
    names = "image_size channels patch positions frequencies sigma"
    more = "drop_path depth_rule decay learned_decay chunk"
    return {
        "encoder": _pick(flat, "image", names, positions=flat.get("positions", "learned")),
        "body": _pick(flat, "infvit", f"{_BLOCKS} {more}"),
        "head": {"kind": "linear", "pool": flat.get("pool", "cls")},
    }


def _continuous(flat: Flat) -> Parts:
    names = (
        "operator operator_options mlp_ratio dropout drop_path horizon steps scheme control norm "
        "penalty activation"
    )
    if flat.get("stages"):
        encoder = _pick(flat, "pixels", "image_size channels")
        body = _pick(flat, "stages", f"{names} stages kernel")
    else:
        encoder, body = _encoder(flat), _pick(flat, "continuous", f"{names} dim depth heads")
    pool = flat.get("pool", "mean")
    return {"encoder": encoder, "body": body, "head": {"kind": "linear", "pool": pool}}


_FAMILIES: dict[str, Callable[[Flat], Parts]] = {
    "backbone": _backbone,
    "ckcnn": _ckcnn,
    "continuous": _continuous,
    "infvit": _infvit,
    "itnet": _itnet,
    "lra": _lra,
}

# --- names of weights -----------------------------------------------------------------------------

_PREFIXES = {
    **{f"{name}.": f"body.{name}." for name in ("blocks", "norm", "stack", "evolutions")},
    "embeddings.": "body.embeddings.",
    "head_bias": "head.bias",
}


def migrate_name(name: str) -> str:
    """The name of a weight; those of encoders and of most heads are what they were.

    Example:
        >>> migrate_name("blocks.0.norm1.weight"), migrate_name("encoder.embed.weight")
        ('body.blocks.0.norm1.weight', 'encoder.embed.weight')
    """
    for old, new in _PREFIXES.items():
        if name.startswith(old):
            return new + name.removeprefix(old)
    return name


def migrate_checkpoint(checkpoint: dict[str, Any]) -> dict[str, Any]:
    """A training state of the first release with the names of today; of today, as it is.

    An optimizer knows its parameters by their order, which is the same but for one: a tied head's
    bias came first of all, and comes last.
    """
    names = checkpoint["state_dict"]
    heads = tuple(f"model.{prefix}" for prefix in _PREFIXES)
    if not any(name.startswith(heads) for name in names):
        return checkpoint
    found = dict(checkpoint)
    for key, value in checkpoint.items():
        if isinstance(value, Mapping) and any(str(k).startswith(heads) for k in value):
            found[key] = {_inside(name): tensor for name, tensor in value.items()}
    if "model.head_bias" in names:
        found["optimizer_states"] = [_rotated(one) for one in checkpoint["optimizer_states"]]
    return found


def _inside(name: str) -> str:
    """The name of a weight of the model inside a training module."""
    inner = name.removeprefix("model.")
    return name if inner == name else f"model.{migrate_name(inner)}"


def _rotated(optimizer: dict[str, Any]) -> dict[str, Any]:
    """The last group's first parameter as its last."""
    places = optimizer["param_groups"][-1]["params"]
    order = dict(zip(places, [*places[1:], places[0]]))
    state = optimizer["state"]
    moved = {new: state[old] for new, old in order.items() if old in state}
    kept = {place: one for place, one in state.items() if place not in order}
    return {**optimizer, "state": {**kept, **moved}}


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
    found: dict[str, Any] = {key: value for key, value in model.items() if key not in old}
    for key in model:
        if key not in old or (key in ("dim", "depth", "heads") and "stages" in old):
            continue
        for place, value in _moved(key, model):
            part, _, field = place.partition(".")
            found.setdefault(part, {})[field] = value
    return {**raw, "model": found}


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


def _moved(key: str, model: Flat) -> list[tuple[str, Any]]:
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


def _preset(model: Flat) -> Any:
    from .registry import model_config

    return model_config(model["name"])
