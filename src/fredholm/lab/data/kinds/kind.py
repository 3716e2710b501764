"""A kind of data: what is said of its samples without a data set at hand, as of a user's own files
or of tensors.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ....errors import OptionError, ShapeError
from ....registry import Registry

WORDS = "words.weight"  # the embedding of words, by its name common to all kinds


class Kind:
    """One kind of data; an instance each, in :data:`KINDS`.

    Attributes:
        name: in errors and in ``fredholm data list``.
        one, many: what a sample is called, and several of them.
        encoder: what the encoders that read it say they read, the ``data`` of their configuration
            (:class:`fredholm.encoders.EncoderConfig`).
        rooms: where its encoder has what another kind's has as well, as (names of tensors begin so,
            names common to all kinds); empty where weights do not go between kinds.
        takes: options of :func:`fredholm.data.create_dataset`, and keys of a recipe's section
            ``data``, that belong to some kinds only and to this one.
        assumed: whether inputs that fit are of this kind even where the model's encoder reads
            another, or the model names none.
        single: whether a sample is one signal, which convolutions and recurrences read as well.
        worded: whether a sample is written in words.
        sampled: whether a sample is read over time, so that some of its points may be lost.
        summarised: whether :meth:`summarise` makes a row of numbers of a sample.
        pictured: whether a sample is a picture, on which a map over points can be laid.
        judged: whether the object in a picture may be known, so that maps can be compared with it.
        legend: said below samples that are drawn.
        point, axis: what a report calls a point of a sample, and its place on a line.
        unit: of distances in a report; ``always`` is what every sample has at the same place.
        unsized: what a table says in the place of how many samples a data set has, where its kind
            has none.
    """

    name: str = "sample"
    one: str = "sample"
    many: str = "samples"
    encoder: str = ""
    rooms: tuple[tuple[str, str], ...] = ()
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
        """Fields of a :class:`fredholm.lab.data.registry.Request` from the options of some kinds
        only that a caller gave for the data set ``name``.

        Raises:
            OptionError: an option of another kind, or an impossible value.
        """
        for key, value in given.items():
            if key not in self.takes:
                raise OptionError(
                    f"{key}: received {value!r}; {name} holds {self.name}, leave it out"
                )
        return {}

    def fits(self, inputs: Any) -> bool:
        """Whether ``inputs`` of a model may be of this kind."""
        return False

    def described(self, facts: Mapping[str, Any]) -> bool:
        """Whether ``facts`` were saved by a data set of this kind before kinds had names."""
        return False

    def prepare(self, inputs: Any, facts: Page) -> tuple[Any, list[Any] | None]:
        """(inputs of the model, what is shown of each: a picture (H, W, C), a text, a
        :class:`Signal` or a :class:`Cloud`; None where nothing can be).
        """
        return inputs, None

    def size(self, inputs: Any) -> str:
        """How large a sample is, in words."""
        return "×".join(str(n) for n in inputs.shape[-2:])

    def summarise(self, inputs: Any, *, timed: bool = False) -> np.ndarray:
        """Rows (samples, features) of a few numbers that tell samples apart, for methods that read
        such rows. ``timed`` says whether the first channel is time.
        """
        raise NotImplementedError

    def made_of(self, encoder: Any) -> str:
        """Return what a model with this encoder reads."""
        return f"on {self.many}"


@dataclass(frozen=True)
class Page:
    """What a report knows of its samples beside their numbers.

    Attributes:
        mean, std: by which images are normalised, a number a channel.
        texts: the samples in words.
        timed: whether the first channel of a sequence is time.
    """

    mean: Sequence[float] | None = None
    std: Sequence[float] | None = None
    texts: Sequence[str] | None = None
    timed: bool = False


@dataclass(frozen=True, eq=False)
class Signal:
    """A sequence to be drawn: values (n, channels), NaN where nothing is, at times x (n,); the
    names of its channels, and what its clock is called.
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
        """The points on those two axes, (n, 2)."""
        axes = np.sort(np.argsort(-np.ptp(self.points, axis=0), kind="stable")[:2])
        return self.points[:, axes]


KINDS: Registry[Kind] = Registry("kind of data", home="fredholm.lab.data.kinds")
SAMPLES = KINDS.add(Kind.name, Kind())


def register_kind(kind: Kind) -> Kind:
    """Make a kind known by its name, by which a saved model remembers what it reads.

    Raises:
        OptionError: the name is taken.
    """
    return KINDS.add(kind.name, kind)


def kind_of(inputs: Any, encoder: str) -> Kind:
    """The kind of a model's inputs, from their type and shape and the ``data`` that the model's
    encoder reads ("" where it does not say).

    Raises:
        ShapeError: a tensor of a shape that no kind has.
    """
    fitting = [kind for kind in KINDS.values() if kind.fits(inputs)]
    named = [kind for kind in fitting if kind.encoder == encoder]
    result = [*named, *(kind for kind in fitting if kind.assumed)]
    if result:
        return result[0]
    if hasattr(inputs, "shape"):
        raise ShapeError(
            "inputs must be images (N, C, H, W), sequences or clouds (N, points, C), or token "
            f"numbers (N, length), with at least one sample; got {tuple(inputs.shape)}"
        )
    return SAMPLES


def saved_kind(facts: Mapping[str, Any]) -> Kind:
    """The kind of data that a saved model was trained on, by what was saved with it."""
    if "kind" in facts:
        return KINDS[facts["kind"]]
    return next((kind for kind in KINDS.values() if kind.described(facts)), SAMPLES)
