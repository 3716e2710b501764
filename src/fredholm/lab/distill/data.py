"""Data sets that a conversion learns from: those of fredholm as they are, others with their samples
put into batches, and texts through a tokenizer.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import default_collate

from ...arguments import describe
from ...errors import DataError, OptionError
from ..data import LabelledDataset
from ..data.kinds.dataset import IGNORED, Indices, Transform, index_tensor

# Names of labels in transformers and in datasets.
LABELS = ("labels", "label")

# Arguments that the decoder of an encoder-decoder reads.
READ = ("decoder_input_ids", "decoder_inputs_embeds")

Decoder = bool | Callable[[Tensor], Tensor]


class Collated(LabelledDataset):
    """A torch data set in batches, of (inputs, label) or of mappings with a label in them.

    Rows of a Hugging Face data set are mappings, with the label under one of :data:`LABELS`.

    Args:
        source: the data set.
        decoder: True for a causal model of transformers. The labels of a mapping are then its own
            tokens, and are shifted here: the label of each token is the one that follows, -100 at
            the end. A label beside the inputs stays as it is. For an encoder-decoder: a function
            from labels to the tokens that its decoder reads, for samples without these.
    """

    def __init__(self, source: Any, decoder: Decoder = False):
        self.whole = source
        self.name = type(source).__name__
        self.split = ""
        self.classes = ()
        self.decoder = decoder

    def __len__(self) -> int:
        return len(self.whole)

    def raw(self, indices: Indices) -> tuple[Any, Tensor]:
        """Return inputs and labels of the samples ``indices``, stacked along a new first axis.

        The inputs have the structure of a sample's, such as a mapping.

        Raises:
            DataError: samples of another form, or of different lengths.
        """
        shifted = self.decoder is True
        samples = [_sample(self.whole[int(index)], shifted) for index in indices]
        try:
            inputs, labels = default_collate(samples)
        except (RuntimeError, TypeError, ValueError) as error:
            raise DataError(
                f"data: expected samples of one shape, got others in {self.name} ({error}); pad "
                'them to one length (tokenizers: padding="max_length"), and leave out columns of '
                "text"
            ) from error
        # An encoder-decoder: its decoder reads the labels one place later, unless the samples bring
        # its tokens themselves.
        if callable(self.decoder) and isinstance(inputs, Mapping):
            brought = set(READ) & set(inputs)
            if not brought:
                inputs = {**inputs, READ[0]: self.decoder(labels)}
        return inputs, labels


def _sample(item: Any, shifted: bool) -> tuple[Any, Any]:
    """Return inputs and label of a sample; see :class:`Collated`."""
    got = type(item).__name__
    if isinstance(item, Mapping):
        label = next((name for name in LABELS if name in item), None)
        if label is not None:
            inputs = {}
            for name, value in item.items():
                if name != label:
                    inputs[name] = _tensor(name, value)
            target = _tensor(label, item[label])
            if shifted:
                target = torch.nn.functional.pad(target[1:], (0, 1), value=IGNORED)
            return inputs, target
        got += f" with {', '.join(map(str, item))}"
    elif isinstance(item, tuple | list) and len(item) == 2:
        return item[0], item[1]
    raise DataError(
        f"data: expected samples (inputs, label), or a model's arguments by name, got a {got}; "
        f"give the label as {' or '.join(LABELS)}"
    )


def _tensor(name: str, value: Any) -> Tensor:
    try:
        return torch.as_tensor(value)
    except (TypeError, ValueError, RuntimeError) as error:
        raise DataError(
            f"data: expected numbers as {name!r} of a sample, got {describe(value)}; leave it out, "
            "or turn it into numbers with a tokenizer"
        ) from error


class Part(LabelledDataset):
    """Some samples of a data set, in a given order."""

    def __init__(self, source: LabelledDataset, indices: Tensor):
        super().__init__(source.name, source.split, source.labels[indices], source.classes)
        self.whole = source
        self.indices = indices
        self.units = source.units

    def __len__(self) -> int:
        return len(self.indices)

    def batch(
        self,
        indices: Indices,
        transform: Transform | None = None,
    ) -> tuple[Any, Tensor]:
        """Return inputs and labels, by indices within the part."""
        return self.whole.batch(self.indices[index_tensor(indices)], transform)


class TokenTexts(LabelledDataset):
    """Texts, or pairs of texts, as tokens, padded to the longest of a batch.

    Args:
        name, split: of the data set.
        texts: strings, or pairs of strings.
        labels: (N,) class numbers or real targets.
        tokenizer: of transformers, called with lists of texts.
        max_length: tokens per text at most.
        classes: their names.

    Raises:
        DataError: more texts than labels, or fewer.
    """

    def __init__(
        self,
        name: str,
        split: str,
        texts: Sequence[str] | Sequence[tuple[str, str]],
        labels: Tensor,
        tokenizer: Callable[..., Any],
        max_length: int,
        classes: Sequence[str] = (),
    ):
        super().__init__(name, split, labels, classes)
        if len(texts) != len(labels):
            raise DataError(
                f"{name}: expected one label per text, got {len(texts)} texts and {len(labels)} "
                "labels; make them as many"
            )
        columns = [list(texts)]
        if texts and not isinstance(texts[0], str):
            columns = [list(column) for column in zip(*texts)]
        self.max_length = max_length
        encoded = tokenizer(*columns, truncation=True, max_length=max_length)
        self.columns = {key: encoded[key] for key in encoded}

        # A model with one answer per text finds its last token by the token of padding.
        self.fill = {
            "input_ids": getattr(tokenizer, "pad_token_id", None) or 0,
            "token_type_ids": getattr(tokenizer, "pad_token_type_id", None) or 0,
        }

    def raw(self, indices: Indices) -> tuple[dict[str, Tensor], Tensor]:
        """Return a model's arguments (B, N), with padding behind each text, and labels (B,)."""
        indices = index_tensor(indices)
        parts = {}
        for key, column in self.columns.items():
            rows = [torch.tensor(column[index]) for index in indices.tolist()]
            parts[key] = torch.nn.utils.rnn.pad_sequence(
                rows,
                batch_first=True,
                padding_value=self.fill.get(key, 0),
            )
        return parts, self.labels[indices]


