"""The text of recipes: YAML as they read it, with limits to what a file may make of itself."""

from __future__ import annotations

import math
import re
from collections.abc import Hashable
from pathlib import Path
from typing import Any

import yaml

from ...errors import RecipeError
from ...files import storing

# The longest built-in recipe has 2 kB and 60 values, five levels deep.
MAX_BYTES, MAX_VALUES, MAX_DEPTH = 1 << 17, 10_000, 32
MAX_NUMBER = 2**63  # what a tensor or a generator of random numbers can take


class Word(str):
    """A bare ``yes``, ``no``, ``on`` or ``off``: text where a field takes text, else a truth value.

    YAML 1.1 reads these as truth values, so that a class ``no`` or a tokeniser ``off`` would arrive
    as False.
    """

    @property
    def truth(self) -> bool:
        return self.lower() in ("yes", "on")


class _Loader(yaml.SafeLoader):
    """YAML whose ``1e-3`` is a number, whose ``no`` is a word, and in which a key given twice is an
    error.
    """

    def construct_mapping(self, node, deep=False):
        seen = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            line = key_node.start_mark.line + 1
            if not isinstance(key, Hashable):
                raise RecipeError(f"line {line}: received a {type(key).__name__} as a key")
            if key in seen:
                raise RecipeError(f"{key}: given twice (line {line}); keep one")
            seen.add(key)
        return super().construct_mapping(node, deep)


def _truth(loader: yaml.SafeLoader, node: yaml.ScalarNode) -> bool | Word:
    text = str(loader.construct_scalar(node))
    return text.lower() == "true" if text.lower() in ("true", "false") else Word(text)


class _Dumper(yaml.SafeDumper):
    """Quotes each text that the loader would take for a number."""


_Loader.add_constructor("tag:yaml.org,2002:bool", _truth)
for _reads in (_Loader, _Dumper):
    _reads.add_implicit_resolver(
        "tag:yaml.org,2002:float",
        re.compile(r"^[-+]?(\d+(\.\d*)?|\.\d+)[eE][-+]?\d+$"),
        list("-+0123456789."),
    )


def parse(text: str, where: str) -> Any:
    """YAML text as plain data, in which a bare ``no`` is a :class:`Word`.

    Raises:
        RecipeError: text that is too long, no YAML, or nested too deeply to be read.

    Example:
        >>> parse("{lr: 1e-3, flip: true, path: off}", "an example")
        {'lr': 0.001, 'flip': True, 'path': 'off'}
    """
    if len(text) > MAX_BYTES:
        raise RecipeError(
            f"{where}: received {len(text):,} characters; needs at most {MAX_BYTES:,}"
        )
    try:
        _check_depth(text)
        return yaml.load(text, Loader=_Loader)
    except RecipeError as error:
        raise RecipeError(f"{where}: {error}") from error
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f" line {mark.line + 1}:" if mark else ""
        reason = getattr(error, "problem", None) or " ".join(str(error).split())
        raise RecipeError(f"{where}:{line} not YAML: {reason}") from error
    except (ValueError, OverflowError) as error:  # numbers and dates that Python cannot hold
        raise RecipeError(f"{where}: {str(error).partition(';')[0]}") from error


def to_yaml(value: Any) -> str:
    """Plain data as text that :func:`parse` reads as the same.

    Example:
        >>> to_yaml({"name": "1e3", "lr": 1e-05}).splitlines()
        ["name: '1e3'", 'lr: 1.0e-05']
    """
    return yaml.dump(value, Dumper=_Dumper, sort_keys=False)


def _check_depth(text: str) -> None:
    """Events come one by one, so that this ends at the first bracket too many; a loader would
    descend into all of them.
    """
    depth = 0
    for event in yaml.parse(text, Loader=_Loader):
        depth += isinstance(event, yaml.CollectionStartEvent)
        depth -= isinstance(event, yaml.CollectionEndEvent)
        if depth > MAX_DEPTH:
            raise RecipeError(f"nested too deeply; needs at most {MAX_DEPTH} levels")


def read_text(path: Path) -> str:
    """The text of a recipe's file.

    Raises:
        RecipeError: a file that is too long, or no text.
        StorageError: a file that cannot be read.
    """
    with storing(path), path.open("rb") as file:
        content = file.read(MAX_BYTES + 1)
    if len(content) > MAX_BYTES:
        raise RecipeError(f"{path}: longer than {MAX_BYTES:,} bytes; needs a recipe in YAML")
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise RecipeError(
            f"{path}: not text (byte {error.start:,} is not UTF-8); needs a recipe in YAML"
        ) from error


def plain(value: Any) -> Any:
    """``value`` with words as truth values, for fields that take no text.

    Example:
        >>> plain(parse("{tied: no, name: elu}", "an example"))
        {'tied': False, 'name': 'elu'}
    """
    if isinstance(value, Word):
        return value.truth
    if isinstance(value, dict):
        return {str(k) if isinstance(k, Word) else k: plain(v) for k, v in value.items()}
    return [plain(item) for item in value] if isinstance(value, list) else value


def check_values(raw: dict[str, Any]) -> None:
    """Refuse a recipe that is larger or deeper than any run needs, and numbers that none can use.

    A few aliases can stand for billions of values, all of which whoever prints or copies the recipe
    would visit; so the values are counted as they are visited, and the count ends early.

    Raises:
        RecipeError: too many values or levels, or numbers that are not finite or 2^63 and more.
    """
    waiting: list[tuple[tuple[Any, ...], Any]] = [((), raw)]
    count, problems = 0, []
    while waiting:
        path, value = waiting.pop()
        count += 1
        key = ".".join(str(part) for part in path[:4])
        if count > MAX_VALUES:
            raise RecipeError(
                f"{key}: expands to more than {MAX_VALUES:,} values; write fewer aliases (*name)"
            )
        if len(path) > MAX_DEPTH:
            raise RecipeError(f"{key}: nested too deeply; needs at most {MAX_DEPTH} levels")
        if isinstance(value, dict):
            waiting += [((*path, k), v) for k, v in value.items()]
        elif isinstance(value, list | tuple):
            waiting += [((*path, i), v) for i, v in enumerate(value)]
        elif isinstance(value, float) and not math.isfinite(value):
            problems.append(f"{key}: received {value} (float); needs a finite number")
        elif isinstance(value, int) and abs(value) >= MAX_NUMBER:
            problems.append(
                f"{key}: received a number of {value.bit_length()} bits; needs 63 or fewer"
            )
    if problems:
        raise RecipeError("\n".join(problems[::-1]))
