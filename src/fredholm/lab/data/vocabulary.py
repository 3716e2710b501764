"""Vocabularies: from text to token numbers, and back. Tokens are words, pieces of words or
characters of the training split, or bytes.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from ...errors import DataError, OptionError, suggest
from .pieces import INSIDE, cutter, learn_pieces

PADDING, UNKNOWN = 0, 1
KINDS = ("words", "wordpieces", "bytes", "characters")
_TOKEN = re.compile(r"\w+|[^\w\s]")


def split_words(text: str) -> list[str]:
    """Return runs of letters and digits, and single other signs, in lower case.

    Example:
        >>> split_words("It's GREAT!")
        ['it', "'", 's', 'great', '!']
    """
    return _TOKEN.findall(text.lower())


def check_tokens(kind: str) -> None:
    """Refuse a kind of tokens that is not in :data:`KINDS`.

    Raises:
        OptionError: another kind.
    """
    if kind not in KINDS:
        raise OptionError(
            f"tokens: expected one of {', '.join(KINDS)}, got {kind!r}{suggest(str(kind), KINDS)}"
        )


def check_count(name: str, value: Any, least: int = 1) -> None:
    """Refuse values that are not integers of ``least`` or more.

    Raises:
        OptionError: another value, of the option ``name``.
    """
    # True is an int, but not a count.
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise OptionError(f"{name}: expected an integer of {least} or more, got {value!r}")


@dataclass(frozen=True)
class Vocabulary:
    """The tokens that have numbers.

    ``words``, ``wordpieces`` and ``characters``: 0 is padding, 1 any unknown token, then follow
    ``words`` in order. ``bytes``: 0 is padding, 1 + byte of UTF-8. Number 1 also stands for a token
    that is hidden: no known word or character has it, and no text holds its byte. A word's pieces
    are the longest known ones from its start on, a later one written ``##ing``.

    :meth:`to_dict` and :meth:`from_dict` store it in JSON, so that a saved model can read new text.

    Raises:
        OptionError: an unknown kind, words given to a byte vocabulary, or a word given twice.

    Example:
        >>> vocabulary = Vocabulary.of_words(["a fine film", "a dull film"], min_count=2)
        >>> vocabulary.words, vocabulary.encode("a new film"), len(vocabulary)
        (('a', 'film'), [2, 1, 3], 4)
        >>> Vocabulary("bytes").encode("hé")
        [105, 196, 170]
    """

    kind: str = "words"
    words: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        check_tokens(self.kind)
        if self.kind == "bytes" and self.words:
            raise OptionError(
                f"words: expected none for kind 'bytes', got {len(self.words)}; leave them out"
            )
        # A repeated word would have two numbers, of which encode only ever uses one.
        repeated = len(self.words) - len(self._numbers)
        if repeated:
            raise OptionError(
                f"words: expected each once, got {repeated} repeated; leave those out"
            )

    @cached_property
    def _numbers(self) -> dict[str, int]:
        return {word: 2 + i for i, word in enumerate(self.words)}

    # Made at the first use: most vocabularies are only stored, and it needs an optional package.
    @cached_property
    def _cutter(self) -> Any:
        return cutter(self._numbers, UNKNOWN)

    @classmethod
    def of_words(cls, texts: Iterable[str], min_count: int = 2) -> Vocabulary:
        """Return the words that occur at least ``min_count`` times in ``texts``, most frequent
        first, ties in alphabetical order.

        Raises:
            OptionError: ``min_count`` is not a positive integer.
        """
        check_count("min_count", min_count)
        counts = Counter(word for text in texts for word in split_words(text))
        frequent = [word for word, count in counts.items() if count >= min_count]
        frequent.sort(key=lambda word: (-counts[word], word))
        return cls("words", tuple(frequent))

    @classmethod
    def of_pieces(cls, texts: Iterable[str], size: int = 30_000) -> Vocabulary:
        """Return WordPiece's pieces of the words of ``texts``: with padding and the unknown token,
        ``size`` numbers at most.

        Raises:
            OptionError: fewer than three numbers.

        Reference: Schuster and Nakajima, Japanese and Korean voice search, 2012.

        Example:
            >>> pieces = Vocabulary.of_pieces(["walk walks walked talk talked talks"] * 3, 16)
            >>> pieces.join(pieces.encode("talks walked"))
            'talks walked'
        """
        check_count("pieces", size, 3)
        words = (word for text in texts for word in split_words(text))
        # Without padding and the unknown token.
        pieces = learn_pieces(words, size - 2)
        return cls("wordpieces", tuple(pieces))

    def _pieces(self, text: str) -> list[int]:
        words = split_words(text)
        if not words:
            return []
        encoding = self._cutter.encode(words, is_pretokenized=True)
        return encoding.ids

    @classmethod
    def of_characters(cls, texts: Iterable[str]) -> Vocabulary:
        """Return the vocabulary of the characters of ``texts``, in order.

        Example:
            >>> Vocabulary.of_characters(["a b"]).encode("ba?")
            [4, 3, 1]
        """
        characters = set().union(*texts)
        return cls("characters", tuple(sorted(characters)))

    def __len__(self) -> int:
        """How many numbers there are, padding included."""
        if self.kind == "bytes":
            return 257
        return 2 + len(self.words)

    def encode(self, text: str) -> list[int]:
        """Return the numbers of a text's tokens; empty for a text without any."""
        if self.kind == "bytes":
            return [1 + byte for byte in text.encode("utf-8")]
        if self.kind == "wordpieces":
            return self._pieces(text)
        tokens: Iterable[str] = text
        if self.kind == "words":
            tokens = split_words(text)
        return [self._numbers.get(token, UNKNOWN) for token in tokens]

    def decode(self, numbers: Sequence[int]) -> list[str]:
        """Return the tokens of numbers, without padding; an unknown word is ``�``.

        Raises:
            DataError: a number outside the vocabulary.
        """
        wrong = [number for number in numbers if not 0 <= number < len(self)]
        if wrong:
            raise DataError(
                f"token number: expected 0 to {len(self) - 1}, which this vocabulary has, got "
                f"{wrong[0]}; use the vocabulary that the numbers were made with"
            )
        real = [number for number in numbers if number != PADDING]
        if self.kind == "bytes":
            # Latin-1 has one character for each byte, so that join can put the bytes together.
            return [bytes([number - 1]).decode("latin-1") for number in real]

        tokens = []
        for number in real:
            token = "�"
            if number != UNKNOWN:
                token = self.words[number - 2]
            tokens.append(token)
        return tokens

    def join(self, numbers: Sequence[int]) -> str:
        """Return the text of numbers: characters and bytes as they are, words with spaces between,
        pieces put together.

        Example:
            >>> Vocabulary("bytes").join([105, 196, 170])
            'hé'

        Raises:
            DataError: a number outside the vocabulary.
        """
        tokens = self.decode(numbers)
        if self.kind == "bytes":
            content = "".join(tokens).encode("latin-1")
            return content.decode("utf-8", errors="replace")
        if self.kind == "characters":
            return "".join(tokens)
        text = " ".join(tokens)
        if self.kind == "wordpieces":
            text = text.replace(f" {INSIDE}", "")
            text = text.removeprefix(INSIDE)
        return text

    def join_after(self, text: str, numbers: Sequence[int]) -> str:
        """Return the text of numbers as the continuation of ``text``: a new word follows a space.

        Example:
            >>> Vocabulary("words", ("said", "unto")).join_after("the king", [2, 3])
            ' said unto'

        Raises:
            DataError: a number outside the vocabulary.
        """
        first = self.decode(numbers[:1])
        result = self.join(numbers)
        if not first or self.kind in ("bytes", "characters"):
            return result
        if not text[-1:].strip():
            return result
        # A piece such as ##ing goes on with the word that the text ends with.
        if self.kind == "wordpieces" and first[0].startswith(INSIDE):
            return result
        return f" {result}"

    def to_dict(self) -> dict[str, Any]:
        """Return plain data for JSON.

        Words are one string, since a list has one line per word in JSON files; none of them holds
        a space. So are characters, of which one is the space.
        """
        between = " "
        if self.kind == "characters":
            between = ""
        return {"kind": self.kind, "words": between.join(self.words)}

    @classmethod
    def from_dict(cls, state: Any) -> Vocabulary:
        """Return the vocabulary of :meth:`to_dict`.

        Raises:
            DataError: anything else.
        """
        known = isinstance(state, dict) and set(state) == {"kind", "words"}
        if not known or not isinstance(state["words"], str):
            raise DataError(
                f"vocabulary: expected the kind and words of Vocabulary.to_dict, got "
                f"{str(state)[:60]!r}; restore the file, or train again"
            )
        words = state["words"]
        if state["kind"] != "characters":
            words = words.split()
        return cls(state["kind"], tuple(words))
