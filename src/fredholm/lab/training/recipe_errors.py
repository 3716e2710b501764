"""Explanations of pydantic's complaints about a recipe, one line each."""

from __future__ import annotations

import re
import reprlib
from collections.abc import Iterator
from typing import Any

from pydantic import BaseModel, ValidationError

from ...errors import suggest
from ...models.config import suggest_field
from .recipe import Recipe

_SECTION_EXPECTED = {"model_type", "model_attributes_type", "dict_type"}


def explain(error: ValidationError) -> str:
    """Explain every problem that pydantic found in a recipe, one per line."""
    return "\n".join(_explain_problem(problem) for problem in error.errors())


def _explain_problem(problem: Any) -> str:
    """Name the key, the expectation, the value, and the closest match among known words."""
    location = problem["loc"]
    key = ".".join(str(part) for part in location)
    value = problem["input"]

    match problem["type"]:
        # A conflict of several keys, see conflicts.py, which names them itself.
        case "value_error" if not key:
            return problem["msg"].removeprefix("Value error, ")
        case "extra_forbidden":
            return f"{key}: unknown key (got {shorten(value)}){_suggest_key(location)}"
        case "invalid_key":
            return f"{key}: expected text as a key, got {type(value).__name__}"
        case "missing":
            return f"{key}: expected in every recipe, got none; add it"

    # A subclass of str, such as Word, is text to the user.
    kind = type(value).__name__
    if isinstance(value, str):
        kind = "str"
    expectation = _expectation(problem)
    return f"{key}: expected {expectation}, got {shorten(value)} ({kind}){_hint(problem)}"


def _suggest_key(location: tuple[Any, ...]) -> str:
    *above, last = location

    # Fields of a model's parts are often written one level too high: model.depth.
    if above == ["model"]:
        return suggest_field(str(last), "model.")
    return suggest(str(last), _known_keys(tuple(above)))


def _expectation(problem: Any) -> str:
    """Return the value that was expected, in words that complete "expected ...".

    Pydantic's own message is shortened: "Input should be a valid integer" becomes "integer".
    """
    if problem["type"] == "string_pattern_mismatch":
        return "letters, digits and . _ , = + - alone, beginning with a letter or digit"
    if problem["type"] in _SECTION_EXPECTED:
        keys = sorted(_known_keys(problem["loc"]))
        return f"a section with keys: {', '.join(keys)}"

    # The prefixes are in the order in which they occur: one may follow another.
    expectation = problem["msg"]
    for prefix in ("Value error, ", "Input should be ", "a valid ", "List should have "):
        expectation = expectation.removeprefix(prefix)
    return expectation


def _hint(problem: Any) -> str:
    """Suggest the closest of the words that a field accepts."""
    if problem["type"] != "literal_error":
        return ""
    words = re.findall(r"'([^']+)'", problem["msg"])
    hint = suggest(str(problem["input"]), words)

    # The expectation already lists all words, so only a close match is worth adding.
    if "did you mean" in hint:
        return hint
    return ""


_SHORT = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = 100
_SHORT.maxlist = _SHORT.maxdict = 10


def shorten(value: Any) -> str:
    """Write a value on one line; of a long one only its beginning and its end."""
    return _SHORT.repr(value)


def _known_keys(path: tuple[Any, ...]) -> list[str]:
    """List the keys of the section at ``path``; none where the path leads to no section."""
    section: type[BaseModel] = Recipe
    for part in path:
        inner = next(_sections_at(section, part), None)
        if inner is None:
            return []
        section = inner
    return [field.alias or name for name, field in section.model_fields.items()]


def _sections_at(section: type[BaseModel], key: Any) -> Iterator[type[BaseModel]]:
    """Walk over the types of a field that are sections themselves, also inside unions."""
    for name, field in section.model_fields.items():
        if key not in (name, field.alias):
            continue
        annotation: Any = field.annotation
        for candidate in (annotation, *getattr(annotation, "__args__", ())):
            if hasattr(candidate, "model_fields"):
                yield candidate
