"""Text to token numbers: words, pieces of words or characters of the training split, or bytes.
Number 0 is padding.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from ...errors import DataError, OptionError, suggest
from .pieces import INSIDE, cutter, learn_pieces

PADDING, UNKNOWN = 0, 1
KINDS = ("words", "wordpieces", "bytes", "characters")
_TOKEN = re.compile(r"\w+|[^\w\s]")


def split_words(text: str) -> list[str]:
    """Runs of letters and digits, and single other signs, in lower case.

    Example:
        >>> split_words("It's GREAT!")
        ['it', "'", 's', 'great', '!']
    """
    return _TOKEN.findall(text.lower())


@dataclass(frozen=True)
class Vocabulary:
    """Numbers of tokens. ``words``, ``wordpieces`` and ``characters``: 0 padding, 1 any other, then
    ``words`` in order; ``bytes``: 0 padding, 1 + byte of UTF-8. Number 1 also stands for a token
    that is hidden: no known word or character has it, and no text holds its byte. A word's pieces
    are the longest known ones from its start on, a later one written ``##ing``.

    It is plain data: :meth:`to_dict` and :meth:`from_dict` carry it in a JSON file, so that a saved
    model can read new text.

    Raises:
        OptionError: for an unknown kind, words given to a byte vocabulary, or a word given twice.

    Example:
        >>> vocabulary = Vocabulary.of_words(["a fine film", "a dull film"], min_count=2)
        >>> vocabulary.words, vocabulary.encode("a new film"), len(vocabulary)
        (('a', 'film'), [2, 1, 3], 4)
        >>> Vocabulary("bytes").encode("hé")
        [105, 196, 170]
    """

    kind: str = "words"
    words: tuple[str, ...] = ()
    _numbers: dict[str, int] = field(default_factory=dict, init=False, repr=False, compare=False)
    _cutter: Any = field(default=None, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise OptionError(f"tokens: received {self.kind!r}{suggest(str(self.kind), KINDS)}")
        if self.kind == "bytes" and self.words:
            raise OptionError(
                f"words: received {len(self.words)} with kind 'bytes'; a byte vocabulary has none"
            )
        self._numbers.update({word: 2 + i for i, word in enumerate(self.words)})
        if len(self._numbers) != len(self.words):
            raise OptionError(
                f"words: {len(self.words) - len(self._numbers)} are given twice; needs each once"
            )

    @classmethod
    def of_words(cls, texts: Iterable[str], min_count: int = 2) -> Vocabulary:
        """The words that occur at least ``min_count`` times in ``texts``, most frequent first, ties
        in order of the alphabet.

        Raises:
            OptionError: when ``min_count`` is no positive integer.
        """
        if not isinstance(min_count, int) or isinstance(min_count, bool) or min_count < 1:
            raise OptionError(f"min_count: received {min_count!r}; needs an integer of 1 or more")
        counts = Counter(word for text in texts for word in split_words(text))
        kept = [word for word, count in counts.items() if count >= min_count]
        return cls("words", tuple(sorted(kept, key=lambda word: (-counts[word], word))))

    @classmethod
    def of_pieces(cls, texts: Iterable[str], size: int = 30_000) -> Vocabulary:
        """WordPiece's pieces of the words of ``texts``: with padding and the unknown, ``size``
        numbers at most.

        Raises:
            OptionError: fewer than three numbers.

        Reference: Schuster and Nakajima, Japanese and Korean voice search, 2012.

        Example:
            >>> pieces = Vocabulary.of_pieces(["walk walks walked talk talked talks"] * 3, 16)
            >>> pieces.join(pieces.encode("talks walked"))
            'talks walked'
        """
        if not isinstance(size, int) or isinstance(size, bool) or size < 3:
            raise OptionError(f"pieces: received {size!r}; needs an integer of 3 or more")
        words = (word for text in texts for word in split_words(text))
        return cls("wordpieces", tuple(learn_pieces(words, size - 2)))

    def _pieces(self, text: str) -> list[int]:
        tool = self._cutter
        if tool is None:
            tool = cutter(self._numbers, UNKNOWN)
            object.__setattr__(self, "_cutter", tool)
        words = split_words(text)
        return tool.encode(words, is_pretokenized=True).ids if words else []

    @classmethod
    def of_characters(cls, texts: Iterable[str]) -> Vocabulary:
        """The characters of ``texts``, in order.

        Example:
            >>> Vocabulary.of_characters(["a b"]).encode("ba?")
            [4, 3, 1]
        """
        return cls("characters", tuple(sorted(set().union(*texts))))

    def __len__(self) -> int:
        """How many numbers there are, padding included."""
        return 257 if self.kind == "bytes" else 2 + len(self.words)

    def encode(self, text: str) -> list[int]:
        """The numbers of a text's tokens; empty for a text without any."""
        if self.kind == "bytes":
            return [1 + byte for byte in text.encode("utf-8")]
        if self.kind == "wordpieces":
            return self._pieces(text)
        if self.kind == "characters":
            return [self._numbers.get(character, UNKNOWN) for character in text]
        return [self._numbers.get(word, UNKNOWN) for word in split_words(text)]

    def decode(self, numbers: Sequence[int]) -> list[str]:
        """The tokens of numbers, padding left out; an unknown word is ``�``.

        Raises:
            DataError: for a number outside the vocabulary.
        """
        wrong = [number for number in numbers if not 0 <= number < len(self)]
        if wrong:
            raise DataError(f"token number {wrong[0]}; this vocabulary has 0 to {len(self) - 1}")
        real = [number for number in numbers if number != PADDING]
        if self.kind == "bytes":
            return [bytes([number - 1]).decode("latin-1") for number in real]
        return ["�" if number == UNKNOWN else self.words[number - 2] for number in real]

    def join(self, numbers: Sequence[int]) -> str:
        """The text of numbers: characters and bytes as they are, words with spaces between, pieces
        put together.

        Example:
            >>> Vocabulary("bytes").join([105, 196, 170])
            'hé'

        Raises:
            DataError: for a number outside the vocabulary.
        """
        tokens = self.decode(numbers)
        if self.kind == "bytes":
            return "".join(tokens).encode("latin-1").decode("utf-8", errors="replace")
        if self.kind == "wordpieces":
            return " ".join(tokens).replace(f" {INSIDE}", "").removeprefix(INSIDE)
        return (" " if self.kind == "words" else "").join(tokens)

    def join_after(self, text: str, numbers: Sequence[int]) -> str:
        """The text of numbers as it goes on after ``text``: a new word comes after a space.

        Example:
            >>> Vocabulary("words", ("said", "unto")).join_after("the king", [2, 3])
            ' said unto'

        Raises:
            DataError: for a number outside the vocabulary.
        """
        first = self.decode(numbers[:1])
        spaced = self.kind in ("words", "wordpieces") and text[-1:].strip() != ""
        inside = self.kind == "wordpieces" and first and first[0].startswith(INSIDE)
        return (" " if first and spaced and not inside else "") + self.join(numbers)

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON. Words are one string: none of them holds a space, and a line each
        would be long; so are characters.
        """
        return {
            "kind": self.kind,
            "words": ("" if self.kind == "characters" else " ").join(self.words),
        }

    @classmethod
    def from_dict(cls, state: Any) -> Vocabulary:
        """The vocabulary of :meth:`to_dict`.

        Raises:
            DataError: for anything else.
        """
        if (
            not isinstance(state, dict)
            or set(state) != {"kind", "words"}
            or not isinstance(state["words"], str)
        ):
            raise DataError(
                f"vocabulary: received {str(state)[:60]!r}; needs the kind and words of "
                "Vocabulary.to_dict"
            )
        words = state["words"] if state["kind"] == "characters" else state["words"].split()
        return cls(state["kind"], tuple(words))
