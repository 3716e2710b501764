"""Circles among the modules of a package: groups that import each other when they are loaded."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

Graph = dict[str, set[str]]
"""The modules that each module imports, by dotted names."""


def import_graph(package: Path) -> Graph:
    """Return which modules of a package import which of its modules while they are loaded.

    Imports inside functions and for type checkers alone do not count. ``from .a import b`` is an
    import of ``a.b`` where that is a module, else of ``a``. A package that contains the importing
    module does not count either: Python has loaded it already.
    """
    files = {_module_name(path, package): path for path in package.rglob("*.py")}
    graph: Graph = {}
    for name, path in files.items():
        tree = ast.parse(path.read_text(encoding="utf-8"))
        is_package = path.name == "__init__.py"
        imported: set[str] = set()
        for node in _loaded_imports(tree.body):
            imported.update(_targets(node, name, is_package, files))
        graph[name] = {target for target in imported if not f"{name}.".startswith(f"{target}.")}
    return graph


def circles(graph: Graph) -> list[list[str]]:
    """Return the strongly connected components of more than one module (Tarjan's algorithm).

    Example:
        >>> circles({"a": {"b"}, "b": {"c"}, "c": {"b"}})
        [['b', 'c']]
    """
    order: dict[str, int] = {}
    lowest: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(name: str) -> None:
        order[name] = lowest[name] = len(order)
        stack.append(name)
        for target in graph.get(name, ()):
            if target not in order:
                visit(target)
                lowest[name] = min(lowest[name], lowest[target])
            elif target in stack:
                lowest[name] = min(lowest[name], order[target])

        # A module that reaches nothing below itself is the root of its component.
        if lowest[name] == order[name]:
            start = stack.index(name)
            component = sorted(stack[start:])
            del stack[start:]
            if len(component) > 1:
                found.append(component)

    for name in sorted(graph):
        if name not in order:
            visit(name)
    return sorted(found)


def exports(package: Path, room: str) -> int:
    """Return the number of names in ``__all__`` of a room's ``__init__.py``."""
    tree = ast.parse((package / room / "__init__.py").read_text(encoding="utf-8"))
    for node in tree.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return len(ast.literal_eval(node.value))
    raise ValueError(f"expected a list __all__ in {room}/__init__.py, got none")


def _module_name(path: Path, package: Path) -> str:
    parts = [package.name, *path.relative_to(package).with_suffix("").parts]
    if parts[-1] == "__init__":
        parts.pop()
    return ".".join(parts)


def _loaded_imports(body: list[ast.stmt]) -> Iterator[ast.Import | ast.ImportFrom]:
    """Yield the imports that run when a module is loaded, those under ``if`` and ``try`` too."""
    for node in body:
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield node
        elif isinstance(node, ast.If) and "TYPE_CHECKING" not in ast.unparse(node.test):
            yield from _loaded_imports([*node.body, *node.orelse])
        elif isinstance(node, ast.Try):
            handlers = [line for handler in node.handlers for line in handler.body]
            yield from _loaded_imports([*node.body, *handlers, *node.orelse, *node.finalbody])


def _targets(
    node: ast.Import | ast.ImportFrom, name: str, is_package: bool, files: dict[str, Path]
) -> Iterator[str]:
    """Yield the modules of the package that an import statement of module ``name`` loads."""
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names if alias.name in files)
        return

    source = node.module or ""
    if node.level:
        parts = name.split(".")
        # One dot is the module's own package, which for an __init__.py is the module itself.
        climbed = node.level - is_package
        base = parts[: len(parts) - climbed]
        source = ".".join([*base, source]) if source else ".".join(base)
    for alias in node.names:
        within = f"{source}.{alias.name}"
        if within in files:
            yield within
        elif source in files:
            yield source
