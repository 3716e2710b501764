"""The base class of classifier and regressor."""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from sklearn.base import BaseEstimator
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_array, check_is_fitted, validate_data
from torch import Tensor

from ... import models
from ...errors import CheckpointError, OptionError, ShapeError
from ..compare.memory import choose_for
from ..data.files.collection import Collection
from ..data.frames import Names, is_frame, plain_samples
from ..data.kinds.dataset import LabelledDataset
from ..data.kinds.texts import TextDataset
from ..data.memory import MemorySource, read_samples, warn_of_cut
from ..data.samples import collect_samples
from ..data.splits import SPLITS
from ..data.word_columns import rows_of, word_columns
from ..training.build import build_loaders, build_model, in_float32
from ..training.calibration import fit_temperature
from ..training.fit import Fit, Goal, Limits, fit
from ..training.module import RecipeLearner
from ..training.recipe import Recipe
from ..training.tasks import Task, concatenate_pairs, task_of
from ..training.weights import WeightedSamples, WeightedTask
from .options import (
    AUTO,
    accelerator_of,
    check_options,
    plain_number,
    recipe_of,
    recipe_sections,
    set_operator,
)
from .saved import from_json, params_of, to_json

NAMES_IN = ("feature_names_in_", "coordinate_names_in_", "answer_names_in_")
"""Names of columns that a fit keeps: of channels, of coordinates, of answers."""
FLOATS = [np.float64, np.float32]
"""dtypes that columns of rows may keep; others become the first."""
EVALUATED = 256
"""Samples at a time where nothing is learned."""


