"""What a conversion learns from: data sets of fredholm as they are, any other with samples put into
batches, texts by a tokenizer.
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
from ..data.kinds.dataset import IGNORED

LABELS = ("labels", "label")  # as transformers and datasets call them
READ = ("decoder_input_ids", "decoder_inputs_embeds")  # what a decoder beside an encoder reads
Decoder = bool | Callable[[Tensor], Tensor]


class Collated(LabelledDataset):
    """A torch data set of (inputs, label), or of mappings with the label in them as
    :data:`LABELS` (rows of a Hugging Face data set), handed out in batches.

    ``decoder``: the labels of a mapping are its tokens, as a causal model of transformers takes
    them, and are moved here: at each token the one that follows, -100 at the end. The label of
    (inputs, label) is what is asked at each token, as it is. Of an encoder-decoder it is what makes
    of labels the tokens that its decoder reads, where the samples have none.
    """

    def __init__(self, source: Any, decoder: Decoder = False):
        self.whole, self.name, self.split, self.classes = source, type(source).__name__, "", ()
        self.decoder = decoder

    def __len__(self) -> int:
        return len(self.whole)

    def batch(self, indices: Tensor | Sequence[int], transform: Any = None) -> tuple[Any, Tensor]:
        """Inputs and labels of ``indices``, collated.

        Raises:
            DataError: samples of another form, or of different lengths.
        """
        moved = self.decoder is True
        samples = [_sample(self.whole[int(i)], moved) for i in indices]
        try:
            inputs, labels = default_collate(samples)
        except (RuntimeError, TypeError, ValueError) as error:
            raise DataError(
                f"data: samples of {self.name} make no batch ({error}); pad them to one length "
                '(tokenizers: padding="max_length"), and leave out columns of text'
            ) from error
        if callable(self.decoder) and isinstance(inputs, Mapping) and not set(READ) & set(inputs):
            inputs = {**inputs, READ[0]: self.decoder(labels)}
        return inputs, labels


def _sample(item: Any, decoder: bool) -> tuple[Any, Any]:
    """(inputs, label) of a sample; see :class:`Collated`."""
    if isinstance(item, Mapping):
        label = next((name for name in LABELS if name in item), None)
        if label is not None:
            inputs = {name: _tensor(name, value) for name, value in item.items() if name != label}
            asked = _tensor(label, item[label])
            if decoder:
                asked = torch.nn.functional.pad(asked[1:], (0, 1), value=IGNORED)
            return inputs, asked
    elif isinstance(item, tuple | list) and len(item) == 2:
        return item[0], item[1]
    names = f" with {', '.join(map(str, item))}" if isinstance(item, Mapping) else ""
    raise DataError(
        f"data: a sample is a {type(item).__name__}{names}; needs (inputs, label), or a model's "
        f"arguments by name with {' or '.join(LABELS)} among them"
    )


def _tensor(name: str, value: Any) -> Tensor:
    try:
        return torch.as_tensor(value)
    except (TypeError, ValueError, RuntimeError) as error:
        raise DataError(
            f"data: {name!r} of a sample is no tensor and no list of numbers ({describe(value)}); "
            "leave it out, or make numbers of it by a tokenizer"
        ) from error


class Part(LabelledDataset):
    """Some samples of a data set that hands out batches."""

    def __init__(self, source: LabelledDataset, indices: Tensor):
        super().__init__(source.name, source.split, source.labels[indices], source.classes)
        self.whole, self.indices = source, indices

    def __len__(self) -> int:
        return len(self.indices)

    def batch(self, indices: Tensor | Sequence[int], transform: Any = None) -> tuple[Any, Tensor]:
        """Inputs and labels of these samples' ``indices``."""
        return self.whole.batch(self.indices[torch.as_tensor(indices)], transform)


