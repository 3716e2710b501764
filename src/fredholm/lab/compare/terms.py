"""Words of texts, and pairs of them, weighted by how rare they are (TF-IDF)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Int
from scipy.sparse import csr_array
from torch import Tensor

from .fitted import Part

# Bits of a code below the first word.
_HIGH = 32


@dataclass(frozen=True, eq=False)
class Terms(Part):
    r"""TF-IDF weights of texts, rows (texts, terms) of Euclidean length one.

    Before scaling, a weight is :math:`(1 + \log n) (1 + \log \frac{1 + N}{1 + d})` for a term that
    occurs n times in the text, and in d of N training texts.

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
        found = [np.unique(_coded(row, pairs)) for row in texts.numpy()]
        every = np.concatenate(found)
        codes, counts = np.unique(every, return_counts=True)
        rarity = 1 + np.log((1 + len(found)) / (1 + counts))
        return cls(
            torch.from_numpy(codes),
            torch.from_numpy(rarity),
            pairs,
        )

    def __call__(self, texts: Int[Tensor, "n length"]) -> Any:
        """Return the weights as a sparse matrix. Terms of no training text do not count."""
        known = self.codes.numpy()
        rarity = self.rarity.numpy()
        columns = []
        weights = []
        ends = [0]
        for row in texts.numpy():
            coded = _coded(row, self.pairs)
            codes, counts = np.unique(coded, return_counts=True)
            # A code beyond the last known one is compared with the last, and differs from it.
            places = np.searchsorted(known, codes)
            places = np.minimum(places, len(known) - 1)
            here = known[places] == codes
            column = places[here]
            frequency = 1 + np.log(counts[here])
            weight = frequency * rarity[column]

            # A text without known terms has the length zero.
            length = np.linalg.norm(weight) or 1.0
            columns.append(column)
            weights.append(weight / length)
            ends.append(ends[-1] + len(weight))
        parts = (
            np.concatenate(weights),
            np.concatenate(columns),
            np.array(ends),
        )
        return csr_array(parts, shape=(len(texts), len(known)))


def _coded(row: np.ndarray, pairs: bool) -> np.ndarray:
    """Return the codes of a text's terms in its order."""
    words = row[row != 0].astype(np.int64)
    if not len(words):
        # A text without words consists of the word 0.
        words = np.zeros(1, np.int64)
    alone = words << _HIGH
    if not pairs:
        return alone
    together = alone[:-1] + words[1:] + 1
    return np.concatenate([alone, together])
