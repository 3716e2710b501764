"""The regressor."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from sklearn.base import RegressorMixin
from sklearn.metrics import r2_score
from sklearn.utils.validation import check_consistent_length, column_or_1d

from ...errors import ShapeError
from ..data.frames import plain_answers
from ..data.samples import collect_answers, recognise
from .base import Estimator, all_or_nothing, checked
from .weights import check_weights, scaled_weights


class FredholmRegressor(RegressorMixin, Estimator):
    """A regression of numbers, or of whole fields, by a model of integral operators.

    The model and its parameters are those of :class:`FredholmClassifier`. It is trained on the mean
    squared error of the standardised targets; of fields on the relative L2 error.

    Args: as of :class:`FredholmClassifier`; ``kind`` may be ``fields`` as well, and is so wherever
        ``y`` holds an array per sample.

    Shape: ``X`` as of the classifier, ``y`` (N,) numbers. Of fields on a grid ``X`` is (N, H, W) or
    (N, C, H, W) and ``y`` (N, H, W) or (N, K, H, W); of fields on points ``X`` is a list of pairs
    (coordinates (points, d), values (points, C)) and ``y`` a list of (points, K).

    Cost: that of the operator, ``epochs`` times.

    Attributes: as of :class:`FredholmClassifier`, but for ``classes_``; ``single_`` is whether
        fields in ``y`` came without an axis of channels; ``coordinate_names_in_`` and
        ``answer_names_in_`` are the names of fields on points, where these have some.

    Raises:
        ShapeError, OptionError: samples or options that do not fit; both are ValueErrors.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> X = rng.normal(size=(40, 2))
        >>> model = FredholmRegressor(dim=8, depth=1, epochs=20, lr=0.02, random_state=0)
        >>> model.fit(X, 3 * X[:, 0]).score(X, 3 * X[:, 0]) > 0.5
        True
    """

    def _task(self) -> str:
        return "regression"

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> FredholmRegressor:
        """Train on samples ``X`` and their targets ``y``.

        ``sample_weight`` (N,) multiplies the loss of each sample; one of weight zero is left out.
        Held-out samples count by their weights as well.
        """
        with all_or_nothing(self):
            fields = _are_fields(y)
            kind = self.kind or ("fields" if fields else recognise(X))
            if (kind == "fields") != fields:
                raise ShapeError(
                    "y: expected an array per sample for kind='fields', and numbers (N,) for all "
                    f"other kinds, got the other for kind={kind!r}; change y or kind"
                )
            weights = check_weights(sample_weight, X)
            kept = None if weights is None else np.flatnonzero(weights)
            collection = self._collect(X, kind, fitting=True, kept=kept)
            if not fields:
                y = column_or_1d(checked(self, y), warn=True).astype(np.float64)
            check_consistent_length(collection.samples, y)
            if fields:
                points = collection.coordinates is not None
                y, names = plain_answers(y, X, points)
                if names is not None:
                    self.answer_names_in_ = np.array(names, dtype=object)
            collection.labels = collect_answers(y, collection)
            axes = 2 if collection.coordinates is None else 1
            self.single_ = bool(fields and np.ndim(y[0]) == axes)
            if weights is not None and kept is not None:
                collection, weights = collection.take(kept), weights[kept]
            self._fit(collection, scaled_weights(weights))
        return self

    def predict(self, X: Any) -> Any:
        """(N,) numbers; of fields arrays as those of ``y``, on points a list of them."""
        outputs, collection = self._outputs(X)
        if collection.kind != "fields":
            shift, scale = self.facts_.get("units", (0.0, 1.0))
            return outputs.flatten().double().numpy() * scale + shift
        values = (outputs * torch.tensor(self.facts_["scale"])).numpy()
        if collection.coordinates is None:
            grid = collection.samples.shape[2:]
            result = values.swapaxes(1, 2).reshape(len(values), -1, *grid)
            return result[:, 0] if self.single_ else result
        rows = [row[: len(places)] for row, places in zip(values, collection.coordinates)]
        return [row[:, 0] for row in rows] if self.single_ else rows

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """Return R² of the predictions.

        The values of all fields count together, as one long vector: larger fields count for more.

        Args:
            X: samples, as of :meth:`fit`.
            y: (N,) numbers, or a field per sample.
            sample_weight: (N,) weights of the samples. Every value of a field has the weight of its
                sample.

        Raises:
            ShapeError: fields in ``y`` of other sizes than those in ``X``.
        """
        if not _are_fields(y):
            return super().score(X, y, sample_weight)
        predicted = self.predict(X)

        # Columns of data frames are brought into the order of those that were fitted. Only fields
        # on points, which are predicted as a list, have named columns.
        on_points = isinstance(predicted, list)
        known = tuple(getattr(self, "answer_names_in_", ())) or None
        y, _ = plain_answers(y, X, on_points, known)
        _check_alike(y, predicted)

        weights = None
        if sample_weight is not None:
            check_consistent_length(y, sample_weight)
            weights = np.repeat(column_or_1d(sample_weight), [np.size(field) for field in y])
        true_values = np.concatenate([np.ravel(field) for field in y])
        predicted_values = np.concatenate([np.ravel(field) for field in predicted])
        return float(r2_score(true_values, predicted_values, sample_weight=weights))


def _are_fields(y: Any) -> bool:
    """Whether ``y`` holds an array per sample; (N, 1) is a column of numbers."""
    if y is None or (hasattr(y, "ndim") and y.ndim < 3) or not hasattr(y, "__len__"):
        return False
    if not len(y):
        return False
    axes = np.ndim(y[0])
    return axes > 1 or (axes == 1 and isinstance(y, list) and hasattr(y[0], "shape"))


def _check_alike(truth: Any, found: Any) -> None:
    """Refuse true fields of other sizes than those that were found; axes of length 1 do not count.

    Raises:
        ShapeError: naming the first.
    """
    check_consistent_length(found, truth)
    for number, (field, answer) in enumerate(zip(truth, found)):
        if np.squeeze(field).shape != np.squeeze(answer).shape:
            raise ShapeError(
                f"y, sample {number}: expected {answer.shape}, as its points in X have it, got "
                f"{np.shape(field)}; give the field at these points"
            )
