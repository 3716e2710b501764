"""Counts of code in source files: tokens, lines, comments, conditional expressions."""

from __future__ import annotations

import ast
import io
import tokenize
from collections import defaultdict
from dataclasses import dataclass, fields
from pathlib import Path

LAYOUT = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENCODING,
    tokenize.ENDMARKER,
}
"""Kinds of tokens that are not code."""

GROUPS = {
    "ground": "mathematics",
    "ops": "mathematics",
    "integral": "mathematics",
    "forms": "mathematics",
    "families": "mathematics",
    "layers": "mathematics",
    "distributed": "mathematics",
    "explain": "models and bridges",
    "export": "models and bridges",
    "linearization": "models and bridges",
    "models": "models and bridges",
    "lab": "application",
}
"""The purpose of each room. ``ground`` stands for the files directly in the package."""


@dataclass(frozen=True)
class Counts:
    """Counts that add up over files."""

    files: int = 0
    tokens: int = 0
    """Tokens of code: no docstrings, comments or line ends."""
    lines: int = 0
    """Lines with at least one such token."""
    comments: int = 0
    """Comments on lines of their own."""
    statements: int = 0
    conditionals: int = 0
    """Conditional expressions, ``a if b else c``."""
    local_imports: int = 0
    """Import statements inside functions."""

    def __add__(self, other: Counts) -> Counts:
        names = [field.name for field in fields(self)]
        return Counts(*(getattr(self, name) + getattr(other, name) for name in names))

    @property
    def tokens_per_line(self) -> float:
        return self.tokens / self.lines

    @property
    def comments_per_thousand(self) -> float:
        """Own-line comments per 1,000 lines of code."""
        return 1000 * self.comments / self.lines

    @property
    def conditionals_per_thousand(self) -> float:
        """Conditional expressions per 1,000 statements."""
        return 1000 * self.conditionals / self.statements


def count(source: str) -> Counts:
    """Count one file's source text.

    Example:
        >>> counts = count("def f(x):\\n    '''Double.'''\\n    # twice\\n    return x + x\\n")
        >>> counts.tokens, counts.lines, counts.comments, counts.statements
        (10, 2, 1, 2)
    """
    tree = ast.parse(source)
    docstrings = _docstring_lines(tree)
    text = source.splitlines()

    tokens, comments = 0, 0
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        first, last = token.start[0], token.end[0]
        if token.type == tokenize.COMMENT and text[first - 1].lstrip().startswith("#"):
            comments += 1
        if token.type in LAYOUT or first in docstrings:
            continue
        tokens += 1
        lines.update(range(first, last + 1))

    nodes = list(ast.walk(tree))
    statements = [node for node in nodes if isinstance(node, ast.stmt) and not _is_text(node)]
    return Counts(
        files=1,
        tokens=tokens,
        lines=len(lines),
        comments=comments,
        statements=len(statements),
        conditionals=sum(isinstance(node, ast.IfExp) for node in nodes),
        local_imports=_local_imports(nodes),
    )


def count_rooms(package: Path) -> dict[str, Counts]:
    """Return the counts of each room of a package, by name; parts of ``lab`` are counted apart.

    Files directly in the package are the room ``ground``.
    """
    rooms: defaultdict[str, Counts] = defaultdict(Counts)
    for path in sorted(package.rglob("*.py")):
        counts = count(path.read_text(encoding="utf-8"))
        rooms[room_of(path.relative_to(package))] += counts
    return dict(sorted(rooms.items()))


def room_of(path: Path) -> str:
    """Return the name of the room that a file belongs to, from its path within the package."""
    folders = path.parts[:-1]
    if not folders:
        return "ground"
    if folders[0] == "lab":
        return "/".join(folders[:2])
    return folders[0]


def _is_text(node: ast.AST) -> bool:
    """Whether a statement is nothing but a string: a docstring."""
    if not isinstance(node, ast.Expr):
        return False
    return isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def _docstring_lines(tree: ast.Module) -> set[int]:
    lines: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and _is_text(node):
            lines.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return lines


def _local_imports(nodes: list[ast.AST]) -> int:
    """Count the import statements inside functions, those of nested functions once."""
    inside: set[ast.AST] = set()
    for node in nodes:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            imports = (
                part for part in ast.walk(node) if isinstance(part, ast.Import | ast.ImportFrom)
            )
            inside.update(imports)
    return len(inside)
