"""Weights and vocabulary of other runs, for a run that goes on from them.

A run of the same kind (images, texts, ...) must fit whole. Between images, texts and pictures with
a text, a model takes what fits: the paper's models of pictures and questions start from a model of
images and a model of texts (``init_from: [IMAGES, TEXTS]``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from ...errors import RecipeError
from ..data import Vocabulary
from ..data.kinds.kind import KINDS, WORDS
from .build import kind_asked
from .evaluation import load_run
from .recipe import Recipe

HEAD = (
    "head",
    "encoder.token",
)  # parameters whose names begin so read an answer out; they belong to a task


def known_vocabulary(recipe: Recipe, trust_code: bool = False) -> Vocabulary | None:
    """The vocabulary that the recipe's texts are read with: that of the first run of texts that
    weights come from; None where there is no such run, or the data are no texts. All of the runs
    are opened, so that one that cannot be is told before anything is made.

    Raises:
        CheckpointError: no run or no model there.
        TrustError: a run whose recipe imports a file, and ``trust_code`` is not given.
    """
    runs = [] if recipe.init_from is None else _listed(recipe.init_from)
    result = [load_run(run, trust_code=trust_code)[0].extra.get("vocabulary") for run in runs]
    words = next((words for words in result if words is not None), None)
    if words is None or "vocabulary" not in kind_asked(recipe).takes:
        return None
    return Vocabulary.from_dict(words)


def start_from(
    model: nn.Module,
    init_from: str | Path | Sequence[str | Path],
    dataset: Any,
    *,
    trust_code: bool = False,
) -> list[str]:
    """Copy weights of other runs into a new model, and say what was copied, what was left, what
    starts anew and which settings differ.

    From one run of the model's own kind every tensor but the head's (and the class token's) must be
    in both and have one shape. The head is copied as well where that run has the same classes.
    From several runs, or a run of another kind, a tensor comes from the first run in which one of
    its meaning has its shape; an embedding of words is copied word by word.

    Raises:
        CheckpointError: no run or no model there.
        RecipeError: weights that do not fit, all of them named; a run of which nothing fits, or of
            another width; one run of the same kind with another vocabulary.
        TrustError: a run whose recipe imports a file, and ``trust_code`` is not given.
    """
    runs = [load_run(run, trust_code=trust_code) for run in _listed(init_from)]
    sources = [Source(str(place.root), source) for source, place in runs]
    kinds = {kind_of(model), *(kind_of(source.model) for source in sources)}
    sharing = rooms()
    if (len(kinds) > 1 or len(sources) > 1) and kinds <= sharing.keys():
        return _take_what_fits(model, sources, dataset)
    if len(sources) > 1:
        raise RecipeError(
            f"init_from: received {len(sources)} runs, on {', '.join(sorted(map(str, kinds)))}; "
            f"several runs are for {', '.join(sharing)} models alone, give one"
        )
    return _take_all(model, sources[0], dataset)


@dataclass(frozen=True)
class Source:
    """A run that weights come from."""

    place: str
    model: Any

    @property
    def vocabulary(self) -> Vocabulary | None:
        """That of its texts, or of the questions to its pictures."""
        words = self.model.extra.get("vocabulary") or self.model.extra.get("words")
        return None if words is None else Vocabulary.from_dict(words)

    def has_head_of(self, own: dict[str, Tensor], classes: list[str]) -> bool:
        """Whether it has the same classes, and reads them out in the same way."""
        given = self.model.state_dict()
        return self.model.extra.get("classes") == classes and all(
            key in given and given[key].shape == value.shape
            for key, value in own.items()
            if key.startswith(HEAD)
        )


def kind_of(model: Any) -> str | None:
    """What a model reads, by its configuration: image, text, multimodal, ..."""
    return model.config.encoder.data


def _listed(init_from: Any) -> list[Any]:
    return [init_from] if isinstance(init_from, str | Path) else list(init_from)


def _take_all(model: Any, source: Source, dataset: Any) -> list[str]:
    """A run of the same kind, whole."""
    theirs, mine = source.vocabulary, _vocabulary_of(dataset)
    if theirs is not None and mine is not None and theirs != mine:  # rows of words are numbered
        raise RecipeError(
            f"init_from: {source.place} knows other words ({len(theirs):,} {theirs.kind}) than the "
            f"data ({len(mine):,} {mine.kind}), on which its vectors would land; of several runs, "
            "init_from=[A,B], words are taken one by one"
        )
    own, given = model.state_dict(), source.model.state_dict()
    same = source.has_head_of(own, list(dataset.classes))
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
            f"init_from: the weights of {source.place} do not fit the model: {'; '.join(problems)}"
        )
    model.load_state_dict({**own, **{key: given[key] for key in wanted}}, strict=True)
    anew = sorted(set(own) - wanted)
    lines = [
        f"from {source.place}: {len(wanted)} tensors copied; anew: {', '.join(anew) or 'none'}"
    ]
    changed = differing(source.model.config, model.config)
    return lines + ([f"settings that differ from it: {', '.join(changed)}"] if changed else [])


# --- between kinds --------------------------------------------------------------------------------


def rooms() -> dict[str, tuple[tuple[str, str], ...]]:
    """Names that the kinds between which weights go have in common, by encoder."""
    return {kind.encoder: kind.rooms for kind in KINDS.values() if kind.rooms}


def common_names(keys: Sequence[str], kind: str) -> dict[str, str]:
    """The tensors of a model by the names of what they mean, which all kinds share.

    Example:
        >>> common_names(["encoder.embed.weight", "norm.weight"], "text")
        {'words.weight': 'encoder.embed.weight', 'norm.weight': 'norm.weight'}
    """
    result, known = {}, rooms()[kind]
    for key in keys:
        fitting = [(own, common) for own, common in known if key.startswith(own)]
        own, common = fitting[0] if fitting else ("", "")
        result[common + key.removeprefix(own)] = key
    return result


def _take_what_fits(model: Any, sources: list[Source], dataset: Any) -> list[str]:
    own = model.state_dict()
    here = common_names(list(own), kind_of(model) or "")
    fresh = dict(here)  # what no source has given yet, by common names
    lines = []
    for source in sources:
        there, wanted = (of.config.body.width for of in (source.model, model))
        if there != wanted:
            raise RecipeError(
                f"init_from: {source.place} has features of width {there}, the model of {wanted}; "
                "set model.body.dim to that of the run"
            )
        copied, left = _take(own, fresh, source, dataset, here)
        learned = [name for name in copied if not name.endswith("fourier.matrix")]
        if not any(own[here[name]].dim() > 1 for name in learned):
            raise RecipeError(
                f"init_from: nothing of {source.place} fits the model; left there: "
                f"{'; '.join(left)}"
            )
        for name in copied:
            fresh.pop(name)
        some = next((text for text in copied.values() if text), "")
        many = f"{len(copied)} tensor{'s' * (len(copied) > 1)}"
        lines.append(f"from {source.place}: {many} copied{some}")
        lines += [f"left there: {'; '.join(left)}"] if left else []
    model.load_state_dict(own, strict=True)
    return [*lines, f"anew: {', '.join(sorted(fresh.values())) or 'none'}"]


def _take(
    own: dict[str, Tensor],
    fresh: dict[str, str],
    source: Source,
    dataset: Any,
    here: dict[str, str],
) -> tuple[dict[str, str], list[str]]:
    """Fill ``own`` from one source: {name: what to say of it}, and what was left there and why."""
    given = source.model.state_dict()
    head = source.has_head_of(own, list(dataset.classes))
    copied, left, before = {}, [], 0
    for name, key in common_names(list(given), kind_of(source.model) or "").items():
        value = given[key]
        if name not in here or (key.startswith(HEAD) and not head):
            left.append(f"{key} (no place here)" if name not in here else f"{key} (another task)")
        elif name not in fresh:
            before += 1
        elif name == WORDS:
            words = _take_words(own[here[name]], value, source, dataset)
            if words:
                copied[name] = words
            else:
                left.append(f"{key} (no word in common, or another width)")
        elif own[here[name]].shape != value.shape:
            shapes = f"{tuple(value.shape)} there, {tuple(own[here[name]].shape)} here"
            left.append(f"{key} ({shapes})")
        else:
            own[here[name]] = value
            copied[name] = ""
    return copied, left + ([f"{before} that an earlier run gave"] if before else [])


def _take_words(own: Tensor, given: Tensor, source: Source, dataset: Any) -> str:
    """Copy the rows of the words that both vocabularies have into ``own``; what to say of it."""
    theirs, mine = source.vocabulary, _vocabulary_of(dataset)
    if theirs is None or mine is None or own.shape[1:] != given.shape[1:]:
        return ""
    if theirs.kind != mine.kind:
        return ""
    if mine.kind == "bytes":
        rows = {number: number for number in range(len(mine))}
    else:  # padding and the unknown have no word
        numbers = {word: 2 + place for place, word in enumerate(theirs.words)}
        rows = {0: 0, 1: 1} | {
            2 + place: numbers[word] for place, word in enumerate(mine.words) if word in numbers
        }
    if len(rows) <= 2:
        return ""
    own[list(rows)] = given[list(rows.values())].to(own.dtype)
    return f", of the {len(mine):,} {mine.kind} {len(rows):,}"


def _vocabulary_of(dataset: Any) -> Vocabulary | None:
    words = getattr(dataset, "vocabulary", None)  # of graphs it is a number
    return words if isinstance(words, Vocabulary) else None


def differing(old: Any, new: Any) -> list[str]:
    """Fields in which two configurations differ, each with both values."""
    before, after = flat(old), flat(new)
    return [
        f"{key} ({before.get(key)!r} -> {value!r})"
        for key, value in after.items()
        if before.get(key) != value
    ]


def flat(config: Any) -> dict[str, Any]:
    """The fields of a configuration's parts, as ``part.field``."""
    parts = config.to_dict()
    return {f"{name}.{key}": value for name, part in parts.items() for key, value in part.items()}
