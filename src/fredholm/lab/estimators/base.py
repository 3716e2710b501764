"""What the classifier and the regressor share."""

from __future__ import annotations

import math
import random
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from numbers import Real
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.base import BaseEstimator
from sklearn.utils import check_random_state
from sklearn.utils.validation import (
    check_array,
    check_consistent_length,
    check_is_fitted,
    validate_data,
)
from torch import Tensor

from ... import models, operators
from ...errors import CheckpointError, OptionError, ShapeError, suggest
from ..compare.memory import choose_for
from ..compare.tasks import small_options
from ..data.files.collection import Collection
from ..data.frames import Names, is_frame, plain_samples
from ..data.kinds.dataset import LabelledDataset
from ..data.kinds.texts import TextDataset
from ..data.samples import (
    MemorySource,
    collect_samples,
    read_samples,
    warn_of_cut,
)
from ..data.splits import SPLITS
from ..data.word_columns import rows_of, word_columns
from ..training.build import build_loaders, build_model, in_float32
from ..training.calibration import fit_temperature
from ..training.fit import Goal, Limits, fit
from ..training.module import RecipeLearner
from ..training.recipe import Recipe
from ..training.tasks import Task, task_of
from ..training.usual import usual_recipe
from ..training.weights import WeightedSamples, WeightedTask

DEVICES = {"auto": "auto", "cpu": "cpu", "cuda": "gpu"}  # as Lightning calls them
# What is learned in seconds to minutes on a CPU: all pairs of few points, sums over many.
OPERATORS = {
    "rows": "softmax",
    "images": "softmax",
    "texts": "softmax",
    "series": "luna",
    "clouds": "luna",
    "fields": "luna",
}
AUTO = "auto"
# Names of columns that a fit keeps: of channels, of coordinates, of what is answered.
NAMES_IN = ("feature_names_in_", "coordinate_names_in_", "answer_names_in_")
FLOATS = [np.float64, np.float32]  # what columns of rows become: the first, if none of these
EVALUATED = 256  # samples at a time where nothing is learned


