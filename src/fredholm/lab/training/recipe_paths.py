"""Recipes by name: the folders of the built-in ones, and the file of each. Torch is not loaded."""

from __future__ import annotations

from pathlib import Path

from ...errors import RecipeError, suggest
from .. import checkout


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
    """List the names of the built-in recipes.

    Example:
        >>> "digits" in list_recipes()
        True
    """
    return sorted(path.stem for folder in recipe_folders() for path in folder.glob("*.yaml"))


def find_built_in(name: str) -> Path | None:
    """Return the file of a built-in recipe; None if there is none of this name."""
    for folder in recipe_folders():
        path = folder / f"{name}.yaml"
        if path.is_file():
            return path
    return None


def find_recipe(source: str | Path) -> Path:
    """Find the file of a recipe by path, run folder or built-in name.

    Raises:
        RecipeError: no such file or name.
    """
    path = Path(source)
    if path.is_file():
        return path
    if path.is_dir() and (path / "recipe.yaml").is_file():
        return path / "recipe.yaml"

    is_bare_name = path.name == str(source)
    if is_bare_name:
        built_in = find_built_in(str(source))
        if built_in is not None:
            return built_in

    if path.is_dir():
        raise RecipeError(
            f"recipe: expected a folder with recipe.yaml, got {str(source)!r} without; to train on "
            f"the samples in it, end its name with a separator: {path}/"
        )
    if path.suffix in {".yaml", ".yml"} or not is_bare_name:
        raise RecipeError(f"recipe: no file {str(source)!r}")

    hint = checkout.where_to_get(str(source), checkout.RECIPES)
    hint = hint or suggest(str(source), list_recipes())
    raise RecipeError(f"recipe: no built-in recipe or file {str(source)!r}{hint}")
