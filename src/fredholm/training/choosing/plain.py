"""Methods beside the operators, of scikit-learn: what models alone would not tell."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ...data import limit_samples
from ...errors import OptionError
from .splits import batches

BOOSTING, WORDS = "boosting", "words"
TITLES = {
    BOOSTING: "gradient boosting on simple features",
    WORDS: "logistic regression on words",
}
MOST = 10_000  # samples that boosting is fitted to
ROUNDS, LEAVES = 100, 15
COMPONENTS = 64  # of texts
LEAST = 1e-7  # of a probability

Method = Callable[[Any, int], Callable[[Tensor], Tensor]]


def serves(name: str, dataset: Any) -> str | None:
    """Why a method cannot serve a data set; None where it can."""
    if dataset.task not in ("classification", "regression"):
        return f"{TITLES[name]} gives one answer per sample; {dataset.name} asks for {dataset.task}"
    if name == WORDS:
        fits = dataset.kind.worded and dataset.task == "classification"
        return None if fits else f"{TITLES[name]} needs texts and classes"
    if dataset.kind.worded or dataset.kind.summarised:
        return None
    return f"{TITLES[name]}: there are none of {dataset.kind.many}"


def boosting(train: Any, seed: int) -> Callable[[Tensor], Tensor]:
    """Histograms of gradients, :data:`ROUNDS` rounds, on what the kind of data makes of a sample
    (:meth:`.Kind.summarise`); of texts on components of their words.

    Raises:
        OptionError: a data set whose samples have no such rows.
    """
    from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor

    train = limit_samples(train, MOST)
    why = serves(BOOSTING, train)
    if why is not None:
        raise OptionError(why)
    read = _components(train) if train.kind.worded else _summary(train)
    rows, labels = _rows(train, read)
    options: dict[str, Any] = {"max_iter": ROUNDS, "max_leaf_nodes": LEAVES, "random_state": seed}
    options |= {"early_stopping": False, "min_samples_leaf": max(1, min(20, len(rows) // 20))}
    if train.task == "regression":
        model: Any = HistGradientBoostingRegressor(**options).fit(rows, labels)
        return lambda inputs: torch.from_numpy(model.predict(read(inputs)))[:, None]
    model = HistGradientBoostingClassifier(**options).fit(rows, labels)
    return lambda inputs: _logits(model, read(inputs), len(train.classes))


def words(train: Any, seed: int) -> Callable[[Tensor], Tensor]:
    """Logistic regression on the words and pairs of words of a text, weighted by how rare they
    are.
    """
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline

    labels = train.labels.numpy()
    model: Any = make_pipeline(_weights((1, 2)), LogisticRegression(C=4.0, max_iter=500))
    model.fit(_documents(train.batch(torch.arange(len(train)))[0]), labels)
    return lambda inputs: _logits(model, _documents(inputs), len(train.classes))


PLAIN: dict[str, Method] = {BOOSTING: boosting, WORDS: words}


def _summary(train: Any) -> Callable[[Any], np.ndarray]:
    timed = getattr(train, "timed", False)
    return lambda inputs: train.kind.summarise(inputs, timed=timed)


def _rows(dataset: Any, read: Callable[[Any], np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Features and labels of all samples."""
    parts = [(read(inputs), labels.numpy()) for inputs, labels in batches(dataset, 256)]
    return np.concatenate([p for p, _ in parts]), np.concatenate([y for _, y in parts])


def _components(train: Any) -> Callable[[Any], np.ndarray]:
    """Texts as :data:`COMPONENTS` sums of their words' weights, or as many as there are words."""
    from sklearn.decomposition import TruncatedSVD

    weights = _weights((1, 1))
    found = weights.fit_transform(_documents(train.batch(torch.arange(len(train)))[0]))
    model = TruncatedSVD(min(COMPONENTS, found.shape[1]), random_state=0).fit(found)
    return lambda inputs: model.transform(weights.transform(_documents(inputs)))


def _weights(pairs: tuple[int, int]) -> Any:
    from sklearn.feature_extraction.text import TfidfVectorizer

    return TfidfVectorizer(token_pattern=r"\S+", ngram_range=pairs, sublinear_tf=True)


def _documents(tokens: Tensor) -> list[str]:
    """Rows of numbers of tokens as texts of them, without padding."""
    return [" ".join(f"t{n}" for n in row if n) or "t0" for row in tokens.tolist()]


def _logits(model: Any, rows: Any, classes: int) -> Tensor:
    """Logarithms of probabilities (B, classes); a class that was not trained on has none."""
    found = torch.full((rows.shape[0] if hasattr(rows, "shape") else len(rows), classes), LEAST)
    known = torch.as_tensor(model.classes_, dtype=torch.int64)
    found[:, known] = torch.from_numpy(model.predict_proba(rows)).float().clamp(min=LEAST)
    return found.log()
