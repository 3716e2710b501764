"""How far a reader walks: what one forward crosses, measured; and that annotations can be read.

``python -m tests.test_house`` prints the table.
"""

from __future__ import annotations

import ast
import inspect
import pkgutil
import sys
import typing
from collections.abc import Iterator
from importlib import import_module
from itertools import groupby
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any

import pytest
import torch

import fredholm
from fredholm import Domain, create_operator
from fredholm.integral import Form

PACKAGE = Path(fredholm.__file__).parent

# Options that make the operators small.
OPTIONS: dict[str, dict[str, Any]] = {
    "itnet": {"width": 4, "frequencies": 2},
    "luna": {"channels": 2, "directions": 2, "hidden": 4},
    "ckconv": {"width": 4, "length": 6},
    "infsa": {},
    "softmax": {},
}
GOAL, HOPS = 12, 5


# A forward enters these before the form that answers.
READERS = ("integral/operator.py", "integral/problem.py")
VISITS = 2


def calls_of_one_forward(name: str) -> list[tuple[str, str]]:
    """The package's functions that one forward on six points of a line calls, in order, each as
    its file and qualified name. The call before it fills caches and imports what is lazy.
    """
    operator = create_operator(name, 8, 2, **OPTIONS[name]).eval()
    u, domain = torch.randn(2, 6, 8), Domain.line(6)
    entered: list[tuple[str, str]] = []

    def note(frame: FrameType, event: str, argument: Any) -> None:
        path = Path(frame.f_code.co_filename)
        if event == "call" and path.is_relative_to(PACKAGE):
            entered.append((path.relative_to(PACKAGE).as_posix(), frame.f_code.co_qualname))

    with torch.no_grad():
        operator(u, domain)
        before = sys.getprofile()
        sys.setprofile(note)
        try:
            operator(u, domain)
        finally:
            sys.setprofile(before)
    return entered


def files_of_one_forward(name: str) -> list[str]:
    """The files of these functions, in the order in which they are first entered."""
    return list(dict.fromkeys(file for file, _ in calls_of_one_forward(name)))


def visits_before_the_form(name: str) -> dict[str, int]:
    """How often a forward enters each of :data:`READERS` before the file of the form that answers:
    functions of one file that are called in a row are one visit.
    """
    calls = calls_of_one_forward(name)
    form = next(file for file, function in calls if function.endswith(".respond"))
    files = [file for file, _ in groupby(file for file, _ in calls)]
    before = files[: files.index(form)]
    return {file: before.count(file) for file in READERS}


def hops(files: list[str]) -> int:
    """How many files come before the first of the paper's folder."""
    return next(i for i, path in enumerate(files) if path.startswith("families/"))


@pytest.mark.parametrize("name", OPTIONS)
def test_a_forward_crosses_few_files(name):
    files = files_of_one_forward(name)
    assert len(files) <= GOAL, files


@pytest.mark.parametrize("name", OPTIONS)
def test_a_forward_soon_enters_the_folder_of_the_paper(name):
    files = files_of_one_forward(name)
    assert hops(files) <= HOPS, files


@pytest.mark.parametrize("name", OPTIONS)
def test_arguments_are_read_once(name):
    assert max(visits_before_the_form(name).values()) <= VISITS


# --- annotations --------------------------------------------------------------------------------


def modules() -> Iterator[ModuleType]:
    """The package's modules, but those of kernels where Triton is not installed."""
    for module in pkgutil.walk_packages(fredholm.__path__, "fredholm."):
        try:
            yield import_module(module.name)
        except ModuleNotFoundError as error:
            if error.name != "triton":
                raise


def annotated(module: ModuleType) -> Iterator[Any]:
    """The public functions and classes that a module defines, and the classes' public methods."""
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
    """The names that a module imports for type checkers alone: heavy packages, higher rooms."""
    names: dict[str, Any] = {}
    for node in ast.parse(inspect.getsource(module)).body:
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            block = ast.Module(node.body, type_ignores=[])
            exec(compile(block, str(module.__file__), "exec"), {**vars(module)}, names)
    return names


def undefined_names() -> tuple[int, list[str]]:
    """How many annotated things there are, and those whose annotations name what is not there."""
    count, broken = 0, []
    for module in modules():
        names = for_checkers(module)
        for thing in annotated(module):
            count += 1
            try:
                typing.get_type_hints(thing, localns=names)
            except Exception as error:
                broken.append(f"{module.__name__}.{thing.__qualname__}: {error!r}")
    return count, broken


def test_every_public_annotation_can_be_read():
    count, broken = undefined_names()
    assert count > 1000
    assert not broken, "\n".join(broken)


# --- forms are objects --------------------------------------------------------------------------


def all_forms(kind: type[Form] = Form) -> Iterator[type[Form]]:
    for below in kind.__subclasses__():
        yield below
        yield from all_forms(below)


def sentences() -> set[str]:
    """What forms say of themselves."""
    return {
        text
        for form in all_forms()
        for text in (getattr(form, "name", None), getattr(form, "reason", None))
        if text is not None
    }


def compared(text: str) -> set[str]:
    """The strings that a source compares something with, matches it to, or looks up in a table."""
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


def test_comparing_a_sentence_would_be_seen():
    assert compared("if plan.path == 'two sums': pass") == {"two sums"}
    assert compared("run = {'two sums': 1}[plan.path]") == {"two sums"}


def test_no_form_is_chosen_by_what_it_says():
    said = sentences()
    assert len(said) > 30
    for path in PACKAGE.rglob("*.py"):
        clash = said & compared(path.read_text(encoding="utf-8"))
        assert not clash, f"{path.relative_to(PACKAGE)} compares {clash}"


if __name__ == "__main__":
    print(f"{'operator':<10}{'files':>6}{'hops':>6}{'visits':>8}   goals {GOAL}, {HOPS}, {VISITS}")
    for operator in OPTIONS:
        crossed, visits = files_of_one_forward(operator), visits_before_the_form(operator)
        counts = f"{len(crossed):>6}{hops(crossed):>6}{max(visits.values()):>8}"
        print(f"{operator:<10}{counts}   {' '.join(crossed)}")
    number, names = undefined_names()
    print(f"{number} public annotations, {len(names)} of them with undefined names", *names)


# --- nothing but a data set says what it is ------------------------------------------------------

ROOMS = ("training", "explain", "models")
KINDS = {"image", "images", "text", "texts", "sequence", "sequences", "points", "graph", "graphs",
         "field", "fields", "tokens", "multimodal", "question", "questions"}  # fmt: skip


def test_rooms_above_the_data_do_not_ask_what_they_are():
    """No `isinstance` on a data set, no name of a kind in a comparison."""
    found = []
    for room in ROOMS:
        for path in sorted((PACKAGE / room).rglob("*.py")):
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
