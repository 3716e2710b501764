"""Baselines from scikit-learn beside the operators: a simple method may do as well as a model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
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

BOOSTING, MINIROCKET, WORDS = "boosting", "minirocket", "words"
MOST = 10_000  # samples that boosting is fitted to
ROUNDS, LEAVES = 100, 15
COMPONENTS = 64  # of texts, at most

Answer = Callable[[Any], Tensor]  # of a batch, as many outputs as inputs


@dataclass(frozen=True)
class Method:
    """A method beside the operators.

    Attributes:
        title: what it is.
        reads: whether it reads the samples of a data set.
        needs: said where it does not.
        fit: makes it of training samples and a seed.
        view: a data set whose batches the answer reads.
        numbers: whether it gives numbers as well as classes.
        start: a pretrained one, which must be there and takes its time.
    """

    title: str
    reads: Callable[[Any], bool]
    needs: str
    fit: Callable[[Any, int], Fitted]
    view: Callable[[Any], Any] = lambda dataset: dataset
    numbers: bool = True
    start: Start | None = None


def serves(name: str, dataset: Any) -> str | None:
    """Why a method cannot serve a data set; None where it can."""
    method, task = PLAIN[name], task_of(dataset)
    if not task.lone:
        return f"{method.title} gives one answer per sample; {dataset.name} asks for {dataset.task}"
    if (task.classifies or method.numbers) and method.reads(dataset):
        return None
    return f"{method.title} needs {method.needs}, not {dataset.kind.many} and {dataset.task}"


@dataclass(frozen=True, eq=False)
class Boosted(Fitted):
    """Gradient boosting on a few numbers of a sample.

    Attributes:
        trees: on what the kind of data makes of a sample (:meth:`.Kind.summarise`), or on
            components of a text's words.
        kind: of data, by its name.
        timed: whether its first channel is time.
        classes, count: that it was fitted to, and of all; none of numbers.
        terms, components: of texts; (:data:`COMPONENTS`, terms).
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
        return log_probabilities(found, self.classes, self.count) if self.count else found

    def rows(self, inputs: Tensor) -> np.ndarray:
        """What the trees read."""
        if self.terms is None or self.components is None:
            return KINDS[self.kind].summarise(inputs, timed=self.timed)
        return self.terms(inputs) @ self.components.numpy().T


def boosting(train: Any, seed: int) -> Boosted:
    """Histograms of gradients, :data:`ROUNDS` rounds.

    Raises:
        OptionError: a data set whose samples have no rows of a few numbers.
    """
    from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor

    train = limit_samples(train, MOST)
    why = serves(BOOSTING, train)
    if why is not None:
        raise OptionError(why)
    rows, labels, reader = _features(train)
    options: dict[str, Any] = {"max_iter": ROUNDS, "max_leaf_nodes": LEAVES, "random_state": seed}
    options |= {"early_stopping": False, "min_samples_leaf": max(1, min(20, len(rows) // 20))}
    if not task_of(train).classifies:
        model: Any = HistGradientBoostingRegressor(**options).fit(rows, labels)
        return Boosted(Trees.of(model), classes=[], count=0, **reader)
    model = HistGradientBoostingClassifier(**options).fit(rows, labels)
    return Boosted(
        Trees.of(model), classes=model.classes_.tolist(), count=len(train.classes), **reader
    )


def _features(train: Any) -> tuple[np.ndarray, np.ndarray, dict[str, Any]]:
    """Return the features (samples, features) of all samples, their labels, and the fields of
    :class:`Boosted` with which it makes the same features of further samples.

    Features of a text are its TF-IDF weights projected on a few components; those of any other
    sample are the numbers of :meth:`.Kind.summarise`.
    """
    reader: dict[str, Any] = {"kind": train.kind.name, "timed": getattr(train, "timed", False)}
    if train.kind.worded:
        inputs, labels = train.batch(torch.arange(len(train)))
        terms = Terms.fit(inputs, pairs=False)
        weights = terms(inputs)
        components = _components(weights)
        reader |= {"terms": terms, "components": torch.from_numpy(components)}
        return weights @ components.T, labels.numpy(), reader

    parts = [
        (train.kind.summarise(inputs, timed=reader["timed"]), labels.numpy())
        for inputs, labels in batches(train, 256)
    ]
    rows, labels = (np.concatenate(part) for part in zip(*parts))
    return rows, labels, reader


def _components(weights: Any) -> Float[np.ndarray, "components terms"]:
    """Return the first :data:`COMPONENTS` right singular vectors of the texts' term weights
    (texts, terms): latent semantic analysis. With no more terms than that, each is a component.
    """
    from sklearn.decomposition import TruncatedSVD

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
    """Logistic regression on the words and pairs of words of a text, weighted by how rare they
    are.
    """
    from sklearn.linear_model import LogisticRegression

    inputs, labels = train.batch(torch.arange(len(train)))
    terms = Terms.fit(inputs, pairs=True)
    model: Any = LogisticRegression(C=4.0, max_iter=500).fit(terms(inputs), labels.numpy())
    return Worded(terms, Logistic.of(model, len(train.classes)))


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
    ),
    WORDS: Method(
        "logistic regression on words",
        lambda data: data.kind.worded,
        "texts and classes",
        words,
        numbers=False,
    ),
} | {
    name: Method(
        start.title,
        start.fits,
        "texts" if start.worded else "pictures",
        start.fit,
        start.view,
        start=start,
    )
    for name, start in STARTS.items()
}
TITLES = {name: method.title for name, method in PLAIN.items()}
