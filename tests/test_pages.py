"""Pages are complete lists of their subject."""

from __future__ import annotations

import re
from importlib import import_module
from pathlib import Path

import pytest

from fredholm.integral.capabilities import CAPABILITIES
from fredholm.lab.checkout import RECIPES
from fredholm.training import list_recipes, load_recipe

DOCS = Path(__file__).parents[1] / "docs"
MODULES = (
    "fredholm",
    "fredholm.integral",
    "fredholm.forms",
    "fredholm.linearization",
    "fredholm.operators",
    "fredholm.kernels",
    "fredholm.encoders",
    "fredholm.models",
    "fredholm.models.depth",
    "fredholm.data",
    "fredholm.convert",
    "fredholm.training",
    "fredholm.explain",
    "fredholm.distributed",
    "fredholm.nn",
    "fredholm.estimators",
    "fredholm.export",
)
# Modules without ``__all__``: the page has every class and function that they define.
DEFINED = ("fredholm.domain", "fredholm.errors", "fredholm.meshes")
ALIASES = {"Memory", "Projections"}  # of types, whose docstrings are those of dict and Union
TOOLS = {"default_line", "require", "suggest", "closest"}  # for the library alone


def text(name: str) -> str:
    return (DOCS / name).read_text(encoding="utf-8")


def test_the_table_of_capabilities_is_complete_and_names_each_method():
    rows = dict(re.findall(r"^\| `(\w+)` \| (.*) \|", text("operators.md"), re.MULTILINE))
    for capability in CAPABILITIES:
        inherited = [base for base in capability.__mro__[1:] if base in CAPABILITIES]
        before = {name for base in inherited for name in base.__abstractmethods__}
        own = capability.__abstractmethods__ - before
        assert own <= set(re.findall(r"`(\w+)`", rows[capability.__name__])), capability
        for base in inherited[:1]:
            assert f"those of `{base.__name__}`" in rows[capability.__name__], capability


def test_every_public_name_of_the_documented_modules_is_on_the_page_of_the_api():
    entries = re.findall(r"^\.\. auto\w+:: ([\w.]+)$", text("api.md"), re.MULTILINE)
    assert len(entries) == len(set(entries))
    shown = {id(found) for path in entries if path != "fredholm.hf" for found in [named(path)]}
    for module in MODULES:
        names = [name for name in import_module(module).__all__ if not name.startswith("__")]
        names = [name for name in names if name not in ALIASES]
        missing = [name for name in names if id(named(f"{module}.{name}")) not in shown]
        assert not missing, f"docs/api.md lacks {missing} of {module}"


@pytest.mark.parametrize("module", DEFINED)
def test_every_name_of_a_package_is_on_the_page_of_the_api(module):
    entries = re.findall(r"^\.\. auto\w+:: ([\w.]+)$", text("api.md"), re.MULTILINE)
    room = import_module(module)
    defined = {
        name
        for name, value in vars(room).items()
        if not name.startswith("_") and getattr(value, "__module__", None) == module
    }
    callables = {name for name in defined if callable(getattr(room, name))}
    missing = {name for name in callables - TOOLS if f"{module}.{name}" not in entries}
    assert not missing, f"docs/api.md lacks {sorted(missing)} of {module}"


def named(path: str) -> object:
    """Return the object of a page's entry."""
    module, _, name = path.rpartition(".")
    return getattr(import_module(module), name)


def test_the_table_of_recipes_is_complete():
    rows = re.findall(r"^\| `([\w-]+)`( \(\*checkout\*\))? \|", text("recipes.md"), re.MULTILINE)
    assert [name for name, _ in rows] == list_recipes()
    assert {name for name, mark in rows if mark} == set(RECIPES)


def command_blocks():
    """Yield each block as (page, its fredholm commands as (command, first argument, rest))."""
    for page in sorted(DOCS.glob("*.md")):
        source = page.read_text(encoding="utf-8")
        blocks = re.findall(r"^```(\S*)\n(.*?)^```$", source, re.MULTILINE | re.DOTALL)
        for block in (text for language, text in blocks if language in ("", "bash", "sh")):
            found = re.findall(r"^fredholm (\w+) (\S+)(.*)$", block, re.MULTILINE)
            if found:
                yield page.name, found


def test_commands_of_a_page_train_their_starts_and_use_separate_folders():
    blocks = list(command_blocks())
    assert {"generation.md", "linearize.md"} <= {page for page, _ in blocks}
    for page, commands in blocks:
        trained = set()
        folders = []
        for command, name, rest in commands:
            if (
                command in ("train", "sweep")
                and name in list_recipes()
                and "init_from=" not in rest
            ):
                start = load_recipe(name).init_from
                assert start is None or Path(start).name in trained, (page, name, start)
                trained.add(name)
            folders += re.findall(r"--out (\S+)", rest) if command == "linearize" else []
        assert len(folders) == len(set(folders)), (page, folders)


def test_the_encoder_of_several_scales_has_its_recipe_name_on_the_page():
    (override,) = re.findall(r"`(model\.encoder\S*=\{kind: scales.*?\})`", text("encoders.md"))
    assert load_recipe("digits", [override]).model.encoder["scales"] == [8, 16]
