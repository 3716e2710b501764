"""Methods beside the operators, from scikit-learn: a simple method may do as well as a model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from sklearn.decomposition import TruncatedSVD
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
from sklearn.linear_model import LogisticRegression
from torch import Tensor

from ...errors import OptionError
from ..data import limit_samples
from ..data.kinds.kind import KINDS
from ..training.tasks import task_of
from .fitted import Fitted, Logistic, log_probabilities
from .minirocket import minirocket
from .splits import batches
from .starts import STARTS, Start
from .terms import Terms
from .trees import Trees

BOOSTING = "boosting"
MINIROCKET = "minirocket"
WORDS = "words"

# Gradient boosting is fitted to at most this many training samples.
MOST = 10_000
ROUNDS = 100
LEAVES = 15

# Components of a text's term weights at most.
COMPONENTS = 64

Answer = Callable[[Any], Tensor]
"""A function from a batch of inputs to as many outputs."""


@dataclass(frozen=True)
class Method:
    """A method beside the operators.

    Attributes:
        title: its name in words.
        reads: whether it can read the samples of a data set.
        needs: what it reads, for the reason why it cannot.
        fit: fits it to training samples, with a seed.
        view: turns a data set into one whose batches the fitted method reads.
        numbers: whether it also predicts numbers; else only classes.
        draws: whether its fit depends on the seed.
        start: the pretrained start behind it, whose weights must be fetched, or None.
    """

    title: str
    reads: Callable[[Any], bool]
    needs: str
    fit: Callable[[Any, int], Fitted]
    view: Callable[[Any], Any] = lambda dataset: dataset
    numbers: bool = True
    draws: bool = False
    start: Start | None = None


def serves(name: str, dataset: Any) -> str | None:
    """Return why a method cannot serve a data set, or None where it can."""
    method = PLAIN[name]
    task = task_of(dataset)
    if not task.lone:
        return f"{method.title} gives one answer per sample; {dataset.name} asks for {dataset.task}"
    if (task.classifies or method.numbers) and method.reads(dataset):
        return None
    return f"{method.title} needs {method.needs}, not {dataset.kind.many} and {dataset.task}"


@dataclass(frozen=True, eq=False)
class Boosted(Fitted):
    """Gradient boosting on a few features of a sample.

    Attributes:
        trees: on what the kind of data summarises of a sample (:meth:`.Kind.summarise`), or on
            components of a text's term weights.
        kind: of data, by its name.
        timed: whether the first channel of a sample is time.
        classes: indices of the classes in its training samples; empty for numbers.
        count: of all classes; 0 for numbers.
        terms: of texts, else None.
        components: of texts, (:data:`COMPONENTS`, terms), else None.
    """

    trees: Trees
    kind: str
    timed: bool
    classes: list[int]
    count: int
    terms: Terms | None = None
    components: Tensor | None = None

    def __call__(self, inputs: Tensor) -> Tensor:
        found = self.trees(self.rows(inputs))
        if self.count == 0:
            return found
        return log_probabilities(found, self.classes, self.count)

    def rows(self, inputs: Tensor) -> np.ndarray:
        """Return the features (samples, features) that the trees read."""
        if self.terms is None or self.components is None:
            return KINDS[self.kind].summarise(inputs, timed=self.timed)
        return self.terms(inputs) @ self.components.numpy().T


def boosting(train: Any, seed: int) -> Boosted:
    """Fit gradient boosting with histograms, :data:`ROUNDS` rounds.

    Raises:
        OptionError: a data set whose samples have no summary.
    """
    train = limit_samples(train, MOST)
    why = serves(BOOSTING, train)
    if why is not None:
        raise OptionError(why)
    rows, labels, reader = _features(train)

    options: dict[str, Any] = {
        "max_iter": ROUNDS,
        "max_leaf_nodes": LEAVES,
        "random_state": seed,
        "early_stopping": False,
        # With few samples, leaves of the usual 20 would leave nothing to split.
        "min_samples_leaf": max(1, min(20, len(rows) // 20)),
    }
    if task_of(train).classifies:
        model: Any = HistGradientBoostingClassifier(**options).fit(rows, labels)
        classes = model.classes_.tolist()
        count = len(train.classes)
    else:
        model = HistGradientBoostingRegressor(**options).fit(rows, labels)
        classes = []
        count = 0
    return Boosted(
        Trees.of(model),
        classes=classes,
        count=count,
        **reader,
    )


class Features(NamedTuple):
    """Features of all samples.

    Attributes:
        rows: (samples, features).
        labels: of the samples.
        reader: fields of :class:`Boosted` with which it makes the same features of other samples.
    """

    rows: np.ndarray
    labels: np.ndarray
    reader: dict[str, Any]


def _features(train: Any) -> Features:
    """Compute the features of all samples.

    Features of a text are its TF-IDF weights projected on a few components; those of any other
    sample are the numbers of :meth:`.Kind.summarise`.
    """
    timed = getattr(train, "timed", False)
    reader: dict[str, Any] = {"kind": train.kind.name, "timed": timed}
    if train.kind.worded:
        inputs, labels = train.batch(torch.arange(len(train)))
        terms = Terms.fit(inputs, pairs=False)
        weights = terms(inputs)
        components = _components(weights)
        reader |= {"terms": terms, "components": torch.from_numpy(components)}
        return Features(weights @ components.T, labels.numpy(), reader)

    parts = [
        (train.kind.summarise(inputs, timed=timed), labels.numpy())
        for inputs, labels in batches(train, 256)
    ]
    rows, labels = (np.concatenate(part) for part in zip(*parts))
    return Features(rows, labels, reader)


def _components(weights: Any) -> Float[np.ndarray, "components terms"]:
    """Return the first :data:`COMPONENTS` right singular vectors of the texts' term weights
    (texts, terms): latent semantic analysis. With no more terms than that, each is a component.
    """
    if weights.shape[1] <= COMPONENTS:
        return np.eye(weights.shape[1])
    model: Any = TruncatedSVD(COMPONENTS, random_state=0).fit(weights)
    return np.ascontiguousarray(model.components_)


@dataclass(frozen=True, eq=False)
class Worded(Fitted):
    """Logistic regression on the words of a text and pairs of them."""

    terms: Terms
    head: Logistic

    def __call__(self, inputs: Tensor) -> Tensor:
        return self.head(self.terms(inputs))


def words(train: Any, seed: int) -> Worded:
    """Fit logistic regression on the TF-IDF weights of words and pairs of neighbouring words."""
    inputs, labels = train.batch(torch.arange(len(train)))
    terms = Terms.fit(inputs, pairs=True)
    model: Any = LogisticRegression(C=4.0, max_iter=500)
    model.fit(terms(inputs), labels.numpy())
    head = Logistic.of(model, len(train.classes))
    return Worded(terms, head)


PLAIN = {
    BOOSTING: Method(
        "gradient boosting on simple features",
        lambda data: data.kind.worded or data.kind.summarised,
        "rows of numbers",
        boosting,
    ),
    MINIROCKET: Method(
        "ridge regression on random convolutions (MiniROCKET)",
        lambda data: data.kind.sampled,
        "series",
        minirocket,
        draws=True,
    ),
    WORDS: Method(
        "logistic regression on words",
        lambda data: data.kind.worded,
        "texts and classes",
        words,
        numbers=False,
    ),
}
for _name, _start in STARTS.items():
    PLAIN[_name] = Method(
        _start.title,
        _start.fits,
        _start.needs,
        _start.fit,
        _start.view,
        start=_start,
    )
TITLES = {name: method.title for name, method in PLAIN.items()}
