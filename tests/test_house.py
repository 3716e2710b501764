"""Legibility of the code: files entered by one forward, circular imports, annotations.

``python -m evidence.house`` prints the numbers.
"""

from __future__ import annotations

import ast
import inspect
import pkgutil
import subprocess
import sys
import typing
from collections.abc import Iterator
from importlib import import_module
from types import ModuleType
from typing import Any

import pytest
from evidence.house.draw import draw
from evidence.house.imports import circles, import_graph
from evidence.house.walk import (
    OPTIONS,
    PACKAGE,
    files_of_one_forward,
    hops,
    visits_before_the_form,
)

import fredholm
from fredholm.errors import MissingExtraError
from fredholm.integral import Form

GOAL, HOPS, VISITS = 12, 5, 2


@pytest.mark.parametrize("name", OPTIONS)
def test_a_forward_crosses_few_files(name):
    files = files_of_one_forward(name)
    assert len(files) <= GOAL, files


@pytest.mark.parametrize("name", OPTIONS)
def test_a_forward_enters_the_folder_of_its_family_within_few_files(name):
    files = files_of_one_forward(name)
    assert hops(files) <= HOPS, files


@pytest.mark.parametrize("name", OPTIONS)
def test_arguments_are_read_at_most_twice(name):
    assert max(visits_before_the_form(name).values()) <= VISITS


def test_functions_are_drawn_from_the_package_alone():
    drawn = draw(PACKAGE, "lab/data", 10, seed=3)
    assert len(set(drawn)) == 10
    assert drawn == draw(PACKAGE, "lab/data", 10, seed=3) != draw(PACKAGE, "lab/data", 10, seed=4)
    for path, line, name in drawn:
        assert path.parts[:2] == ("lab", "data")
        text = (PACKAGE / path).read_text().splitlines()[line - 1]
        assert f"def {name.rpartition('.')[2]}(" in text
    with pytest.raises(ValueError, match="expected a room"):
        draw(PACKAGE, "cellar", 10, seed=0)


ROOMS_FIRST = ("forms", "forms.separable", "integral", "distributed.exchange")
BEGIN = f"""
import os, sys
import torch  # once: each room is then imported first in a process of its own
for room in {ROOMS_FIRST}:
    child = os.fork()
    if child == 0:
        __import__(f"fredholm.{{room}}")
        os._exit(0)
    if os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]):
        sys.exit(f"a program cannot begin with {{room}}")
"""


def test_any_package_can_be_imported_first():
    """Kernels' base classes list forms, and forms import the contract, so order could matter."""
    command = [sys.executable, "-c", BEGIN]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


def test_no_modules_import_each_other_circularly():
    graph = import_graph(PACKAGE)
    assert "fredholm.integral.contract" in graph["fredholm.integral.bases"]
    assert circles(graph) == []


# --- annotations --------------------------------------------------------------------------------


def modules() -> Iterator[ModuleType]:
    """Yield the package's modules, without those of Triton or timm where these are missing."""
    for module in pkgutil.walk_packages(fredholm.__path__, "fredholm."):
        try:
            yield import_module(module.name)
        except ModuleNotFoundError as error:
            if error.name != "triton":
                raise
        except MissingExtraError:
            if module.name != "fredholm.timm":
                raise


def annotated(module: ModuleType) -> Iterator[Any]:
    """Yield the public functions and classes that a module defines, and their public methods."""
    for name, thing in vars(module).items():
        if name.startswith("_") or getattr(thing, "__module__", None) != module.__name__:
            continue
        if inspect.isclass(thing):
            yield thing
            for key, member in vars(thing).items():
                function = unwrapped(member)
                if inspect.isfunction(function) and (key == "__init__" or key[0] != "_"):
                    yield function
        elif inspect.isfunction(thing):
            yield thing


def unwrapped(member: Any) -> Any:
    if isinstance(member, property):
        return member.fget
    return member.__func__ if isinstance(member, classmethod | staticmethod) else member


