"""The regressor."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from sklearn.base import RegressorMixin
from sklearn.metrics import r2_score
from sklearn.utils.validation import check_consistent_length, column_or_1d

from ...errors import ShapeError
from ..data.files.collection import Collection
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
            kind = self.kind
            if not kind and fields:
                kind = "fields"
            kind = kind or recognise(X)
            if (kind == "fields") != fields:
                raise ShapeError(
                    "y: expected an array per sample for kind='fields', and numbers (N,) for all "
                    f"other kinds, got the other for kind={kind!r}; change y or kind"
                )

            # Samples of weight zero are left out.
            weights = check_weights(sample_weight, X)
            kept = None
            if weights is not None:
                kept = np.flatnonzero(weights)
            collection = self._collect(X, kind, fitting=True, kept=kept)

            if fields:
                y = self._field_answers(X, y, collection)
            else:
                numbers = column_or_1d(checked(self, y), warn=True)
                y = numbers.astype(np.float64)
                check_consistent_length(collection.samples, y)
            collection.labels = collect_answers(y, collection)
            self.single_ = fields and _lack_channels(y, collection)

            if weights is not None and kept is not None:
                collection = collection.take(kept)
                weights = weights[kept]
            self._fit(collection, scaled_weights(weights))
        return self

    def _field_answers(self, X: Any, y: Any, collection: Collection) -> Any:
        """Return fields as plain arrays, and keep the names of their columns."""
        check_consistent_length(collection.samples, y)
        on_points = collection.coordinates is not None
        y, names = plain_answers(y, X, on_points)
        if names is not None:
            self.answer_names_in_ = np.array(names, dtype=object)
        return y

    def predict(self, X: Any) -> Any:
        """(N,) numbers; of fields arrays as those of ``y``, on points a list of them."""
        outputs, collection = self._outputs(X)
        if collection.kind != "fields":
            shift, scale = self.facts_.get("units", (0.0, 1.0))
            standardised = outputs.flatten().double().numpy()
            return standardised * scale + shift

        # Values (N, points, K), padded to the longest field.
        scales = torch.tensor(self.facts_["scale"])
        values = (outputs * scales).numpy()
        if collection.coordinates is None:
            grid = collection.samples.shape[2:]
            channels_first = values.swapaxes(1, 2)
            fields = channels_first.reshape(len(values), -1, *grid)
            if self.single_:
                return fields[:, 0]
            return fields

        rows = []
        for row, points in zip(values, collection.coordinates):
            rows.append(row[: len(points)])
        if self.single_:
            return [row[:, 0] for row in rows]
        return rows

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
            sizes = [np.size(field) for field in y]
            weights = np.repeat(column_or_1d(sample_weight), sizes)
        score = r2_score(_values_of(y), _values_of(predicted), sample_weight=weights)
        return float(score)


def _are_fields(y: Any) -> bool:
    """Whether ``y`` holds an array per sample; (N, 1) is a column of numbers."""
    if y is None or not hasattr(y, "__len__"):
        return False
    if hasattr(y, "ndim") and y.ndim < 3:
        return False
    if not len(y):
        return False

    first = y[0]
    axes = np.ndim(first)
    if axes == 1:
        # A list of lists is a table of numbers, a list of arrays one of fields on points.
        return isinstance(y, list) and hasattr(first, "shape")
    return axes > 1


def _lack_channels(y: Any, collection: Collection) -> bool:
    """Whether fields come without an axis of channels."""
    axes = 2
    if collection.coordinates is not None:
        axes = 1
    return np.ndim(y[0]) == axes


def _values_of(fields: Any) -> np.ndarray:
    """Return the values of all fields as one vector."""
    return np.concatenate([np.ravel(field) for field in fields])


def _check_alike(truth: Any, found: Any) -> None:
    """Refuse true fields of other sizes than those that were found; axes of length 1 do not count.

    Raises:
        ShapeError: naming the first.
    """
    check_consistent_length(found, truth)
    for number, (field, answer) in enumerate(zip(truth, found)):
        expected = np.squeeze(answer).shape
        if np.squeeze(field).shape != expected:
            raise ShapeError(
                f"y, sample {number}: expected {answer.shape}, as its points in X have it, got "
                f"{np.shape(field)}; give the field at these points"
            )
