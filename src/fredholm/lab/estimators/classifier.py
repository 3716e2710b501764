"""The classifier."""

from __future__ import annotations

import math
from collections.abc import Mapping
from numbers import Real
from typing import Any

import numpy as np
from sklearn.base import ClassifierMixin
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_consistent_length, column_or_1d

from ...errors import OptionError
from ..data.files.casts import Coded
from ..data.files.channels import first_of
from ..data.samples import recognise
from .base import Estimator, all_or_nothing, checked
from .weights import check_weights, scaled_weights


class FredholmClassifier(ClassifierMixin, Estimator):
    r"""A classifier of rows, series, point clouds, images and texts by a model of integral
    operators.

    The model is ``encoder → depth × (operator, feed-forward network) → mean → linear``, trained by
    AdamW on the cross-entropy; probabilities are :math:`\mathrm{softmax}(z / T)`, the temperature T
    fitted on samples that were held out.

    Args:
        operator: a registered operator (:func:`fredholm.operators.list_operators`) or baseline.
            None: ``softmax`` of rows, images and texts, ``luna`` of series, clouds and fields.
            ``auto`` compares all of them on held-out samples first, as ``fredholm compare`` does
            before its finalists. That command's finalists include methods that are not operators;
            these are not tried.
        minutes: of that comparison.
        kind: ``rows``, ``series``, ``clouds``, ``images`` or ``texts``; None: recognised, see
            below.
        dim, depth, heads: of the model; None: 32, 2 and 4, from 500 samples on 64, 3 and 4.
        epochs, batch_size: None: about 1,500 steps of up to 32 samples, in 5 to 100 epochs.
        lr: the peak of the learning rate, after a warm-up and before a cosine (None: 2e-3).
        validation_fraction: the share of each class that is held out, to calibrate probabilities
            and to choose the weights by; None or 0 trains on all.
        patience: epochs without a lower validation loss that end the training. None: all epochs,
            and the last weights unless 200 samples or more are held out.
        random_state: of the held-out samples, the weights and the order of batches. A number makes
            fits on a CPU equal.
        device: ``auto``, ``cpu`` or ``cuda``.
        verbose: print a line per epoch.
        class_weight: a weight by class (1 where none is given), ``balanced`` for as much of each
            class in total, or None.

    Shape: ``X`` is an array (N, columns), (N, times, channels) or (N, H, W, C), a list of arrays
    (times, channels) of any lengths, one of pairs (times, values), or texts; with
    ``kind="clouds"`` an array or list of (points, channels), coordinates first, with
    ``kind="images"`` also (N, H, W). NaN in rows and series is what was not measured; points of
    clouds that have NaN are left out. ``y`` (N,) are numbers or words.

    Cost: that of the operator, ``epochs`` times: O(columns²) per row with ``softmax``, O(times) per
        series with ``luna``.

    Attributes:
        classes_: (C,) the classes, sorted.
        model_: the :class:`fredholm.models.Model`.
        operator_: the operator's name and options.
        kind_: what the samples were taken for.
        n_features_in_: columns of rows, else channels.
        feature_names_in_: their names, where ``X`` has some.
        temperature_: T.
        history_: the table of epochs; ``n_iter_`` is how many there were.

    Raises:
        ShapeError, OptionError: samples or options that do not fit; both are ValueErrors.

    Example:
        >>> t = np.linspace(0, 6, 20)
        >>> X = np.stack([np.sin(f * t) for f in (1, 2) for _ in range(8)])[..., None]
        >>> y = ["slow"] * 8 + ["fast"] * 8
        >>> model = FredholmClassifier(dim=8, depth=1, epochs=8, lr=0.02, random_state=0)
        >>> model.fit(X, y).predict(X[[0, -1]]).tolist()
        ['slow', 'fast']
        >>> model.predict_proba(X).shape
        (16, 2)
    """

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
        class_weight: Any = None,
    ):
        super().__init__(
            operator,
            minutes=minutes,
            kind=kind,
            dim=dim,
            depth=depth,
            heads=heads,
            epochs=epochs,
            batch_size=batch_size,
            lr=lr,
            validation_fraction=validation_fraction,
            patience=patience,
            random_state=random_state,
            device=device,
            verbose=verbose,
        )
        self.class_weight = class_weight

    def _task(self) -> str:
        return "classification"

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> FredholmClassifier:
        """Train on samples ``X`` and their classes ``y``, and return the estimator.

        A fit that fails or is interrupted leaves the estimator as it was before.

        Args:
            X: N samples of any kind but fields, which have no single class.
            y: (N,) their classes: numbers, texts or dates, of two classes or more.
            sample_weight: (N,) factors of the samples' losses, also of those held out for
                validation. Samples of weight zero are left out, and so is a class that has no
                others.

        Raises:
            ShapeError, OptionError: samples, classes, weights or options that do not fit.
        """
        with all_or_nothing(self):
            kind = self.kind or recognise(X)
            if kind == "fields":
                raise OptionError(
                    "kind: expected samples with a class each, got 'fields'; name another kind, or "
                    "take FredholmRegressor"
                )

            # Samples of weight zero leave only after all of them have been checked against y, and
            # the names in class_weight against all classes of y.
            weights = check_weights(sample_weight, X)
            kept = None
            if weights is not None:
                kept = np.flatnonzero(weights)
            collection = self._collect(X, kind, fitting=True, kept=kept)
            labels = column_or_1d(checked(self, y), warn=True)
            check_consistent_length(collection.samples, labels)
            check_classification_targets(labels)
            weights = self._by_name(labels, weights)
            if weights is not None and kept is not None:
                collection = collection.take(kept)
                labels = labels[kept]
                weights = weights[kept]

            self.classes_, codes = np.unique(labels, return_inverse=True)
            if len(self.classes_) < 2:
                raise OptionError(
                    f"y: expected two classes or more, got {str(self.classes_[0])!r} for every "
                    "sample; add samples of others"
                )
            if isinstance(self.class_weight, str):
                weights = _balanced(codes, weights)

            names = [str(name) for name in self.classes_]
            collection.labels = Coded(codes, names)
            self._fit(collection, scaled_weights(weights))
        return self

    def _by_name(self, labels: np.ndarray, weights: np.ndarray | None) -> np.ndarray | None:
        """Return the weights of samples, multiplied by those of their classes where
        ``class_weight`` names some.

        Args:
            labels: (N,) the classes of the samples.
            weights: (N,) the samples' own weights; None weights all of them alike.

        Returns:
            (N,) weights, not scaled to any mean. None if neither samples nor classes have weights.

        Raises:
            OptionError: ``class_weight`` is neither ``balanced`` nor a weight above zero by class.
        """
        given = self.class_weight
        if given is None or (isinstance(given, str) and given == "balanced"):
            return weights
        if not isinstance(given, Mapping):
            raise OptionError(
                f"class_weight: expected a mapping, 'balanced' or None, got {given!r}"
            )

        classes, codes = np.unique(labels, return_inverse=True)
        known = _names(classes)
        # A class without a weight has 1.
        factors = np.ones(len(known))
        for name, weight in given.items():
            # Names are compared and not looked up: a date of NumPy equals one of Python, but has
            # another hash.
            if name not in known:
                raise OptionError(
                    f"class_weight: expected classes of y, got {name!r}; take some of "
                    f"{first_of([repr(other) for other in known])}"
                )
            if not (isinstance(weight, Real) and 0 < float(weight) < math.inf):
                raise OptionError(
                    f"class_weight: expected a number above zero, got {weight!r} for {name!r}"
                )
            factors[known.index(name)] = float(weight)

        if weights is None:
            return factors[codes]
        return weights * factors[codes]

    def predict_proba(self, X: Any) -> np.ndarray:
        """(N, C) probabilities, columns in the order of ``classes_``."""
        outputs, _ = self._outputs(X)
        logits = outputs.double() / self.temperature_
        return logits.softmax(-1).numpy()

    def predict(self, X: Any) -> np.ndarray:
        """(N,) the most probable classes."""
        best = self.predict_proba(X).argmax(1)
        return self.classes_[best]


def _names(classes: np.ndarray) -> list[Any]:
    """Return classes as Python's values; dates stay NumPy's, which may count nanoseconds."""
    if classes.dtype.kind in "mM":
        return list(classes)
    return classes.tolist()


def _balanced(codes: np.ndarray, weights: np.ndarray | None) -> np.ndarray:
    """Return weights of samples by which each class has as much in total.

    Args:
        codes: (N,) the number of each sample's class.
        weights: (N,) the samples' own weights, above zero; None weights all of them alike.
    """
    own = weights
    if own is None:
        own = np.ones(len(codes))

    # A class whose samples have the total weight t gets s / (C t), with s the sum over all C
    # classes: each class then has the total s / C.
    totals = np.bincount(codes, own)
    factors = own.sum() / (len(totals) * totals)
    return own * factors[codes]
