"""Recipes on disk: find, read, override, validate, save, compare."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from copy import deepcopy
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import ValidationError

from ...errors import RecipeError
from ..data.files.collect import readable
from .checks import check, code_files, import_files
from .own_files import RawRecipe, absolute_path, complete, modelless, named, names_files
from .recipe import Recipe
from .recipe_errors import explain
from .recipe_paths import find_recipe
from .recipe_text import check_values, parse, read_text, to_yaml
from .usual import MODEL

# Names in a run folder that only a training creates.
RESULTS = ("model", "checkpoints", "result.json")


# --- overrides ------------------------------------------------------------------------------------


class Override(NamedTuple):
    """A changed key of a recipe, as a path of sections, and its new value."""

    path: list[str]
    value: Any

    @property
    def replaces_operator(self) -> bool:
        return self.path in (["operator"], ["operator", "name"])

    @property
    def names_imports(self) -> bool:
        return self.path == ["import"]


def _read_override(text: str) -> Override:
    key, separator, value = text.partition("=")
    path = key.strip().split(".")
    if not separator or not all(path):
        raise RecipeError(
            f"override: expected key=value, got {text!r}; write for instance training.epochs=5"
        )
    return Override(path, parse(value, f"override {key!r}"))


def apply_overrides(raw: RawRecipe, overrides: list[str]) -> RawRecipe:
    """Set dotted ``key=value`` pairs in a raw recipe, with values typed as in YAML.

    A new operator drops the options of the old one.

    Example:
        >>> recipe = {"operator": {"name": "itnet", "width": 16}}
        >>> apply_overrides(recipe, ["operator.name=softmax", "optimizer.lr=1e-3"])
        {'operator': {'name': 'softmax'}, 'optimizer': {'lr': 0.001}}
    """
    changes = [_read_override(text) for text in overrides]

    # A new operator comes first. Options beside it belong to it, in whatever order they were typed.
    changes.sort(key=lambda change: not change.replaces_operator)

    for change in changes:
        if change.replaces_operator:
            _set_operator(raw, change)
        else:
            section = _find_section(raw, change.path)
            *_, key = change.path
            section[key] = change.value
    return raw


def _set_operator(raw: RawRecipe, change: Override) -> None:
    """Replace the operator of a raw recipe by a name or a section."""
    current = raw.get("operator")
    current_name = current
    if isinstance(current, dict):
        current_name = current.get("name")

    # operator.name=X keeps the options if X is the operator's name already.
    value = change.value
    if change.path == ["operator", "name"] and current_name == value:
        value = raw["operator"]

    if isinstance(value, str):
        value = {"name": value}
    raw["operator"] = value


def _find_section(raw: RawRecipe, path: list[str]) -> RawRecipe:
    """Return the section that holds the last key of ``path``, made where it is missing."""
    section = raw
    for depth, key in enumerate(path[:-1]):
        inner: Any = section.get(key)

        # A section that is written as a bare name, ``model: itnet_nano``, gets its long form.
        if isinstance(inner, str) and depth == 0 and key in {"operator", "model"}:
            inner = {"name": inner}
        elif inner is None:
            inner = {}
        section[key] = inner

        if not isinstance(inner, dict):
            dotted = ".".join(path)
            above = ".".join(path[: depth + 1])
            raise RecipeError(f"{dotted}: expected a section at {above}, got {inner!r}")
        section = inner
    return section


# --- reading --------------------------------------------------------------------------------------


def load_recipe(
    source: str | Path | dict[str, Any],
    overrides: list[str] | tuple[str, ...] = (),
    *,
    trust_code: bool = False,
    first: Callable[[Recipe], object] | None = None,
) -> Recipe:
    """Read a recipe, apply overrides, and check every key.

    ``source`` is a built-in name, a path, a run folder or plain data. A path of samples stands for
    the recipe that reads them. If it names no model, the usual one for their kind is taken.

    Files named by ``import`` are imported, so that the operators that they register can be named.
    Those that the recipe names are relative to its folder. Those that an override names replace
    them, and are relative to the working directory, like every path on a command line.

    A recipe that is named as a file is the user's own, and its imports are executed. A run folder
    may come from somebody else: with it, imports are executed only with ``trust_code``, or if this
    process has imported the same content already. This holds for those of overrides too, which may
    name files inside the folder.

    The recipe is checked before any sample is read. ``first`` is called between the two, for
    further checks that need no samples, such as that of a run folder.

    Raises:
        RecipeError: one line per problem, each with the dotted key, the expectation and the value.
        TrustError: a run folder whose recipe imports a file, without ``trust_code``.
        StorageError: a file that cannot be read.

    Example:
        >>> load_recipe("digits", ["training.epochs=3"]).training.epochs
        3
        >>> load_recipe("digits", ["training.epochs=few"])
        Traceback (most recent call last):
            ...
        fredholm.errors.RecipeError: training.epochs: expected integer, got 'few' (str)
    """
    contents = _read(source)
    raw = named(apply_overrides(contents.raw, list(overrides)))
    samples_choose_model = modelless(raw)

    recipe = _validate_without_samples(raw)
    trusted = trust_code or contents.is_users_own
    imports = import_files(recipe.imports, _import_folder(contents, overrides), trusted)
    recipe.imports = imports
    check(recipe)
    if first is not None:
        first(recipe)

    # Only now are samples read, to choose the model by their kind.
    if samples_choose_model:
        recipe = _validate(complete(raw))
        recipe.imports = imports
        check(recipe)
    return recipe


def _validate_without_samples(raw: RawRecipe) -> Recipe:
    """Validate a recipe before its samples are read, with any model if they are to choose it."""
    if modelless(raw):
        model = {**raw.get("model", {}), "name": MODEL}
        raw = raw | {"model": model}
    return _validate(raw)


def imported_code(
    source: str | Path | dict[str, Any],
    overrides: Sequence[str] = (),
) -> list[Path]:
    """List the files that loading a recipe or run folder would execute, without executing them.

    Files that overrides name as ``import`` replace those of the recipe, see :func:`load_recipe`.

    Raises:
        RecipeError: no recipe there, or one that cannot be read; a missing file.
    """
    if _replace_imports(overrides):
        return override_code(overrides)
    contents = _read(source)
    recipe = _validate_without_samples(named(contents.raw))
    return code_files(recipe.imports, contents.folder)


def override_code(overrides: Sequence[str]) -> list[Path]:
    """List the files that overrides import, without executing them; they are relative to the
    working directory.

    Raises:
        RecipeError: an override that cannot be read, or a missing file.
    """
    return code_files(_override_imports(overrides), Path.cwd())


def import_overrides(
    sources: Iterable[str | Path | dict[str, Any]],
    overrides: Sequence[str],
    *,
    trust_code: bool = False,
) -> None:
    """Import the files that overrides name, before the recipes of ``sources`` are read.

    What the files register can then be named outside of the recipes too.

    Raises:
        RecipeError: a missing file, or one that fails to import.
        TrustError: one of the sources is a run folder, without ``trust_code``; see
            :func:`load_recipe`.
    """
    trusted = trust_code or not any(map(_in_run_folder, sources))
    import_files(_override_imports(overrides), Path.cwd(), trusted)


def _override_imports(overrides: Sequence[str]) -> list[str]:
    """Return the files that overrides name as ``import``, as they are typed.

    A value of another type is left to the recipe's own checks.
    """
    files: Any = []
    for change in map(_read_override, overrides):
        if change.names_imports:
            files = change.value
    if isinstance(files, str):
        return [files]
    if isinstance(files, list) and all(isinstance(name, str) for name in files):
        return files
    return []


def _import_folder(contents: RecipeContents, overrides: Sequence[str]) -> Path:
    """Return the folder from which the imports of a recipe with overrides start."""
    if _replace_imports(overrides):
        return Path.cwd()
    return contents.folder


def _replace_imports(overrides: Sequence[str]) -> bool:
    """Tell whether overrides replace the imports of a recipe."""
    return any(change.names_imports for change in map(_read_override, overrides))


def absolute_overrides(overrides: Sequence[str]) -> list[str]:
    """Return overrides that name the same imports, data and ``init_from`` from any folder.

    Raises:
        RecipeError: an override that cannot be read, or a missing file to import.
    """
    result = []
    for text in overrides:
        change = _read_override(text)
        value: Any = None
        if change.names_imports:
            value = [str(path) for path in override_code([text])]
        elif change.path in (["data", "path"], ["init_from"]) and change.value:
            value = absolute_path(change.value)

        if value:
            key = ".".join(change.path)
            text = f"{key}={json.dumps(value, ensure_ascii=False)}"
        result.append(text)
    return result


def code_digests(recipe: Recipe) -> dict[str, str]:
    """Return the SHA-256 digest of each file that a recipe imports, by file name."""
    digests = {}
    for file in map(Path, recipe.imports):
        digest = sha256(file.read_bytes())
        digests[file.name] = digest.hexdigest()
    return digests


def read_plain(path: Path) -> dict[str, Any]:
    """Read the recipe that a run wrote, as plain data; its imports are not executed."""
    contents = _read(path)
    recipe = _validate(contents.raw)
    return recipe.to_dict()


class RecipeContents(NamedTuple):
    """A recipe before it is validated.

    Attributes:
        raw: its plain data.
        folder: the folder that its relative paths start from.
        is_users_own: False for a recipe in a run folder, whose code may be somebody else's.
    """

    raw: RawRecipe
    folder: Path
    is_users_own: bool


def _read(source: str | Path | RawRecipe) -> RecipeContents:
    if isinstance(source, dict):
        # Overrides are written into the data, which belong to the caller.
        return RecipeContents(deepcopy(source), Path.cwd(), is_users_own=True)
    if names_files(source):
        raw = {"data": {"path": str(source)}}
        return RecipeContents(raw, Path.cwd(), is_users_own=True)

    path = find_recipe(source)
    raw = _read_file(path)
    raw.setdefault("name", path.stem)

    return RecipeContents(raw, path.resolve().parent, not _in_run_folder(source))


def _in_run_folder(source: str | Path | RawRecipe) -> bool:
    """Tell whether a source is a run folder, or the recipe in one, whose code may be somebody
    else's.
    """
    if isinstance(source, dict) or names_files(source):
        return False
    path = Path(source)
    if path.is_dir():
        return (path / "recipe.yaml").is_file()
    return path.name == "recipe.yaml" and has_results(path.parent)


def _read_file(path: Path) -> RawRecipe:
    """Read a YAML file of sections."""
    try:
        raw = parse(read_text(path), str(path))
        if not isinstance(raw, dict):
            raise RecipeError(
                f"{path}: expected sections such as data: and model:, got {type(raw).__name__}"
            )
        return raw
    except RecipeError as error:
        if path.suffix.lower() in {".yaml", ".yml"}:
            raise

        # A file with another suffix may have been meant as samples.
        raise RecipeError(f"{error}; to train on samples, name files of: {readable()}") from error


def has_results(folder: Path) -> bool:
    """Tell whether a training has saved something in a folder, which makes it a run folder."""
    return any((folder / name).exists() for name in RESULTS)


def _validate(raw: RawRecipe) -> Recipe:
    check_values(raw)
    try:
        return Recipe.model_validate(raw)
    except ValidationError as error:
        raise RecipeError(explain(error)) from None


# --- writing and comparing ------------------------------------------------------------------------


def save_recipe(recipe: Recipe, path: str | Path) -> Path:
    """Write every key of ``recipe``, defaults included, as YAML."""
    path = Path(path)
    text = to_yaml(recipe.to_dict())
    path.write_text(text, encoding="utf-8")
    return path


def differences(old: dict[str, Any], new: dict[str, Any], prefix: str = "") -> list[str]:
    """List the dotted keys in which two recipes differ, each with both values.

    Example:
        >>> differences({"a": {"b": 1, "c": 2}}, {"a": {"b": 1, "c": 3}})
        ['a.c (2 -> 3)']
    """
    lines = []
    for key in dict.fromkeys([*old, *new]):
        before = old.get(key)
        after = new.get(key)
        if isinstance(before, dict) and isinstance(after, dict):
            lines += differences(before, after, f"{prefix}{key}.")
        elif before != after:
            lines.append(f"{prefix}{key} ({before!r} -> {after!r})")
    return lines
