"""Words of texts, and pairs of them, weighted by how rare they are (TF-IDF)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import numpy as np
import torch
from jaxtyping import Int
from sklearn.feature_extraction.text import TfidfVectorizer
from torch import Tensor

from .fitted import Part

# Bits of a code below the first word.
_HIGH = 32


@dataclass(frozen=True, eq=False)
class Terms(Part):
    r"""TF-IDF weights of texts, rows (texts, terms) of Euclidean length one.

    Before scaling, a weight is :math:`(1 + \log n) (1 + \log \frac{1 + N}{1 + d})` for a term that
    occurs n times in the text, and in d of N training texts. scikit-learn computes them; what it
    has learned is saved as numbers.

    Texts are rows of token numbers, 0 where padded. A word t has the code :math:`2^{32} t`, a pair
    of neighbours (s, t) the code :math:`2^{32} s + t + 1`.

    Attributes:
        codes: of the terms of the training texts, ascending.
        rarity: :math:`1 + \log \frac{1 + N}{1 + d}` of each.
        pairs: whether pairs are terms as well.
    """

    codes: Tensor
    rarity: Tensor
    pairs: bool

    @classmethod
    def fit(
        cls,
        texts: Int[Tensor, "n length"],
        pairs: bool,
    ) -> Terms:
        """Collect all terms of the training texts."""
        vectorizer = _vectorizer(pairs).fit(texts.numpy())
        return cls(
            torch.tensor(sorted(vectorizer.vocabulary_)),
            torch.from_numpy(vectorizer.idf_),
            pairs,
        )

    def __call__(self, texts: Int[Tensor, "n length"]) -> Any:
        """Return the weights as a sparse matrix. Terms of no training text do not count."""
        return self._fitted.transform(texts.numpy())

    @cached_property
    def _fitted(self) -> Any:
        """The vectorizer as it was fitted."""
        places = {code: place for place, code in enumerate(self.codes.tolist())}
        vectorizer = _vectorizer(self.pairs, vocabulary=places)
        vectorizer.idf_ = self.rarity.numpy()
        return vectorizer


def _vectorizer(pairs: bool, **options: Any) -> Any:
    """Return a vectorizer of scikit-learn whose terms are codes."""
    analyzer: Any = partial(_coded, pairs=pairs)
    return TfidfVectorizer(analyzer=analyzer, sublinear_tf=True, **options)


def _coded(row: np.ndarray, pairs: bool) -> list[int]:
    """Return the codes of a text's terms in its order."""
    words = row[row != 0].astype(np.int64)
    if not len(words):
        # A text without words consists of the word 0.
        words = np.zeros(1, np.int64)
    alone = words << _HIGH
    if not pairs:
        return alone.tolist()
    together = alone[:-1] + words[1:] + 1
    return [*alone.tolist(), *together.tolist()]