def for_checkers(module: ModuleType) -> dict[str, Any]:
    """Return the names that a module imports only for type checkers."""
    names: dict[str, Any] = {}
    for node in ast.parse(inspect.getsource(module)).body:
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            block = ast.Module(node.body, type_ignores=[])
            exec(compile(block, str(module.__file__), "exec"), {**vars(module)}, names)
    return names


def for_checkers_of_bases(thing: Any) -> dict[str, Any]:
    """Return these names of transformers' modules in which a class has bases."""
    names: dict[str, Any] = {}
    for base in getattr(thing, "__mro__", ()):
        if base.__module__ == "transformers.configuration_utils":
            names |= for_checkers(sys.modules[base.__module__])
    return names


def undefined_names() -> tuple[int, list[str]]:
    """Return the number of annotated objects, and those with unresolved annotations."""
    count = 0
    broken = []
    for module in modules():
        names = for_checkers(module)
        for thing in annotated(module):
            count += 1
            try:
                typing.get_type_hints(thing, localns=names | for_checkers_of_bases(thing))
            except Exception as error:
                broken.append(f"{module.__name__}.{thing.__qualname__}: {error!r}")
    return count, broken


def test_every_public_annotation_resolves():
    count, broken = undefined_names()
    assert count > 1000
    assert not broken, "\n".join(broken)


# --- forms are objects --------------------------------------------------------------------------


def all_forms(kind: type[Form] = Form) -> Iterator[type[Form]]:
    for below in kind.__subclasses__():
        yield below
        yield from all_forms(below)


def sentences() -> set[str]:
    """Return the descriptions of all forms."""
    return {
        text
        for form in all_forms()
        for text in (getattr(form, "name", None), getattr(form, "reason", None))
        if text is not None
    }


def compared(text: str) -> set[str]:
    """Return the strings that a source compares with, matches, or looks up in a table."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(text)):
        parts: list[ast.AST] = []
        if isinstance(node, ast.Compare):
            parts = [node.left, *node.comparators]
        elif isinstance(node, ast.MatchValue):
            parts = [node.value]
        elif isinstance(node, ast.Dict):
            parts = [key for key in node.keys if key is not None]
        for part in parts:
            found |= {
                leaf.value
                for leaf in ast.walk(part)
                if isinstance(leaf, ast.Constant) and isinstance(leaf.value, str)
            }
    return found


def test_comparing_a_description_is_detected():
    assert compared("if plan.path == 'two sums': pass") == {"two sums"}
    assert compared("run = {'two sums': 1}[plan.path]") == {"two sums"}


def test_no_form_is_chosen_by_its_description():
    said = sentences()
    assert len(said) > 30
    for path in PACKAGE.rglob("*.py"):
        clash = said & compared(path.read_text(encoding="utf-8"))
        assert not clash, f"{path.relative_to(PACKAGE)} compares {clash}"


# --- only data sets define their kind ------------------------------------------------------------

ROOMS = ("lab/training", "explain", "models")
KINDS = {"image", "images", "text", "texts", "sequence", "sequences", "points", "graph", "graphs",
         "field", "fields", "tokens", "multimodal", "question", "questions"}  # fmt: skip


def test_packages_above_the_data_do_not_branch_on_kinds():
    """There is no `isinstance` on a data set and no comparison with the name of a kind."""
    found = []
    for room in ROOMS:
        paths = sorted((PACKAGE / room).rglob("*.py"))
        assert paths, f"{room} has no files: was it moved?"
        for path in paths:
            tree = ast.parse(path.read_text(encoding="utf-8"))
            lines = [node.lineno for node in ast.walk(tree) if _asks(node)]
            found += [f"{path.relative_to(PACKAGE)}:{line}" for line in lines]
    assert not found


def _asks(node: Any) -> bool:
    if isinstance(node, ast.Compare):
        sides = [node.left, *node.comparators]
        return any(isinstance(side, ast.Constant) and side.value in KINDS for side in sides)
    called = isinstance(node, ast.Call) and getattr(node.func, "id", "") == "isinstance"
    return called and any("Dataset" in ast.unparse(kind) for kind in node.args[1:])
