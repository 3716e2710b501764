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
from torch import Tensor

from ...errors import MissingExtraError, require
from ..data import dataset_path, describe, limit_samples
from ..data.files.datasets import MEAN, STD
from ..training.tasks import task_of
from .backbones import PATCH, minilm, vit
from .clock import Clock
from .fitted import UNSAVED, Fitted, Linear, Logistic
from .splits import batches
from .students import MAP, Recalled, Student

MOST = 10_000  # samples that the linear model is fitted to
SIDES = 70, 224  # pixels of a picture, at least and at most
BATCH = 32
PENALTIES = [1e-3, 1e-2, 1e-1]  # inverse ones, of the logistic regression
PARTS = 3  # of the training samples, of which each tells how good a penalty is
SHARE = 0.25  # of the time left, that one start may take
TRIED = 8  # samples that are timed


@dataclass
class Start:
    """A frozen backbone.

    Attributes:
        title: what it is.
        weights: their name in the catalogue.
        worded: whether it reads texts; else pictures.
        load: makes what gives features (B, D) of a list of texts, or of pictures (B, 3, H, W) in
            [0, 1].
        linear: whether its softmax attention is replaced by linear attention, which learns to be
            like it from the training samples of a search, without their labels.
        known: features of samples that were read before; folds and seeds read most of them again.
    """

    title: str
    weights: str
    worded: bool
    load: Callable[[Path], Callable[[Any], Tensor]]
    linear: bool = False
    student: Student | None = field(default=None, init=False, repr=False)
    known: dict[Any, Tensor] = field(default_factory=dict)

    def fits(self, dataset: Any) -> bool:
        """Whether it reads the samples of a data set."""
        if self.worded:
            return dataset.kind.worded and dataset.written() is not None
        pixels = dataset.normalisation()
        return dataset.kind.pictured and pixels is not None and len(pixels[0]) in (1, 3)

    def missing(self) -> str | None:
        """Why it is not there; None where it is."""
        try:
            require("transformers", "hf", "a pretrained start")
            if not self.worded:
                require("onnx", "onnx", "reading weights of an ONNX file")
        except MissingExtraError as error:
            return str(error)
        if describe(self.weights)["fetched"]:
            return None
        return f"its weights are not here; fredholm data fetch {self.weights} brings them"

    def begin(self, train: Any) -> None:
        """Before it reads anything: the training samples of a search. What attention has learnt
        from others, and features that it made, are forgotten.
        """
        if self.linear and (self.student is None or not self.student.learns_from(train)):
            self.student = Student(train, self.view, self.given, self._teacher)
            self.known.clear()

    def prepare(self, timer: Callable[[], float]) -> str | None:
        """Learn what there is to learn before samples are read, said in a line; None where there is
        nothing.
        """
        if self.student is None or self.student.learned:
            return None
        start, before = timer(), float(self.student.loss())
        self.student.learn()
        after, count = float(self.student.loss()), len(self.student.samples)
        return (
            f"linear attention ({MAP}) learnt from {count:,} {self.student.dataset.kind.many} in "
            f"{timer() - start:.0f} s; divergence from softmax {before:.2f} before, {after:.2f} "
            "after"
        )

    def late(self, parts: Sequence[Any], clock: Clock) -> str | None:
        """Why it cannot learn what it has to, and read the samples of some data sets, the training
        samples first, in its :data:`SHARE` of the time left; None where it can.
        """
        doing, needed = self._needs(parts, clock.timer)
        if needed <= SHARE * clock.left:
            return None
        return (
            f"{doing} takes about {_minutes(needed)}; it may have a share of {SHARE:g} of the "
            f"{_minutes(clock.left)} left"
        )

    def _needs(self, parts: Sequence[Any], timer: Callable[[], float]) -> tuple[str, float]:
        """What is to be done, in words, and seconds that it takes, from a few samples."""
        self.begin(parts[0])
        few = limit_samples(parts[0], 2 * TRIED)
        given = self.given(few, self.view(few).batch(torch.arange(len(few)))[0])
        backbone = self._teacher() if self.student is None else self.student.backbone
        last = range(len(few))[-TRIED:]
        with torch.inference_mode():
            backbone(_some(given, range(len(few))[:TRIED]))  # the first call is slower
            start = timer()
            backbone(_some(given, last))
        count = sum(min(len(part), MOST) for part in parts)
        seconds, doing = (timer() - start) / len(last) * count, f"{count:,} {few.kind.many}"
        if self.student is None:
            return f"reading {doing}", seconds
        if not self.student.learned:
            seconds += self.student.seconds(timer)
        return f"{self.student.plan} and reading {doing}", seconds

    def _teacher(self) -> Any:
        """The backbone as it was fetched."""
        return _loaded(self.load, dataset_path(self.weights))

    def view(self, dataset: Any) -> Any:
        """A data set whose batches this reads: of texts as they were written."""
        if not self.worded:
            return dataset
        result, texts = copy.copy(dataset), dataset.written()
        result.raw = lambda at: ([texts[int(i)] for i in at], dataset.raw(at)[1])
        return result

    def features(self, dataset: Any) -> Float[Tensor, "n d"]:
        """Of all samples of a :meth:`view`."""
        return torch.cat([self.read(dataset, inputs) for inputs, _ in batches(dataset, 256)])

    def read(self, dataset: Any, inputs: Any) -> Float[Tensor, "b d"]:
        """Features of a batch of a data set."""
        keys = inputs if self.worded else [blake2b(row.numpy()).digest() for row in inputs]
        new = [place for place, key in enumerate(keys) if key not in self.known]
        new.sort(key=lambda place: len(keys[place]))  # texts among others of their length
        backbone = None
        if new:
            backbone = self._teacher() if self.student is None else self.student.learn()
        for start in range(0, len(new), BATCH):
            chosen = new[start : start + BATCH]
            given = self.given(dataset, _some(inputs, chosen))
            with torch.inference_mode():
                found = backbone(given).float()  # type: ignore[misc]
            self.known |= {keys[i]: row for i, row in zip(chosen, found)}
        return torch.stack([self.known[key] for key in keys])

    def given(self, dataset: Any, inputs: Any) -> Any:
        """A batch as the backbone reads it: texts, or normalised pixels."""
        return inputs if self.worded else _pixels(dataset, inputs)

    def fit(self, train: Any, seed: int) -> Started:
        """Logistic regression on standardised features, or ridge regression of numbers; the penalty
        by cross-validation.
        """
        if self.student is None:
            self.begin(train)
        train = limit_samples(train, MOST)
        labels = np.concatenate([labels.numpy() for _, labels in batches(train, 256)])
        head = _head(self.features(self.view(train)).numpy(), labels, train)
        name = next((name for name, start in STARTS.items() if start is self), self.title)
        mean, std = ([], []) if self.worded else map(list, train.normalisation())
        maps = torch.zeros(0) if self.student is None else self.student.maps
        return Started(name, head, mean, std, maps, self)

    def recall(self, maps: Float[Tensor, " p"]) -> Start:
        """The same start, which has read nothing yet, with what its attention has learnt before."""
        result = replace(self, known={})
        if self.linear:
            example = ["a text"] if self.worded else torch.zeros(1, 3, SIDES[0], SIDES[0])
            result.student = Recalled(maps, example, self._teacher)
        return result


