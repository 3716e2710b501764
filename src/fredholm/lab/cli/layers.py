"""Arguments that commands read: of ``fredholm explain --module`` and of ``linearize``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ...errors import OptionError
from . import show


def read_shape(text: str | None) -> tuple[int, ...] | None:
    """``"8,3,64,64"`` as numbers.

    Raises:
        OptionError: anything but positive whole numbers with commas between them.

    Example:
        >>> read_shape("8,3,64,64")
        (8, 3, 64, 64)
    """
    if text is None:
        return None
    parts = text.split(",")
    if not all(part.strip().isdecimal() and int(part) for part in parts):
        raise OptionError(f"--shape takes positive whole numbers such as 8,3,64,64, got {text!r}")
    return tuple(int(part) for part in parts)


def read_options(given: list[str] | None) -> dict[str, Any]:
    """``["channels=16", "shared=true"]`` as a dictionary of YAML values.

    Raises:
        OptionError: without an equals sign.
        RecipeError: a value that is no YAML.

    Example:
        >>> read_options(["channels=16", "envelope=scalar"])
        {'channels': 16, 'envelope': 'scalar'}
    """
    from ..training.recipe_text import parse, plain

    options = {}
    for text in given or []:
        key, sign, value = text.partition("=")
        if not sign or not key:
            raise OptionError(f"--option takes KEY=VALUE, got {text!r}")
        options[key] = plain(parse(value, f"--option {key}"))
    return options


def import_run_code(source: str, trust_code: bool) -> None:
    """Operators of a run's own, where the model to be explained is that of a run folder.

    Raises:
        TrustError: the run's recipe imports a file, and ``--trust-code`` is not given.
    """
    if (Path(source) / "recipe.yaml").is_file():
        from .. import training

        show.trusted_code(source, trust_code)
        training.load_recipe(Path(source), trust_code=trust_code)


def is_model(source: str) -> bool:
    """Whether a model is named, not a run: a model's folder, or ``package.module:factory``."""
    folder = Path(source).expanduser()
    if folder.is_dir():
        return not (folder / "recipe.yaml").is_file() and (folder / "config.json").is_file()
    return ":" in source


def refuse_without_module(**given: Any) -> None:
    """Options that mean nothing for the report of a whole run.

    Raises:
        OptionError: one of them is given.
    """
    for name, value in given.items():
        if value is not None:
            raise OptionError(
                f"--{name} belongs to the report of one layer, or of a model's folder; name the "
                "layer with --module"
            )


def given(**options: Any) -> dict[str, Any]:
    """Those that were given.

    Example:
        >>> given(lr=1e-3, steps=None)
        {'lr': 0.001}
    """
    return {name: value for name, value in options.items() if value is not None}
