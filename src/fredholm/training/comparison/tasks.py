"""What operators are compared on: a recipe each, with the backbone in the place of its model, small
enough for a CPU.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from typing import Any

from ... import models, operators
from ...data.registry import get_entry
from ...errors import OptionError, suggest
from ...registry import Registry
from ..own_files import names_files
from ..recipe import Recipe
from ..recipe_files import list_recipes, load_recipe
from ..recipe_text import parse, plain
from ..sweeps import split_values

# Options at the size of the backbone, where an operator's own defaults are those of a large model.
SMALL: dict[str, dict[str, Any]] = {
    "itnet": {"width": 16, "frequencies": 16, "sigma": 3.0},
    "itnet_low_rank": {"width": 16, "rank": 4, "frequencies": 16, "sigma": 3.0},
    "ckconv": {"width": 16},
}
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


_TASKS: Registry[ComparedTask] = Registry("task", home=None)


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
    return [task.name for task in _TASKS.registered()]


def find_task(name: str, changes: tuple[str, ...] = ()) -> ComparedTask:
    """A registered task; or a recipe, by name or file, or files of the user's: in the backbone,
    where its own model is another, of the width, depth and heads that the recipe has.

    ``changes`` are further overrides of it. A recipe's imports are executed, once, so that what
    they register is known afterwards.

    Raises:
        OptionError: neither a task nor a recipe.
        RecipeError, DataError: a recipe or files that cannot be read.
    """
    if name in _TASKS:
        task = _TASKS[name]
        return replace(task, overrides=(*task.overrides, *changes))
    if name.endswith((".yaml", ".yml")) or name in list_recipes() or names_files(name):
        recipe = load_recipe(name, changes)
        return ComparedTask(recipe.name, recipe.name, name, (*_neutral(recipe), *changes))
    raise OptionError(
        f"task: received {name!r}; needs a task, a recipe or files of yours (with a separator, as "
        f"./{name}){suggest(name, [*_TASKS, *list_recipes()])}"
    )


def _neutral(recipe: Recipe) -> tuple[str, ...]:
    """Overrides that put the backbone in the place of another model of one signal, as large; graphs
    and pictures with questions keep theirs, which no baseline serves.
    """
    preset: Any = models.model_config(recipe.model.name)
    kind = get_entry(recipe.data.name).kind.encoder  # of files of the user's not known yet
    if preset.body.kind == "backbone" or kind in ("graph", "multimodal"):
        return ()
    body = {key: getattr(preset.body, key) for key in _SIZES if hasattr(preset.body, key)}
    body |= {key: value for key, value in recipe.model.body.items() if key in _SIZES}
    patch = getattr(preset.encoder, "patch", None) if kind == preset.encoder.data else None
    encoder = {} if patch is None else {"patch": patch}
    encoder |= {k: v for k, v in recipe.model.encoder.items() if k in ("patch", "causal")}
    head = {key: value for key, value in recipe.model.head.items() if key == "pool"}
    model = {"name": "backbone_nano", "body": body, "encoder": encoder, "head": head}
    return (f"model={json.dumps(model)}",)


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


def options_of(task: ComparedTask, contender: Contender) -> dict[str, Any]:
    """A contender's options on a task: the small size's, then the task's, then its own."""
    return {
        **SMALL.get(contender.name, {}),
        **task.operator_options.get(contender.name, {}),
        **contender.options,
    }


def _backbone(*overrides: str) -> tuple[str, ...]:
    return ("model=backbone_nano", *overrides)


_SHORT = "optimizer={name: adamw, lr: 3e-3, weight_decay: 0.01}"

