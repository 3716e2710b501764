"""Pieces of words, WordPiece: which there are, counted here so that they are the same every time
(the trainer of ``tokenizers`` breaks ties in the order of a hash table); ``tokenizers`` cuts words
into them.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterable, Mapping
from itertools import pairwise
from typing import Any

from ...errors import require

INSIDE = "##"  # of a piece that does not begin its word

Pair = tuple[str, str]


def learn_pieces(words: Iterable[str], size: int) -> list[str]:
    """``size`` pieces at most: the characters, most frequent first, then neighbours that are
    joined, the most frequent pair each time, ties in order of the alphabet.

    O(n log n) in the different words' characters.

    Reference: Schuster and Nakajima, Japanese and Korean voice search, 2012; Sennrich et al.,
    Neural machine translation of rare words with subword units, 2016.

    Example:
        >>> learn_pieces(["low", "low", "lower"], 9)
        ['##o', '##w', 'l', '##e', '##r', '##ow', 'low', '##er', 'lower']
    """
    counted = Counter(words)
    cut = [[word[0], *(INSIDE + c for c in word[1:])] for word in counted]
    times = list(counted.values())
    letters: Counter[str] = Counter()
    for parts, n in zip(cut, times):
        for part in parts:
            letters[part] += n
    found = sorted(letters, key=lambda part: (-letters[part], part))[:size]
    kept = set(found)
    pairs = Pairs(cut, times)
    while len(found) < size:
        pair = pairs.best()
        if pair is None:
            break
        whole = pair[0] + pair[1].removeprefix(INSIDE)
        pairs.join(pair, whole)
        if whole not in kept:
            kept.add(whole)
            found.append(whole)
    return found


class Pairs:
    """How often two pieces are neighbours, and in which words."""

    def __init__(self, cut: list[list[str]], times: list[int]):
        self.cut = cut
        self.times = times
        self.counts: Counter[Pair] = Counter()
        self.places: dict[Pair, set[int]] = {}
        for place in range(len(cut)):
            self._add(place, 1)
        # Counts that have changed since leave old entries behind, which `best` passes over.
        self.heap = [(-n, pair) for pair, n in self.counts.items()]
        heapq.heapify(self.heap)

    def _add(self, place: int, sign: int) -> set[Pair]:
        parts = self.cut[place]
        for pair in pairwise(parts):
            self.counts[pair] += sign * self.times[place]
            self.places.setdefault(pair, set()).add(place)
        return set(pairwise(parts))

    def best(self) -> Pair | None:
        """The most frequent pair, or None where no word has two pieces."""
        while self.heap:
            count, pair = heapq.heappop(self.heap)
            if self.counts[pair] == -count and count:
                return pair
        return None

    def join(self, pair: Pair, whole: str) -> None:
        """Make ``pair`` one piece in every word."""
        changed: set[Pair] = set()
        for place in self.places.pop(pair):
            changed |= self._add(place, -1)
            self.cut[place] = _joined(self.cut[place], pair, whole)
            changed |= self._add(place, 1)
        for each in changed - {pair}:
            if self.counts[each] > 0:
                heapq.heappush(self.heap, (-self.counts[each], each))


def _joined(parts: list[str], pair: Pair, whole: str) -> list[str]:
    result: list[str] = []
    for part in parts:
        # What was just joined is no first half: its name is another one.
        if result and (result[-1], part) == pair:
            result[-1] = whole
        else:
            result.append(part)
    return result


def cutter(numbers: Mapping[str, int], unknown: int) -> Any:
    """A tokenizer of ``tokenizers`` that cuts words into the longest known pieces, from their
    start on; a word that cannot be cut is ``unknown``.
    """
    library = require("tokenizers", "train", "pieces of words")
    models = require("tokenizers.models", "train", "pieces of words")
    known = {"[UNK]": unknown, **numbers}
    return library.Tokenizer(
        models.WordPiece(known, unk_token="[UNK]", continuing_subword_prefix=INSIDE)
    )
