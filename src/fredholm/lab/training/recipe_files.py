"""Recipes on disk: find, read, override, validate, save, compare."""

from __future__ import annotations

import re
import reprlib
from collections.abc import Callable
from copy import deepcopy
from hashlib import sha256
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from ...errors import RecipeError, suggest
from ...models.config import suggest_field
from .. import checkout
from .own_files import MODEL, complete, modelless, named, names_files
from .recipe import Recipe
from .recipe_text import check_values, parse, read_text, to_yaml

RESULTS = ("model", "checkpoints", "result.json")  # of a run


def recipe_folders() -> list[Path]:
    """Return the folders of built-in recipes.

    They lie inside the installed package. In a checkout they lie beside its sources, and those of
    the papers' tables in ``evidence/``.
    """
    installed = Path(__file__).resolve().parents[2] / "recipes"
    if installed.is_dir():
        return [installed]

    folders = [checkout.ROOT / "recipes"]
    evidence = checkout.evidence_folder()
    if evidence is not None:
        folders.append(evidence / "recipes")
    return folders


def list_recipes() -> list[str]:
    """Names of the built-in recipes.

    Example:
        >>> "digits" in list_recipes()
        True
    """
    return sorted(path.stem for folder in recipe_folders() for path in folder.glob("*.yaml"))


def find_recipe(source: str | Path) -> Path:
    """The file of a built-in name or a path.

    Raises:
        RecipeError: no such file or name.
    """
    path = Path(source)
    if path.is_file():
        return path
    if path.is_dir() and (path / "recipe.yaml").is_file():
        return path / "recipe.yaml"
    if path.name == str(source):
        for folder in recipe_folders():
            built_in = folder / f"{source}.yaml"
            if built_in.is_file():
                return built_in
    if path.is_dir():
        raise RecipeError(
            f"recipe: received {str(source)!r}, a folder without recipe.yaml; samples of yours are "
            f"named with a separator: {path}/"
        )
    if path.suffix in {".yaml", ".yml"} or path.name != str(source):
        raise RecipeError(f"recipe: no file {str(source)!r}")
    hint = checkout.where_to_get(str(source), checkout.RECIPES)
    hint = hint or suggest(str(source), list_recipes())
    raise RecipeError(f"recipe: no built-in recipe or file {str(source)!r}{hint}")


def _split(override: str) -> tuple[list[str], Any]:
    key, result, text = override.partition("=")
    parts = key.strip().split(".")
    if not result or not all(parts):
        raise RecipeError(
            f"override: received {override!r}; needs key=value, e.g. training.epochs=5"
        )
    return parts, parse(text, f"override {key!r}")


def apply_overrides(raw: dict[str, Any], overrides: list[str]) -> dict[str, Any]:
    """Set dotted ``key=value`` pairs in a raw recipe, values typed as YAML; a new operator drops
    the old one's options.

    Example:
        >>> recipe = {"operator": {"name": "itnet", "width": 16}}
        >>> apply_overrides(recipe, ["operator.name=softmax", "optimizer.lr=1e-3"])
        {'operator': {'name': 'softmax'}, 'optimizer': {'lr': 0.001}}
    """
    pairs = [_split(text) for text in overrides]
    # The operator's name first: options given beside it belong to the new operator, in whatever
    # order they were typed.
    for parts, value in sorted(
        pairs, key=lambda pair: pair[0] not in (["operator"], ["operator", "name"])
    ):
        if parts == ["operator", "name"]:
            parts, value = (
                ["operator"],
                value if _name(raw.get("operator")) != value else raw["operator"],
            )
        section: dict[str, Any] = raw
        for depth, part in enumerate(parts[:-1]):
            inner = section.setdefault(part, {})
            if isinstance(inner, str) and depth == 0 and part in {"operator", "model"}:
                inner = section[part] = {"name": inner}
            elif inner is None:
                inner = section[part] = {}
            if not isinstance(inner, dict):
                key = ".".join(parts)
                raise RecipeError(
                    f"{key}: received a value below {'.'.join(parts[: depth + 1])}={inner!r}, no "
                    "section"
                )
            section = inner
        section[parts[-1]] = (
            {"name": value} if parts == ["operator"] and isinstance(value, str) else value
        )
    return raw


