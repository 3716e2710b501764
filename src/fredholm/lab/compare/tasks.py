"""What operators are compared on: a recipe each, with the backbone in the place of its model; and
who is compared.
"""

from __future__ import annotations

import json
import warnings
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
from ..training.recipe_files import imported_code, list_recipes, load_recipe
from ..training.recipe_text import parse, plain
from ..training.sweeps import split_values

_SIZES = ("dim", "depth", "heads", "dropout")


@dataclass(frozen=True)
class ComparedTask:
    """One task of a comparison.

    Attributes:
        name, title: how it is called, and what it is.
        recipe: a built-in recipe's name, a YAML file or its plain data: data, optimizer, schedule.
        overrides: what changes in it, such as the backbone in the place of its model and fewer
            samples.
        operator_options: of single operators on this task, such as ckconv's ``omega``.
    """

    name: str
    title: str
    recipe: str | dict[str, Any]
    overrides: tuple[str, ...] = ()
    operator_options: dict[str, dict[str, Any]] = field(default_factory=dict)


_TASKS: Registry[ComparedTask] = Registry("task", home="fredholm.lab.compare.known")


def register_task(task: ComparedTask) -> ComparedTask:
    """Make a task known by its name.

    Raises:
        OptionError: the name is taken.
    """
    return _TASKS.add(task.name, task)


def list_tasks() -> list[str]:
    """Names of registered tasks, in the order of registration.

    Example:
        >>> list_tasks()[:2]
        ['digits', 'fashion-mnist']
    """
    _TASKS.names()  # fills the table
    return [task.name for task in _TASKS.registered()]


def find_task(
    name: str, changes: tuple[str, ...] = (), *, trust_code: bool = False
) -> ComparedTask:
    """A registered task; or a recipe, by name, file or run folder, or files of the user's: in the
    backbone, where its own model is another, of the width, depth and heads that the recipe has.

    ``changes`` are further overrides of it. A recipe's imports are executed, once, so that what
    they register is known afterwards; ``trust_code``: those of a run folder, see
    :func:`fredholm.training.load_recipe`.

    Raises:
        OptionError: neither a task nor a recipe.
        TrustError: a run folder whose recipe imports a file, without ``trust_code``.
        RecipeError, DataError: a recipe or files that cannot be read.
    """
    if name in _TASKS:
        task = _TASKS[name]
        return replace(task, overrides=(*task.overrides, *changes))
    if _names_recipe(name) or name in list_recipes() or names_files(name):
        recipe = load_recipe(name, changes, trust_code=trust_code)
        # Of files what was found is kept: a recipe of their path would look at all of them again.
        known = recipe.to_dict() if names_files(name) else name
        anew: tuple[str, ...] = ()
        if recipe.init_from is not None:
            what = f"{recipe.name}: compared without init_from; all begin with weights of their own"
            warnings.warn(what, stacklevel=2)
            anew = ("init_from=null",)
        overrides = (*_neutral(recipe), *changes, *anew)
        return ComparedTask(recipe.name, recipe.name, known, overrides)
    raise OptionError(
        f"task: received {name!r}; needs a task, a recipe or files of yours (with a separator, as "
        f"./{name}){suggest(name, [*_TASKS, *list_recipes()])}{where_to_get(name, checkout.TASKS)}"
    )


def _names_recipe(source: str) -> bool:
    """Whether a source is a recipe's file or a run folder."""
    return source.endswith((".yaml", ".yml")) or (Path(source) / "recipe.yaml").is_file()


def code_of(source: str | dict[str, Any]) -> list[Path]:
    """The files that the recipe behind a compared source imports; executes none of them.

    Raises:
        RecipeError: the recipe cannot be read.
    """
    if isinstance(source, dict):
        return imported_code(source)
    if source in _TASKS or names_files(source) or not _names_recipe(source):
        return []
    return imported_code(Path(source).expanduser().absolute())


