"""Pictures with a question and an answer each, as a torch data set."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from jaxtyping import Float, UInt8
from torch import Tensor

from ....errors import ShapeError
from ....models.encoders import Inputs
from ..vocabulary import Vocabulary
from .dataset import Indices, LabelledDataset, Transform, check_labels, index_tensor
from .images import patches_of, standardised
from .kind import Kind, register_kind
from .texts import TokenizedDataset, encode_rows, trimmed


class Questions(Kind):
    """Pictures with a text each."""

    name = "question"
    one = "question"
    many = "questions"
    encoder = "multimodal"
    single = False

    def fits(self, inputs: Any) -> bool:
        return isinstance(inputs, Inputs) and "image" in inputs

    def made_of(self, encoder: Any) -> str:
        return patches_of(encoder)


QUESTIONS = register_kind(Questions())


def _best(scores: dict[int, float]) -> int:
    """Return the answer with the highest score, of equal ones the first; 0 without any."""
    return max(scores, key=lambda answer: (scores[answer], -answer), default=0)


class QuestionDataset(TokenizedDataset):
    """Pictures with questions: a batch is :class:`fredholm.encoders.Inputs` of ``image`` (B, C, H,
    W), normalised, and ``tokens`` (B, T).

    With several ``views`` a sample has (V, C, H, W) pictures. ``task`` is ``classification`` (one
    answer each) or ``answers``: scores of all answers, (N, classes) in [0, 1], most of them 0.

    Args:
        name, split: names of the data set and of its part, for errors and reports.
        pictures: from indices to bytes, (B, C, H, W) or (B, V, C, H, W).
        texts: the questions (N,).
        labels: answers (N,); or a list of {answer: score}.
        classes: the answers' names.
        vocabulary, max_length: of the questions; longer ones lose their end.
        shape: (C, H, W) of a picture; mean and std of its channels, in units where white is 1.
        views: pictures per sample.

    Raises:
        ShapeError: another number of labels than texts.
        DataError: a text without a token, or answers outside the classes.

    Example:
        >>> white = lambda indices: torch.full((len(indices), 1, 4, 4), 255, dtype=torch.uint8)
        >>> vocabulary = Vocabulary("words", ("is", "it", "white"))
        >>> data = QuestionDataset(
        ...     "tiny", "train", white, ["is it white"], torch.tensor([0]), ("yes", "no"),
        ...     vocabulary, 4, shape=(1, 4, 4),
        ... )
        >>> data.batch([0])[0]
        Inputs(image=(1, 1, 4, 4), tokens=(1, 3))
    """

    kind = QUESTIONS

    def __init__(
        self,
        name: str,
        split: str,
        pictures: Callable[[Tensor], Tensor],
        texts: Sequence[str],
        labels: Tensor | Sequence[dict[int, float]],
        classes: Sequence[str],
        vocabulary: Vocabulary,
        max_length: int,
        *,
        shape: tuple[int, int, int],
        mean: Sequence[float] = (0.5,),
        std: Sequence[float] = (0.5,),
        views: int = 1,
    ):
        if len(texts) != len(labels):
            raise ShapeError(
                f"{name}: expected one answer per text, got {len(texts)} texts and {len(labels)} "
                "answers; give as many"
            )
        self.scores: list[dict[int, float]] | None = None
        self.task = "classification"
        if isinstance(labels, Tensor):
            best = labels
        else:
            self.task = "answers"
            self.scores = list(labels)
            answers = [answer for scores in labels for answer in scores]
            check_labels(torch.tensor(answers, dtype=torch.int64), classes)
            best = torch.tensor([_best(scores) for scores in labels])
        check_labels(best, classes)
        super().__init__(name, split, best.long(), classes)
        self.pictures = pictures
        self.texts = list(texts)
        self.shape = shape
        self.views = views
        self.vocabulary = vocabulary
        self.max_length = max_length
        self.mean = tuple(mean)
        self.std = tuple(std)
        where = f"{name} {split}: text"
        self.numbers, self.cut = encode_rows(self.texts, vocabulary, max_length, where)

    def raw(self, indices: Indices) -> tuple[Inputs, Tensor]:
        """Return bytes and token numbers, and the answers."""
        indices = index_tensor(indices)
        pictures = self.pictures(indices)
        tokens = trimmed(self.numbers[indices])
        inputs = Inputs(image=pictures, tokens=tokens)
        if self.scores is None:
            return inputs, self.labels[indices]

        # Of thousands of answers a question has a few, so all scores are only made for a batch.
        scores = torch.zeros(len(indices), len(self.classes))
        for row, i in enumerate(indices.tolist()):
            for answer, score in self.scores[i].items():
                scores[row, answer] = score
        return inputs, scores

    def batch(
        self,
        indices: Indices,
        transform: Transform | None = None,
    ) -> tuple[Inputs, Tensor]:
        """Return normalised pictures with token numbers, and the answers; ``transform`` changes the
        pictures' bytes.
        """
        inputs, labels = self.raw(indices)
        pictures = inputs["image"]
        if transform is not None:
            pictures = transform(pictures)
        return Inputs(image=self.normalise(pictures), tokens=inputs["tokens"]), labels

    def encoder(self) -> dict[str, Any]:
        channels, height, width = self.shape
        return {
            **super().encoder(),
            "image_size": (height, width),
            "channels": channels,
            "views": self.views,
        }

    def describe(self) -> dict[str, Any]:
        # Not under "vocabulary", which marks a model that reads texts alone. Another run that
        # begins with these weights looks for the words.
        return {**LabelledDataset.describe(self), "words": self.vocabulary.to_dict()}

    def example(self) -> Inputs:
        return self.batch([0])[0]

    def normalise(self, pictures: UInt8[Tensor, "*b c h w"]) -> Float[Tensor, "*b c h w"]:
        """Return (pixel / 255 − mean) / std of each channel."""
        return standardised(pictures.float() / 255, self.mean, self.std)

    def __repr__(self) -> str:
        size = "x".join(map(str, self.shape))
        what = f"{len(self)} questions on pictures {size}, {len(self.classes)} answers"
        return f"QuestionDataset({self.name!r}, {self.split!r}, {what})"
