"""Checks of a recipe against the registries of data sets, models, operators and metrics."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from ... import models, operators
from ...errors import RecipeError, TrustError, suggest
from ...integral.registry import import_file, operator_parameters, was_imported
from ...models.encoders import ENCODERS
from .. import data
from ..data.kinds.kind import KINDS, Kind
from .metrics import METRICS, direction
from .recipe import Recipe
from .recipe_text import Word, plain
from .tasks import TASKS, Task, create_task

# Fields of a model's parts that another section or the data set determines. A recipe may not set
# them a second time.
_DETERMINED_ELSEWHERE = {
    "operator": "operator.name",
    "operator_options": "operator.<option>",
    "outputs": "the data set",
    "image_size": "data.image_size",
    "max_length": "data.max_length",
    "eigenvectors": "the data set (data.options)",
}


def code_files(files: list[str], folder: Path) -> list[Path]:
    """Resolve a recipe's imports relative to ``folder``, without importing them.

    Raises:
        RecipeError: a file is missing or is not a ``.py`` file, or two files share a name. A run
            folder keeps copies by their names, and one would overwrite the other.
    """
    paths = [(folder / name).resolve() for name in files]
    for name, path in zip(files, paths):
        if path.suffix != ".py" or not path.is_file():
            raise RecipeError(
                f"import: expected an existing .py file, got {name!r} (looked for {str(path)!r})"
            )

    first_of_name: dict[str, Path] = {}
    for path in paths:
        twin = first_of_name.setdefault(path.name, path)
        if twin != path:
            raise RecipeError(
                "import: expected files of different names, under which a run keeps them, got "
                f"{str(twin)!r} and {str(path)!r}; rename one"
            )
    return paths


def import_files(files: list[str], folder: Path, trust_code: bool = True) -> list[str]:
    """Import the user's files, given relative to ``folder``, and return their absolute paths.

    Raises:
        RecipeError: a file is missing, is not a ``.py`` file, or fails to import.
        TrustError: without ``trust_code``, a file whose content this process has not imported yet.
    """
    # All files are checked before the first of them runs.
    paths = code_files(files, folder)
    untrusted = []
    if not trust_code:
        untrusted = [str(path) for path in paths if not was_imported(path)]
    if untrusted:
        names = ", ".join(map(repr, untrusted))
        raise TrustError(
            f"import: expected trusted code with a run folder, got {names}, which would be "
            "executed; read it, and if you trust it, add --trust-code (in Python: trust_code=True)"
        )

    for name, path in zip(files, paths):
        try:
            import_file(path)
        except Exception as error:
            # The user's own code may raise anything.
            raise RecipeError(f"import: {name} failed: {type(error).__name__}: {error}") from error
    return [str(path) for path in paths]


def _settle_words(recipe: Recipe) -> None:
    """Read each bare ``yes``, ``no``, ``on`` or ``off`` as its field requires.

    Sections with types of their own have done so already. Here follow the fields of the model's
    parts and the options of operator and data set: text if the field takes text, otherwise a truth
    value.
    """
    classes = _part_classes(recipe)
    for name, fields in recipe.model.parts.items():
        text_fields = _text_fields(classes.get(name, []))
        _settle(fields, {"kind", *text_fields})

    operator_options = recipe.operator.model_extra or {}
    _settle(operator_options, _text_options(recipe.operator.name))
    _settle(recipe.data.options, set())


def _settle(section: dict[str, Any], text_keys: set[str]) -> None:
    for key, value in section.items():
        if isinstance(value, Word) and key in text_keys:
            section[key] = str(value)
        else:
            section[key] = plain(value)


def _part_tables() -> dict[str, Any]:
    """Return the registry of the kinds of each part of a model."""
    return {
        "encoder": ENCODERS,
        "body": models.BODIES,
        "head": models.HEADS,
    }


def _part_classes(recipe: Recipe) -> dict[str, list[Any]]:
    """List the configuration classes that each part of a recipe's model may have.

    A body or head is of the preset's kind unless the recipe names another. The encoder depends on
    the data, so that without a named kind all encoders are possible.
    """
    if recipe.model.name not in models.list_models():
        return {}

    preset = models.model_config(recipe.model.name)
    result = {}
    for part, table in _part_tables().items():
        fields = getattr(recipe.model, part)
        kinds = table.names()
        if "kind" in fields:
            kinds = [kind for kind in kinds if kind == fields["kind"]]
        elif part != "encoder":
            kinds = [getattr(preset, part).kind]
        result[part] = [table[kind] for kind in kinds]
    return result


def _text_fields(classes: list[Any]) -> set[str]:
    names = set()
    for cls in classes:
        for field in dataclasses.fields(cls):
            if _takes_text(field.type):
                names.add(field.name)
    return names


def _text_options(operator: str | None) -> set[str]:
    if operator not in operators.list_operators():
        return set()
    parameters = operator_parameters(operator)
    return {p.name for p in parameters if _takes_text(p.annotation)}


def _takes_text(annotation: Any) -> bool:
    """Tell whether an annotation, as written, allows text.

    The types inside brackets do not count: ``Mapping[str, int]`` takes no text.
    """
    text = str(annotation)
    removed = 1
    while removed:
        # The innermost brackets go first, so that nested ones disappear as well.
        text, removed = re.subn(r"\[[^][]*\]", "", text)
    return re.search(r"\b(str|Literal)\b", text) is not None


def check(recipe: Recipe) -> None:
    """Check all names and fields of a recipe that do not depend on its samples.

    Its bare ``yes`` and ``no`` become what their fields take. The registries hold what it imports
    by now.

    Raises:
        RecipeError: one line per problem.
    """
    _settle_words(recipe)
    _refuse(
        [
            *_data_problems(recipe),
            *_model_problems(recipe),
            *_operator_problems(recipe),
            *_metric_problems(recipe),
        ]
    )


def _refuse(problems: Iterable[str]) -> None:
    lines = list(problems)
    if lines:
        raise RecipeError("\n".join(lines))


def _watched_metrics(recipe: Recipe) -> dict[str, str]:
    """Return the metrics that the schedule and the early stop watch, by the key that names them."""
    watched = {}
    if recipe.schedule.metric is not None:
        watched["schedule.metric"] = recipe.schedule.metric

    stop = recipe.training.early_stop
    if stop is not None and stop.metric is not None:
        watched["training.early_stop.metric"] = stop.metric
    return watched


def _metric_problems(recipe: Recipe) -> Iterator[str]:
    """List metrics that no task reports."""
    name = recipe.training.metric
    of_tasks = set()
    for task in TASKS:
        for reported in create_task(task).reports():
            of_tasks.add(reported.removeprefix("val_"))

    if name is not None and name not in METRICS and name not in of_tasks:
        hint = suggest(name, sorted({*METRICS, *of_tasks}))
        yield f"training.metric: expected a metric, got {name!r}{hint}"

    validated = set(of_tasks)
    if name is not None:
        validated.add(name)
    known = ["train_loss", *(f"val_{metric}" for metric in sorted(validated))]
    for key, metric in _watched_metrics(recipe).items():
        if metric not in known:
            yield f"{key}: expected a metric, got {metric!r}{suggest(metric, known)}"

    # The direction of other metrics depends on the task, which is known only with the data set.
    stop = recipe.training.early_stop
    if stop is None or stop.mode is None or stop.metric is None:
        return
    if stop.metric in ("train_loss", "val_loss", "val_accuracy", f"val_{name}"):
        better = direction(stop.metric)
        if stop.mode != better:
            yield (
                f"training.early_stop.mode: expected {better!r} for {stop.metric}, got "
                f"{stop.mode!r}; leave it out"
            )


def _data_problems(recipe: Recipe) -> Iterator[str]:
    name = recipe.data.name
    known = data.list_datasets()
    if name not in known:
        yield f"data.name: expected a data set, got {name!r}{suggest(name, known)}"
        return

    entry = data.get_entry(name)
    for key, description in entry.needs.items():
        if getattr(recipe.data, key) is None:
            yield f"data.{key}: missing; {entry.name} needs {description}"

    # The kind of the user's files is known only after they are read, see check_read.
    if entry.kind_at is None:
        yield from _kind_problems(recipe, entry.kind)
        for key, value in recipe.data.reading.items():
            yield (
                f"data.{key}: expected none, since {entry.name} defines it, got {value!r}; "
                "remove it"
            )


def check_read(recipe: Recipe, kind: Kind) -> None:
    """Check a recipe's options against the kind of the user's files, once these are read.

    Raises:
        RecipeError: one line per problem.
    """
    if data.get_entry(recipe.data.name).kind_at is not None:
        _refuse(_kind_problems(recipe, kind))


def check_task(recipe: Recipe, task: Task) -> None:
    """Check a recipe's options against the task, which the data set defines.

    Raises:
        RecipeError: one line per problem.
    """
    _refuse(_task_problems(recipe, task))


def _task_problems(recipe: Recipe, task: Task) -> Iterator[str]:
    """List blends without classes to blend, and metrics that the validation does not report."""
    for key in ("mixup", "cutmix"):
        value = getattr(recipe.data, key)
        if value and not task.classifies:
            yield (
                f"data.{key}: expected classes to blend, got {value!r} with labels of "
                f"{task.name}; remove it"
            )

    reported = ("train_loss", *task.reports())
    for key, metric in _watched_metrics(recipe).items():
        if metric not in reported:
            yield f"{key}: expected one of {', '.join(reported)}, got {metric!r}"


def _kind_problems(recipe: Recipe, kind: Kind) -> Iterator[str]:
    """Yield a message for each option of ``data`` that only other kinds of data take."""
    name = recipe.data.name
    # A phase changes the largest length of texts.
    if recipe.training.phases is not None and "max_length" not in kind.takes:
        yield f"training.phases: {name} holds {kind.name}, which have no max_length; remove it"

    options = recipe.data.model_dump()
    augment = recipe.data.augment.model_dump()
    for key, value in augment.items():
        options[f"augment.{key}"] = value

    keys_of_kinds = {key for each in KINDS.values() for key in each.takes}
    keys_of_others = keys_of_kinds - {*kind.takes}
    for key in sorted(keys_of_others):
        # An option that is not set, or turned off, is None, 0 or False.
        if options.get(key):
            yield (
                f"data.{key}: expected none, since {name} holds {kind.name}, got {options[key]!r}; "
                "remove it"
            )


def _model_problems(recipe: Recipe) -> Iterator[str]:
    name = recipe.model.name
    known = models.list_models()
    if name not in known:
        yield f"model.name: expected a model, got {name!r}{suggest(name, known)}"
        return

    classes = _part_classes(recipe)
    for part, fields in recipe.model.parts.items():
        yield from _part_problems(part, fields, classes[part])


def _part_problems(part: str, fields: dict[str, Any], classes: list[Any]) -> Iterator[str]:
    """List unknown fields of a model's part; ``classes`` are its possible configurations."""
    if not classes:
        kind = str(fields["kind"])
        hint = suggest(kind, _part_tables()[part].names())
        yield f"model.{part}.kind: expected a kind of {part}, got {kind!r}{hint}"
        return

    of_data = set()
    known = {"kind"}
    for cls in classes:
        of_data.update(getattr(cls, "of_data", ()))
        known.update(cls.fields())

    for key, value in fields.items():
        if key in of_data or key in _DETERMINED_ELSEWHERE:
            source = _DETERMINED_ELSEWHERE.get(key, "the data set")
            yield f"model.{part}.{key}: expected in {source}, got {value!r} here; remove it"
        elif key not in known:
            settable = known - of_data - _DETERMINED_ELSEWHERE.keys()
            hint = suggest(key, sorted(settable))
            yield f"model.{part}.{key}: unknown key (got {value!r}){hint}"


