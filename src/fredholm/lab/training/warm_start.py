"""Start a run with the weights and the vocabulary of other runs.

A run on the same kind of data (images, texts, ...) has to fit completely. Between images, texts and
images with a text, a model takes every tensor that fits: the paper's models of images and questions
start from a model of images and a model of texts (``init_from: [IMAGES, TEXTS]``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from ...errors import RecipeError
from ..data import Vocabulary
from ..data.kinds.kind import KINDS, WORDS
from .build import kind_asked
from .evaluation import load_run
from .recipe import Recipe

# Names of parameters that read out an answer begin so. They belong to a task and are copied only
# between runs with the same classes.
HEAD = ("head", "encoder.token")

Runs = str | Path | Sequence[str | Path]
State = dict[str, Tensor]


def known_vocabulary(recipe: Recipe, trust_code: bool = False) -> Vocabulary | None:
    """Return the vocabulary of the first text run that weights come from.

    It is None if there is no such run, or if the data are not texts. All runs are opened, so that
    one that cannot be read is reported before anything is made.

    Raises:
        CheckpointError: a run or its model is missing.
        TrustError: a run's recipe imports a file, and ``trust_code`` is not given.
    """
    if recipe.init_from is None:
        return None

    vocabularies = []
    for run in _as_list(recipe.init_from):
        model, _ = load_run(run, trust_code=trust_code)
        if model.extra.get("vocabulary") is not None:
            vocabularies.append(model.extra["vocabulary"])

    if not vocabularies or "vocabulary" not in kind_asked(recipe).takes:
        return None
    return Vocabulary.from_dict(vocabularies[0])


def start_from(
    model: nn.Module, init_from: Runs, dataset: Any, *, trust_code: bool = False
) -> list[str]:
    """Copy weights of other runs into a new model.

    From one run of the model's own kind, every tensor but the head's (and the class token's) has to
    exist in both with one shape. The head is copied as well if the run has the same classes.

    From several runs, or from a run of another kind, each tensor is taken from the first run that
    has one of the same meaning and shape. This needs kinds that share names of tensors, see
    :func:`shared_prefixes`; a single run of any other kind has to fit completely. An embedding of
    words is copied word by word.

    Returns: lines for the user that name the tensors copied, those left out, those that start anew,
    and the settings that differ.

    Raises:
        CheckpointError: a run or its model is missing.
        RecipeError: weights that do not fit, all of them named; a run of which nothing fits, or of
            another width; a single run of the same kind with another vocabulary.
        TrustError: a run's recipe imports a file, and ``trust_code`` is not given.
    """
    sources = []
    for run in _as_list(init_from):
        source_model, folder = load_run(run, trust_code=trust_code)
        sources.append(Source(str(folder.root), source_model))

    kinds = {kind_of(model), *(kind_of(source.model) for source in sources)}
    sharing = shared_prefixes()
    by_meaning = len(kinds) > 1 or len(sources) > 1
    if by_meaning and kinds <= sharing.keys():
        return _copy_fitting(model, sources, dataset)

    if len(sources) > 1:
        raise RecipeError(
            f"init_from: expected one run, or several of {', '.join(sharing)}, got {len(sources)} "
            f"runs on {', '.join(sorted(map(str, kinds)))}; give one"
        )
    # A single run, of the model's kind or of one that shares no names with it.
    return _copy_all(model, sources[0], dataset)


@dataclass(frozen=True)
class Source:
    """A run that weights come from."""

    folder: str
    model: Any

    @property
    def vocabulary(self) -> Vocabulary | None:
        """The vocabulary of its texts, or of the questions about its images."""
        words = self.model.extra.get("vocabulary") or self.model.extra.get("words")
        return None if words is None else Vocabulary.from_dict(words)

    def has_head_of(self, target: State, classes: list[str]) -> bool:
        """Tell whether it has the same classes, and reads them out by tensors of the same shape."""
        if self.model.extra.get("classes") != classes:
            return False
        state = self.model.state_dict()
        return all(
            key in state and state[key].shape == value.shape
            for key, value in target.items()
            if key.startswith(HEAD)
        )


def kind_of(model: Any) -> str | None:
    """Return the kind of data that a model reads: image, text, multimodal, ..."""
    return model.config.encoder.data


def _as_list(init_from: Runs) -> list[str | Path]:
    if isinstance(init_from, str | Path):
        return [init_from]
    return list(init_from)


# --- one run of the same kind ---------------------------------------------------------------------


def _copy_all(model: Any, source: Source, dataset: Any) -> list[str]:
    """Copy all weights of a run of the same kind."""
    _check_vocabulary(source, dataset)

    target = model.state_dict()
    state = source.model.state_dict()
    with_head = source.has_head_of(target, list(dataset.classes))
    wanted = {key for key in target if with_head or not key.startswith(HEAD)}
    offered = {key for key in state if with_head or not key.startswith(HEAD)}

    problems = [f"{key} is missing there" for key in sorted(wanted - offered)]
    problems += [f"{key} has no place here" for key in sorted(offered - wanted)]
    for key in sorted(wanted & offered):
        there, here = tuple(state[key].shape), tuple(target[key].shape)
        if there != here:
            problems.append(f"{key} is {there} there and {here} here")
    if problems:
        raise RecipeError(
            f"init_from: the weights of {source.folder} do not fit the model: {'; '.join(problems)}"
        )

    model.load_state_dict({**target, **{key: state[key] for key in wanted}}, strict=True)
    anew = ", ".join(sorted(set(target) - wanted)) or "none"
    lines = [f"from {source.folder}: {len(wanted)} tensors copied; anew: {anew}"]
    changed = differing(source.model.config, model.config)
    if changed:
        lines.append(f"settings that differ from it: {', '.join(changed)}")
    return lines


def _check_vocabulary(source: Source, dataset: Any) -> None:
    """Refuse another vocabulary: embeddings are numbered, and would belong to other words."""
    theirs = source.vocabulary
    ours = _vocabulary_of(dataset)
    if theirs is not None and ours is not None and theirs != ours:
        raise RecipeError(
            f"init_from: expected the vocabulary of the data ({len(ours):,} {ours.kind}), got that "
            f"of {source.folder} ({len(theirs):,} {theirs.kind}), whose embeddings belong to other "
            "words; give several runs, init_from=[A,B], to copy words one by one"
        )


# --- several runs, or another kind ----------------------------------------------------------------


def shared_prefixes() -> dict[str, tuple[tuple[str, str], ...]]:
    """Return, for each kind of encoder, pairs (prefix of its parameters, prefix common to all)."""
    return {kind.encoder: kind.rooms for kind in KINDS.values() if kind.rooms}


def common_names(keys: Sequence[str], kind: str) -> dict[str, str]:
    """Map names of tensors that all kinds share to the model's own names of them.

    Example:
        >>> common_names(["encoder.embed.weight", "norm.weight"], "text")
        {'words.weight': 'encoder.embed.weight', 'norm.weight': 'norm.weight'}
    """
    prefixes = shared_prefixes()[kind]
    result = {}
    for key in keys:
        name = key
        for own, common in prefixes:
            if key.startswith(own):
                name = common + key.removeprefix(own)
                break
        result[name] = key
    return result


@dataclass
class _Target:
    """The new model while sources fill it.

    Attributes:
        state: its tensors.
        keys: their names in ``state``, by the names that all kinds share.
        missing: shared names of the tensors that no source has filled yet.
    """

    state: State
    keys: dict[str, str]
    missing: set[str]


@dataclass
class _Copied:
    """The tensors that one source has filled, and those that it left out.

    Attributes:
        names: shared names of the filled tensors.
        words: a remark on the words that were copied, "" for none.
        left: the tensors that were left, each with a reason.
    """

    names: list[str] = field(default_factory=list)
    words: str = ""
    left: list[str] = field(default_factory=list)


def _copy_fitting(model: Any, sources: list[Source], dataset: Any) -> list[str]:
    """Copy every tensor that fits, from the first source that has it."""
    state = model.state_dict()
    keys = common_names(list(state), kind_of(model) or "")
    target = _Target(state, keys, set(keys))

    lines = []
    for source in sources:
        _check_width(source, model)
        copied = _copy_from(source, target, dataset)
        _check_anything_learned(source, target, copied)
        target.missing -= set(copied.names)

        count = len(copied.names)
        tensors = "1 tensor" if count == 1 else f"{count} tensors"
        lines.append(f"from {source.folder}: {tensors} copied{copied.words}")
        if copied.left:
            lines.append(f"left out: {'; '.join(copied.left)}")

    model.load_state_dict(target.state, strict=True)
    anew = ", ".join(sorted(target.keys[name] for name in target.missing)) or "none"
    return [*lines, f"anew: {anew}"]


def _check_width(source: Source, model: Any) -> None:
    there = source.model.config.body.width
    here = model.config.body.width
    if there != here:
        raise RecipeError(
            f"init_from: expected features of width {here}, which the model has, got {there} of "
            f"{source.folder}; set model.body.dim to that of the run"
        )


def _check_anything_learned(source: Source, target: _Target, copied: _Copied) -> None:
    """Refuse a source of which no weight matrix fits.

    Vectors and the fixed random frequencies of positions fit almost any model and prove nothing.
    """
    for name in copied.names:
        is_matrix = target.state[target.keys[name]].dim() > 1
        if is_matrix and not name.endswith("fourier.matrix"):
            return
    raise RecipeError(
        f"init_from: expected weights that fit the model, got none in {source.folder}; left out: "
        f"{'; '.join(copied.left)}"
    )


def _copy_from(source: Source, target: _Target, dataset: Any) -> _Copied:
    """Fill the missing tensors of ``target`` from one source."""
    state = source.model.state_dict()
    with_head = source.has_head_of(target.state, list(dataset.classes))

    copied = _Copied()
    from_earlier = 0
    for name, key in common_names(list(state), kind_of(source.model) or "").items():
        value = state[key]
        if name not in target.keys:
            copied.left.append(f"{key} (no place here)")
            continue
        if key.startswith(HEAD) and not with_head:
            copied.left.append(f"{key} (another task)")
            continue
        if name not in target.missing:
            from_earlier += 1
            continue

        own_key = target.keys[name]
        own = target.state[own_key]
        if name == WORDS:
            words = _copy_words(own, value, source, dataset)
            if words:
                copied.words = words
                copied.names.append(name)
            else:
                copied.left.append(f"{key} (no word in common, or another width)")
        elif own.shape != value.shape:
            shapes = f"{tuple(value.shape)} there, {tuple(own.shape)} here"
            copied.left.append(f"{key} ({shapes})")
        else:
            target.state[own_key] = value
            copied.names.append(name)

    if from_earlier:
        copied.left.append(f"{from_earlier} that an earlier run gave")
    return copied


def _copy_words(own: Tensor, given: Tensor, source: Source, dataset: Any) -> str:
    """Copy the embeddings of the words that both vocabularies have into ``own``.

    Returns: a remark for the user; "" if no word was copied.
    """
    theirs = source.vocabulary
    ours = _vocabulary_of(dataset)
    if theirs is None or ours is None or theirs.kind != ours.kind:
        return ""
    if own.shape[1:] != given.shape[1:]:
        return ""

    # Rows 0 and 1 are padding and the unknown word. Bytes have fixed numbers.
    rows = {0: 0, 1: 1}
    if ours.kind == "bytes":
        rows = {number: number for number in range(len(ours))}
    else:
        their_rows = {word: row for row, word in enumerate(theirs.words, 2)}
        for row, word in enumerate(ours.words, 2):
            if word in their_rows:
                rows[row] = their_rows[word]
    if len(rows) <= 2:
        return ""

    own[list(rows)] = given[list(rows.values())].to(own.dtype)
    return f", of the {len(ours):,} {ours.kind} {len(rows):,}"


def _vocabulary_of(dataset: Any) -> Vocabulary | None:
    """Return the vocabulary of texts; graphs have a number under the same name."""
    vocabulary = getattr(dataset, "vocabulary", None)
    return vocabulary if isinstance(vocabulary, Vocabulary) else None


# --- configurations -------------------------------------------------------------------------------


def differing(old: Any, new: Any) -> list[str]:
    """List the fields in which two model configurations differ, each with both values."""
    before = flat(old)
    after = flat(new)
    return [
        f"{key} ({before.get(key)!r} -> {value!r})"
        for key, value in after.items()
        if before.get(key) != value
    ]


def flat(config: Any) -> dict[str, Any]:
    """Return the fields of a configuration's parts as ``part.field``."""
    return {
        f"{name}.{key}": value
        for name, part in config.to_dict().items()
        for key, value in part.items()
    }
