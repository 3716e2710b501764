"""The classifier."""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.base import ClassifierMixin
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_consistent_length, column_or_1d

from ...errors import OptionError
from ..data.files.casts import Coded
from ..data.samples import recognise
from .base import Estimator, all_or_nothing, checked


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
            before its finalists; methods beside the operators, which stand among these, are not
            tried.
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

    def _task(self) -> str:
        return "classification"

    def fit(self, X: Any, y: Any) -> FredholmClassifier:
        """Train on samples ``X`` and their classes ``y``."""
        with all_or_nothing(self):
            collection = self._collect(X, self.kind or recognise(X), fitting=True)
            if collection.kind == "fields":
                raise OptionError(
                    "kind: received 'fields'; a classifier needs another, or a regressor"
                )
            labels = column_or_1d(checked(self, y), warn=True)
            check_consistent_length(collection.samples, labels)
            check_classification_targets(labels)
            self.classes_, codes = np.unique(labels, return_inverse=True)
            if len(self.classes_) < 2:
                raise OptionError(
                    f"y: one class only, {str(self.classes_[0])!r}; needs two or more"
                )
            collection.labels = Coded(codes, [str(name) for name in self.classes_])
            self._fit(collection)
        return self

    def predict_proba(self, X: Any) -> np.ndarray:
        """(N, C) probabilities, columns in the order of ``classes_``."""
        outputs, _ = self._outputs(X)
        return (outputs.double() / self.temperature_).softmax(-1).numpy()

    def predict(self, X: Any) -> np.ndarray:
        """(N,) the most probable classes."""
        best = self.predict_proba(X).argmax(1)
        return self.classes_[best]
