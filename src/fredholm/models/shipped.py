"""Weights that come with the package: folders of small trained runs in ``fredholm/weights``."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..errors import OptionError, suggest
from ..files import read_json
from .config import PARTS, ModelConfig, suggest_field
from .model import Model
from .pretrained import WEIGHTS, from_pretrained, load_weights, read_config

SHIPPED = Path(__file__).parents[1] / "weights"
CARD = "card.json"


def list_pretrained(preset: str | None = None) -> list[str]:
    """Return the sorted names of the weights that come with the package, or of those of one preset.

    Example:
        >>> "digits" in list_pretrained("itnet_nano")
        True
    """
    names = sorted(path.parent.name for path in SHIPPED.glob(f"*/{CARD}"))
    if preset is None:
        return names
    return [name for name in names if pretrained_card(name)["preset"] == preset]


def pretrained_folder(name: str) -> Path:
    """Return the run folder, inside the installed package, of weights that come with it.

    An installed package may be read-only, so copy the folder before you write to it.

    Raises:
        OptionError: no weights of this name.
    """
    names = list_pretrained()
    if name not in names:
        raise OptionError(
            f"pretrained: expected one of {', '.join(names)}, got {name!r}{suggest(name, names)}"
        )
    return SHIPPED / name


def pretrained_card(name: str) -> dict[str, Any]:
    """Return facts about weights that come with the package: ``preset``, ``data``, ``licence`` of
    the data, ``metric`` and ``score`` on the test split, ``parameters``, ``epochs``, ``command``.

    Raises:
        OptionError: no weights of this name.

    Example:
        >>> pretrained_card("digits")["preset"]
        'itnet_nano'
    """
    return read_json(pretrained_folder(name) / CARD, "install fredholm again")


def pretrained_model(preset: str, name: str, parts: Mapping[str, Any]) -> Model:
    """Return a model with weights that come with the package, in evaluation mode.

    Args:
        preset: the model's name.
        name: that of the weights, see :func:`list_pretrained`.
        parts: as in :func:`.model_config`. Another ``head`` starts with new weights; encoder and
            body keep theirs, whose names and shapes must not change.

    Raises:
        OptionError: no weights of this name, weights of another preset, or an unknown part.
        CheckpointError: parts that the weights do not fit.
    """
    folder = pretrained_folder(name) / "model"
    card = pretrained_card(name)
    if card["preset"] != preset:
        known = ", ".join(list_pretrained(preset)) or "none"
        raise OptionError(
            f"pretrained: expected weights of {preset} ({known}), got {name!r}, those of "
            f"{card['preset']}"
        )
    others = [key for key in parts if key not in ("data", *PARTS)]
    if others:
        lines = [f"model {preset!r}: no option {key!r}{suggest_field(key)}" for key in others]
        raise OptionError("\n".join(lines))
    if not parts:
        return from_pretrained(folder)

    saved: ModelConfig = read_config(folder)
    config = saved.replace(**parts)
    model = Model(config)
    # Another head has other weights than the saved one.
    fresh = ("head.",)
    if config.head == saved.head:
        fresh = ()
    load_weights(model, folder / WEIGHTS, fresh)
    return model.eval()
