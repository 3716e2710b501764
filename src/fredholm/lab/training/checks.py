"""Checks of a recipe against the registries: data sets, models and their fields, operators and
their options.
"""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...errors import RecipeError, TrustError, suggest
from .recipe import Recipe
from .recipe_text import Word, plain

if TYPE_CHECKING:
    from ..data.kinds.kind import Kind
    from .tasks import Task

# Fields of a part that sections of their own or the data set say, so a recipe may not set them a
# second time.
_ELSEWHERE = {
    "operator": "operator.name",
    "operator_options": "operator.<option>",
    "outputs": "the data set",
    "image_size": "data.image_size",
    "max_length": "data.max_length",
    "eigenvectors": "the data set (data.options)",
}


def code_files(files: list[str], folder: Path) -> list[Path]:
    """The absolute paths of a recipe's imports, relative to ``folder``; nothing is imported.

    Raises:
        RecipeError: a file is missing, is not a ``.py`` file, or has the name of another, under
            which a run would keep one of them alone.
    """
    paths = [(folder / name).resolve() for name in files]
    for name, path in zip(files, paths):
        if path.suffix != ".py" or not path.is_file():
            raise RecipeError(
                f"import: received {name!r}; needs an existing .py file (looked for {str(path)!r})"
            )
    for i, path in enumerate(paths):
        twin = next((p for p in paths[:i] if p.name == path.name and p != path), None)
        if twin is not None:
            raise RecipeError(
                f"import: received {str(twin)!r} and {str(path)!r}; needs files of different "
                "names, under which a run keeps them: rename one"
            )
    return paths


def import_files(files: list[str], folder: Path, trust_code: bool = True) -> list[str]:
    """Import the user's files, paths relative to ``folder``, and return their absolute paths.

    Raises:
        RecipeError: a file is missing, is no ``.py`` file, or fails to import.
        TrustError: without ``trust_code``, a file whose content this process has not imported yet.
    """
    from ...integral.registry import import_file, was_imported

    paths = code_files(files, folder)
    foreign = [str(path) for path in paths if not (trust_code or was_imported(path))]
    if foreign:  # all of them are looked at before any of them runs
        raise TrustError(
            f"{folder}: its recipe imports {', '.join(map(repr, foreign))}, which would be "
            "executed; read it, and if you trust it, add --trust-code (in Python: trust_code=True)"
        )
    for name, path in zip(files, paths):
        try:
            import_file(path)
        except Exception as error:  # whatever the user's own code raises
            raise RecipeError(f"import: {name} failed: {type(error).__name__}: {error}") from error
    return [str(path) for path in paths]


def settle_words(recipe: Recipe) -> None:
    """Make a bare ``yes``, ``no``, ``on`` or ``off`` in the sections without types of their own
    what its field takes: text where a model's field or an operator's option takes text, else a
    truth value.
    """
    classes = _part_classes(recipe)
    sections = [
        (fields, {"kind", *_text_fields(classes.get(name, []))})
        for name, fields in recipe.model.parts.items()
    ]
    sections.append((recipe.operator.model_extra or {}, _text_options(recipe.operator.name)))
    sections.append((recipe.data.options, set()))
    for section, text in sections:
        for key, value in section.items():
            section[key] = str(value) if isinstance(value, Word) and key in text else plain(value)


def _part_classes(recipe: Recipe) -> dict[str, list[Any]]:
    """The configurations that each part of a recipe's model can have. Which encoder it is, the data
    decide where the recipe does not name its kind: so all of them.
    """
    from ... import models
    from ...models.encoders import ENCODERS

    if recipe.model.name not in models.list_models():
        return {}
    preset = models.model_config(recipe.model.name)
    tables: dict[str, Any] = {"encoder": ENCODERS, "body": models.BODIES, "head": models.HEADS}
    result = {}
    for name, table in tables.items():
        fields, kinds = getattr(recipe.model, name), table.names()
        if "kind" in fields:
            kinds = [kind for kind in kinds if kind == fields["kind"]]
        elif name != "encoder":
            kinds = [getattr(preset, name).kind]
        result[name] = [table[kind] for kind in kinds]
    return result


