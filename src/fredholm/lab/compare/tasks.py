"""Tasks that operators are compared on, and the operators and baselines that are compared.

A task is a recipe whose model is replaced by the backbone.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ... import models, operators
from ...errors import OptionError, suggest
from ...integral import IntegralOperator
from ...integral.registry import OPERATORS
from ...models.encoders import ENCODERS
from ...registry import Registry
from .. import checkout
from ..checkout import where_to_get
from ..data.registry import get_entry
from ..training.own_files import names_files
from ..training.recipe import Recipe
from ..training.recipe_files import (
    import_overrides,
    imported_code,
    load_recipe,
    override_code,
)
from ..training.recipe_paths import find_built_in, list_recipes
from ..training.recipe_text import parse, plain
from ..training.sweeps import split_values

# Fields of a body that the backbone takes over from a recipe's own model.
_SIZES = ("dim", "depth", "heads", "dropout")


@dataclass(frozen=True)
class ComparedTask:
    """One task of a comparison.

    Attributes:
        name: unique among the tasks.
        title: its description in words.
        recipe: name of a built-in recipe, a YAML file or its plain data.
        overrides: of the recipe, such as the backbone as its model, and fewer samples.
        operator_options: options of single operators on this task, such as ckconv's ``omega``.
    """

    name: str
    title: str
    recipe: str | dict[str, Any]
    overrides: tuple[str, ...] = ()
    operator_options: dict[str, dict[str, Any]] = field(default_factory=dict)


_TASKS: Registry[ComparedTask] = Registry("task", home="fredholm.lab.compare.known")


def register_task(task: ComparedTask) -> ComparedTask:
    """Register a task under its name.

    Raises:
        OptionError: the name is taken.
    """
    return _TASKS.add(task.name, task)


def list_tasks() -> list[str]:
    """Return the names of registered tasks, in the order of registration.

    Example:
        >>> list_tasks()[:2]
        ['digits', 'fashion-mnist']
    """
    # The first look-up fills the table.
    _TASKS.names()
    return [task.name for task in _TASKS.registered()]


def find_task(
    name: str,
    changes: tuple[str, ...] = (),
    *,
    trust_code: bool = False,
) -> ComparedTask:
    """Return a registered task, or one made of a recipe or of the user's files.

    If the recipe has another model, the backbone replaces it, with the recipe's width, depth and
    heads. Imports of a recipe are executed once, so that what they register is known afterwards.

    Args:
        name: a registered task; or a recipe, by name, file or run folder; or files.
        changes: further overrides of the recipe.
        trust_code: of a run folder, see :func:`fredholm.training.load_recipe`.

    Raises:
        OptionError: neither a task nor a recipe.
        TrustError: a run folder whose recipe imports a file, without ``trust_code``.
        RecipeError, DataError: a recipe or files that cannot be read.
    """
    if name in _TASKS:
        task = _TASKS[name]
        return replace(
            task,
            recipe=_built_in(task.recipe),
            overrides=(*task.overrides, *changes),
        )

    of_files = names_files(name)
    if not (_names_recipe(name) or name in list_recipes() or of_files):
        hint = suggest(name, [*_TASKS, *list_recipes()])
        hint += where_to_get(name, checkout.TASKS)
        raise OptionError(
            f"task: expected a task, a recipe or files of yours (with a separator, as ./{name}), "
            f"got {name!r}{hint}"
        )

    recipe = load_recipe(name, changes, trust_code=trust_code)
    source: str | dict[str, Any] = name
    if of_files:
        # The path alone would have all files inspected again whenever the recipe is made.
        source = recipe.to_dict()
    overrides = [*_backbone_overrides(recipe), *changes]
    if recipe.init_from is not None:
        warnings.warn(
            f"{recipe.name}: compared without init_from; every model starts from its own random "
            "weights",
            stacklevel=2,
        )
        overrides.append("init_from=null")
    return ComparedTask(
        recipe.name,
        recipe.name,
        source,
        tuple(overrides),
    )


def _names_recipe(source: str) -> bool:
    """Return whether a source is a recipe's file or a run folder."""
    if source.endswith((".yaml", ".yml")):
        return True
    return (Path(source) / "recipe.yaml").is_file()


def code_of(
    source: str | dict[str, Any],
    changes: Sequence[str] = (),
) -> list[Path]:
    """Return the files that the recipe behind a source and changes of it import, without executing
    them.

    Raises:
        RecipeError: the recipe cannot be read.
    """
    if isinstance(source, dict):
        return imported_code(source, changes)
    recipe = _recipe_path(source)
    if recipe is None:
        # A task or a built-in recipe imports no files.
        return override_code(changes)
    return imported_code(recipe, changes)


def import_changes(
    sources: Iterable[str],
    changes: Sequence[str],
    *,
    trust_code: bool = False,
) -> None:
    """Import the files that changes name, before the recipes of ``sources`` are read.

    Raises:
        RecipeError: a missing file, or one that fails to import.
        TrustError: one of the sources is a run folder, without ``trust_code``.
    """
    # The name of a task never means a run folder, even where one of this name exists.
    recipes = [source for source in sources if source not in _TASKS]
    import_overrides(recipes, changes, trust_code=trust_code)


def absolute_source(source: str) -> str:
    """Return the source of a comparison, absolute if it is a recipe's file or a run folder."""
    path = _recipe_path(source)
    if path is None:
        return source
    return str(path)


