"""Data sets, recipes and tasks of the papers' tables need a checkout and are refused in a wheel."""

from __future__ import annotations

import pytest

from fredholm.data import get_entry, list_datasets
from fredholm.errors import OptionError, RecipeError
from fredholm.lab import checkout
from fredholm.lab.compare import find_task, list_tasks
from fredholm.lab.data.registry import DATASETS
from fredholm.training import list_recipes, load_recipe


@pytest.fixture
def installed(monkeypatch, tmp_path):
    """Pretend that the package is installed without a checkout."""
    monkeypatch.setattr(checkout, "ROOT", tmp_path)


def test_the_lists_match_the_checkout():
    folder = checkout.evidence_folder()
    assert folder is not None
    of_evidence = [
        n for n in list_datasets() if DATASETS[n].read.__module__.startswith("evidence.")
    ]

    assert tuple(of_evidence) == checkout.DATASETS
    assert tuple(sorted(p.stem for p in folder.glob("recipes/*.yaml"))) == checkout.RECIPES
    assert set(checkout.TASKS) <= set(list_tasks())
    assert set(checkout.RECIPES) <= set(list_recipes())


def test_a_data_set_of_a_checkout_is_refused_by_name(installed, monkeypatch):
    assert "kicad" in list_datasets()
    for name in checkout.DATASETS:
        monkeypatch.delitem(DATASETS._entries, name)
    with pytest.raises(OptionError, match=r"'kicad'; it belongs to the papers' tables.*checkout"):
        get_entry("kicad")
    assert get_entry("digits").name == "digits"


def test_a_recipe_of_a_checkout_is_refused_by_name(installed):
    with pytest.raises(RecipeError, match=r"'itnet-kicad'; it belongs to the papers' tables"):
        load_recipe("itnet-kicad")


def test_a_task_of_a_checkout_is_refused_by_name(installed, monkeypatch):
    from fredholm.lab.compare.tasks import _TASKS

    assert "plaid" in list_tasks()
    for name in checkout.TASKS:
        monkeypatch.delitem(_TASKS._entries, name)
    with pytest.raises(OptionError, match=r"'plaid'.*papers' tables"):
        find_task("plaid")
