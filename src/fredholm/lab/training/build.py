"""Build data sets, loaders and the model of a recipe."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ... import models
from ...errors import FredholmError, RecipeError
from .. import data
from ..data.create import find_kind
from ..data.parts import PartDataset, Stretch
from .checks import explain_failure
from .recipe import Recipe
from .tasks import task_of

# Keys of a recipe's section `data` that are arguments of `create_dataset`.
_DATA_ARGUMENTS = (
    "path",
    "image_size",
    "val_fraction",
    "tokens",
    "max_length",
    "min_count",
    "pieces",
    "masked",
)


def build_dataset(recipe: Recipe, split: str, vocabulary: Any = None) -> Any:
    """Read one split of a recipe's data set.

    Args:
        recipe: the recipe.
        split: ``train``, ``val`` or ``test``.
        vocabulary: the vocabulary that a model reads texts with; None lets the data set make one.
    """
    arguments = data_arguments(recipe)
    dataset: Any = data.create_dataset(recipe.data.name, split, vocabulary=vocabulary, **arguments)
    dataset = with_metric(recipe, dataset)
    if recipe.data.limit is None or split == "test":
        return dataset
    return data.limit_samples(dataset, recipe.data.limit)


def with_metric(recipe: Recipe, dataset: Any) -> Any:
    """Set the metric that judges models of ``dataset``, if the recipe names one, and return it."""
    if recipe.training.metric is not None:
        dataset.metric = recipe.training.metric
    return dataset


def kind_asked(recipe: Recipe) -> Any:
    """Return the kind of a recipe's samples, as :func:`build_dataset` finds it."""
    arguments = {}
    for key, value in data_arguments(recipe).items():
        if key in ("path", "val_fraction", "options"):
            arguments[key] = value
    return find_kind(recipe.data.name, **arguments)


def data_arguments(recipe: Recipe) -> dict[str, Any]:
    """Return a recipe's arguments of :func:`fredholm.data.create_dataset`."""
    arguments = recipe.data.model_dump(include=set(_DATA_ARGUMENTS), exclude_none=True)
    if "image_size" in arguments:
        arguments["image_size"] = tuple(arguments["image_size"])

    # Recipes of images that do not mention pixels were written for RGB bytes.
    options = recipe.data.options | recipe.data.reading
    if recipe.data.name == "files" and "image_size" in arguments:
        options = {"pixels": "rgb"} | options
    return arguments | {"options": options}


class Batches:
    """A loader reduced to its iterator and length.

    Lightning would treat anything with a ``sampler`` as a torch loader, and replace the sampler.
    """

    def __init__(self, loader: Any):
        self.loader = loader

    def __iter__(self):
        return iter(self.loader)

    def __len__(self) -> int:
        return len(self.loader)

    @property
    def order(self) -> Any:
        """The loader's order, which tells which samples belong to this process."""
        return self.loader.order


class Loaders(NamedTuple):
    """A factory of training loaders, and the validation loader of this process."""

    train: Callable[[int, int], Any]
    validation: Batches


def build_loaders(
    recipe: Recipe,
    train: Any,
    val: Any,
    rank: int = 0,
    world_size: int = 1,
    encoder: Any = None,
) -> Loaders:
    """Build the loaders of training and validation.

    Batches are global: processes share them. With ``parallel.domain``, groups of that many
    neighbouring ranks get the same samples, and each rank of a group a stretch of their points.

    Args:
        recipe: the recipe.
        train, val: its data sets.
        rank, world_size: this process and the number of processes, for the validation loader. The
            training loader is made later, by ``train(rank, world_size)``.
        encoder: the model's encoder, which knows along which axis points can be divided.

    Raises:
        RecipeError: a batch is larger than the training split.
    """
    options = recipe.data
    if options.batch_size > len(train):
        raise RecipeError(
            f"data.batch_size: expected at most the {len(train)} training samples of {train.name}, "
            f"got {options.batch_size}; try data.batch_size={-(-len(train) // 4)}"
        )
    transform = train.augmentation(options.augment.model_dump())

    # The number of ranks that share each sample.
    parts = 1
    if encoder is not None:
        parts = recipe.parallel.domain

    def part_of(dataset: Any, rank: int) -> Any:
        if parts == 1:
            return dataset
        return cut_samples(dataset, encoder, rank % parts, parts)

    def make_training_loader(rank: int, world_size: int) -> Any:
        return data.make_loader(
            part_of(train, rank),
            options.batch_size,
            seed=recipe.seed,
            shuffle=True,
            augment=transform,
            drop_last=True,
            rank=rank // parts,
            world_size=world_size // parts,
        )

    groups = world_size // parts
    validation_loader = data.make_loader(
        part_of(val, rank),
        max(options.eval_batch_size, groups),
        seed=recipe.seed,
        rank=rank // parts,
        world_size=groups,
    )
    return Loaders(make_training_loader, Batches(validation_loader))


