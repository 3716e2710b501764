"""The YAML of recipes, with limits against files that would exhaust memory or the stack."""

from __future__ import annotations

import math
import re
from collections.abc import Hashable
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from ...errors import RecipeError
from ...files import storing

# The longest built-in recipe has 2 kB and 60 values, five levels deep.
MAX_BYTES = 1 << 17
MAX_VALUES = 10_000
MAX_DEPTH = 32

# Tensors and random generators hold integers below this one.
MAX_NUMBER = 2**63


class Word(str):
    """A bare ``yes``, ``no``, ``on`` or ``off``: text or a truth value, as its field requires.

    YAML 1.1 reads these as truth values, and a class named ``no`` would arrive as False.
    """

    @property
    def truth(self) -> bool:
        return self.lower() in ("yes", "on")


class _Loader(yaml.SafeLoader):
    """YAML that reads ``1e-3`` as a number and ``no`` as a word, and refuses duplicate keys."""

    def construct_mapping(self, node, deep=False):
        seen = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            line = key_node.start_mark.line + 1
            if not isinstance(key, Hashable):
                raise RecipeError(
                    f"line {line}: expected a plain value as a key, got a {type(key).__name__}"
                )
            if key in seen:
                raise RecipeError(f"{key}: given twice (line {line}); keep one")
            seen.add(key)
        return super().construct_mapping(node, deep)


def _truth(loader: yaml.SafeLoader, node: yaml.ScalarNode) -> bool | Word:
    text = str(loader.construct_scalar(node))
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    return Word(text)


class _Dumper(yaml.SafeDumper):
    """YAML that quotes every text that :class:`_Loader` would read as a number."""


_Loader.add_constructor("tag:yaml.org,2002:bool", _truth)
for _reads in (_Loader, _Dumper):
    _reads.add_implicit_resolver(
        "tag:yaml.org,2002:float",
        re.compile(r"^[-+]?(\d+(\.\d*)?|\.\d+)[eE][-+]?\d+$"),
        list("-+0123456789."),
    )


def parse(text: str, where: str) -> Any:
    """Parse YAML text into plain data, in which a bare ``no`` is a :class:`Word`.

    Args:
        text: the YAML.
        where: its file or key, for errors.

    Raises:
        RecipeError: the text is too long, not YAML, or nested too deeply.

    Example:
        >>> parse("{lr: 1e-3, flip: true, path: off}", "an example")
        {'lr': 0.001, 'flip': True, 'path': 'off'}
    """
    if len(text) > MAX_BYTES:
        raise RecipeError(
            f"{where}: expected at most {MAX_BYTES:,} characters, got {len(text):,}; shorten it"
        )
    try:
        _check_depth(text)
        return yaml.load(text, Loader=_Loader)
    except RecipeError as error:
        raise RecipeError(f"{where}: {error}") from error
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = ""
        if mark:
            line = f" line {mark.line + 1}:"

        # Without a problem of its own, the error's text in one line.
        reason = getattr(error, "problem", None) or " ".join(str(error).split())
        raise RecipeError(f"{where}:{line} not YAML: {reason}") from error
    except (ValueError, OverflowError) as error:
        # A number or date that Python cannot represent.
        reason, _, _ = str(error).partition(";")
        raise RecipeError(f"{where}: {reason}") from error


def to_yaml(value: Any) -> str:
    """Write plain data as YAML that :func:`parse` reads back unchanged.

    Example:
        >>> to_yaml({"name": "1e3", "lr": 1e-05}).splitlines()
        ["name: '1e3'", 'lr: 1.0e-05']
    """
    return yaml.dump(value, Dumper=_Dumper, sort_keys=False)


def _check_depth(text: str) -> None:
    """Check the nesting of YAML before it is loaded.

    Events arrive one by one, so this ends at the first bracket too many. A loader would recurse
    into all of them and overflow the stack.
    """
    depth = 0
    for event in yaml.parse(text, Loader=_Loader):
        depth += isinstance(event, yaml.CollectionStartEvent)
        depth -= isinstance(event, yaml.CollectionEndEvent)
        if depth > MAX_DEPTH:
            raise RecipeError(f"expected at most {MAX_DEPTH} levels of nesting, got more")


def read_text(path: Path) -> str:
    """Read the text of a recipe's file.

    Raises:
        RecipeError: the file is too long, or not text.
        StorageError: the file cannot be read.
    """
    with storing(path), path.open("rb") as file:
        content = file.read(MAX_BYTES + 1)
    if len(content) > MAX_BYTES:
        raise RecipeError(f"{path}: expected a recipe in YAML, got more than {MAX_BYTES:,} bytes")
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise RecipeError(
            f"{path}: expected a recipe in YAML, got no text (byte {error.start:,} is not UTF-8)"
        ) from error


def plain(value: Any) -> Any:
    """Replace every :class:`Word` in ``value`` by its truth value, for fields that take no text.

    Example:
        >>> plain(parse("{tied: no, name: elu}", "an example"))
        {'tied': False, 'name': 'elu'}
    """
    if isinstance(value, Word):
        return value.truth
    if isinstance(value, list):
        return [plain(item) for item in value]
    if isinstance(value, dict):
        return {_plain_key(key): plain(item) for key, item in value.items()}
    return value


def _plain_key(key: Any) -> Any:
    """Return a key without the type :class:`Word`: as a key, ``no`` is text."""
    if isinstance(key, Word):
        return str(key)
    return key


class _Visited(NamedTuple):
    """A value inside a recipe, and the keys that lead to it."""

    path: tuple[Any, ...]
    value: Any


def check_values(raw: dict[str, Any]) -> None:
    """Refuse a recipe that is larger or deeper than any run needs, and unusable numbers.

    In YAML a few aliases can stand for billions of values, which printing or copying the recipe
    would all visit. This walk counts values as it visits them, and ends early.

    Raises:
        RecipeError: too many values or levels, or numbers that are not finite or need more than
            63 bits.
    """
    waiting = [_Visited((), raw)]
    count = 0
    problems = []
    while waiting:
        path, value = waiting.pop()
        key = ".".join(str(part) for part in path[:4])
        count += 1
        if count > MAX_VALUES:
            raise RecipeError(
                f"{key}: expands to more than {MAX_VALUES:,} values; write fewer aliases (*name)"
            )
        if len(path) > MAX_DEPTH:
            raise RecipeError(f"{key}: expected at most {MAX_DEPTH} levels of nesting, got more")

        if isinstance(value, dict):
            for name, item in value.items():
                waiting.append(_Visited((*path, name), item))
        elif isinstance(value, list | tuple):
            for index, item in enumerate(value):
                waiting.append(_Visited((*path, index), item))
        elif isinstance(value, float) and not math.isfinite(value):
            problems.append(f"{key}: expected a finite number, got {value}")
        elif isinstance(value, int) and abs(value) >= MAX_NUMBER:
            bits = value.bit_length()
            problems.append(f"{key}: expected a number of 63 bits or fewer, got {bits}")

    # The walk pops from the end of its list, so it has met the last key first.
    if problems:
        raise RecipeError("\n".join(problems[::-1]))