def _name(operator: Any) -> Any:
    return operator.get("name") if isinstance(operator, dict) else operator


def load_recipe(
    source: str | Path | dict[str, Any],
    overrides: list[str] | tuple[str, ...] = (),
    *,
    trust_code: bool = False,
    first: Callable[[Recipe], object] | None = None,
) -> Recipe:
    """Read a recipe by built-in name, path, run folder or as plain data, apply overrides and check
    all of it. A path of samples stands for the recipe that reads them, whose model, where none is
    named, is the usual one of their kind.

    Files named by ``import`` are resolved against the recipe's own folder and imported, so that the
    operators they register can be named. A recipe that is named as a file is the user's own and its
    imports are executed; those of a run folder, which somebody else may have made, only with
    ``trust_code``, or where this process has imported the same content already.

    What the recipe says is checked before any sample is read; ``first`` is called in between, for
    further checks that need none, such as that of a run's folder.

    Raises:
        RecipeError: one line per problem, each naming the dotted key, what was received and what is
            needed.
        TrustError: a run folder whose recipe imports a file, without ``trust_code``.
        StorageError: a file that cannot be read.

    Example:
        >>> load_recipe("digits", ["training.epochs=3"]).training.epochs
        3
        >>> load_recipe("digits", ["training.epochs=few"])
        Traceback (most recent call last):
            ...
        fredholm.errors.RecipeError: training.epochs: received 'few' (str); needs integer
    """
    from .checks import import_files

    raw, folder, own = _read(source)
    raw = named(apply_overrides(raw, list(overrides)))
    reads = modelless(raw)
    recipe = _unread(raw)
    imports = recipe.imports = import_files(recipe.imports, folder, trust_code or own)
    _check(recipe)
    if first is not None:
        first(recipe)
    if reads:
        recipe = _validate(complete(raw))
        recipe.imports = imports
        _check(recipe)
    return recipe


def _unread(raw: dict[str, Any]) -> Recipe:
    """A recipe before its samples are read: where these are to choose its model, with any."""
    if modelless(raw):
        raw = raw | {"model": {**raw.get("model", {}), "name": MODEL}}
    return _validate(raw)


def _check(recipe: Recipe) -> None:
    """Against the registries, which hold what the recipe imports."""
    from .checks import check, settle_words

    settle_words(recipe)
    check(recipe)


def imported_code(source: str | Path | dict[str, Any]) -> list[Path]:
    """The files that loading a recipe or a run folder would execute; executes none of them.

    Raises:
        RecipeError: no recipe there, or one that cannot be read.
    """
    from .checks import code_files

    raw, folder, _ = _read(source)
    return code_files(_unread(named(raw)).imports, folder)


def code_digests(recipe: Recipe) -> dict[str, str]:
    """SHA-256 of the files that a recipe imports, by their names."""
    files = map(Path, recipe.imports)
    return {file.name: sha256(file.read_bytes()).hexdigest() for file in files}


def read_plain(path: Path) -> dict[str, Any]:
    """The recipe that a run wrote, as plain data; its imports stay names and are not executed."""
    return _validate(_read(path)[0]).to_dict()


def _read(source: str | Path | dict[str, Any]) -> tuple[dict[str, Any], Path, bool]:
    """A recipe's plain data, the folder its paths start from, and whether it is the user's own
    rather than that of a run folder.
    """
    if isinstance(source, dict):
        return deepcopy(source), Path.cwd(), True  # overrides are written into it
    if names_files(source):
        return {"data": {"path": str(source)}}, Path.cwd(), True
    path = find_recipe(source)
    try:
        raw = parse(read_text(path), str(path))
        if not isinstance(raw, dict):
            raise RecipeError(
                f"{path}: received {type(raw).__name__}; needs sections such as data: and model:"
            )
    except RecipeError as error:
        if path.suffix.lower() in {".yaml", ".yml"}:
            raise
        from ..data.files.collect import readable

        raise RecipeError(f"{error}, or samples of yours: {readable()}") from error
    raw.setdefault("name", path.stem)
    named_by_folder = Path(source).is_dir() and path.parent == Path(source)
    own = not (named_by_folder or _in_run_folder(path))
    return raw, path.resolve().parent, own


