"""Pieces of words (WordPiece). They are learned here, so that they are the same every time: the
trainer of ``tokenizers`` breaks ties in the order of a hash table. ``tokenizers`` cuts words into
them.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterable, Mapping
from itertools import pairwise
from typing import Any

from ...errors import require

INSIDE = "##"
"""The prefix of a piece that does not begin its word."""

Pair = tuple[str, str]


def learn_pieces(words: Iterable[str], size: int) -> list[str]:
    """Return ``size`` pieces at most: the characters, most frequent first, then joined neighbours,
    the most frequent pair each time, ties in alphabetical order.

    O(n log n) in the different words' characters.

    Reference: Schuster and Nakajima, Japanese and Korean voice search, 2012; Sennrich et al.,
    Neural machine translation of rare words with subword units, 2016.

    Example:
        >>> learn_pieces(["low", "low", "lower"], 9)
        ['##o', '##w', 'l', '##e', '##r', '##ow', 'low', '##er', 'lower']
    """
    counted = Counter(words)
    times = list(counted.values())
    cut = []
    for word in counted:
        later = [INSIDE + letter for letter in word[1:]]
        cut.append([word[0], *later])

    letters: Counter[str] = Counter()
    for parts, n in zip(cut, times):
        for part in parts:
            letters[part] += n
    found = sorted(letters, key=lambda part: (-letters[part], part))
    found = found[:size]

    known = set(found)
    pairs = _Pairs(cut, times)
    while len(found) < size:
        pair = pairs.best()
        if pair is None:
            break
        first, second = pair
        joined = first + second.removeprefix(INSIDE)
        pairs.join(pair, joined)
        # Different pairs can give the same piece, such as a·bc and ab·c.
        if joined not in known:
            known.add(joined)
            found.append(joined)
    return found


class _Pairs:
    """Counts of neighbouring pieces, and the words in which they occur.

    Args:
        cut: the pieces of every word.
        times: how often each word occurs.
    """

    def __init__(self, cut: list[list[str]], times: list[int]):
        self.cut = cut
        self.times = times
        self.counts: Counter[Pair] = Counter()
        self.places: dict[Pair, set[int]] = {}
        for place in range(len(cut)):
            self._add(place, 1)
        # Counts that change leave old entries behind, which `best` skips.
        self.heap = [(-n, pair) for pair, n in self.counts.items()]
        heapq.heapify(self.heap)

    def _add(self, place: int, sign: int) -> set[Pair]:
        """Count the pairs of one word, or with ``sign`` -1 forget them; return them."""
        pairs = list(pairwise(self.cut[place]))
        change = sign * self.times[place]
        for pair in pairs:
            self.counts[pair] += change
            places = self.places.setdefault(pair, set())
            places.add(place)
        return set(pairs)

    def best(self) -> Pair | None:
        """Return the most frequent pair, or None where no word has two pieces."""
        while self.heap:
            count, pair = heapq.heappop(self.heap)
            if self.counts[pair] == -count and count:
                return pair
        return None

    def join(self, pair: Pair, joined: str) -> None:
        """Make ``pair`` one piece in every word."""
        changed: set[Pair] = set()
        for place in self.places.pop(pair):
            changed |= self._add(place, -1)
            self.cut[place] = _joined(self.cut[place], pair, joined)
            changed |= self._add(place, 1)
        for each in changed - {pair}:
            count = self.counts[each]
            if count > 0:
                heapq.heappush(self.heap, (-count, each))


def _joined(parts: list[str], pair: Pair, joined: str) -> list[str]:
    result: list[str] = []
    for part in parts:
        # A piece that was just joined has another name, so it is not the first half of a pair.
        if result and (result[-1], part) == pair:
            result[-1] = joined
        else:
            result.append(part)
    return result


def cutter(numbers: Mapping[str, int], unknown: int) -> Any:
    """Return a tokenizer of ``tokenizers`` that cuts words into the longest known pieces, from
    their start; a word that cannot be cut is ``unknown``.
    """
    library = require("tokenizers", "train", "pieces of words")
    models = require("tokenizers.models", "train", "pieces of words")
    known = {"[UNK]": unknown, **numbers}
    model = models.WordPiece(known, unk_token="[UNK]", continuing_subword_prefix=INSIDE)
    return library.Tokenizer(model)
