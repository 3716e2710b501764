"""From a recipe to data sets, loaders and a model."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from ...errors import FredholmError, RecipeError
from .checks import explain_failure
from .recipe import Recipe
from .tasks import task_of

# Keys of a recipe's section `data` that are arguments of `create_dataset`.
_OF_DATA = (
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
    """The data set of one split, at the recipe's image size or length; of text, with a model's own
    ``vocabulary`` where given.
    """
    from .. import data

    given = data_arguments(recipe)
    result: Any = data.create_dataset(recipe.data.name, split, vocabulary=vocabulary, **given)
    result = judged(recipe, result)
    if recipe.data.limit is None or split == "test":
        return result
    return data.limit_samples(result, recipe.data.limit)


def judged(recipe: Recipe, dataset: Any) -> Any:
    """The data set, whose models are judged by the recipe's metric, where it names one."""
    if recipe.training.metric is not None:
        dataset.metric = recipe.training.metric
    return dataset


def kind_asked(recipe: Recipe) -> Any:
    """The kind of the recipe's samples, as :func:`build_dataset` finds it."""
    from ..data.create import find_kind

    given = data_arguments(recipe)
    known = {key: given[key] for key in ("path", "val_fraction", "options") if key in given}
    return find_kind(recipe.data.name, **known)


def data_arguments(recipe: Recipe) -> dict[str, Any]:
    """What a recipe says to :func:`fredholm.data.create_dataset`."""
    given = recipe.data.model_dump(include=set(_OF_DATA), exclude_none=True)
    if "image_size" in given:
        given["image_size"] = tuple(given["image_size"])
    options = recipe.data.options | recipe.data.reading
    if recipe.data.name == "files" and "image_size" in given:
        # A recipe of pictures that says nothing of them means bytes of three colours.
        options = {"pixels": "rgb"} | options
    return given | {"options": options}


class Batches:
    """An iterable with a length and nothing else: Lightning takes anything with a ``sampler`` for a
    torch loader.
    """

    def __init__(self, loader: Any):
        self.loader = loader

    def __iter__(self):
        return iter(self.loader)

    def __len__(self) -> int:
        return len(self.loader)

    @property
    def order(self) -> Any:
        """Of the loader: which samples are this process's."""
        return self.loader.order


def build_loaders(
    recipe: Recipe, train: Any, val: Any, rank: int = 0, world_size: int = 1, encoder: Any = None
) -> tuple[Callable[[int, int], Any], Any]:
    """A factory of the shuffled, augmented training loader of a process, and the validation loader
    of process ``rank`` of ``world_size``.

    Batches are those of a step; processes share them. With ``parallel.domain`` so many neighbours
    get the same samples, each its stretch of their points, as the model's ``encoder`` reads them.
    """
    from .. import data

    options = recipe.data
    if options.batch_size > len(train):
        raise RecipeError(
            f"data.batch_size: received {options.batch_size}; {train.name} has {len(train)} "
            f"samples to train on; needs as many or fewer: data.batch_size={-(-len(train) // 4)}"
        )
    transform, count = train.augmentation(options.augment.model_dump()), 1
    if encoder is not None:
        count = recipe.parallel.domain

    def part(whole: Any, rank: int) -> Any:
        return whole if count == 1 else cut_samples(whole, encoder, rank % count, count)

    def training(rank: int, world_size: int) -> Any:
        return data.make_loader(
            part(train, rank),
            options.batch_size,
            seed=recipe.seed,
            shuffle=True,
            augment=transform,
            drop_last=True,
            rank=rank // count,
            world_size=world_size // count,
        )

    size, place = max(options.eval_batch_size, world_size // count), rank // count
    parts = part(val, rank)
    return training, Batches(
        data.make_loader(parts, size, seed=recipe.seed, rank=place, world_size=world_size // count)
    )


def cut_samples(dataset: Any, encoder: Any, rank: int, count: int) -> Any:
    """The stretch of every sample's points that is the ``rank``-th of ``count`` processes'.

    Raises:
        OptionError: an encoder that reads whole samples.
    """
    from ..data.parts import PartDataset, Stretch

    axis, labels = encoder.axis, task_of(dataset).points
    if axis is None:
        encoder.refuse_part("it reads a sample as a whole")
    assert axis is not None
    return PartDataset(dataset, Stretch(rank, count, axis, labels, encoder.grain))


@contextmanager
def in_float32() -> Iterator[None]:
    """New tensors are float32, as data sets are, whatever the caller's default is."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float32)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


@in_float32()
def build_model(recipe: Recipe, dataset: Any) -> nn.Module:
    """The recipe's model with the data set's sizes and classes, initialised from the
    recipe's seed; its weights are float32.
    """
    from ... import models

    head = {"outputs": task_of(dataset).outputs(dataset.classes), **dataset.head()}
    parts = {name: dict(fields) for name, fields in recipe.model.parts.items()}
    parts["head"] = head | parts.get("head", {})
    torch.manual_seed(recipe.seed)
    try:
        parts["body"] = _operator(recipe) | parts.get("body", {})
        return models.create_model(recipe.model.name, data=dataset.encoder(), **parts)
    except (FredholmError, TypeError, ValueError) as error:
        raise explain_failure(recipe, error) from error


def _operator(recipe: Recipe) -> dict[str, Any]:
    """The recipe's operator; where it is the model's own kind, its options are changes to the
    model's.
    """
    from ... import models

    name, options = recipe.operator.name, recipe.operator.options
    if name is None:
        return {}
    preset: Any = models.model_config(recipe.model.name).body
    own = preset.operator_options if getattr(preset, "operator", None) == name else {}
    return {"operator": name, "operator_options": {**own, **options}}


def build_mixer(recipe: Recipe, classes: int):
    """Mixup, cutmix, or either at random for each batch; None when both are off."""
    from .. import data

    mixup, cutmix = recipe.data.mixup, recipe.data.cutmix
    if not mixup and not cutmix:
        return None

    def mix(images: Tensor, labels: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        use_cutmix = cutmix > 0 and (mixup == 0 or float(torch.rand((), generator=generator)) < 0.5)
        blend, alpha = (data.cutmix, cutmix) if use_cutmix else (data.mixup, mixup)
        return blend(images, labels, classes, alpha=alpha, generator=generator)

    return mix
