"""Recipes against the papers' tables, row by row: papers.yaml has numbers and deviations."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from fredholm.models import model_config
from fredholm.training import list_recipes, load_recipe

TABLES = yaml.safe_load(Path(__file__).with_name("papers.yaml").read_text(encoding="utf-8"))
PAPERS = TABLES["papers"]


def value_of(recipe: Any, key: str) -> Any:
    """Return the value of a recipe's key, or that of its model's preset."""
    section, *path = key.split(".")
    preset = model_config(recipe.model.name)
    if section == "model":
        part, field = path
        given = getattr(recipe.model, part)
        return given[field] if field in given else getattr(getattr(preset, part), field)
    if section == "operator":
        own: Any = preset.body
        return {**own.operator_options, **recipe.operator.options}[path[0]]
    value: Any = recipe.to_dict()[section]
    for part in path:
        value = value[part]
    return value


def plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


@pytest.mark.parametrize("name", PAPERS)
def test_recipes_deviate_from_their_tables_only_as_documented(name):
    rows = PAPERS[name]["rows"].values()
    changes = PAPERS[name].get("overrides", [])
    recipe = load_recipe(PAPERS[name].get("recipe", name), changes)
    found = {key: plain(value_of(recipe, key)) for key, _ in rows}
    differ = {key for key, value in rows if found[key] != value}
    named = PAPERS[name].get("deviations", {})
    unnamed = {key: found[key] for key in sorted(differ - named.keys())}
    assert not unnamed, f"{PAPERS[name]['table']}: other values in the recipe, no reason given"
    assert named.keys() == differ, "a deviation is named that there is not"
    reasons = [*named.values(), *PAPERS[name].get("lacking", {}).values()]
    assert all(isinstance(reason, str) and len(reason) > 10 for reason in reasons)


def test_every_recipe_has_a_table_or_belongs_to_the_library():
    ours = [name for names in TABLES["ours"].values() for name in names]
    tables = [name for name, table in PAPERS.items() if "recipe" not in table]
    assert sorted([*tables, *ours]) == list_recipes()