def _recipe_path(source: str) -> Path | None:
    """Return the absolute path of a recipe's file or run folder; None for another source."""
    if source in _TASKS or names_files(source) or not _names_recipe(source):
        return None
    return Path(source).expanduser().absolute()


def _built_in(recipe: str | dict[str, Any]) -> str | dict[str, Any]:
    """Return the recipe of a registered task: its path, where another file or folder of its name
    would be read instead.
    """
    if isinstance(recipe, str) and Path(recipe).exists():
        path = find_built_in(recipe)
        if path is not None:
            return str(path)
    return recipe


def _backbone_overrides(recipe: Recipe) -> tuple[str, ...]:
    """Return overrides that replace a recipe's model by a backbone of the same size.

    The backbone has the recipe's width, depth, heads and dropout, the options of its encoder that
    the backbone's encoder knows, and its read-out. There are no overrides if the recipe's model is
    a backbone already, or if a sample is more than one signal, such as a graph with its edges: the
    recipe keeps its own model then, in which only the operators, and no baselines, can be compared.
    """
    preset: Any = models.model_config(recipe.model.name)
    # The kind of a user's files is not known yet; the registered entry stands for all of them.
    data = get_entry(recipe.data.name).kind
    if preset.body.kind == "backbone" or not data.single:
        return ()

    # The recipe's own fields come before those of the preset that it names.
    body = {}
    for key in _SIZES:
        if hasattr(preset.body, key):
            body[key] = getattr(preset.body, key)
    for key, value in recipe.model.body.items():
        if key in _SIZES:
            body[key] = value
    encoder = _encoder_options(recipe, data.encoder)
    # A preset for the same kind of data may also set the side of a patch, and with it the number of
    # points.
    if data.encoder == preset.encoder.data:
        patch = getattr(preset.encoder, "patch", None)
        reader = ENCODERS[encoder.get("kind", data.encoder)]
        if patch is not None and "patch" in reader.fields():
            encoder = {"patch": patch, **encoder}

    head = {}
    if "pool" in recipe.model.head:
        head["pool"] = recipe.model.head["pool"]
    model = {
        "name": "backbone_nano",
        "body": body,
        "encoder": encoder,
        "head": head,
    }
    return (f"model={json.dumps(model)}",)


def _encoder_options(recipe: Recipe, kind: str) -> dict[str, Any]:
    """Return the options of the recipe's encoder that the backbone's encoder has a use for, and
    warn about the others.

    An encoder with a width of its own does not fit the backbone; the usual one of this ``kind`` of
    data replaces it.
    """
    options = dict(recipe.model.encoder)
    if ENCODERS[options.get("kind", kind)].own_width:
        del options["kind"]
    reader = ENCODERS[options.get("kind", kind)]
    used = {"kind", *reader.fields()} - set(reader.idle(options))
    unused = sorted(set(options) - used)
    if unused:
        warnings.warn(
            f"{recipe.name}: compared without the encoder's {', '.join(unused)}, for which the "
            f"backbone's encoder {reader.kind!r} has no use",
            stacklevel=2,
        )
    return {key: value for key, value in options.items() if key in used}


@dataclass(frozen=True)
class Contender:
    """An operator or baseline with its options; ``label`` names it in tables."""

    label: str
    name: str
    options: dict[str, Any]


def read_contenders(text: str | None) -> list[Contender]:
    """Parse operators such as ``"itnet,softmax,{name: luna, channels: 4}"``.

    None stands for every registered operator and baseline.

    Raises:
        OptionError: an unknown operator, or the same one twice.

    Example:
        >>> [c.label for c in read_contenders("gru,{name: luna, channels: 4}")]
        ['gru', 'luna channels=4']
    """
    every = [*operators.list_operators(), *models.list_baselines()]
    if text is None:
        return [Contender(name, name, {}) for name in every]

    # The sum is a baseline only for those who ask for it.
    known = [*every, "sum"]
    contenders = []
    for part in split_values(text):
        options: Any = {"name": part}
        if part.startswith("{"):
            options = plain(parse(part, "operators"))
        name = part
        if isinstance(options, dict):
            name = options.pop("name", None)
        if name not in known:
            hint = suggest(str(name), known)
            raise OptionError(f"operators: expected operators or baselines, got {name!r}{hint}")
        label = name
        for key, option in options.items():
            label += f" {key}={option}"
        contenders.append(Contender(label, name, options))

    labels = {contender.label for contender in contenders}
    if len(labels) < len(contenders):
        raise OptionError(f"operators: expected each of them once, got {text!r}; leave one out")
    return contenders


def small_options(name: str) -> dict[str, Any]:
    """Return a copy of an operator's options at the size of the backbone
    (:attr:`IntegralOperator.small`): they replace defaults that are meant for large models.

    Baselines and unknown names have none.

    Example:
        >>> small_options("ckconv"), small_options("gru")
        ({'width': 16}, {})
    """
    operator = OPERATORS.get(name)
    if isinstance(operator, type) and issubclass(operator, IntegralOperator):
        return dict(operator.small)
    return {}


def options_of(task: ComparedTask, contender: Contender) -> dict[str, Any]:
    """Return a contender's options on a task: those of the small size, which the task's and then
    its own replace.
    """
    return {
        **small_options(contender.name),
        **task.operator_options.get(contender.name, {}),
        **contender.options,
    }