def _text_fields(classes: list[Any]) -> set[str]:
    fields = [field for cls in classes for field in dataclasses.fields(cls)]
    return {field.name for field in fields if _takes_text(field.type)}


def _text_options(operator: str | None) -> set[str]:
    from ...integral.registry import operator_parameters
    from ...operators import list_operators

    if operator not in list_operators():
        return set()
    return {p.name for p in operator_parameters(operator) if _takes_text(p.annotation)}


def _takes_text(annotation: Any) -> bool:
    """Whether text is among the types of an annotation, as it is written; Mapping[str, int] takes
    none.
    """
    text, inner = str(annotation), 1
    while inner:
        text, inner = re.subn(r"\[[^][]*\]", "", text)
    return re.search(r"\b(str|Literal)\b", text) is not None


def check(recipe: Recipe) -> None:
    """Refuse names and fields that no registry knows.

    Raises:
        RecipeError: one line per problem.
    """
    problems = [*_data_problems(recipe), *_model_problems(recipe), *_operator_problems(recipe)]
    problems += _metric_problems(recipe)
    if problems:
        raise RecipeError("\n".join(problems))


def _metric_problems(recipe: Recipe):
    """Metrics by names that no task could give."""
    from .metrics import METRICS, direction
    from .tasks import TASKS, create_task

    name, stop = recipe.training.metric, recipe.training.early_stop
    own = {given.removeprefix("val_") for task in TASKS for given in create_task(task).reports()}
    if name not in (None, *METRICS, *own):
        known = suggest(name, sorted({*METRICS, *own}))
        yield f"training.metric: received {name!r}; needs a metric{known}"
    known = ["train_loss", *(f"val_{one}" for one in sorted({*own, *([name] if name else [])}))]
    asked = {"schedule.metric": recipe.schedule.metric}
    asked |= {} if stop is None else {"training.early_stop.metric": stop.metric}
    for key, metric in asked.items():
        if metric not in (None, *known):
            yield f"{key}: received {metric!r}; needs a metric{suggest(metric, known)}"
    if stop is not None and None not in (stop.mode, stop.metric):
        usual = stop.metric in ("train_loss", "val_loss", "val_accuracy", f"val_{name}")
        if usual and stop.mode != direction(str(stop.metric)):
            got = f"{stop.mode!r} for {stop.metric}"
            yield f"training.early_stop.mode: received {got}; needs the other, or leave it out"


def _data_problems(recipe: Recipe):
    from .. import data

    known = data.list_datasets()
    if recipe.data.name not in known:
        name = recipe.data.name
        yield f"data.name: received {name!r}; needs a data set{suggest(name, known)}"
    else:
        entry = data.get_entry(recipe.data.name)
        for key, what in entry.needs.items():
            if getattr(recipe.data, key) is None:
                yield f"data.{key}: missing; {entry.name} needs {what}"
        if entry.kind_at is None:  # else the files tell it, when they are read
            yield from _kind_problems(recipe, entry.kind)
            for key, value in recipe.data.reading.items():
                what = f"{entry.name} says it itself, remove it"
                yield f"data.{key}: received {value!r}; {what}"


def check_read(recipe: Recipe, kind: Kind) -> None:
    """Refuse options that do not suit the user's files, whose kind is known once they are read.

    Raises:
        RecipeError: one line per problem.
    """
    from .. import data

    if data.get_entry(recipe.data.name).kind_at is None:
        return
    problems = list(_kind_problems(recipe, kind))
    if problems:
        raise RecipeError("\n".join(problems))


def check_task(recipe: Recipe, task: Task) -> None:
    """Refuse what does not suit what is asked of the samples, which the data set says.

    Raises:
        RecipeError: one line per problem.
    """
    problems = list(_task_problems(recipe, task))
    if problems:
        raise RecipeError("\n".join(problems))