for _task in (
    ComparedTask(
        "digits",
        "8x8 handwritten digits, 16 patches",
        "digits",
        _backbone("model.encoder.patch=2", "training.epochs=20", "training.ema_decay=null"),
    ),
    ComparedTask(
        "fashion-mnist",
        "4,000 pictures of clothes, 16 patches of 7x7 pixels",
        "fashion-mnist",
        _backbone(
            "model.encoder.patch=7",
            "data.limit=4000",
            "data.batch_size=64",
            "training.epochs=6",
            "training.ema_decay=null",
        ),
    ),
    ComparedTask(
        "cifar10",
        "4,000 colour photographs, 64 patches of 4x4 pixels",
        "cifar10",
        _backbone(
            "data.limit=4000",
            "data.batch_size=64",
            "data.mixup=0.0",
            "training.epochs=8",
            "training.ema_decay=null",
            _SHORT,
            "schedule.warmup_epochs=1",
        ),
    ),
    ComparedTask(
        "movie-reviews",
        "sentiment of 3,000 sentences, at most 24 words",
        "reviews",
        _backbone(
            "data.limit=3000",
            "data.max_length=24",
            "training.epochs=5",
            "model.body.dropout=0.2",
            _SHORT,
        ),
    ),
    ComparedTask(
        "movie-bytes",
        "sentiment of 3,000 sentences as at most 128 bytes",
        "reviews",
        _backbone(
            "data.limit=3000",
            "data.tokens=bytes",
            "data.max_length=128",
            "training.epochs=6",
            _SHORT,
        ),
    ),
    ComparedTask(
        "japanese-vowels",
        "nine speakers by two vowels, 12 channels, 7 to 29 samples",
        "ckcnn-japanese-vowels",
        _backbone("training.epochs=40", "model.body.dropout=0.1", _SHORT),
        {"ckconv": {"omega": 8.0}},
    ),
    ComparedTask(
        "plaid",
        "electric current of 11 appliances at an eighth of the rate, up to 168 samples",
        "ckcnn-plaid",
        _backbone("data.options={every: 8}", "training.epochs=20", _SHORT),
        {"ckconv": {"omega": 30.0}},
    ),
    ComparedTask(
        "copy-memory",
        "repeat ten symbols after 20 steps, in causal order",
        "ckcnn-copy-memory",
        _backbone(
            "model.head.pool=every",
            "model.encoder.causal=true",
            "data.options={delay: 20}",
            "data.limit=2000",
            "training.epochs=8",
            _SHORT,
        ),
        {"ckconv": {"omega": 19.2}},
    ),
    ComparedTask(
        "adding",
        "the sum of two marked numbers among 50 (mean squared error)",
        "ckcnn-adding",
        _backbone("data.options={length: 50}", "data.limit=4000", "training.epochs=6", _SHORT),
        {"ckconv": {"omega": 14.55}},
    ),
    ComparedTask(
        "listops",
        "nested lists of 5 to 40 symbols, 4,000 of them",
        "lra-listops",
        _backbone(
            "data.options={min_length: 5, max_length: 40, max_depth: 3, max_args: 4, train: 4000, "
            "val: 500, test: 2000}",
            "training.epochs=8",
            _SHORT,
        ),
    ),
    ComparedTask(
        "kicad",
        "2,000 clouds of 64 points on electronic parts, 26 kinds",
        "itnet-kicad",
        _backbone(
            "data.options={points: 64}",
            "data.limit=2000",
            "training.epochs=6",
            "training.label_smoothing=0.0",
        ),
    ),
    ComparedTask(
        "kjv",
        "the next character of the King James Bible, 2,000 windows of 64",
        "itnet-kjv",
        _backbone(
            "model.encoder.causal=true",
            "model.head.pool=every",
            "data.max_length=64",
            "data.limit=2000",
            "training.epochs=3",
            "schedule.warmup_epochs=0.3",
        ),
    ),
    ComparedTask(
        "darcy",
        "from a medium to the pressure in it on a 16 x 16 grid, 400 samples",
        "itnet-darcy",
        _backbone("model.encoder.sigma=1.0", "data.limit=400", "training.epochs=10"),
    ),
    ComparedTask(
        "debian-graph",
        "the section of 2,000 Debian packages from their and 7 neighbours' words, in ITNet's graph "
        "model",
        "itnet-debian-graph",
        (
            "model.body.depth=1",
            "data.options={size: 8, eigenvectors: 4}",
            "data.limit=2000",
            "training.epochs=3",
        ),
    ),
):
    register_task(_task)