def _in_run_folder(path: Path) -> bool:
    """Whether a recipe's file lies in a run folder: then it is not the user's own for being named
    in full.
    """
    return path.name == "recipe.yaml" and has_results(path.parent)


def has_results(folder: Path) -> bool:
    """Whether a run has saved something in a folder, which is then no folder of the user's own."""
    return any((folder / name).exists() for name in RESULTS)


def _validate(raw: dict[str, Any]) -> Recipe:
    check_values(raw)
    try:
        return Recipe.model_validate(raw)
    except ValidationError as error:
        raise RecipeError("\n".join(_explain(problem) for problem in error.errors())) from None


def _explain(problem: Any) -> str:
    """One line for one pydantic problem: key, received, needed, the close match."""
    key, kind, value = (
        ".".join(str(part) for part in problem["loc"]),
        problem["type"],
        problem["input"],
    )
    if kind == "value_error" and not key:
        return problem["msg"].removeprefix("Value error, ")
    if kind == "extra_forbidden" and problem["loc"][0] == "model" and len(problem["loc"]) == 2:
        hint = suggest_field(str(problem["loc"][1]), "model.")
        return f"{key}: unknown key (received {_short(value)}){hint}"
    if kind == "extra_forbidden":
        *above, last = problem["loc"]
        hint = suggest(str(last), _known(tuple(above)))
        return f"{key}: unknown key (received {_short(value)}){hint}"
    if kind == "invalid_key":
        return f"{key}: received {type(value).__name__} as a key; needs text"
    if kind == "missing":
        return f"{key}: missing; the recipe needs it"
    need = (
        problem["msg"]
        .removeprefix("Value error, ")
        .removeprefix("Input should be ")
        .removeprefix("a valid ")
    )
    need = need.removeprefix("List should have ")
    if kind == "string_pattern_mismatch":
        need = "letters, digits and . _ , = + - alone, and one of the former first"
    if kind in {"model_type", "model_attributes_type", "dict_type"}:
        need = f"a section with keys{suggest('', _known(problem['loc'])).removeprefix('; known')}"
    hint = suggest(str(value), re.findall(r"'([^']+)'", need)) if kind == "literal_error" else ""
    kind = "str" if isinstance(value, str) else type(value).__name__
    hint = hint if "did you mean" in hint else ""
    return f"{key}: received {_short(value)} ({kind}); needs {need}{hint}"


_SHORT = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = 100
_SHORT.maxlist = _SHORT.maxdict = 10


def _short(value: Any) -> str:
    """What was received, where it is long its beginning and its end, on one line."""
    return _SHORT.repr(value)


def _known(path: tuple) -> list[str]:
    """Keys of the section at ``path``."""
    model: Any = Recipe
    for part in path:
        field = next((f for n, f in model.model_fields.items() if part in (n, f.alias)), None)
        result = [
            t
            for t in (getattr(field, "annotation", None), *_arguments(field))
            if hasattr(t, "model_fields")
        ]
        if not result:
            return []
        model = result[0]
    return [field.alias or name for name, field in model.model_fields.items()]


def _arguments(field: Any) -> tuple:
    return getattr(getattr(field, "annotation", None), "__args__", ())


def save_recipe(recipe: Recipe, path: str | Path) -> Path:
    """Write every key of ``recipe``, defaults included, as YAML."""
    path = Path(path)
    path.write_text(to_yaml(recipe.to_dict()), encoding="utf-8")
    return path


def differences(old: dict[str, Any], new: dict[str, Any], prefix: str = "") -> list[str]:
    """Dotted keys at which two recipes differ, each with both values.

    Example:
        >>> differences({"a": {"b": 1, "c": 2}}, {"a": {"b": 1, "c": 3}})
        ['a.c (2 -> 3)']
    """
    lines = []
    for key in [*old, *(k for k in new if k not in old)]:
        before, after = old.get(key), new.get(key)
        if isinstance(before, dict) and isinstance(after, dict):
            lines += differences(before, after, f"{prefix}{key}.")
        elif before != after:
            lines.append(f"{prefix}{key} ({before!r} -> {after!r})")
    return lines