class Estimator(BaseEstimator):
    """What the classifier and the regressor share."""

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
        self, X: Any, kind: str, *, fitting: bool, kept: np.ndarray | None = None
    ) -> Collection:
        """Return the samples of ``X``; ``kept`` are the rows that are trained on, None for all."""
        if kind == "rows":
            return self._collect_rows(X, fitting, kept)
        plain = plain_samples(X, kind, None if fitting else self._names())
        result = collect_samples(plain.samples, kind, self._task())
        if len(result) < 1 + fitting:
            raise ShapeError(f"X: n_samples={len(result)}; needs {1 + fitting} or more")
        if not fitting:
            self._compare_names(plain.names)
            return result
        result.channels = plain.names.channels or ()
        self._remember(plain.names)
        if kind != "texts":
            axis = 0 if getattr(result.samples, "ndim", 0) == 4 else 1
            self.n_features_in_ = int(result.samples[0].shape[axis])
        return result

    def _collect_rows(self, X: Any, fitting: bool, kept: np.ndarray | None) -> Collection:
        """Return rows, checked as scikit-learn checks arrays and names of columns."""
        options: dict[str, Any] = {"dtype": FLOATS, "ensure_all_finite": "allow-nan"}
        options["ensure_min_samples"] = 2 if fitting else 1
        words = None
        if fitting:
            self._remember(Names())  # those of rows are scikit-learn's to keep
        else:
            words = self.facts_["source"].get("words") or {}
        if words and not is_frame(X):
            raise ShapeError(
                f"X: expected a data frame with the column of words {next(iter(words))!r}, as the "
                f"estimator was fitted on one, got {type(X).__name__}"
            )
        if not (is_frame(X) and (words or (fitting and word_columns(X)))):
            values = validate_data(self, X, reset=fitting, **options)
            return collect_samples(values, "rows", self._task())
        validate_data(self, X, reset=fitting, skip_check_array=True)
        rows = rows_of(X, words, kept)
        result = collect_samples(check_array(rows.values, **options), "rows", self._task())
        result.channels, result.words = rows.channels, rows.words
        return result

    def _remember(self, names: Names) -> None:
        """Keep the names of columns, and forget those of an earlier fit."""
        for name in ("n_features_in_", *NAMES_IN):
            self.__dict__.pop(name, None)
        for name, given in zip(NAMES_IN, names):
            if given is not None:
                setattr(self, name, np.array(given, dtype=object))

    def _names(self) -> Names:
        """Return the names of the columns that were fitted."""
        known = [getattr(self, name, None) for name in NAMES_IN[: len(Names())]]
        return Names(*(None if names is None else tuple(names) for names in known))

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
        """Train on labelled samples, which count by their weights (N,), all alike where None."""
        self._check_options()
        if weights is not None and self.operator == AUTO:
            raise OptionError(
                f"operator: expected the name of one beside weights, got {AUTO!r}, whose "
                "comparison counts all samples alike"
            )
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        source = MemorySource(collection, float(self.validation_fraction or 0), seed)
        recipe = self._recipe(source, seed)
        self.operator_ = recipe.operator.model_dump()
        train, val = (_dataset(source, recipe, part) for part in ("train", "val"))
        assert train is not None
        texts = [part for part in (train, val) if isinstance(part, TextDataset)]
        if texts:
            cut = sum(part.truncated for part in texts)
            warn_of_cut(cut, len(collection), texts[0].max_length)
        task = task_of(train)
        read, judged = train, train if val is None else val
        if weights is not None:
            task = WeightedTask(task)
            read = _weighted(train, source, weights, "train")
            judged = read if val is None else _weighted(val, source, weights, "val")
        with _own_randomness():
            loader, validation = build_loaders(recipe, read, judged)
            model = build_model(recipe, train)
            goal = None if val is None else Goal("val_loss", "min", _plain(self.patience))
            last = self.patience is None and recipe.training.keep == "last"
            kept: dict[str, Tensor] = {}
            fitted = fit(
                RecipeLearner(model, recipe, loader, None, task),
                limits=Limits(recipe.training.epochs, accelerator=self._accelerator()),
                keep=lambda best: kept.update(deepcopy(best.state_dict())),
                validation=None if val is None else validation,
                best=None if last else goal,
                stop=goal,
                say=print if self.verbose else None,
            )
            model.load_state_dict(kept)
        self.model_: Any = model.cpu().eval()
        self.kind_, self.facts_ = collection.kind, train.describe()
        self.history_, self.n_iter_ = fitted.rows, len(fitted.rows)
        self.temperature_ = 1.0
        if self._task() == "classification" and val is not None:
            self.temperature_ = self._temperature(task, validation)

    def _temperature(self, task: Task, validation: Any) -> float:
        """Return the temperature that fits the held-out samples."""
        pairs = [(self._forward(inputs), labels) for inputs, labels in validation]
        outputs, labels = (torch.cat(part) for part in zip(*pairs))
        if isinstance(task, WeightedTask):
            return fit_temperature(outputs, *task.split(outputs, labels))
        return fit_temperature(outputs, labels)

    def _check_options(self) -> None:
        """OptionError for what no training can be made of, by the names that the caller gave."""
        for name in ("dim", "depth", "heads", "epochs", "batch_size", "patience"):
            value = getattr(self, name)
            whole = isinstance(value, int | np.integer) and not isinstance(value, bool)
            if value is not None and not (whole and value > 0):
                raise OptionError(
                    f"{name}: received {value!r}; needs a positive whole number, or None"
                )
        lr, share = self.lr, self.validation_fraction
        if lr is not None and not (_is_number(lr) and 0 < lr < math.inf):
            raise OptionError(f"lr: received {lr!r}; needs a positive number, or None")
        if share is not None and not (_is_number(share) and 0 <= share < 1):
            raise OptionError(
                f"validation_fraction: received {share!r}; needs a share of the samples, at least "
                "0 and less than 1"
            )
        minutes = self.minutes
        if self.operator == AUTO and not (_is_number(minutes) and 0 < minutes < math.inf):
            raise OptionError(f"minutes: received {minutes!r}; needs a positive number")
        if self.patience is not None and not share:
            raise OptionError("patience: needs held-out samples: validation_fraction=0.1")
        if not (self.operator is None or isinstance(self.operator, str)):
            raise OptionError(
                f"operator: received {self.operator!r}; needs the name of one, as "
                "fredholm.operators.list_operators() gives them, or None"
            )
        known = [AUTO, *operators.list_operators(), *models.list_baselines()]
        if self.operator is not None and self.operator not in known:
            raise OptionError(
                f"operator: unknown operator {self.operator!r}{suggest(self.operator, known)}"
            )
        if self._accelerator() == "gpu" and not torch.cuda.is_available():
            raise OptionError(
                "device: received 'cuda', and PyTorch finds no CUDA device here; needs cpu or auto"
            )

    def _recipe(self, source: MemorySource, seed: int) -> Recipe:
        """The usual recipe of such samples, with what the caller said."""
        recipe = usual_recipe(source)
        body = {"dim": self.dim, "depth": self.depth, "heads": self.heads}
        _set(recipe["model"]["body"], **body)
        _set(recipe["data"], batch_size=self.batch_size)
        _set(recipe["optimizer"], lr=self.lr)
        _set(recipe["training"], epochs=self.epochs)
        recipe["data"]["batch_size"] = min(recipe["data"]["batch_size"], len(source.training))
        recipe["schedule"]["warmup_epochs"] = recipe["training"]["epochs"] / 10
        if self.operator == AUTO:
            self._choose(source, recipe)
            return Recipe.model_validate({"name": "estimator", "seed": seed, **recipe})
        name = OPERATORS[source.collection.kind] if self.operator is None else self.operator
        if name != recipe["operator"]["name"]:
            recipe["operator"] = {"name": name, **small_options(str(name))}
        return Recipe.model_validate({"name": "estimator", "seed": seed, **recipe})

    def _choose(self, source: MemorySource, recipe: dict[str, Any]) -> None:
        """Put what a comparison of all operators on these samples recommends into their recipe;
        what the caller said stays.
        """
        if not (source.parts == 1).any():
            raise OptionError(
                f"operator: received {AUTO!r} and no held-out samples to compare on; needs "
                "validation_fraction=0.2, say"
            )
        with _own_randomness():
            found = choose_for(source, recipe, self.minutes, report=print if self.verbose else None)
        recipe["operator"] = found.operator
        recipe["model"]["body"]["dim"] = found.dim if self.dim is None else _plain(self.dim)
        recipe["optimizer"]["lr"] = found.lr if self.lr is None else _plain(self.lr)

    def _accelerator(self) -> str:
        if self.device not in DEVICES:
            raise OptionError(f"device: received {self.device!r}; needs {', '.join(DEVICES)}")
        return DEVICES[self.device]

    # --- answers ----------------------------------------------------------------------------------

    @in_float32()
    def _outputs(self, X: Any) -> tuple[Tensor, Collection]:
        """What the model says of each sample, and the samples."""
        check_is_fitted(self)
        collection = self._collect(X, self.kind_, fitting=False)
        batch = read_samples(collection, self.facts_, self.model_.config.encoder)
        parts = []
        for start in range(0, len(collection), EVALUATED):
            chosen = range(start, min(start + EVALUATED, len(collection)))
            parts.append(self._forward(batch(chosen)))
        if len({part.shape[1:] for part in parts}) > 1:  # fields on points, padded by batches
            points = max(part.shape[1] for part in parts)
            parts = [
                torch.nn.functional.pad(part, (0, 0, 0, points - part.shape[1])) for part in parts
            ]
        outputs = torch.cat(parts)
        odd = ~outputs.isfinite().reshape(len(outputs), -1).all(1)
        if odd.any():
            raise OptionError(
                f"{collection.where(int(odd.int().argmax()))}: the answer is no finite number; "
                "needs values like those that were fitted"
            )
        return outputs, collection

    def _forward(self, inputs: Tensor) -> Tensor:
        cuda = self._accelerator() != "cpu" and torch.cuda.is_available()
        model = self.model_.to("cuda" if cuda else "cpu")
        with torch.inference_mode():
            return model(inputs.to("cuda" if cuda else "cpu")).float().cpu()

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
            OptionError: ``random_state`` is a generator, or classes are no numbers, words or dates
                of NumPy.
            StorageError: the folder cannot be written.
        """
        check_is_fitted(self)
        if not (self.random_state is None or isinstance(self.random_state, int | np.integer)):
            raise OptionError(
                f"random_state: received {self.random_state!r}; a number or None can be saved"
            )
        state: dict[str, Any] = {"class": type(self).__name__, "params": self.get_params()}
        state["params"] = {name: _plain(value) for name, value in state["params"].items()}
        for name in (
            "kind_",
            "operator_",
            "n_iter_",
            "temperature_",
            "history_",
            "n_features_in_",
            "single_",
        ):
            if hasattr(self, name):
                state[name] = getattr(self, name)
        for name in ("classes_", *NAMES_IN):
            if hasattr(self, name):
                values = getattr(self, name)
                state[name] = {"dtype": str(values.dtype), "values": _listed(name, values)}
        return models.save_pretrained(self.model_, path, **self.facts_, estimator=state)

    @classmethod
    @in_float32()
    def load(cls, path: str | Path) -> Any:
        """The estimator that :meth:`save` wrote; no code is executed.

        Raises:
            CheckpointError: no such estimator there, or one of the other class.
        """
        model = models.from_pretrained(path)
        facts = dict(model.extra)
        state = facts.pop("estimator", {})
        if state.get("class") != cls.__name__:
            what = state.get("class", "a model that no estimator saved")
            raise CheckpointError(f"{str(path)!r} holds {what}; needs a {cls.__name__}")
        result = cls(**state["params"])
        del model.extra
        result.model_, result.facts_ = model, facts
        for name, value in state.items():
            if name.endswith("_"):
                arrays = isinstance(value, dict) and set(value) == {"dtype", "values"}
                setattr(result, name, np.array(**_array(value)) if arrays else value)
        return result


# --- parts ----------------------------------------------------------------------------------------


def checked(estimator: BaseEstimator, y: Any) -> np.ndarray:
    """Labels without gaps."""
    if y is None:
        raise ValueError(
            f"{type(estimator).__name__} requires y to be passed, but the target y is None"
        )
    options: dict[str, Any] = {"ensure_2d": False, "dtype": None, "input_name": "y"}
    return check_array(y, estimator=estimator, **options)


def _dataset(source: MemorySource, recipe: Recipe, part: str) -> LabelledDataset | None:
    """A split, None where it is empty."""
    if part == "val" and len(source.training) == len(source.parts):
        return None
    size = recipe.data.image_size
    return source.dataset(part, image_size=None if size is None else (size[0], size[1]))


def _weighted(
    samples: LabelledDataset, source: MemorySource, weights: np.ndarray, part: str
) -> WeightedSamples:
    """Return a split of which each sample counts by its weight."""
    chosen = source.parts == SPLITS.index(part)
    return WeightedSamples(samples, torch.from_numpy(weights[chosen]).float())


def check_weights(sample_weight: Any, X: Any) -> np.ndarray | None:
    """Return the weights (N,) of samples in float64; None where all count alike.

    Raises:
        ValueError: another number of weights than samples, or a weight that is no finite number.
        OptionError: a negative weight, or none above zero.
    """
    if sample_weight is None:
        return None
    if isinstance(sample_weight, Real):
        sample_weight = np.full(len(X), sample_weight)
    options: dict[str, Any] = {"ensure_2d": False, "dtype": np.float64}
    weights = check_array(sample_weight, input_name="sample_weight", **options)
    if weights.ndim != 1:
        raise ShapeError(f"sample_weight: expected one per sample, (N,), got {weights.shape}")
    check_consistent_length(X, weights)
    if (weights < 0).any():
        row = int((weights < 0).argmax())
        raise OptionError(
            f"sample_weight: expected 0 or more, got {weights[row]:g} of sample {row}; a sample of "
            "weight zero is left out"
        )
    if not weights.any():
        raise OptionError("sample_weight: expected a weight above zero, got zero weights only")
    return weights


def scaled_weights(weights: np.ndarray | None) -> np.ndarray | None:
    """Return weights of mean one; None where they are all equal.

    Example:
        >>> scaled_weights(np.array([1.0, 3.0])), scaled_weights(np.array([2.0, 2.0]))
        (array([0.5, 1.5]), None)
    """
    if weights is None or (weights == weights[0]).all():
        return None
    return weights / weights.mean()


def _set(section: dict[str, Any], **given: Any) -> None:
    section.update({name: _plain(value) for name, value in given.items() if value is not None})


def _is_number(value: Any) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)


def _plain(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else value


def _listed(name: str, values: np.ndarray) -> list[Any]:
    """As JSON holds them; dates and spans of time as numbers of their unit."""
    dates = values.dtype.kind in "mM"
    result = [_plain(value) for value in (values.astype(np.int64) if dates else values).tolist()]
    odd = next((value for value in result if not isinstance(value, str | Real)), None)
    if odd is not None:
        raise OptionError(
            f"{name}: received {odd!r}; numbers, words and np.datetime64 can be saved: fit on these"
        )
    return result


def _array(saved: dict[str, Any]) -> dict[str, Any]:
    return {"object": saved["values"], "dtype": saved["dtype"]}


@contextmanager
def all_or_nothing(estimator: BaseEstimator) -> Iterator[None]:
    """A fit that fails, or is interrupted, leaves the estimator as it was."""
    before = dict(vars(estimator))
    try:
        yield
    except BaseException:
        vars(estimator).clear()
        vars(estimator).update(before)
        raise


@contextmanager
def _own_randomness() -> Iterator[None]:
    """Training seeds every generator; a caller's go on as if it had not been."""
    plain, numpy = random.getstate(), np.random.get_state()
    with torch.random.fork_rng():
        try:
            yield
        finally:
            random.setstate(plain)
            np.random.set_state(numpy)
