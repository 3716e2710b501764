"""All built-in recipes as one table: docs/recipes.md."""

from __future__ import annotations

import re

from fredholm.lab import checkout
from fredholm.lab.data.registry import get_entry
from fredholm.lab.training.recipe_files import load_recipe
from fredholm.lab.training.recipe_paths import find_recipe, list_recipes
from fredholm.models import model_config

from .kit.page import DOCS, table
from .kit.subject import Subject

SUBJECT = Subject(__name__, pages={DOCS / "recipes.md": ":page"})
TIME = re.compile(
    r"((?:(?:about|under|a few|tens of|a|two|ten|fifteen|twenty) )*"
    r"(?:minutes?|hours?|days?) on (?:a|two) (?:cores?|GPU))",
    re.IGNORECASE,
)
PAGE = """# Recipes

<!-- Written by `python -m evidence page recipes` from the files of recipes/; edit those or the code, not this page. -->

`fredholm train NAME` trains one of these recipes; [training](training.md) explains their keys. If the data are missing, the error names the command that fetches
them (`fredholm data fetch`). *Your files* means official files that cannot be fetched: download them yourself and pass `data.path=FOLDER`. If the table gives no
time, `fredholm plan NAME` estimates it for your machine. The first lines of `NAME.yaml`, in `recipes/` or `evidence/recipes/`, describe variants of the recipe.

Recipes marked *checkout*, and their data, are not installed with the package: run them in a checkout of the project, installed by `pip install -e '.[train]'`.

{rows}
"""


def page() -> str:
    """Return the text of docs/recipes.md."""
    heads = "recipe", "task", "data", "model", "operator", "time"
    return PAGE.format(rows=table(heads, map(row, list_recipes())))


def row(name: str) -> tuple[str, ...]:
    """Return a recipe's row, from its first comment and its sections."""
    recipe = load_recipe(name)
    task, time = about(find_recipe(name).read_text(encoding="utf-8"))
    data = f"`{recipe.data.name}`"
    if get_entry(recipe.data.name).needs:
        data += ", your files"
    operator = recipe.operator.name or getattr(model_config(recipe.model.name).body, "operator", "")
    label = f"`{name}`"
    if name in checkout.RECIPES:
        label += " (*checkout*)"
    return label, task, data, f"`{recipe.model.name}`", f"`{operator}`", time


def about(text: str) -> tuple[str, str]:
    """Return the task and the time of a recipe, from its first comment.

    Example:
        >>> about("# Digits, 10 classes; about a minute on a core. Try more.\\nname: digits")
        ('Digits, 10 classes', 'about a minute on a core')
    """
    lines = text.split("\nname:")[0].splitlines()
    comment = " ".join(line.removeprefix("#").strip() for line in lines)
    found = TIME.search(comment)
    task = re.split(r"(?<=[.?])\s", TIME.sub("", comment))[0]
    time = found[1].lower().replace("gpu", "GPU") if found else ""
    return task.rstrip(".;:, "), time
