"""Kinds of data: facts about samples where no data set is at hand, such as a user's own files or
tensors.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ....errors import OptionError, ShapeError
from ....registry import Registry


class Kind:
    """One kind of data; :data:`KINDS` has one instance of each.

    Attributes:
        name: in errors and in ``fredholm data list``.
        one, many: what one sample is called, and several.
        encoder: the ``data`` in the configuration of the encoders that read this kind
            (:class:`fredholm.encoders.EncoderConfig`).
        takes: options of :func:`fredholm.data.create_dataset`, and keys of a recipe's section
            ``data``, that not all kinds have, but this one.
        assumed: whether inputs that fit are of this kind even where the model's encoder reads
            another, or the model names none.
        single: whether a sample is one signal, which convolutions and recurrences can read.
        worded: whether a sample is written in words.
        sampled: whether a sample is measured over time, so that some of its points may be missing.
        summarised: whether :meth:`summarise` turns a sample into a row of numbers.
        pictured: whether a sample is a picture, on which a map over points can be laid.
        judged: whether the object in a picture may be known, so that maps can be compared with it.
        legend: a sentence below samples that are drawn.
        point, axis: what a report calls a point of a sample, and its place on a line.
        unit: of distances in a report; ``always`` is what every sample has at the same place.
        unsized: stands in a table instead of the number of samples, for a kind without samples.
    """

    name: str = "sample"
    one: str = "sample"
    many: str = "samples"
    encoder: str = ""
    takes: tuple[str, ...] = ()
    assumed: bool = True
    single: bool = True
    worded: bool = False
    sampled: bool = False
    summarised: bool = False
    pictured: bool = False
    judged: bool = False
    legend: str = ""
    point: str = "point"
    axis: str = "position"
    unit: str = ""
    always: str = ""
    unsized: str = ""

    def request(self, name: str, given: Mapping[str, Any]) -> dict[str, Any]:
        """Return fields of a :class:`fredholm.lab.data.registry.Request` from options that not all
        kinds have.

        Args:
            name: of the data set, for errors.
            given: the caller's options by their names.

        Raises:
            OptionError: an option of another kind, or an impossible value.
        """
        for key, value in given.items():
            if key not in self.takes:
                raise OptionError(
                    f"{key}: expected an option of {self.name}, which {name} holds, got {value!r}; "
                    "leave it out"
                )
        return {}

    def fits(self, inputs: Any) -> bool:
        """Return whether ``inputs`` of a model may be of this kind."""
        return False

    def described(self, facts: Mapping[str, Any]) -> bool:
        """Return whether ``facts`` were saved by a data set of this kind before kinds had names."""
        return False

    def prepare(self, inputs: Any, facts: Page) -> tuple[Any, list[Any] | None]:
        """Return (inputs of the model, one drawing per sample: a picture (H, W, C), a text, a
        :class:`Signal` or a :class:`Cloud`; None where samples cannot be drawn).
        """
        return inputs, None

    def size(self, inputs: Any) -> str:
        """Return the size of a sample, in words."""
        return "×".join(str(n) for n in inputs.shape[-2:])

    def summarise(self, inputs: Any, *, timed: bool = False) -> np.ndarray:
        """Return rows (samples, features) of a few numbers that tell samples apart, for methods
        that read such rows.

        Args:
            timed: whether the first channel is time.
        """
        raise NotImplementedError

    def made_of(self, encoder: Any) -> str:
        """Return what a model with this encoder reads."""
        return f"on {self.many}"


class Line(Kind):
    """A kind whose samples are points one after the other, (N, points, …)."""

    def size(self, inputs: Any) -> str:
        return f"{inputs.shape[1]} {self.point}s"


@dataclass(frozen=True)
class Page:
    """Facts that a report has about its samples beside their numbers.

    Attributes:
        mean, std: by which images are normalised, one number per channel.
        texts: the samples in words.
        timed: whether the first channel of a sequence is time.
    """

    mean: Sequence[float] | None = None
    std: Sequence[float] | None = None
    texts: Sequence[str] | None = None
    timed: bool = False


@dataclass(frozen=True, eq=False)
class Signal:
    """A sequence to be drawn: values (n, channels), NaN where nothing was measured, at times x
    (n,); the names of its channels, and of its clock.
    """

    x: np.ndarray
    values: np.ndarray
    names: tuple[str, ...] = ()
    clock: str = "step"


@dataclass(frozen=True, eq=False)
class Cloud:
    """Points to be drawn, (n, 2 or more): on the two axes along which they spread most."""

    points: np.ndarray

    def flat(self) -> np.ndarray:
        """Return the points on those two axes, (n, 2)."""
        widest = np.argsort(-np.ptp(self.points, axis=0), kind="stable")[:2]
        # Sorted, so that a cloud in the plane keeps x and y.
        return self.points[:, np.sort(widest)]


KINDS: Registry[Kind] = Registry("kind of data", home="fredholm.lab.data.kinds")
SAMPLES = KINDS.add(Kind.name, Kind())


def register_kind(kind: Kind) -> Kind:
    """Make a kind known by its name, by which a saved model remembers what it reads.

    Raises:
        OptionError: the name is taken.
    """
    return KINDS.add(kind.name, kind)


def kind_of(inputs: Any, encoder: str) -> Kind:
    """Return the kind of a model's inputs.

    Args:
        inputs: their type and shape decide.
        encoder: the ``data`` that the model's encoder reads, which decides where several kinds
            have one shape; "" if it does not say.

    Raises:
        ShapeError: a tensor of a shape that no kind has.
    """
    fitting = [kind for kind in KINDS.values() if kind.fits(inputs)]
    named = [kind for kind in fitting if kind.encoder == encoder]
    assumed = [kind for kind in fitting if kind.assumed]
    for kind in [*named, *assumed]:
        return kind
    if hasattr(inputs, "shape"):
        raise ShapeError(
            "inputs: expected images (N, C, H, W), sequences or clouds (N, points, C), or token "
            f"numbers (N, length), with at least one sample, got {tuple(inputs.shape)}; reshape "
            "them"
        )
    # Inputs of several tensors, of a model whose kind nobody registered.
    return SAMPLES


def saved_kind(facts: Mapping[str, Any]) -> Kind:
    """Return the kind of data that a saved model was trained on, by the facts saved with it."""
    if "kind" in facts:
        return KINDS[facts["kind"]]
    for kind in KINDS.values():
        if kind.described(facts):
            return kind
    return SAMPLES
