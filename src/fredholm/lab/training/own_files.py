"""Recipes of the user's own files: a path is enough, the rest is inferred from the files."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from ..data.files import Reading, open_files
from ..data.files.collect import family_of, mark_of
from ..data.files.suffixes import stem_of
from .recipe import READING, Recipe
from .usual import Section, usual_recipe

# A recipe as its file has it, before it is checked.
RawRecipe = dict[str, Any]


def names_files(source: Any) -> bool:
    """Tell whether a command's argument is a path of samples and not a recipe.

    Such a path contains a separator, or has the suffix of a sample file, and is neither YAML nor a
    run folder.

    Example:
        >>> names_files("digits"), names_files("./my.yaml"), names_files("series.csv")
        (False, False, True)
    """
    path = Path(source)
    is_yaml = path.suffix.lower() in (".yaml", ".yml")
    if is_yaml or (path / "recipe.yaml").is_file():
        return False
    if family_of(path) is not None:
        return True

    text = str(source)
    has_separator = "/" in text or os.sep in text
    is_absolute = isinstance(source, Path) and path.is_absolute()
    return path.is_dir() and (has_separator or is_absolute)


def named(raw: RawRecipe) -> RawRecipe:
    """Make the paths of a recipe absolute; name a recipe of the user's files after them."""
    path = _files_path(raw)
    if path is None:
        return with_absolute_paths(raw)

    data = {**raw["data"], "path": str(path)}
    raw = with_absolute_paths({**raw, "data": data})
    name = run_name(Path(raw["data"]["path"]))
    return {"name": name, **raw}


def run_name(path: Path) -> str:
    """Return the usual name of a run on the user's files."""
    allowed = re.sub(r"[^A-Za-z0-9._,=+-]", "-", stem_of(path))

    # A name begins with a letter or digit.
    name = allowed.lstrip("._,=+-")
    return name or "run"


def free_name(name: str, runs: str | Path = "runs") -> str:
    """Return a name for a new run: this one, or the first of ``name-2``, ``name-3``, … for which
    ``runs`` has no folder yet.
    """
    free = name
    number = 2
    while (Path(runs) / free).exists():
        free = f"{name}-{number}"
        number += 1
    return free


def _files_path(raw: RawRecipe) -> Any:
    """Return the path of the user's own files in a raw recipe; None for another data set."""
    data = raw.get("data")
    if not isinstance(data, dict) or data.get("name", "files") != "files":
        return None
    return data.get("path") or None


def with_absolute_paths(raw: RawRecipe) -> RawRecipe:
    """Make a recipe name the same data and the same ``init_from`` from any working folder."""
    raw = dict(raw)
    data = raw.get("data")
    if isinstance(data, dict):
        data = dict(data)
        if data.get("path"):
            data["path"] = absolute_path(data["path"])
        raw["data"] = data

    if raw.get("init_from"):
        raw["init_from"] = absolute_path(raw["init_from"])
    return raw


def absolute_path(path: Any) -> Any:
    """Make a path absolute; a value of another type is left to the recipe's own checks."""
    if not isinstance(path, str | Path):
        return path
    return str(Path(path).expanduser().absolute())


def modelless(raw: RawRecipe) -> bool:
    """Tell whether a recipe of the user's files leaves the choice of the model to the files."""
    if _files_path(raw) is None:
        return False
    model = raw.get("model", {})
    return isinstance(model, dict) and "name" not in model


def data_mark(recipe: Recipe) -> str | None:
    """Return a mark of the user's files that changes with them; None for a named data set."""
    if recipe.data.name != "files" or recipe.data.path is None:
        return None

    options = recipe.data.options | recipe.data.reading
    path = Path(recipe.data.path).expanduser().absolute()
    return mark_of(path, Reading(**options))


# --- completing a recipe --------------------------------------------------------------------------