def _neutral(recipe: Recipe) -> tuple[str, ...]:
    """Overrides that put the backbone in the place of another model of one signal, as large; where
    a sample is more, such as a graph, the recipe's own stays, which no baseline serves.
    """
    preset: Any = models.model_config(recipe.model.name)
    data = get_entry(recipe.data.name).kind  # of files of the user's not known yet
    if preset.body.kind == "backbone" or not data.single:
        return ()
    kind = data.encoder
    body = {key: getattr(preset.body, key) for key in _SIZES if hasattr(preset.body, key)}
    body |= {key: value for key, value in recipe.model.body.items() if key in _SIZES}
    encoder = _encoder(recipe, kind)
    patch = getattr(preset.encoder, "patch", None) if kind == preset.encoder.data else None
    if patch is not None and "patch" in ENCODERS[encoder.get("kind", kind)].fields():
        encoder = {"patch": patch} | encoder
    head = {key: value for key, value in recipe.model.head.items() if key == "pool"}
    model = {"name": "backbone_nano", "body": body, "encoder": encoder, "head": head}
    return (f"model={json.dumps(model)}",)


def _encoder(recipe: Recipe, kind: str) -> dict[str, Any]:
    """The recipe's encoder as the backbone takes it, which takes none with a width of its own; what
    its own of this ``kind`` of data has no use for is left out and said.
    """
    given = dict(recipe.model.encoder)
    if ENCODERS[given.get("kind", kind)].own_width:
        del given["kind"]
    reader = ENCODERS[given.get("kind", kind)]
    used = {"kind", *reader.fields()} - set(reader.idle(given))
    left = sorted(set(given) - used)
    if left:
        warnings.warn(
            f"{recipe.name}: compared without the encoder's {', '.join(left)}, for which the "
            f"backbone's encoder {reader.kind!r} has no use",
            stacklevel=2,
        )
    return {key: value for key, value in given.items() if key in used}


@dataclass(frozen=True)
class Contender:
    """An operator or baseline with its options; ``label`` names it in tables."""

    label: str
    name: str
    options: dict[str, Any]


def read_contenders(text: str | None) -> list[Contender]:
    """Operators from ``"itnet,softmax,{name: luna, channels: 4}"``; None: every registered operator
    and baseline.

    Raises:
        OptionError: an unknown operator, or the same one twice.

    Example:
        >>> [c.label for c in read_contenders("gru,{name: luna, channels: 4}")]
        ['gru', 'luna channels=4']
    """
    every = [*operators.list_operators(), *models.list_baselines()]
    known, contenders = [*every, "sum"], []
    for part in every if text is None else split_values(text):
        value = plain(parse(part, "operators")) if part.startswith("{") else {"name": part}
        if not isinstance(value, dict) or value.get("name") not in known:
            name = value.get("name") if isinstance(value, dict) else part
            raise OptionError(
                f"operators: received {name!r}; needs an operator or "
                f"baseline{suggest(str(name), known)}"
            )
        name = value.pop("name")
        label = " ".join([name, *(f"{key}={option}" for key, option in value.items())])
        contenders.append(Contender(label, name, value))
    labels = [c.label for c in contenders]
    if len(set(labels)) < len(labels):
        raise OptionError(f"operators: received {text!r}; needs each of them once")
    return contenders


def small_options(name: str) -> dict[str, Any]:
    """What an operator says of itself at the size of the backbone (:attr:`IntegralOperator.small`);
    baselines say nothing.

    Example:
        >>> small_options("ckconv"), small_options("gru")
        ({'width': 16}, {})
    """
    factory = OPERATORS.get(name)
    kind = factory if isinstance(factory, type) else object
    return dict(kind.small) if issubclass(kind, IntegralOperator) else {}


def options_of(task: ComparedTask, contender: Contender) -> dict[str, Any]:
    """A contender's options on a task: the small size's, then the task's, then its own."""
    return {
        **small_options(contender.name),
        **task.operator_options.get(contender.name, {}),
        **contender.options,
    }
