"""Traced code reads sizes by shape, since ``len(tensor)`` fixes a program to one size.

It converts no tensor to a number, does not branch on sizes, and reads no ContextVar, which Dynamo
cannot trace.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import fredholm

PACKAGE = Path(fredholm.__file__).parent
TRACED = ("domain.py", "quadrature.py", "integral", "forms", "families", "layers", "models", "ops")
WATCHES = {"is_compiling", "values_alone"}
"""Functions that tell whether a tracer looks on."""
NOT_FREE = {
    "families/ckconv/grid_convolution/limits.py": "a width of the kernel's network",
    "families/ckconv/grid_convolution/spectrum.py": "a width of the kernel's network",
    "families/infsa/graph/token_graph.py": "widths of heads",
    "models/depth/residual.py": "pieces that the configuration asks for",
    "ops/scan/transition.py": "powers of a matrix, as many as the kernel reaches",
}
"""Files whose thresholds are no sizes that a program leaves free, or are asked for."""
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


def numbers_of_tensors(source: str) -> Iterator[int]:
    """Yield the lines that convert an argument annotated as a tensor to an ``int``."""
    for function in ast.walk(ast.parse(source)):
        if not isinstance(function, ast.FunctionDef):
            continue
        tensors = {name for name, kind in _annotations(function) if _is_tensor(kind)}
        for node in ast.walk(function):
            is_number = isinstance(node, ast.Call) and ast.unparse(node.func) == "int"
            if is_number and node.args and ast.unparse(node.args[0]) in tensors:
                yield node.lineno


def thresholds(source: str) -> Iterator[int]:
    """Yield the lines that branch on a size above or below a limit.

    Sizes of 0, 1 or 2 are special cases of every tracer, and a check that raises is not a branch. A
    function that tests for tracing may branch.
    """
    for function in ast.walk(ast.parse(source)):
        if not isinstance(function, ast.FunctionDef):
            continue
        called = {ast.unparse(node).rpartition(".")[2] for node in _called(function)}
        if called & WATCHES:
            continue
        for node in ast.walk(function):
            raises = isinstance(node, ast.If) and isinstance(node.body[-1], ast.Raise)
            if isinstance(node, ast.If | ast.IfExp | ast.While) and not raises:
                yield from (part.lineno for part in ast.walk(node.test) if _is_threshold(part))


def _called(function: ast.FunctionDef) -> Iterator[ast.expr]:
    return (node.func for node in ast.walk(function) if isinstance(node, ast.Call))


def _is_threshold(node: ast.AST) -> bool:
    if not isinstance(node, ast.Compare):
        return False
    ordered = any(isinstance(op, ast.Lt | ast.LtE | ast.Gt | ast.GtE) for op in node.ops)
    sides = [node.left, *node.comparators]
    sizes = [side for side in sides if ".shape[" in ast.unparse(side)]
    small = [side for side in sides if ast.unparse(side) in ("0", "1", "2")]
    return ordered and bool(sizes) and not small


def test_a_number_from_a_tensor_is_detected():
    assert list(numbers_of_tensors("def f(x: Tensor):\n    return int(x)\n")) == [2]
    assert list(numbers_of_tensors("def f(x: Tensor):\n    return int(x.shape[0])\n")) == []


def test_a_threshold_is_detected():
    source = "def f(x):\n    if x.shape[1] > {}:\n        {}\n    return x\n"
    assert list(thresholds(source.format("MANY", "return 2 * x"))) == [2]
    assert list(thresholds(source.format("1", "return 2 * x"))) == []
    assert list(thresholds(source.format("MANY", "raise ValueError"))) == []
    watched = "MANY and not is_compiling()"
    assert list(thresholds(source.format(watched, "return 2 * x"))) == []


@pytest.mark.parametrize("rule", [numbers_of_tensors, thresholds])
def test_traced_code_does_not_branch_on_numbers(rule):
    found = []
    for room in TRACED:
        place = PACKAGE / room
        for path in sorted(place.rglob("*.py")) if place.is_dir() else [place]:
            name = path.relative_to(PACKAGE).as_posix()
            if "triton" in name or name in NOT_FREE:
                continue
            found += [f"{name}:{line}" for line in rule(path.read_text(encoding="utf-8"))]
    assert not found, f"expected the same path at every size while a tracer looks on, got {found}"


def test_a_read_of_a_context_is_detected():
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


def test_a_length_is_detected():
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
