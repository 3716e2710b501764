"""Pages name everything that there is of their subject."""

from __future__ import annotations

import re
from importlib import import_module
from pathlib import Path

from fredholm.integral.capabilities import CAPABILITIES
from fredholm.training import list_recipes

DOCS = Path(__file__).parents[1] / "docs"
# Of fredholm.integral the page has what forms of a user's own need.
MODULES = (
    "fredholm",
    "fredholm.operators",
    "fredholm.kernels",
    "fredholm.encoders",
    "fredholm.models",
    "fredholm.depth",
    "fredholm.data",
    "fredholm.convert",
    "fredholm.training",
    "fredholm.explain",
    "fredholm.parallel",
)


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
        missing = [name for name in names if id(named(f"{module}.{name}")) not in shown]
        assert not missing, f"docs/api.md lacks {missing} of {module}"


def named(path: str) -> object:
    """What an entry of the page stands for."""
    module, _, name = path.rpartition(".")
    return getattr(import_module(module), name)


def test_the_table_of_recipes_is_complete():
    rows = re.findall(r"^\| `([\w-]+)` \|", text("recipes.md"), re.MULTILINE)
    assert rows == list_recipes()