class TokenTexts(LabelledDataset):
    """Texts, or pairs of texts, as a transformers tokenizer gives them, padded to the longest of a
    batch.

    Args:
        name, split: what this is.
        texts: strings, or pairs of strings.
        labels: (N,) class numbers or real targets.
        tokenizer: called with lists of texts.
        max_length: tokens kept.
        classes: names.

    Raises:
        DataError: texts and labels that are not as many.
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
                f"{name}: received {len(texts)} texts and {len(labels)} labels; needs one each"
            )
        columns = (
            [list(column) for column in zip(*texts)]
            if texts and not isinstance(texts[0], str)
            else [list(texts)]
        )
        self.max_length = max_length
        encoded = tokenizer(*columns, truncation=True, max_length=max_length)
        self.columns = {key: encoded[key] for key in encoded}
        # a model with one answer a text finds its last token by that of padding
        self.fill = {
            key: getattr(tokenizer, name, None) or 0
            for key, name in (
                ("input_ids", "pad_token_id"),
                ("token_type_ids", "pad_token_type_id"),
            )
        }

    def batch(
        self, indices: Tensor | Sequence[int], transform: Any = None
    ) -> tuple[dict[str, Tensor], Tensor]:
        """A model's arguments (B, N), the tokenizer's padding behind each text, and labels."""
        indices = torch.as_tensor(indices, dtype=torch.int64)
        parts = {}
        for key, column in self.columns.items():
            rows = [torch.tensor(column[int(i)]) for i in indices]
            parts[key] = torch.nn.utils.rnn.pad_sequence(
                rows, batch_first=True, padding_value=self.fill.get(key, 0)
            )
        return parts, self.labels[indices]


class TokenWindows(LabelledDataset):
    """Documents as a decoder's tokenizer gives them, in windows of N tokens: a batch is the model's
    arguments (B, N), and at each token the one that follows, -100 at a window's end.

    A window lies inside a document. What is left at a document's end, and documents shorter than a
    window, are put end to end and make windows too.

    Args:
        name, split: what this is.
        documents: texts.
        tokenizer: called with a list of texts.
        length: N.
        reach: where a window may begin, at most: every second one begins at a position of its own,
            drawn once, so that its last token has a position below ``reach``. Of models with rotary
            positions; without it all begin at 0, and say nothing of positions.

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
            raise OptionError(f"reach: received {reach}; a window has {length} tokens")
        windows, rest = [], []
        for ids in tokenizer(list(documents))["input_ids"]:
            whole = len(ids) - len(ids) % length
            windows += [ids[i : i + length] for i in range(0, whole, length)]
            rest += ids[whole:]
        windows += [rest[i : i + length] for i in range(0, len(rest) - length + 1, length)]
        if not windows:
            raise DataError(
                f"{name} {split}: {len(rest)} tokens; a window takes {length}, set a smaller length"
            )
        self.max_length, self.reach = length, reach
        self.windows = torch.tensor(windows, dtype=torch.int32)
        following = torch.nn.functional.pad(self.windows[:, 1:], (0, 1), value=IGNORED)
        super().__init__(name, split, following, ())
        self.starts: Tensor | None = None
        if reach is not None:
            draw = torch.Generator().manual_seed(0)
            self.starts = torch.randint(reach - length + 1, (len(windows),), generator=draw)
            self.starts[::2] = 0

    def batch(
        self, indices: Tensor | Sequence[int], transform: Any = None
    ) -> tuple[dict[str, Tensor], Tensor]:
        """A model's arguments and the tokens that follow, (B, N) each."""
        indices = torch.as_tensor(indices, dtype=torch.int64)
        inputs = {"input_ids": self.windows[indices].long()}
        if self.starts is not None:
            order = torch.arange(self.windows.shape[1])
            inputs["position_ids"] = self.starts[indices][:, None] + order
        return inputs, self.labels[indices].long()


def is_decoder(model: Any) -> bool:
    """Whether a model of transformers predicts the next token."""
    return type(model).__name__.endswith(("ForCausalLM", "LMHeadModel"))


def decoder_of(model: Any) -> Decoder:
    """What ``decoder`` of :class:`Collated` is where labels are a model's tokens."""
    forward = getattr(model, "forward", None)
    both = forward is not None and READ[0] in inspect.signature(forward).parameters
    return partial(decoder_tokens, model) if both else is_decoder(model)


def decoder_tokens(model: Any, labels: Tensor) -> Tensor:
    """What an encoder-decoder of transformers reads where ``labels`` are asked: the token before
    each, as the model itself makes it of them.

    Raises:
        DataError: its configuration does not say with which token a decoder begins.
    """
    own = getattr(model, "prepare_decoder_input_ids_from_labels", None)
    try:
        if own is not None:
            return own(labels=labels)
        start, fill = model.config.decoder_start_token_id, model.config.pad_token_id
        moved = torch.cat([torch.full_like(labels[:, :1], start), labels[:, :-1]], 1)
        return torch.where(moved == IGNORED, fill, moved)
    except (AttributeError, IndexError, RuntimeError, TypeError, ValueError) as error:
        raise DataError(
            f"data: {type(model).__name__} reads {READ[0]}, and makes none of labels "
            f"{tuple(labels.shape)} ({error}); set decoder_start_token_id and pad_token_id in its "
            f"configuration, or give {READ[0]} beside the labels"
        ) from error


def as_dataset(source: Any, decoder: Decoder = False) -> Any:
    """A data set that hands out batches; ``decoder``: see :class:`Collated`.

    Raises:
        OptionError: neither has it ``batch`` and ``labels``, nor a length and items.
        DataError: it is empty.
    """
    if not hasattr(source, "__len__") or not (
        hasattr(source, "batch") or hasattr(source, "__getitem__")
    ):
        raise OptionError(
            f"data: received {type(source).__name__}; needs a training and a validation data set "
            "with a length, of (inputs, label)"
        )
    if not len(source):
        raise DataError("data: a split is empty")
    # `batch` alone may be that of a Hugging Face data set, which is another one
    batches = hasattr(source, "batch") and hasattr(source, "labels")
    return source if batches or isinstance(source, Collated) else Collated(source, decoder)


def two_splits(data: Any, decoder: Decoder = False) -> list[Any]:
    """The training and the validation split of ``data``; ``decoder``: see :class:`Collated`.

    Raises:
        OptionError: not two of them.
    """
    if not isinstance(data, tuple | list) or len(data) != 2:
        raise OptionError(
            f"data: received {describe(data)}; needs a pair (training, validation) of data sets"
        )
    return [as_dataset(split, decoder) for split in data]