class TokenWindows(LabelledDataset):
    """Documents as windows of N tokens, for a decoder.

    The label of a token is the one that follows, -100 at a window's end. A window lies inside a
    document. The ends of documents, and documents shorter than a window, are concatenated and make
    windows too.

    Args:
        name, split: of the data set.
        documents: texts.
        tokenizer: called with a list of texts.
        length: N.
        reach: for models with rotary positions: every second window begins at a random position, so
            that all its positions are below ``reach``. None: all windows begin at 0, and batches
            have no positions.

    Raises:
        DataError: texts with fewer than N tokens in all.
        OptionError: a reach below N.

    Example:
        >>> def letters(texts):
        ...     return {"input_ids": [list(text.encode()) for text in texts]}
        >>> data = TokenWindows("tiny", "train", ["abcdefg", "hi"], letters, 3)
        >>> [row["input_ids"].tolist() for row, _ in (data.batch([0]), data.batch([2]))]
        [[[97, 98, 99]], [[103, 104, 105]]]
    """

    task = "tokens"

    def __init__(
        self,
        name: str,
        split: str,
        documents: Sequence[str],
        tokenizer: Callable[..., Any],
        length: int,
        *,
        reach: int | None = None,
    ):
        if reach is not None and reach < length:
            raise OptionError(
                f"reach: expected {length}, the tokens of a window, or more, got {reach}; raise it"
            )
        windows = []
        rest = []
        for ids in tokenizer(list(documents))["input_ids"]:
            windows += _cut(ids, length)
            remainder = len(ids) % length
            rest += ids[len(ids) - remainder :]
        # What is left of the documents is joined.
        windows += _cut(rest, length)
        if not windows:
            raise DataError(
                f"{name} {split}: expected {length} tokens for a window, got {len(rest)}; set a "
                "smaller length"
            )
        self.max_length = length
        self.reach = reach
        self.windows = torch.tensor(windows, dtype=torch.int32)
        following = torch.nn.functional.pad(self.windows[:, 1:], (0, 1), value=IGNORED)
        super().__init__(name, split, following, ())
        # The first position of each window.
        self.starts: Tensor | None = None
        if reach is not None:
            draw = torch.Generator().manual_seed(0)
            self.starts = torch.randint(reach - length + 1, (len(windows),), generator=draw)
            self.starts[::2] = 0

    def raw(self, indices: Indices) -> tuple[dict[str, Tensor], Tensor]:
        """Return a model's arguments and the tokens that follow, (B, N) each."""
        indices = index_tensor(indices)
        inputs = {"input_ids": self.windows[indices].long()}
        if self.starts is not None:
            order = torch.arange(self.windows.shape[1])
            inputs["position_ids"] = self.starts[indices][:, None] + order
        return inputs, self.labels[indices].long()