class Estimator(BaseEstimator):
    """The base of classifier and regressor: options, samples, training, files."""

    feature_names_in_: np.ndarray
    coordinate_names_in_: np.ndarray
    answer_names_in_: np.ndarray

    # scikit-learn's rule: a constructor takes anything, and `fit` checks it.
    def __init__(
        self,
        operator: Any = None,
        *,
        minutes: Any = 5.0,
        kind: Any = None,
        dim: Any = None,
        depth: Any = None,
        heads: Any = None,
        epochs: Any = None,
        batch_size: Any = None,
        lr: Any = None,
        validation_fraction: Any = 0.1,
        patience: Any = None,
        random_state: Any = None,
        device: Any = "auto",
        verbose: Any = False,
    ):
        self.operator = operator
        self.minutes = minutes
        self.kind = kind
        self.dim = dim
        self.depth = depth
        self.heads = heads
        self.epochs = epochs
        self.batch_size = batch_size
        self.lr = lr
        self.validation_fraction = validation_fraction
        self.patience = patience
        self.random_state = random_state
        self.device = device
        self.verbose = verbose

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True  # what was not measured
        tags.input_tags.three_d_array = True
        return tags

    # --- samples ----------------------------------------------------------------------------------

    def _task(self) -> str:
        raise NotImplementedError

    def _collect(
        self,
        X: Any,
        kind: str,
        *,
        fitting: bool,
        kept: np.ndarray | None = None,
    ) -> Collection:
        """Return the samples of ``X``, without labels.

        Args:
            X: the samples as the caller gave them: an array, a data frame or a list.
            kind: of the samples, such as ``rows`` or ``images``.
            fitting: True in ``fit``, which stores the names of columns and the number of channels;
                False for new samples, whose names are compared with the stored ones.
            kept: indices of the rows that are trained on; None for all. All samples are returned
                in either case. Only the words that become columns are taken from these rows alone.

        Raises:
            ShapeError, OptionError: samples that do not fit the kind, or too few: a fit needs two,
                a prediction one.
        """
        if kind == "rows":
            return self._collect_rows(X, fitting, kept)
        # New samples have their columns put in the order of the fit, by name.
        names = None
        if not fitting:
            names = self._names()
        plain = plain_samples(X, kind, names)
        result = collect_samples(plain.samples, kind, self._task())

        least = 1 + fitting
        if len(result) < least:
            raise ShapeError(f"X: expected {least} samples or more, got n_samples={len(result)}")
        if not fitting:
            self._compare_names(plain.names)
            return result

        result.channels = plain.names.channels or ()
        self._remember(plain.names)
        if kind != "texts":
            # Channels are the last axis of a sample, but the first one of a batch of images.
            axis = 1
            if getattr(result.samples, "ndim", 0) == 4:
                axis = 0
            self.n_features_in_ = int(result.samples[0].shape[axis])
        return result

    def _collect_rows(self, X: Any, fitting: bool, kept: np.ndarray | None) -> Collection:
        """Return rows, checked as scikit-learn checks arrays and names of columns."""
        options: dict[str, Any] = {
            "dtype": FLOATS,
            "ensure_all_finite": "allow-nan",
            "ensure_min_samples": 1 + fitting,
        }

        # Columns of words that the fit found. A fit looks for them anew, and scikit-learn keeps
        # the names of columns.
        words = None
        if fitting:
            self._remember(Names())
        else:
            words = self.facts_["source"].get("words") or {}
        if words and not is_frame(X):
            column, *_ = words
            raise ShapeError(
                f"X: expected a data frame with the column of words {column!r}, as the estimator "
                f"was fitted on one, got {type(X).__name__}"
            )

        with_words = is_frame(X) and bool(words or (fitting and word_columns(X)))
        if not with_words:
            values = validate_data(self, X, reset=fitting, **options)
            return collect_samples(values, "rows", self._task())

        validate_data(self, X, reset=fitting, skip_check_array=True)
        rows = rows_of(X, words, kept)
        values = check_array(rows.values, **options)
        result = collect_samples(values, "rows", self._task())
        result.channels = rows.channels
        result.words = rows.words
        return result

    def _remember(self, names: Names) -> None:
        """Keep the names of columns, and forget those of an earlier fit."""
        for name in ("n_features_in_", *NAMES_IN):
            self.__dict__.pop(name, None)
        for name, given in zip(NAMES_IN, names):
            if given is not None:
                array = np.array(given, dtype=object)
                setattr(self, name, array)

    def _names(self) -> Names:
        """Return the names of the columns that were fitted."""
        known = []
        for name in NAMES_IN[: len(Names())]:
            names = getattr(self, name, None)
            if names is not None:
                names = tuple(names)
            known.append(names)
        return Names(*known)

    def _compare_names(self, given: Names) -> None:
        """Warn as scikit-learn does where only the fit, or only these samples, had names."""
        name = type(self).__name__
        for fitted, found in zip(self._names(), given):
            if fitted is not None and found is None:
                warnings.warn(
                    f"X does not have valid feature names, but {name} was fitted with feature "
                    "names",
                    stacklevel=5,
                )
            if fitted is None and found is not None:
                warnings.warn(
                    f"X has feature names, but {name} was fitted without feature names",
                    stacklevel=5,
                )

    # --- fitting ----------------------------------------------------------------------------------

    @in_float32()
    def _fit(self, collection: Collection, weights: np.ndarray | None = None) -> None:
        """Train on labelled samples, and set the attributes of a fitted estimator.

        Args:
            collection: the samples with their labels, those held out for validation included.
            weights: (N,) weights of the samples, of mean one; None weights all of them alike.

        Raises:
            OptionError: options that do not fit, or weights beside ``operator="auto"``.
        """
        check_options(self)
        if weights is not None and self.operator == AUTO:
            raise OptionError(
                f"operator: expected the name of one beside weights, got {AUTO!r}, whose "
                "comparison counts all samples alike"
            )

        # As scikit-learn has it, random_state is a number, a generator or None. A training has a
        # number as its seed.
        generator = check_random_state(self.random_state)
        seed = int(generator.randint(2**31 - 1))

        fraction = float(self.validation_fraction or 0)
        source = MemorySource(collection, fraction, seed)
        recipe = self._recipe(source, seed)
        self.operator_ = recipe.operator.model_dump()
        splits = Splits.of(source, recipe)
        _warn_of_cut_texts(splits, len(collection))

        # Weights travel in the labels of the splits that are loaded. The model is built for the
        # plain ones, which have the classes and sizes of the samples.
        loaded = splits
        task = task_of(splits.train)
        if weights is not None:
            task = WeightedTask(task)
            loaded = splits.weighted(source, weights)

        with _own_randomness():
            # `build_loaders` needs a validation split. Without held-out samples it gets the
            # training samples, and the loader made of them is not used.
            validated = loaded.train
            if loaded.val is not None:
                validated = loaded.val
            loader, validation = build_loaders(recipe, loaded.train, validated)
            model = build_model(recipe, splits.train)
            learner = RecipeLearner(model, recipe, loader, mixer=None, task=task)
            held_out = None
            if splits.val is not None:
                held_out = validation
            fitted = self._train(learner, held_out)

        self.model_: Any = model.cpu().eval()
        # The scaling, vocabulary and classes with which new samples are read.
        self.kind_ = collection.kind
        self.facts_ = splits.train.describe()
        self.history_ = fitted.rows
        self.n_iter_ = len(fitted.rows)

        # Probabilities are calibrated on held-out samples; without them T = 1.
        self.temperature_ = 1.0
        if self._task() == "classification" and splits.val is not None:
            self.temperature_ = self._temperature(task, validation)

    def _train(self, learner: RecipeLearner, validation: Any) -> Fit:
        """Train the learner's model in place, and return the table of epochs.

        The model ends with the weights of the lowest validation loss. It ends with the last weights
        if there is no validation, or if the recipe keeps the last and ``patience`` is None: few
        held-out samples choose weights badly, but with a patience the caller relies on them.

        Args:
            learner: the model with its loss, optimizer and training batches.
            validation: batches of held-out samples; None if there are none.
        """
        training = learner.recipe.training

        # Without a patience this goal never ends the training.
        lowest = None
        if validation is not None:
            lowest = Goal("val_loss", "min", plain_number(self.patience))
        best = lowest
        if self.patience is None and training.keep == "last":
            best = None

        # Each call of `keep` replaces the weights of the one before.
        kept: dict[str, Tensor] = {}

        def keep(trained: Any) -> None:
            weights = deepcopy(trained.state_dict())
            kept.update(weights)

        accelerator = accelerator_of(self.device)
        fitted = fit(
            learner,
            limits=Limits(training.epochs, accelerator=accelerator, stop=lowest),
            keep=keep,
            validation=validation,
            best=best,
            say=self._say(),
        )
        learner.model.load_state_dict(kept)
        return fitted

    def _say(self) -> Callable[[str], None] | None:
        """Return the function that receives each line of progress; None unless ``verbose``."""
        if self.verbose:
            return print
        return None

    def _temperature(self, task: Task, validation: Any) -> float:
        """Return the temperature that fits the held-out samples."""
        pairs = [(self._forward(inputs), labels) for inputs, labels in validation]
        outputs, labels = concatenate_pairs(pairs)

        weights = None
        if isinstance(task, WeightedTask):
            labels, weights = task.split(outputs, labels)
        return fit_temperature(outputs, labels, weights)

    def _recipe(self, source: MemorySource, seed: int) -> Recipe:
        """Return the recipe to train with: the usual one for these samples, changed by the
        estimator's options.

        With ``operator="auto"`` a comparison of the operators, which takes ``minutes``, chooses the
        operator, and the width and learning rate that were not given.

        Args:
            source: the samples, divided into those trained on and those held out.
            seed: the recipe's seed.
        """
        sections = recipe_sections(self, source)

        # Either call writes the operator into the sections.
        if self.operator == AUTO:
            self._choose(source, sections)
        else:
            set_operator(sections, self.operator, source.collection.kind)
        return recipe_of(sections, seed)

    def _choose(self, source: MemorySource, sections: dict[str, Any]) -> None:
        """Write the operator, width and learning rate into a recipe that a comparison of all
        operators on these samples recommends; the caller's own width and rate stay.
        """
        if not (source.parts == SPLITS.index("val")).any():
            raise OptionError(
                f"operator: expected held-out samples to compare on beside {AUTO!r}, got none; set "
                "validation_fraction=0.2"
            )
        with _own_randomness():
            found = choose_for(source, sections, self.minutes, report=self._say())
        sections["operator"] = found.operator
        if self.dim is None:
            sections["model"]["body"]["dim"] = found.dim
        if self.lr is None:
            sections["optimizer"]["lr"] = found.lr

    # --- answers ----------------------------------------------------------------------------------

    @in_float32()
    def _outputs(self, X: Any) -> tuple[Tensor, Collection]:
        """Return the model's output for each sample, and the samples as they were read.

        The output is (N, C) for classes, (N, 1) for numbers, and (N, points, K) for fields, in
        which samples with fewer points are padded with zeros. It is not yet in the units of ``y``.

        Raises:
            NotFittedError: before ``fit``.
            ShapeError, OptionError: samples that do not fit those of ``fit``.
            OptionError: an output that is not finite.
        """
        check_is_fitted(self)
        collection = self._collect(X, self.kind_, fitting=False)
        batch = read_samples(collection, self.facts_, self.model_.config.encoder)

        # A batch of fields is padded to its own longest field.
        parts = []
        for start in range(0, len(collection), EVALUATED):
            end = min(start + EVALUATED, len(collection))
            inputs = batch(range(start, end))
            parts.append(self._forward(inputs))

        shapes = {part.shape[1:] for part in parts}
        if len(shapes) > 1:
            parts = _padded_alike(parts)
        outputs = torch.cat(parts)

        # The error names the first sample whose output is not finite.
        finite = outputs.isfinite().reshape(len(outputs), -1).all(1)
        if not finite.all():
            row = int((~finite).int().argmax())
            raise OptionError(
                f"{collection.where(row)}: expected a finite answer, got one that is not; give "
                "values like those that were fitted"
            )
        return outputs, collection

    def _forward(self, inputs: Tensor) -> Tensor:
        """Return the model's outputs for one batch, in float32 on the CPU.

        The model stays on the device that ``device`` selects. An estimator that was fitted with
        ``device="cuda"`` also answers on a machine without a GPU.
        """
        device = "cpu"
        if accelerator_of(self.device) != "cpu" and torch.cuda.is_available():
            device = "cuda"
        model = self.model_.to(device)
        with torch.inference_mode():
            outputs = model(inputs.to(device))
            return outputs.float().cpu()

    # --- files ------------------------------------------------------------------------------------

    def __getstate__(self) -> dict[str, Any]:
        """With the model on the processor, wherever it answered last: others read the pickle."""
        known: Any = super().__getstate__()
        state = dict(known)
        model = state.get("model_")
        if model is not None and next(model.parameters()).is_cuda:
            state["model_"] = deepcopy(model).cpu()
        return state

    def save(self, path: str | Path) -> Path:
        """Write the fitted estimator into the folder ``path``: weights as safetensors, all else as
        JSON.

        Raises:
            NotFittedError: before ``fit``.
            OptionError: ``random_state`` is a generator, classes are not numbers, words or dates of
                NumPy, or ``class_weight`` names dates.
            StorageError: the folder cannot be written.
        """
        check_is_fitted(self)
        if not isinstance(self.random_state, int | np.integer | None):
            raise OptionError(
                f"random_state: expected a number or None to save, got {self.random_state!r}"
            )
        state = to_json(self, ("classes_", *NAMES_IN))
        return models.save_pretrained(self.model_, path, **self.facts_, estimator=state)

    @classmethod
    @in_float32()
    def load(cls, path: str | Path) -> Any:
        """Return the estimator that :meth:`save` wrote; no code is executed.

        Raises:
            CheckpointError: no such estimator there, or one of the other class.
        """
        model = models.from_pretrained(path)
        facts = dict(model.extra)
        state = facts.pop("estimator", {})
        if state.get("class") != cls.__name__:
            found = state.get("class", "a model that no estimator saved")
            raise CheckpointError(f"{path}: expected a {cls.__name__}, got {found}")
        result = cls(**params_of(state))
        del model.extra
        result.model_ = model
        result.facts_ = facts
        from_json(result, state)
        return result


