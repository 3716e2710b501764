"""Code that a tracer runs reads sizes by shape, because ``len(tensor)`` fixes a program to one
size, and reads no ContextVar, which Dynamo cannot trace.
"""

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


def reads_of_context(source: str) -> Iterator[int]:
    """Yield the lines that read a ContextVar of the module, which Dynamo cannot trace.

    A function marked as constant while code is traced may.
    """
    tree = ast.parse(source)
    variables = {
        ast.unparse(node.target)
        for node in tree.body
        if isinstance(node, ast.AnnAssign) and ast.unparse(node.annotation).startswith("ContextVar")
    }
    for function in ast.walk(tree):
        if not isinstance(function, ast.FunctionDef):
            continue
        if "constant_when_traced" in [ast.unparse(mark) for mark in function.decorator_list]:
            continue
        for node in ast.walk(function):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                read = node.func.attr == "get" and ast.unparse(node.func.value) in variables
                if read:
                    yield node.lineno


def test_a_read_of_a_context_is_seen():
    source = "flag: ContextVar[bool] = ContextVar('flag')\n{}def f():\n    return flag.get()\n"
    assert list(reads_of_context(source.format(""))) == [3]
    assert list(reads_of_context(source.format("@constant_when_traced\n"))) == []


def test_traced_code_reads_no_context():
    found = []
    for room in TRACED:
        place = PACKAGE / room
        for path in sorted(place.rglob("*.py")) if place.is_dir() else [place]:
            lines = reads_of_context(path.read_text(encoding="utf-8"))
            found += [f"{path.relative_to(PACKAGE)}:{line}" for line in lines]
    assert not found, f"expected reads in functions constant_when_traced, got {found}"


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