def _task_problems(recipe: Recipe, task: Task):
    """Blended classes where there are none, and a metric that a validation does not report."""
    for key in ("mixup", "cutmix"):
        value = getattr(recipe.data, key)
        if value and not task.classifies:
            what = f"classes are blended, and the labels are {task.name}; remove it"
            yield f"data.{key}: received {value!r}; {what}"
    stop = recipe.training.early_stop
    asked = {"schedule.metric": recipe.schedule.metric}
    asked |= {} if stop is None else {"training.early_stop.metric": stop.metric}
    for key, metric in asked.items():
        known = () if metric is None else ("train_loss", *task.reports())
        if metric not in (None, *known):
            yield f"{key}: received {metric!r}; needs one of {', '.join(known)}"


def _kind_problems(recipe: Recipe, kind: Kind):
    """Options of one kind of data given for another."""
    from ..data.kinds.kind import KINDS

    if recipe.training.phases is not None and "max_length" not in kind.takes:
        what = f"{recipe.data.name} holds {kind.name}, which have no max_length; remove it"
        yield f"training.phases: {what}"
    augment = {f"augment.{key}": value for key, value in recipe.data.augment.model_dump().items()}
    given = recipe.data.model_dump() | augment
    for key in sorted({key for each in KINDS.values() for key in each.takes} - {*kind.takes}):
        if given.get(key):
            what = f"{recipe.data.name} holds {kind.name}"
            yield f"data.{key}: received {given[key]!r}; {what}, remove it"


def _model_problems(recipe: Recipe):
    from ... import models

    known = models.list_models()
    if recipe.model.name not in known:
        name = recipe.model.name
        yield f"model.name: received {name!r}; needs a model{suggest(name, known)}"
        return
    classes = _part_classes(recipe)
    for name, fields in recipe.model.parts.items():
        yield from _part_problems(name, fields, classes[name])


def _part_problems(name: str, fields: dict[str, Any], classes: list[Any]):
    from ... import models
    from ...models.encoders import ENCODERS

    if not classes:
        tables = {"encoder": ENCODERS, "body": models.BODIES, "head": models.HEADS}
        kind = str(fields["kind"])
        yield f"model.{name}.kind: received {kind!r}{suggest(kind, tables[name].names())}"
        return
    said = {key for cls in classes for key in getattr(cls, "of_data", ())}
    known = {"kind", *(key for cls in classes for key in cls.fields())}
    for key, value in fields.items():
        place = f"model.{name}.{key}"
        if key in said or key in _ELSEWHERE:
            section = _ELSEWHERE.get(key, "the data set")
            yield f"{place}: received {value!r}; set by {section}, remove it here"
        elif key not in known:
            allowed = sorted(known - said - _ELSEWHERE.keys())
            yield f"{place}: unknown key (received {value!r}){suggest(key, allowed)}"


def _operator_problems(recipe: Recipe):
    from ... import models, operators

    name = recipe.operator.name
    if name is None:
        return
    parts = recipe.operator.options.get("parts") if name == "sum" else None
    known = [*operators.list_operators(), *models.list_baselines(), "sum"]
    if name not in known:
        yield f"operator.name: received {name!r}; needs an operator{suggest(name, known)}"
    for part in parts if isinstance(parts, list) else []:
        each = part.get("name") if isinstance(part, dict) else part
        if each not in known:
            hint = suggest(str(each), known)
            yield f"operator.sum: received {each!r} among the parts; needs an operator{hint}"


def explain_failure(recipe: Recipe, error: Exception) -> RecipeError:
    """A model that could not be built from a recipe, as one message naming the section at fault."""
    twice = re.search(r"got multiple values for (?:keyword )?argument '(\w+)'", str(error))
    if twice and twice[1] in recipe.operator.options:
        name = twice[1]
        own = name in recipe.model.parts.get("body", {}) or name in ("dim", "heads")
        said = f"the model says it, change model.body.{name}" if own else "the data say it"
        return RecipeError(
            f"operator.{name}: received {recipe.operator.options[name]!r}; {said}"
            f"{' instead' if own else ', remove it'}"
        )
    section = (
        "operator" if recipe.operator.options and str(error).startswith("operator ") else "model"
    )
    received = (
        recipe.operator.options
        if section == "operator"
        else {"name": recipe.model.name, **recipe.model.parts}
    )
    return RecipeError(f"{section}: received {received}; {error}")