def _operator_problems(recipe: Recipe) -> Iterator[str]:
    """List unknown names of the operator and of the parts of a ``sum``.

    Each part is a name, or a mapping with a ``name``. Options, and parts that are not a list, are
    checked when the operator is built.
    """
    name = recipe.operator.name
    if name is None:
        return

    known = [*operators.list_operators(), *models.list_baselines(), "sum"]
    if name not in known:
        yield f"operator.name: expected an operator, got {name!r}{suggest(name, known)}"

    parts = recipe.operator.options.get("parts")
    if name != "sum" or not isinstance(parts, list):
        return
    for part in parts:
        part_name = part
        if isinstance(part, dict):
            part_name = part.get("name")
        if part_name not in known:
            hint = suggest(str(part_name), known)
            yield f"operator.sum: expected an operator in each part, got {part_name!r}{hint}"


def explain_failure(recipe: Recipe, error: Exception) -> RecipeError:
    """Explain why a model could not be built, naming the section of the recipe at fault."""
    options = recipe.operator.options

    # Python's complaint about an argument that the model passes to its operators already.
    twice = re.search(r"got multiple values for (?:keyword )?argument '(\w+)'", str(error))
    if twice and twice[1] in options:
        name = twice[1]
        owner = "the data set"
        fix = "remove it"
        body = recipe.model.parts.get("body", {})
        if name in body or name in ("dim", "heads"):
            owner = "the model"
            fix = f"change model.body.{name} instead"
        return RecipeError(
            f"operator.{name}: expected none, since {owner} defines it, got {options[name]!r}; "
            f"{fix}"
        )

    if options and str(error).startswith("operator "):
        return RecipeError(f"operator: got {options}; {error}")
    model = {"name": recipe.model.name, **recipe.model.parts}
    return RecipeError(f"model: got {model}; {error}")
