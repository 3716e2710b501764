"""Pictures with a text each, and an answer, as a torch data set."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from jaxtyping import Float, Int, UInt8
from torch import Tensor

from ....errors import DataError, ShapeError
from ....models.encoders import Inputs
from ..vocabulary import PADDING, Vocabulary
from .dataset import LabelledDataset, Transform
from .images import patches_of
from .kind import WORDS, Kind, register_kind
from .texts import TokenizedDataset, encode_rows


class Questions(Kind):
    """Pictures with a text each."""

    name, one, many, encoder = "question", "question", "questions", "multimodal"
    single = False
    rooms = (("encoder.image.", "picture."), ("encoder.words.weight", WORDS))

    def fits(self, inputs: Any) -> bool:
        return isinstance(inputs, Inputs) and "image" in inputs

    def made_of(self, encoder: Any) -> str:
        return patches_of(encoder)


QUESTIONS = register_kind(Questions())


class QuestionDataset(TokenizedDataset):
    """Pictures with questions: a batch is :class:`fredholm.encoders.Inputs` of ``image`` (B, C, H,
    W), normalised, and ``tokens`` (B, T).

    With several ``views`` a sample has (V, C, H, W) pictures. ``task`` is ``classification`` (one
    answer each) or ``answers``: the scores of all answers, (N, classes) in [0, 1], kept as pairs of
    answer and score.

    Args:
        name, split: what this is.
        pictures: bytes of some indices, (B, C, H, W) or (B, V, C, H, W).
        texts: the questions (N,).
        labels: answers (N,); or a list of {answer: score}.
        classes: the answers' names.
        vocabulary, max_length: of the questions; longer ones lose their end.
        shape: (C, H, W) of a picture; mean and std of its channels, in units where white is 1.
        views: pictures of a sample.

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
        scored = not isinstance(labels, Tensor)
        best = (
            torch.tensor([max(s, key=lambda a: (s[a], -a), default=0) for s in labels])
            if scored
            else labels
        )
        super().__init__(name, split, best.long(), classes)
        if len(texts) != len(labels):
            raise ShapeError(
                f"{name}: received {len(texts)} texts and {len(labels)} answers; needs one each"
            )
        highest = (
            max((a for s in labels for a in s), default=0)
            if scored
            else int(best.max())
            if len(best)
            else 0
        )
        if highest >= len(classes) or (len(best) and int(best.min()) < 0):
            raise DataError(f"answers: up to number {highest}; needs 0 to {len(classes) - 1}")
        self.task = "answers" if scored else "classification"
        self.scores = list(labels) if scored else None
        self.pictures, self.texts, self.shape, self.views = pictures, list(texts), shape, views
        self.vocabulary, self.max_length = vocabulary, max_length
        self.mean, self.std = tuple(mean), tuple(std)
        self.numbers, self.cut = encode_rows(
            self.texts, vocabulary, max_length, f"{name} {split}: text"
        )

    def raw(self, indices: Int[Tensor, " b"] | Sequence[int]) -> tuple[Inputs, Tensor]:
        """Bytes and token numbers, and what is asked."""
        indices = torch.as_tensor(indices, dtype=torch.int64)
        numbers = self.numbers[indices]
        width = int((numbers != PADDING).sum(1).max()) if len(numbers) else 1
        labels = self.labels[indices]
        if self.scores is not None:
            labels = torch.zeros(len(indices), len(self.classes))
            for row, i in enumerate(indices.tolist()):
                for answer, score in self.scores[i].items():
                    labels[row, answer] = score
        return Inputs(image=self.pictures(indices), tokens=numbers[:, :width]), labels

    def batch(
        self, indices: Int[Tensor, " b"] | Sequence[int], transform: Transform | None = None
    ) -> tuple[Inputs, Tensor]:
        """Normalised pictures with token numbers, and what is asked; ``transform`` changes the
        pictures' bytes.
        """
        inputs, labels = self.raw(indices)
        pictures = inputs["image"] if transform is None else transform(inputs["image"])
        return Inputs(image=self.normalise(pictures), tokens=inputs["tokens"]), labels

    def encoder(self) -> dict[str, Any]:
        channels, height, width = self.shape
        picture = {"image_size": (height, width), "channels": channels, "views": self.views}
        return {**super().encoder(), **picture}

    def describe(self) -> dict[str, Any]:
        # Not as a text's vocabulary: a question is not read alone, but what its numbers mean goes
        # to other runs.
        return {**LabelledDataset.describe(self), "words": self.vocabulary.to_dict()}

    def example(self) -> Inputs:
        return self.batch([0])[0]

    def normalise(self, pictures: UInt8[Tensor, "*b c h w"]) -> Float[Tensor, "*b c h w"]:
        """(pixel / 255 − mean) / std a channel."""
        mean, std = (torch.tensor(x)[:, None, None] for x in (self.mean, self.std))
        return (pictures.float() / 255 - mean) / std

    def __repr__(self) -> str:
        size = f"{len(self)} questions on pictures {'x'.join(map(str, self.shape))}"
        return (
            f"QuestionDataset({self.name!r}, {self.split!r}, {size}, {len(self.classes)} answers)"
        )
