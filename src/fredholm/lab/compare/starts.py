"""Pretrained starts: a linear model on a frozen transformer's features of a text or a picture.

Their weights are fetched by name (``fredholm data fetch``); nothing is downloaded here.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from sklearn.linear_model import LogisticRegression, RidgeCV
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from torch import Tensor

from ...errors import MissingExtraError, require
from ..data import dataset_path, describe, limit_samples
from ..data.files.datasets import MEAN, STD
from ..training.tasks import task_of
from .backbones import PATCH, minilm, vit
from .clock import Clock
from .fitted import UNSAVED, Fitted, Linear, Logistic
from .splits import batches

# The linear model is fitted to at most this many samples.
MOST = 10_000

# Pixels per side of a picture, at least and at most.
SIDES = 70, 224

# Samples per call of the backbone.
BATCH = 32

# Inverse penalties of the logistic regression, chosen by cross-validation on three parts.
PENALTIES = [1e-3, 1e-2, 1e-1]
PARTS = 3

# Share of the time left that one start may take, and the samples that are timed to estimate it.
SHARE = 0.25
TRIED = 8


@dataclass
class Start:
    """A pretrained start: a frozen backbone, and the features that it has computed so far.

    Attributes:
        title: its name in words.
        weights: their name in the catalogue.
        worded: whether it reads texts; else pictures.
        load: loads the backbone from the folder of the weights. It returns features (B, D) of a
            list of texts, or of pictures (B, 3, H, W).
        known: features by sample. Folds and seeds read most samples again.
    """

    title: str
    weights: str
    worded: bool
    load: Callable[[Path], Callable[[Any], Tensor]]
    known: dict[Any, Tensor] = field(default_factory=dict)

    @property
    def needs(self) -> str:
        """Name the samples that it reads."""
        if self.worded:
            return "texts"
        return "pictures"

    def fits(self, dataset: Any) -> bool:
        """Return whether it can read the samples of a data set."""
        if self.worded:
            return dataset.kind.worded and dataset.written() is not None
        pixels = dataset.normalisation()
        if not dataset.kind.pictured or pixels is None:
            return False
        mean, _ = pixels
        return len(mean) in (1, 3)

    def missing(self) -> str | None:
        """Return what it lacks on this machine and how to get it, or None."""
        try:
            require("transformers", "hf", "a pretrained start")
            if not self.worded:
                require("onnx", "onnx", "reading weights of an ONNX file")
        except MissingExtraError as error:
            return str(error)
        if describe(self.weights)["fetched"]:
            return None
        return f"its weights are not here; fredholm data fetch {self.weights} brings them"

    def late(self, parts: Sequence[Any], clock: Clock) -> str | None:
        """Return why reading its samples would take more than :data:`SHARE` of the time left, in
        words; None if it fits.

        The time is an estimate: the backbone runs on a few training samples.

        Args:
            parts: data sets that it will read, the training samples first. Of these it reads at
                most :data:`MOST`, of the others all.
            clock: of the search, whose timer measures the estimate.
        """
        doing, needed = self._needs(parts, clock.timer)
        # Read after the estimate, which has taken time itself; negative once the time is up.
        left = clock.left
        if needed <= SHARE * left:
            return None
        return (
            f"{doing} takes about {needed / 60:.1f} minutes; it may have a share of {SHARE:g} of "
            f"the {left / 60:.1f} minutes left"
        )

    def _needs(
        self,
        parts: Sequence[Any],
        timer: Callable[[], float],
    ) -> tuple[str, float]:
        """Return what has to be done, in words, and its seconds, estimated from a few samples."""
        train, *others = parts
        few = limit_samples(train, 2 * TRIED)
        every = torch.arange(len(few))
        inputs, _ = self.view(few).batch(every)
        samples = self.given(few, inputs)

        backbone = self._backbone()
        places = range(len(few))
        first = places[:TRIED]
        last = places[-TRIED:]
        with torch.inference_mode():
            # The first call is slower.
            backbone(_select(samples, first))
            start = timer()
            backbone(_select(samples, last))
        per_sample = (timer() - start) / len(last)
        count = min(len(train), MOST) + sum(map(len, others))
        return f"reading {count:,} {few.kind.many}", per_sample * count

    def _backbone(self) -> Any:
        """Return the backbone as it was fetched."""
        return _loaded(self.load, dataset_path(self.weights))

    def view(self, dataset: Any) -> Any:
        """Return a data set whose batches this reads: texts as they were written."""
        if not self.worded:
            return dataset
        texts = dataset.written()
        result = copy.copy(dataset)

        def raw(indices: Any) -> tuple[list[str], Tensor]:
            _, labels = dataset.raw(indices)
            return [texts[int(index)] for index in indices], labels

        result.raw = raw
        return result

    def features(self, dataset: Any) -> Float[Tensor, "n d"]:
        """Compute the features of all samples of a :meth:`view`."""
        rows = [self.read(dataset, inputs) for inputs, _ in batches(dataset, 256)]
        return torch.cat(rows)

    def read(self, dataset: Any, inputs: Any) -> Float[Tensor, "b d"]:
        """Return the features of a batch of a data set, computing those that are not known."""
        keys = inputs
        if not self.worded:
            keys = [blake2b(row.numpy()).digest() for row in inputs]

        # Batches of texts of similar length need less padding.
        new = [place for place, key in enumerate(keys) if key not in self.known]
        new.sort(key=lambda place: len(keys[place]))
        if new:
            backbone = self._backbone()
            for start in range(0, len(new), BATCH):
                chosen = new[start : start + BATCH]
                samples = self.given(dataset, _select(inputs, chosen))
                with torch.inference_mode():
                    found = backbone(samples).float()
                for place, row in zip(chosen, found):
                    self.known[keys[place]] = row
        return torch.stack([self.known[key] for key in keys])

    def given(self, dataset: Any, inputs: Any) -> Any:
        """Return a batch as the backbone reads it: texts, or normalised pixels."""
        if self.worded:
            return inputs
        return _pixels(dataset, inputs)

    def fit(self, train: Any, seed: int) -> Started:
        """Fit a linear model to the features, with the penalty chosen by cross-validation: logistic
        regression of classes, ridge regression of numbers.
        """
        train = limit_samples(train, MOST)
        parts = [labels.numpy() for _, labels in batches(train, 256)]
        labels = np.concatenate(parts)
        rows = self.features(self.view(train))
        head = _head(rows.numpy(), labels, train)

        # Its name is saved; the title stands for a start that has none.
        names = (name for name, start in STARTS.items() if start is self)
        name = next(names, self.title)
        mean = []
        std = []
        if not self.worded:
            mean, std = map(list, train.normalisation())
        return Started(name, head, mean, std, self)


@dataclass(frozen=True, eq=False)
class Started(Fitted):
    """A linear model on the features of a start.

    Attributes:
        start: a name in :data:`STARTS`.
        head: the model.
        mean, std: of the normalised pictures that it was fitted to; empty for texts.
        reader: the start with the features that it knows; None: a new one.
    """

    start: str
    head: Linear | Logistic
    mean: list[float]
    std: list[float]
    reader: Start | None = field(default=None, metadata=UNSAVED)

    def normalisation(self) -> tuple[list[float], list[float]]:
        """Return mean and deviation of the pictures that it was fitted to."""
        return self.mean, self.std

    def __call__(self, inputs: Any) -> Tensor:
        return self.head(self._reader.read(self, inputs))

    @cached_property
    def _reader(self) -> Start:
        if self.reader is not None:
            return self.reader
        return replace(STARTS[self.start], known={})


def _head(
    rows: Float[np.ndarray, "n d"],
    labels: np.ndarray,
    train: Any,
) -> Linear | Logistic:
    """Fit a linear model of scikit-learn to standardised features; it reads them unscaled."""
    if not task_of(train).classifies:
        scaler = StandardScaler().fit(rows)
        scaled = scaler.transform(rows)
        penalties = np.logspace(-1, 5, 13)
        ridge = RidgeCV(penalties).fit(scaled, labels)
        return Linear.of(ridge, scaler)

    regression = LogisticRegression(C=0.01, max_iter=1000)
    model: Any = make_pipeline(StandardScaler(), regression)
    # Cross-validation needs each class in each part.
    _, counts = np.unique(labels, return_counts=True)
    if counts.min() >= PARTS:
        model = GridSearchCV(
            model,
            {"logisticregression__C": PENALTIES},
            cv=PARTS,
        )
    model.fit(rows, labels)
    fitted = getattr(model, "best_estimator_", model)
    scaler, last = (step for _, step in fitted.steps)
    return Logistic.of(last, len(train.classes), scaler)


def _select(inputs: Any, places: Sequence[int]) -> Any:
    """Return some texts of a list, or some rows of a tensor."""
    if isinstance(inputs, list):
        return [inputs[place] for place in places]
    return inputs[list(places)]


@cache
def _loaded(load: Callable[[Path], Any], folder: Path) -> Any:
    return load(folder)


def _pixels(dataset: Any, inputs: Float[Tensor, "b c h w"]) -> Float[Tensor, "b 3 s s"]:
    """Return a data set's normalised pictures as a vision transformer reads them.

    They become squares whose side is a multiple of the patch size: the one nearest to the longer
    side of a picture, within :data:`SIDES`. The data set's mean and deviation are replaced by
    ImageNet's, with which the transformer was trained.
    """
    mean, std = map(_per_channel, dataset.normalisation())
    images = inputs * std + mean
    # A grey channel is repeated as red, green and blue.
    images = images[:, :3].expand(-1, 3, -1, -1)

    # The side is a whole number of patches.
    least, most = SIDES
    longest = max(images.shape[2:])
    side = PATCH * round(longest / PATCH)
    side = min(max(side, least), most)
    images = torch.nn.functional.interpolate(
        images,
        (side, side),
        mode="bicubic",
        antialias=True,
        align_corners=False,
    )

    # Bicubic interpolation overshoots at edges.
    images = images.clamp(0, 1)
    return (images - _per_channel(MEAN)) / _per_channel(STD)


def _per_channel(values: Sequence[float]) -> Float[Tensor, "c 1 1"]:
    return torch.tensor(values)[:, None, None]


STARTS = {
    "minilm": Start(
        "logistic regression on MiniLM as it is",
        weights="minilm",
        worded=True,
        load=minilm,
    ),
    "vit-s": Start(
        "logistic regression on a ViT-S as it is",
        weights="vit-s-focus",
        worded=False,
        load=vit,
    ),
}