# --- parts ----------------------------------------------------------------------------------------


class Splits(NamedTuple):
    """The samples that are trained on, and those that are held out; None where there are none."""

    train: LabelledDataset
    val: LabelledDataset | None

    @classmethod
    def of(cls, source: MemorySource, recipe: Recipe) -> Splits:
        """Return both splits of a source."""
        size = None
        if recipe.data.image_size is not None:
            height, width = recipe.data.image_size
            size = (height, width)
        train = source.dataset("train", image_size=size)
        if len(source.training) == len(source.parts):
            return cls(train, None)
        return cls(train, source.dataset("val", image_size=size))

    def weighted(self, source: MemorySource, weights: np.ndarray) -> Splits:
        """Return splits of which each sample counts by its weight; ``weights`` are of all."""
        result: list[Any] = []
        for split, samples in zip(self._fields, self):
            if samples is not None:
                chosen = source.parts == SPLITS.index(split)
                weights_of_split = torch.from_numpy(weights[chosen])
                samples = WeightedSamples(samples, weights_of_split.float())
            result.append(samples)
        return Splits(*result)


def _warn_of_cut_texts(splits: Splits, samples: int) -> None:
    """Warn of texts whose end is not read, as both splits count them."""
    texts = [part for part in splits if isinstance(part, TextDataset)]
    if texts:
        cut = sum(part.truncated for part in texts)
        longest = texts[0].max_length
        warn_of_cut(cut, samples, longest)