@dataclass(frozen=True, eq=False)
class Started(Fitted):
    """A linear model on the features of a start.

    Attributes:
        start: a name of :data:`STARTS`.
        head: on the features as they are.
        mean, std: by which the pictures of the data set are normalised; none of texts.
        maps: what linear attention has learnt, see :attr:`.Student.maps`; else empty.
        reader: the start, which may have read samples before; None: anew.
    """

    start: str
    head: Linear | Logistic
    mean: list[float]
    std: list[float]
    maps: Tensor
    reader: Start | None = field(default=None, metadata=UNSAVED)

    def normalisation(self) -> tuple[list[float], list[float]]:
        """Of the pictures that it was fitted to."""
        return self.mean, self.std

    def __call__(self, inputs: Any) -> Tensor:
        return self.head(self._reader.read(self, inputs))

    @cached_property
    def _reader(self) -> Start:
        return STARTS[self.start].recall(self.maps) if self.reader is None else self.reader


def _head(rows: Float[np.ndarray, "n d"], labels: np.ndarray, train: Any) -> Linear | Logistic:
    """A linear model of scikit-learn, on features as they are."""
    from sklearn.linear_model import LogisticRegression, RidgeCV
    from sklearn.model_selection import GridSearchCV
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    if not task_of(train).classifies:
        scaler = StandardScaler().fit(rows)
        ridge = RidgeCV(np.logspace(-1, 5, 13)).fit(scaler.transform(rows), labels)
        return Linear.of(ridge, scaler)
    model: Any = make_pipeline(StandardScaler(), LogisticRegression(C=0.01, max_iter=1000))
    if np.unique(labels, return_counts=True)[1].min() >= PARTS:
        model = GridSearchCV(model, {"logisticregression__C": PENALTIES}, cv=PARTS)
    model.fit(rows, labels)
    scaler, last = (step for _, step in getattr(model, "best_estimator_", model).steps)
    return Logistic.of(last, len(train.classes), scaler)


def _some(inputs: Any, places: Sequence[int]) -> Any:
    """Some texts of a list, or some rows."""
    return [inputs[i] for i in places] if isinstance(inputs, list) else inputs[list(places)]


@cache
def _loaded(load: Callable[[Path], Any], folder: Path) -> Any:
    return load(folder)


def _minutes(seconds: float) -> str:
    return f"{seconds / 60:.1f} minutes"


def _pixels(dataset: Any, inputs: Float[Tensor, "b c h w"]) -> Float[Tensor, "b 3 s s"]:
    """Return a data set's normalised pictures as a vision transformer reads them.

    They become squares whose side is a multiple of the patch size: the one nearest to the longer
    side of a picture, within :data:`SIDES`. The data set's mean and deviation are replaced by
    ImageNet's, with which the transformer was trained.
    """
    means, stds = (torch.tensor(v)[:, None, None] for v in dataset.normalisation())

    # A grey channel is repeated as red, green and blue.
    images = (inputs * stds + means)[:, :3].expand(-1, 3, -1, -1)

    least, most = SIDES
    side = min(max(PATCH * round(max(images.shape[2:]) / PATCH), least), most)
    images = torch.nn.functional.interpolate(
        images, (side, side), mode="bicubic", antialias=True, align_corners=False
    )

    # Bicubic interpolation overshoots at edges.
    mean, std = (torch.tensor(v)[:, None, None] for v in (MEAN, STD))
    return (images.clamp(0, 1) - mean) / std


STARTS = {
    "minilm": Start("logistic regression on MiniLM as it is", "minilm", True, minilm),
    "minilm-linear": Start(
        "logistic regression on MiniLM with linear attention", "minilm", True, minilm, linear=True
    ),
    "vit-s": Start("logistic regression on a ViT-S as it is", "vit-s-focus", False, vit),
    "vit-s-linear": Start(
        "logistic regression on a ViT-S with linear attention",
        "vit-s-focus",
        False,
        vit,
        linear=True,
    ),
}
