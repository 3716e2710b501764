"""Configurations, weights and checkpoints from before ``Model(encoder, body, head)``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ...errors import OptionError, suggest
from ..bodies import BODIES
from ..encoders import ENCODERS

Flat = Mapping[str, Any]
Parts = dict[str, dict[str, Any]]

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
    """A training state of an earlier model with the names of today; of today, as it is.

    An optimizer knows its parameters by their order, which is the same but for one: a tied head's
    bias came first of all, and comes last.
    """
    names = checkpoint["state_dict"]
    heads = tuple(f"model.{prefix}" for prefix in _PREFIXES)
    if not any(name.startswith(heads) for name in names):
        return checkpoint
    result = dict(checkpoint)
    for key, value in checkpoint.items():
        if isinstance(value, Mapping) and any(str(k).startswith(heads) for k in value):
            result[key] = {_inside(name): tensor for name, tensor in value.items()}
    if "model.head_bias" in names:
        result["optimizer_states"] = [_rotated(one) for one in checkpoint["optimizer_states"]]
    return result


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