def complete(raw: RawRecipe) -> RawRecipe:
    """Read the files of a recipe and add what it leaves open, see :func:`.usual.usual_recipe`.

    These are the model for the kind of its files, and the batch size and epochs for their number.
    """
    data = raw["data"]
    options = data.get("options", {})
    reading = {}
    for key in READING:
        if data.get(key) is not None:
            reading[key] = data[key]

    fractions = {}
    if data.get("val_fraction"):
        fractions["val"] = data["val_fraction"]
    path = Path(data["path"])
    source = open_files(path, {**reading, **options}, **fractions)

    image_size = _image_size(data.get("image_size"))
    usual = usual_recipe(source, image_size)
    usual |= _usual_length(usual, raw.get("training"), raw.get("schedule"))

    usual_data = usual.pop("data")
    usual_options = usual_data.get("options", {})
    merged_data = {**usual_data, **data}
    merged_options = {**usual_options, **options}
    if merged_options:
        merged_data["options"] = merged_options

    result = {**raw, "data": merged_data}
    for name, section in usual.items():
        given = raw.get(name, {})
        result[name] = _merge(section, given)
    return result


def _usual_length(usual: dict[str, Section], training: Any, schedule: Any) -> dict[str, Section]:
    """Return the usual sections ``training`` and ``schedule`` without contradicting given ones.

    A length in steps replaces the usual epochs, and its warm-up is a tenth of the steps. Any given
    warm-up replaces the usual one.
    """
    length = usual["training"]
    course = usual["schedule"]

    steps = _value(training, "steps")
    if steps is not None and _value(training, "epochs") is None:
        length = dict(length)
        length.pop("epochs", None)
        course = {}
        if isinstance(steps, int) and steps >= 10:
            course = {"warmup_steps": steps // 10}

    warmups = [_value(schedule, key) for key in ("warmup_epochs", "warmup_steps")]
    if warmups != [None, None]:
        course = {}
    return {"training": length, "schedule": course}


def _image_size(given: Any) -> tuple[int, int] | None:
    """Read height and width as a recipe may give them; None if the recipe's check will refuse."""
    if isinstance(given, int):
        given = [given, given]
    if not isinstance(given, list) or len(given) != 2:
        return None

    height, width = given
    if not isinstance(height, int) or not isinstance(width, int):
        return None
    if min(height, width) <= 0:
        return None
    return height, width


def _value(section: Any, key: str) -> Any:
    """Return a key of a raw section, which may be absent or not a section at all."""
    if isinstance(section, dict):
        return section.get(key)
    return None


def _merge(usual: Section, given: Any) -> Any:
    """Lay a given section over the usual one; a given one with another name replaces it."""
    if not isinstance(given, dict):
        return given

    name = usual.get("name")
    if given.get("name", name) != name:
        return given

    merged = {**usual, **given}
    for key, value in given.items():
        if isinstance(usual.get(key), dict):
            merged[key] = usual[key] | value
    return merged


# --- describing files -----------------------------------------------------------------------------

# The extent of a patch, for kinds of samples whose patches have two sides.
_PATCH_EXTENTS = {"images": "{0} x {0} pixels"}


def describe(path: str | Path, reading: dict[str, Any]) -> dict[str, Any]:
    """Describe the files at ``path`` (:attr:`.data.files.Source.description`) and their model."""
    source = open_files(path, reading)
    usual = usual_recipe(source)
    encoder = usual["model"].get("encoder", {})

    parts = [usual["model"]["name"]]
    patch = encoder.get("patch", 1)
    if patch > 1:
        extent = _PATCH_EXTENTS.get(source.collection.kind, "{0} samples")
        parts.append(f"patches of {extent.format(patch)}")
    if "standard" in encoder:
        parts.append("each series on its own scale")
    parts.append(f"operator {usual['operator']['name']}")

    absolute = Path(path).expanduser().absolute()
    return source.description | {
        "model": ", ".join(parts),
        "epochs": usual["training"]["epochs"],
        "run": run_name(absolute),
    }