def _padded_alike(parts: list[Tensor]) -> list[Tensor]:
    """Return outputs (B, points, ·) with as many points as the longest: fields on points are padded
    batch by batch.
    """
    points = max(part.shape[1] for part in parts)
    padded = []
    for part in parts:
        missing = points - part.shape[1]
        padded.append(torch.nn.functional.pad(part, (0, 0, 0, missing)))
    return padded


def checked(estimator: BaseEstimator, y: Any) -> np.ndarray:
    """Return labels as an array, without gaps."""
    if y is None:
        # The words of scikit-learn, which its checks of estimators look for.
        raise ValueError(
            f"{type(estimator).__name__} requires y to be passed, but the target y is None"
        )
    options: dict[str, Any] = {"ensure_2d": False, "dtype": None, "input_name": "y"}
    return check_array(y, estimator=estimator, **options)


@contextmanager
def all_or_nothing(estimator: BaseEstimator) -> Iterator[None]:
    """Restore the estimator where a fit fails or is interrupted."""
    before = dict(vars(estimator))
    try:
        yield
    except BaseException:
        vars(estimator).clear()
        vars(estimator).update(before)
        raise


@contextmanager
def _own_randomness() -> Iterator[None]:
    """Restore the caller's generators, every one of which training seeds."""
    python_state = random.getstate()
    numpy_state = np.random.get_state()
    with torch.random.fork_rng():
        try:
            yield
        finally:
            random.setstate(python_state)
            np.random.set_state(numpy_state)