def cut_samples(dataset: Any, encoder: Any, rank: int, count: int) -> Any:
    """Return the data set in which every sample is cut to one rank's stretch of its points.

    It has as many samples as before. Labels are cut along with the inputs if the task has one at
    every point; otherwise each rank gets the label of the complete sample.

    Args:
        dataset: the complete samples.
        encoder: of the model; it knows the dimension of the inputs along which points run, and how
            many entries must stay together (its ``grain``, such as the rows of a patch).
        rank: this process among those that share a sample, from 0.
        count: number of these processes, and so of stretches.

    Raises:
        OptionError: the encoder reads complete samples only.
    """
    axis = encoder.axis
    if axis is None:
        encoder.refuse_part("it reads a sample as a whole")
    assert axis is not None

    label_axis = task_of(dataset).points
    stretch = Stretch(rank, count, axis, label_axis, encoder.grain)
    return PartDataset(dataset, stretch)


@contextmanager
def in_float32() -> Iterator[None]:
    """Make float32 the default of new tensors, as data sets are, whatever the caller's is."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float32)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


@in_float32()
def build_model(recipe: Recipe, dataset: Any) -> nn.Module:
    """Build a recipe's model for the sizes and classes of a data set.

    Its float32 weights are initialised from the recipe's seed.

    Raises:
        RecipeError: the model cannot be built.
    """
    parts: dict[str, Any] = {}
    for name, fields in recipe.model.parts.items():
        parts[name] = dict(fields)

    task = task_of(dataset)
    head = {"outputs": task.outputs(dataset.classes), **dataset.head()}
    parts["head"] = head | parts.get("head", {})

    torch.manual_seed(recipe.seed)
    try:
        parts["body"] = _operator_fields(recipe) | parts.get("body", {})
        return models.create_model(recipe.model.name, data=dataset.encoder(), **parts)
    except (FredholmError, TypeError, ValueError) as error:
        raise explain_failure(recipe, error) from error


def _operator_fields(recipe: Recipe) -> dict[str, Any]:
    """Return a recipe's operator as fields of the model's body.

    If it is the operator that the model has already, its options are changes to the model's own.
    """
    name = recipe.operator.name
    if name is None:
        return {}

    options = recipe.operator.options
    preset: Any = models.model_config(recipe.model.name).body
    if getattr(preset, "operator", None) == name:
        options = {**preset.operator_options, **options}
    return {"operator": name, "operator_options": options}


def build_mixer(recipe: Recipe, classes: int):
    """Build the blend of a batch: mixup, cutmix, or either at random; None if both are off."""
    mixup = recipe.data.mixup
    cutmix = recipe.data.cutmix
    if not mixup and not cutmix:
        return None

    def mix(images: Tensor, labels: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        # A random number is drawn only if there is a choice.
        use_cutmix = cutmix > 0
        if cutmix > 0 and mixup > 0:
            use_cutmix = float(torch.rand((), generator=generator)) < 0.5

        if use_cutmix:
            return data.cutmix(images, labels, classes, alpha=cutmix, generator=generator)
        return data.mixup(images, labels, classes, alpha=mixup, generator=generator)

    return mix
