"""Tokens that a tokenizer puts around a text, such as BOS: a text has them once, not its parts."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from jaxtyping import Int
from torch import Tensor

# A text of one token or a few in any vocabulary.
WORD = "the"


def encode_part(
    tokenizer: Any,
    text: str,
) -> Int[Tensor, " n"]:
    """Return the tokens of a text that others surround, without BOS and EOS."""
    options = {}
    # Tokenizers of transformers add them unless told otherwise; plain functions have none.
    if hasattr(tokenizer, "all_special_ids"):
        options["add_special_tokens"] = False
    return _encode(tokenizer, text, **options)


def _encode(
    tokenizer: Any,
    text: str,
    **options: Any,
) -> Int[Tensor, " n"]:
    batch = tokenizer([text], **options)
    tokens = batch["input_ids"][0]
    return torch.tensor(tokens, dtype=torch.int64)


class Frame(NamedTuple):
    """The tokens that a tokenizer puts before and after each text; most put none.

    Example:
        >>> def letters(texts):
        ...     return {"input_ids": [list(text.encode()) for text in texts]}
        >>> Frame.of(letters).begin.tolist()
        []
    """

    begin: Int[Tensor, " b"]
    end: Int[Tensor, " e"]

    @classmethod
    def of(cls, tokenizer: Any) -> Frame:
        framed = _encode(tokenizer, WORD)
        part = encode_part(tokenizer, WORD)
        for start in range(len(framed) - len(part) + 1):
            stop = start + len(part)
            if torch.equal(framed[start:stop], part):
                return cls(framed[:start], framed[stop:])
        # The word itself is read otherwise, so that the frame is not known.
        return cls(framed[:0], framed[:0])

    def inside(
        self,
        tokens: Int[Tensor, " n"],
    ) -> Int[Tensor, " m"]:
        """Return the tokens of a text without its frame."""
        first = len(self.begin)
        last = len(tokens) - len(self.end)
        return tokens[first:last]