def _cut(tokens: list[int], length: int) -> list[list[int]]:
    """Cut tokens into windows of ``length``; a shorter end is left out."""
    starts = range(0, len(tokens) - length + 1, length)
    return [tokens[start : start + length] for start in starts]


def is_decoder(model: Any) -> bool:
    """Return whether a model of transformers predicts the next token."""
    return type(model).__name__.endswith(("ForCausalLM", "LMHeadModel"))


def decoder_of(model: Any) -> Decoder:
    """Return the argument ``decoder`` of :class:`Collated` for labels that are a model's tokens."""
    forward = getattr(model, "forward", None)
    # A decoder beside an encoder has arguments of its own.
    if forward is not None:
        names = inspect.signature(forward).parameters
        if READ[0] in names:
            return partial(decoder_tokens, model)
    return is_decoder(model)


def decoder_tokens(model: Any, labels: Tensor) -> Tensor:
    """Return the tokens that the decoder of an encoder-decoder reads: the one before each label, as
    the model itself derives them.

    Raises:
        DataError: its configuration does not say with which token a decoder begins.
    """
    own = getattr(model, "prepare_decoder_input_ids_from_labels", None)
    try:
        if own is not None:
            return own(labels=labels)
        start = model.config.decoder_start_token_id
        fill = model.config.pad_token_id
        first = torch.full_like(labels[:, :1], start)
        moved = torch.cat([first, labels[:, :-1]], 1)
        return torch.where(moved == IGNORED, fill, moved)
    except (AttributeError, IndexError, RuntimeError, TypeError, ValueError) as error:
        raise DataError(
            f"data: expected labels from which {type(model).__name__} derives {READ[0]}, got "
            f"{tuple(labels.shape)} ({error}); set decoder_start_token_id and pad_token_id in its "
            f"configuration, or give {READ[0]} beside the labels"
        ) from error


def as_dataset(source: Any, decoder: Decoder = False) -> Any:
    """Return a data set with a method ``batch``; ``decoder``: see :class:`Collated`.

    Raises:
        OptionError: an object without a length, or without samples or batches.
        DataError: it is empty.
    """
    readable = hasattr(source, "batch") or hasattr(source, "__getitem__")
    if not hasattr(source, "__len__") or not readable:
        raise OptionError(
            "data: expected a training and a validation data set of (inputs, label) with a length, "
            f"got {type(source).__name__}; give a list, or a torch data set"
        )
    if not len(source):
        raise DataError("data: expected a sample or more in each split, got none; add samples")

    # A Hugging Face data set has a `batch` as well, with another meaning, but no labels.
    if isinstance(source, Collated):
        return source
    if hasattr(source, "batch") and hasattr(source, "labels"):
        return source
    return Collated(source, decoder)


def two_splits(data: Any, decoder: Decoder = False) -> list[Any]:
    """Return the training and the validation split; ``decoder``: see :class:`Collated`.

    Raises:
        OptionError: not a pair of data sets.
    """
    if not isinstance(data, tuple | list) or len(data) != 2:
        raise OptionError(
            f"data: expected a pair (training, validation) of data sets, got {describe(data)}; "
            "give both"
        )
    return [as_dataset(split, decoder) for split in data]
