"""Arguments of ``fredholm explain --module`` and of ``fredholm linearize``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ...errors import OptionError
from . import show

# Imports inside functions load the training room only when a command needs it.


def read_shape(text: str | None) -> tuple[int, ...] | None:
    """Parse a shape such as ``"8,3,64,64"``.

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
        raise OptionError(
            f"--shape: expected positive whole numbers, got {text!r}; write them as 8,3,64,64"
        )
    return tuple(int(part) for part in parts)


def read_options(given: list[str] | None) -> dict[str, Any]:
    """Parse options such as ``["channels=16", "shared=true"]``, whose values are YAML.

    The bare words ``yes``, ``no``, ``on`` and ``off`` become truth values. If a key comes twice,
    the last value counts.

    Raises:
        OptionError: an option without an equals sign.
        RecipeError: a value that is not YAML.

    Example:
        >>> read_options(["channels=16", "envelope=scalar"])
        {'channels': 16, 'envelope': 'scalar'}
    """
    from ..training.recipe_text import parse, plain

    options = {}
    for text in given or []:
        key, sign, value = text.partition("=")
        if not sign or not key:
            raise OptionError(
                f"--option: expected KEY=VALUE, got {text!r}; e.g. --option channels=16"
            )
        options[key] = plain(parse(value, f"--option {key}"))
    return options


def import_run_code(source: str, trust_code: bool) -> None:
    """Import what a run's recipe imports, such as operators, if the source is a run folder.

    Raises:
        TrustError: the run's recipe imports a file, and ``--trust-code`` is not given.
    """
    if (Path(source) / "recipe.yaml").is_file():
        from .. import training

        show.trusted_code(source, trust_code)
        training.load_recipe(Path(source), trust_code=trust_code)


def is_model(source: str) -> bool:
    """Return whether a source is a model and not a run: a model's folder, or
    ``package.module:factory``.
    """
    # A run folder may hold a config.json as well; its recipe tells it apart.
    folder = Path(source).expanduser()
    if folder.is_dir():
        return not (folder / "recipe.yaml").is_file() and (folder / "config.json").is_file()
    return ":" in source


def refuse_without_module(**given: Any) -> None:
    """Refuse options that the report of a whole run does not read.

    Raises:
        OptionError: one of them is given.
    """
    for name, value in given.items():
        if value is not None:
            raise OptionError(
                f"--{name}: expected one layer, or a model's folder, got a run; name the layer "
                "with --module"
            )


def given(**options: Any) -> dict[str, Any]:
    """Return the options that were given.

    Example:
        >>> given(lr=1e-3, steps=None)
        {'lr': 0.001}
    """
    return {name: value for name, value in options.items() if value is not None}
