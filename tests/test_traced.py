"""Code that a tracer runs reads sizes by shape: ``len(tensor)`` fixes a program to one size."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import fredholm

PACKAGE = Path(fredholm.__file__).parent
TRACED = ("domain.py", "quadrature.py", "integral", "forms", "families", "layers", "models", "ops")
LISTS = ("list", "Sequence", "tuple", "dict", "Mapping")


def lengths_of_tensors(source: str) -> Iterator[int]:
    """Yield the lines that take ``len`` of an argument annotated as a tensor."""
    for function in ast.walk(ast.parse(source)):
        if not isinstance(function, ast.FunctionDef):
            continue
        tensors = {name for name, kind in _annotations(function) if _is_tensor(kind)}
        for node in ast.walk(function):
            is_length = isinstance(node, ast.Call) and ast.unparse(node.func) == "len"
            if is_length and ast.unparse(node.args[0]) in tensors:
                yield node.lineno


def _annotations(function: ast.FunctionDef) -> Iterator[tuple[str, str]]:
    arguments = function.args
    for argument in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs):
        if argument.annotation is not None:
            yield argument.arg, ast.unparse(argument.annotation)


def _is_tensor(annotation: str) -> bool:
    return "Tensor" in annotation and not annotation.startswith(LISTS)


def test_a_length_is_seen():
    assert list(lengths_of_tensors("def f(x: Tensor):\n    return len(x)\n")) == [2]
    assert list(lengths_of_tensors("def f(x: Float[Tensor, 'b n']):\n    return len(x)")) == [2]
    assert list(lengths_of_tensors("def f(x: list[Tensor]):\n    return len(x)\n")) == []


def test_traced_code_takes_no_length_of_a_tensor():
    found = []
    for room in TRACED:
        place = PACKAGE / room
        paths = sorted(place.rglob("*.py")) if place.is_dir() else [place]
        assert paths, f"{room} has no files: was it moved?"
        for path in paths:
            lines = lengths_of_tensors(path.read_text(encoding="utf-8"))
            found += [f"{path.relative_to(PACKAGE)}:{line}" for line in lines]
    assert not found, f"expected x.shape[0] for sizes of tensors, got len(x) in {found}"
