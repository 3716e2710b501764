"""Start a run with the weights and the vocabulary of another run on the same kind of data."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from ...errors import RecipeError
from ..data import Vocabulary
from .build import kind_asked
from .evaluation import load_run
from .recipe import Recipe

# Names of parameters that read out an answer begin so. They belong to a task and are copied only
# between runs with the same classes.
HEAD = ("head", "encoder.token")

State = dict[str, Tensor]


def known_vocabulary(recipe: Recipe, trust_code: bool = False) -> Vocabulary | None:
    """Return the vocabulary of the run that weights come from.

    It is None if there is no such run, or if its data or those of the recipe are not texts. The run
    is opened in any case, so that one that cannot be read is reported before anything is made.

    Raises:
        CheckpointError: the run or its model is missing.
        TrustError: the run's recipe imports a file, and ``trust_code`` is not given.
    """
    if recipe.init_from is None:
        return None
    model, _ = load_run(recipe.init_from, trust_code=trust_code)
    vocabulary = model.extra.get("vocabulary")
    if vocabulary is None or "vocabulary" not in kind_asked(recipe).takes:
        return None
    return Vocabulary.from_dict(vocabulary)


def start_from(
    model: nn.Module,
    init_from: str | Path,
    dataset: Any,
    *,
    trust_code: bool = False,
) -> list[str]:
    """Copy the weights of another run into a new model.

    Every tensor but the head's (and the class token's) has to exist in both with one shape. The
    head is copied as well if the run has the same classes.

    Returns: lines for the user that count the tensors copied, and name those that start anew and
    the settings that differ.

    Raises:
        CheckpointError: the run or its model is missing.
        RecipeError: weights that do not fit, all of them named; a run on another kind of data, or
            with another vocabulary.
        TrustError: the run's recipe imports a file, and ``trust_code`` is not given.
    """
    source_model, folder = load_run(init_from, trust_code=trust_code)
    source = Source(str(folder.root), source_model)
    _check_kind(source, model)
    _check_vocabulary(source, dataset)

    target = model.state_dict()
    state = source.model.state_dict()
    with_head = source.has_head_of(target, list(dataset.classes))
    wanted = {key for key in target if with_head or not key.startswith(HEAD)}
    offered = {key for key in state if with_head or not key.startswith(HEAD)}

    problems = [f"{key} is missing there" for key in sorted(wanted - offered)]
    problems += [f"{key} has no place here" for key in sorted(offered - wanted)]
    for key in sorted(wanted & offered):
        there = tuple(state[key].shape)
        here = tuple(target[key].shape)
        if there != here:
            problems.append(f"{key} is {there} there and {here} here")
    if problems:
        raise RecipeError(
            f"init_from: the weights of {source.folder} do not fit the model: {'; '.join(problems)}"
        )

    copied = {key: state[key] for key in wanted}
    model.load_state_dict({**target, **copied}, strict=True)

    anew = ", ".join(sorted(set(target) - wanted)) or "none"
    lines = [f"from {source.folder}: {len(wanted)} tensors copied; anew: {anew}"]
    changed = differing(source.model.config, model.config)
    if changed:
        lines.append(f"settings that differ from it: {', '.join(changed)}")
    return lines


@dataclass(frozen=True)
class Source:
    """A run that weights come from."""

    folder: str
    model: Any

    @property
    def vocabulary(self) -> Vocabulary | None:
        """The vocabulary of its texts, or of the questions about its images."""
        words = self.model.extra.get("vocabulary") or self.model.extra.get("words")
        if words is None:
            return None
        return Vocabulary.from_dict(words)

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


def _check_kind(source: Source, model: Any) -> None:
    """Refuse weights of a model that reads another kind of data."""
    there = kind_of(source.model)
    here = kind_of(model)
    if there != here:
        raise RecipeError(
            f"init_from: expected a run whose encoder reads {here!r} data, got {source.folder}, "
            f"which reads {there!r}; name a run on the same kind of data, or init_from=null"
        )


def _check_vocabulary(source: Source, dataset: Any) -> None:
    """Refuse another vocabulary: embeddings are numbered, and would belong to other words."""
    theirs = source.vocabulary
    ours = _vocabulary_of(dataset)
    if theirs is not None and ours is not None and theirs != ours:
        raise RecipeError(
            f"init_from: expected the vocabulary of the data ({len(ours):,} {ours.kind}), got that "
            f"of {source.folder} ({len(theirs):,} {theirs.kind}), whose embeddings belong to other "
            "words; name a run on the same words, or init_from=null"
        )


def _vocabulary_of(dataset: Any) -> Vocabulary | None:
    """Return the vocabulary of texts; graphs have a number under the same name."""
    vocabulary = getattr(dataset, "vocabulary", None)
    if isinstance(vocabulary, Vocabulary):
        return vocabulary
    return None


# --- configurations -------------------------------------------------------------------------------


def differing(old: Any, new: Any) -> list[str]:
    """List the fields in which two model configurations differ, each with both values."""
    before = flat(old)
    lines = []
    for key, value in flat(new).items():
        if before.get(key) != value:
            lines.append(f"{key} ({before.get(key)!r} -> {value!r})")
    return lines


def flat(config: Any) -> dict[str, Any]:
    """Return the fields of a configuration's parts as ``part.field``."""
    fields = {}
    for name, part in config.to_dict().items():
        for key, value in part.items():
            fields[f"{name}.{key}"] = value
    return fields
