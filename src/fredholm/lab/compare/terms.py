"""The words of texts, and pairs of them, weighted by how rare they are."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from .fitted import Part

_HIGH = 32  # bits of a code, above which the first word stands


@dataclass(frozen=True, eq=False)
class Terms(Part):
    r"""Rows (texts, terms) of :math:`(1 + \log n) (1 + \log \frac{1 + N}{1 + d})`, each brought to
    length one: the term is n times in the text, and in d of N training texts.

    Texts are rows of token numbers, 0 where padded. A word t has the code :math:`2^{32} t`, a pair
    of neighbours (s, t) the code :math:`2^{32} s + t + 1`.

    Attributes:
        codes: of the terms of the training texts, ascending.
        rarity: :math:`1 + \log \frac{1 + N}{1 + d}` of each.
        pairs: whether there are pairs as well.
    """

    codes: Tensor
    rarity: Tensor
    pairs: bool

    @classmethod
    def fit(cls, texts: Int[Tensor, "n length"], pairs: bool) -> Terms:
        """All terms of the training texts."""
        found = [np.unique(_coded(row, pairs)) for row in texts.numpy()]
        codes, counts = np.unique(np.concatenate(found), return_counts=True)
        rarity = 1 + np.log((1 + len(found)) / (1 + counts))
        return cls(torch.from_numpy(codes), torch.from_numpy(rarity), pairs)

    def __call__(self, texts: Int[Tensor, "n length"]) -> Any:
        """A sparse matrix of scipy; terms of no training text do not count."""
        from scipy.sparse import csr_array

        known, places, weights, ends = self.codes.numpy(), [], [], [0]
        for row in texts.numpy():
            codes, counts = np.unique(_coded(row, self.pairs), return_counts=True)
            place = np.minimum(np.searchsorted(known, codes), len(known) - 1)
            here = known[place] == codes
            weight = (1 + np.log(counts[here])) * self.rarity.numpy()[place[here]]
            places.append(place[here])
            weights.append(weight / (np.linalg.norm(weight) or 1.0))
            ends.append(ends[-1] + len(weight))
        parts = np.concatenate(weights), np.concatenate(places), np.array(ends)
        return csr_array(parts, shape=(len(texts), len(known)))


def _coded(row: np.ndarray, pairs: bool) -> np.ndarray:
    """The terms of a text in its order; a text without words has the word 0."""
    words = row[row != 0].astype(np.int64) if row.any() else np.zeros(1, np.int64)
    alone = words << _HIGH
    return np.concatenate([alone, alone[:-1] + words[1:] + 1]) if pairs else alone
