"""What a caller gives to a report: the samples, how much of them is looked at, and what is known of
the run.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from ...errors import OptionError
from ...files import MEASURED, read_state
from ...models.encoders import Inputs
from ...models.pretrained import WEIGHTS
from ...tensor_files import read_checksum
from ..data.kinds.kind import Kind


@dataclass(frozen=True, eq=False)
class Samples:
    """Inputs of a model or an operator, and what is known of them.

    Attributes:
        inputs: what a model takes: images or fields (N, C, H, W), also as uint8 pixels to be
            normalised by ``mean`` and ``std``, token numbers (N, length) of texts, sequences (N,
            points, C) with NaN where nothing is, point clouds (N, points, p), or
            :class:`fredholm.encoders.Inputs`; of an operator its features (B, N, D).
        labels: the samples' classes (N,); without them the page computes no accuracy and has no
            examples.
        classes, mean, std: class names, and the per-channel normalisation of the inputs in units of
            [0, 1]; by default those that the model was saved with.
        texts: the texts themselves, for the examples.
        boxes, masks: where the objects of the images are, (N, H, W) bool: filled boxes, and pixels;
            all False where that is unknown.
        kind: of the samples, which their data set knows; by default inferred from their shapes and
            the model's encoder.
        targets: in place of labels the numbers (N,) or the fields (N, K, ...) to predict, in the units
            of the files; NaN where a sample has no point.
        names: what the first samples are called, such as "houses.csv, row 7", to find them again.
    """

    inputs: Tensor | Inputs
    labels: Tensor | None = None
    classes: Sequence[str] | None = None
    mean: Sequence[float] | None = None
    std: Sequence[float] | None = None
    texts: Sequence[str] | None = None
    boxes: Tensor | None = None
    masks: Tensor | None = None
    kind: Kind | None = None
    targets: Tensor | None = None
    names: Sequence[str] = ()


@dataclass(frozen=True)
class ReportOptions:
    """How much is looked at.

    Attributes:
        samples: signals from which kernels are read, drawn with ``seed``.
        picture: index of the sample whose maps are drawn, by default the first of those drawn.
        quality: images whose attention maps are judged
            (:func:`fredholm.explain.attention_quality`), 0 for none.
        seed: of all that is drawn at random; equal seeds give equal pictures.

    Raises:
        OptionError: no samples.
    """

    samples: int = 24
    picture: int | None = None
    quality: int = 64
    seed: int = 0

    def __post_init__(self) -> None:
        if self.samples < 1:
            raise OptionError(f"a report needs at least one sample, got samples={self.samples}")


@dataclass(frozen=True)
class RunFacts:
    """What is known of the run that trained a model.

    Attributes:
        metrics: a ``metrics.csv``, or rows of one, for the training curves.
        evaluation: an ``evaluation.json`` as a dictionary; its accuracy and confusion matrix then
            stand for the computed ones.
        recipe: text of the recipe.
        counted: what ``evaluation`` counts where that is not the samples: its tokens, or its
            points.
        temperature: divides the logits of classes where confidences are shown; fitted on
            validation, it calibrates them.
    """

    metrics: str | Path | Iterable[Mapping[str, Any]] | None = None
    evaluation: Mapping[str, Any] | None = None
    recipe: str | None = None
    counted: str | None = None
    temperature: float = 1.0

    @classmethod
    def of(cls, run: Path, counted: str | None = None) -> RunFacts:
        """Return the facts of a run's folder, as far as it has them.

        Raises:
            FredholmError: an ``evaluation.json`` or a ``calibration.json`` that cannot be read.
        """
        # A report of a model alone does without the extra that run folders need.
        from ..training.folder import RunFolder

        metrics = None
        recipe = None
        if (run / "metrics.csv").is_file():
            metrics = run / "metrics.csv"
        if (run / "recipe.yaml").is_file():
            recipe = (run / "recipe.yaml").read_text(encoding="utf-8")
        temperature = RunFolder(run).read_temperature()
        return cls(metrics, read_evaluation(run), recipe, counted, temperature)


def read_evaluation(run: Path) -> dict[str, Any] | None:
    """Return the ``evaluation.json`` of a run's folder, or None if there is none or it is out of
    date: it measured other weights than the folder's, such as those of an epoch while the run was
    still training.

    Raises:
        FredholmError: a file that cannot be read.
    """
    result = read_state(run / "evaluation.json", "run fredholm evaluate again")
    if not result:
        return None

    # Weights that a user has rewritten have no checksum; the evaluation then counts as theirs.
    measured = result.get(MEASURED)
    present = read_checksum(run / "model" / WEIGHTS)
    if measured is not None and present is not None and measured != present:
        return None
    return result
