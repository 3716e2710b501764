"""Weights and vocabulary of another run, for a run that goes on from them."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from torch import nn

from ..data import Vocabulary
from ..errors import RecipeError
from .evaluation import load_run

HEAD = (
    "head",
    "encoder.token",
)  # parameters whose names begin so read an answer out; they belong to a task


def known_vocabulary(init_from: str | Path | None) -> Vocabulary | None:
    """The vocabulary of the run that weights come from; None where there is no such run, or it
    reads no text.

    Raises:
        CheckpointError: no run or no model there.
    """
    if init_from is None:
        return None
    words = load_run(init_from)[0].extra.get("vocabulary")
    return None if words is None else Vocabulary.from_dict(words)


def start_from(model: nn.Module, init_from: str | Path, classes: list[str]) -> list[str]:
    """Copy a run's weights into a new model, and say what was copied, what starts anew and which
    settings differ.

    Every tensor but the head's (and the class token's) must be in both and have one shape. The head
    is copied as well where the run asked for the same classes.

    Raises:
        CheckpointError: no run or no model there.
        RecipeError: weights that do not fit, all of them named.
    """
    source, place = load_run(init_from)
    own, given = model.state_dict(), source.state_dict()
    same = source.extra.get("classes") == classes and all(
        key in given and given[key].shape == value.shape
        for key, value in own.items()
        if key.startswith(HEAD)
    )
    wanted = {key for key in own if same or not key.startswith(HEAD)}
    offered = {key for key in given if same or not key.startswith(HEAD)}
    problems = [f"{key} is missing there" for key in sorted(wanted - offered)]
    problems += [f"{key} has no place here" for key in sorted(offered - wanted)]
    problems += [
        f"{key} is {tuple(given[key].shape)} there and {tuple(own[key].shape)} here"
        for key in sorted(wanted & offered)
        if given[key].shape != own[key].shape
    ]
    if problems:
        raise RecipeError(
            f"init_from: the weights of {place.root} do not fit the model: {'; '.join(problems)}"
        )
    model.load_state_dict({**own, **{key: given[key] for key in wanted}}, strict=True)
    anew = sorted(set(own) - wanted)
    lines = [f"from {place.root}: {len(wanted)} tensors copied; anew: {', '.join(anew) or 'none'}"]
    changed = differing(source.config, model.config)
    return lines + ([f"settings that differ from it: {', '.join(changed)}"] if changed else [])


def differing(old: Any, new: Any) -> list[str]:
    """Fields in which two configurations differ, each with both values."""
    before, after = dataclasses.asdict(old), dataclasses.asdict(new)
    return [
        f"{key} ({before.get(key)!r} -> {value!r})"
        for key, value in after.items()
        if before.get(key) != value
    ]
