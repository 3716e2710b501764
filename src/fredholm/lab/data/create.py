"""Creation of data sets by name and split."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ...errors import DataError, OptionError, suggest
from .counter import permutation
from .fetching import fetch
from .formats import LabelledImages
from .install import has_files, installed_files, source_of, verify_installed
from .kinds.dataset import LabelledDataset
from .kinds.images import ArrayDataset, resize
from .kinds.kind import Kind
from .kinds.language import HiddenTokens, NextTokens
from .kinds.sequences import image_sequences
from .kinds.texts import TextOptions
from .kinds.tokens import image_tokens
from .registry import Entry, Request, data_root, dataset_path, get_entry
from .sources import PinnedFile
from .splits import check_fraction, check_split
from .vocabulary import Vocabulary

_EXAMPLES = {"path": "FOLDER", "image_size": "224"}


def create_dataset(
    name: str,
    split: str,
    *,
    root: str | os.PathLike[str] | None = None,
    path: str | os.PathLike[str] | None = None,
    image_size: int | tuple[int, int] | None = None,
    val_fraction: float | int | None = None,
    download: bool = False,
    tokens: str | None = None,
    max_length: int | None = None,
    min_count: int | None = None,
    pieces: int | None = None,
    vocabulary: Vocabulary | None = None,
    masked: float | None = None,
    options: Mapping[str, Any] | None = None,
) -> LabelledDataset:
    """Return one split of a data set: :class:`ArrayDataset`, :class:`FolderDataset` for
    ``image-folder``, :class:`TextDataset` for texts, :class:`SequenceDataset` for sequences of
    numbers, :class:`TokenDataset` for sequences of symbols.

    ``test`` is the official test set. ``val`` is a stratified slice of the official training set,
    fixed by a constant seed: ``val_fraction`` of each class (default 0.1); ``train`` is the rest,
    so with ``val_fraction=0`` all of it, and ``val`` is refused. ``digits``, which has no official
    split, holds out 20% of each class as ``test`` first, and 1/8 of the rest as ``val`` (70 / 10 /
    20%).

    Args:
        name: one of :func:`list_datasets`.
        split: train, val or test.
        root: where fetched data sets lie (default $FREDHOLM_DATA, else ~/.cache/fredholm/data).
        path: your own folder instead, in the data set's official layout: idx files (raw or gzip),
            the CIFAR-10 *binary* version, or ``train/<class>/*.png`` with ``val/`` and/or ``test/``
            for ``image-folder``; of ``files``, any file or folder.
        image_size: height and width to resize to; needed for ``image-folder``.
        val_fraction: share of the training samples held out as ``val``. With 0 there are no
            validation samples; a recipe, whose run needs them, takes only more than 0.
        download: fetch the data set when it is not there.
        tokens, max_length, min_count, pieces, vocabulary: of texts, see
            :class:`fredholm.lab.data.kinds.texts.TextOptions`.
        masked: of texts, hide this share of the tokens, which become the targets; see
            :class:`HiddenTokens`.
        options: of the data set itself, such as ``{"sequence": "rows"}`` of mnist; ``fredholm data
            list`` shows them.

    Raises:
        OptionError: an unknown name or split, or an impossible size or fraction.
        DataError: the data set is not there, or a file is missing, truncated, corrupt or of another
            format.

    Example:
        >>> train = create_dataset("digits", "train")
        >>> train.shape, len(train.classes)
        ((1, 8, 8), 10)
    """
    entry = get_entry(name)
    check_split(split)
    if val_fraction is not None:
        check_fraction(val_fraction)
    folder = _absolute(path)
    if folder is not None and not folder.is_dir() and entry.kind_at is None:
        raise DataError(
            f"path: expected the folder of {name}'s files, got {folder}, which is not a folder; "
            "correct the path"
        )
    if folder is not None and not entry.reads_files:
        raise OptionError(
            f"path: expected none for {name}, which comes without files, got {folder}; leave it out"
        )
    if download and folder is None and entry.sources and not has_files(dataset_path(name, root)):
        fetch(name, root)

    # None means "not given": a kind of data refuses options of other kinds only if they are given.
    given = {
        "image_size": image_size,
        "tokens": tokens,
        "max_length": max_length,
        "min_count": min_count,
        "pieces": pieces,
        "vocabulary": vocabulary,
        "masked": masked,
    }
    given = {key: value for key, value in given.items() if value is not None}
    own = _own_options(entry, options or {})
    for key, what in entry.needs.items():
        if key not in given and (key != "path" or folder is None):
            raise OptionError(
                f"{name}: expected {key}, {what}, got none; pass {key}={_EXAMPLES[key]}"
            )
    fields = _kind_of(entry, folder, own, val_fraction).request(name, given)
    request = Request(entry, split, data_root(root), folder, val_fraction, options=own, **fields)
    dataset = entry.read(request)
    if not len(dataset):
        raise OptionError(
            f"{name}: expected samples in split {split!r}, got none with "
            f"val_fraction={val_fraction}; choose another fraction"
        )
    if masked is None:
        return dataset
    return HiddenTokens(dataset, masked)


def find_kind(
    name: str,
    *,
    path: str | os.PathLike[str] | None = None,
    val_fraction: float | int | None = None,
    options: Mapping[str, Any] | None = None,
) -> Kind:
    """Return the kind of the samples that :func:`create_dataset` would read, which for a user's
    files follows from the files.

    Raises:
        OptionError: an unknown name or option.
        DataError: files that cannot be read.

    Example:
        >>> find_kind("digits").name
        'images'
    """
    entry = get_entry(name)
    own = _own_options(entry, options or {})
    return _kind_of(entry, _absolute(path), own, val_fraction)


def _absolute(path: str | os.PathLike[str] | None) -> Path | None:
    if path is None:
        return None
    return Path(path).expanduser().absolute()


def _kind_of(
    entry: Entry,
    folder: Path | None,
    own: Any,
    val: float | int | None,
) -> Kind:
    if entry.kind_at is None or folder is None:
        return entry.kind
    if val is None:
        val = entry.val_fraction
    return entry.kind_at(folder, own, val)


def stand_in(name: str, samples: int, **given: Any) -> LabelledDataset | None:
    """Return random pixels in the shape of a data set that is not there, for a trial run; None
    where only its files determine the shape.

    Args:
        given: arguments of :func:`create_dataset`.
    """
    entry = get_entry(name)
    if entry.shape is None or entry.options not in (None, ImageOptions):
        return None
    own = _own_options(entry, given.pop("options", None) or {})
    fields = entry.kind.request(name, given)
    draw = np.random.default_rng(0)
    images = draw.integers(0, 256, (samples, *entry.shape), np.uint8)
    labels = np.arange(samples, dtype=np.uint8) % len(entry.classes)
    # The test split, since nothing is held out of it: as many samples come out as go in.
    request = Request(entry, "test", data_root(), None, None, options=own, **fields)
    return create_arrays(request, lambda part: (images, labels))


def _own_options(entry: Entry, given: Mapping[str, Any]) -> Any:
    """Return the data set's own options as its dataclass, None where it has none."""
    if entry.options is None:
        if given:
            raise OptionError(
                f"options: expected none for {entry.name}, got {', '.join(given)}; leave them out"
            )
        return None
    known = [field.name for field in dataclasses.fields(entry.options)]
    for key in given:
        if key not in known:
            raise OptionError(
                f"options: expected one of {entry.name}, got {key!r}{suggest(key, known)}"
            )
    try:
        return entry.options(**given)
    except TypeError as error:
        got = ", ".join(f"{key}={value!r}" for key, value in given.items())
        raise OptionError(
            f"options: expected those of {entry.name}, got {got} ({error}); correct their types"
        ) from error


@dataclasses.dataclass(frozen=True)
class ImageOptions:
    """Images, or sequences of their pixels.

    Args:
        sequence: None for images; ``rows``: pixels row after row; ``permuted``: pixels in one
            random order, fixed by ``seed``; ``tokens``: grey levels row after row, each a token.
        seed: of the random order.

    Raises:
        OptionError: another order.
    """

    sequence: str | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        known = ("rows", "permuted", "tokens")
        if self.sequence not in (None, *known):
            raise OptionError(
                f"sequence: expected one of {', '.join(known)}, or none for images, got "
                f"{self.sequence!r}{suggest(str(self.sequence), known)}"
            )


def create_arrays(request: Request, read: Callable[[str], LabelledImages]) -> LabelledDataset:
    """Return the samples of a request, in memory: its split, at its image size, as images or as
    sequences of their pixels.

    One sample of the result is an image (C, H, W), a sequence of pixels (H·W, C), or a sequence of
    grey levels as tokens (H·W,); see :class:`ImageOptions`.

    Args:
        request: its ``options`` are :class:`ImageOptions`, or None for plain images.
        read: from ``"train"`` or ``"test"`` to the official images (N, C, H, W) and labels (N,),
            both uint8.
    """
    entry = request.entry
    images, labels = (torch.from_numpy(array) for array in read(request.official_split))
    labels = labels.long()
    # ``train`` and ``val`` share the official training samples; ``test`` takes all of its own.
    chosen = request.chosen(labels)
    if chosen is not None:
        images = images[chosen]
        labels = labels[chosen]
    if request.image_size is not None:
        images = resize(images, request.image_size)
    result = ArrayDataset(
        entry.name,
        request.split,
        images,
        labels,
        entry.classes,
        entry.mean,
        entry.std,
    )

    options = request.options
    if options is None or options.sequence is None:
        return result
    if options.sequence == "tokens":
        return image_tokens(result)
    # One order of the H·W pixels serves all images and splits: it depends on the seed alone.
    if options.sequence == "permuted":
        return image_sequences(result, permutation(images[0, 0].numel(), options.seed))
    return image_sequences(result)


def create_next_tokens(request: Request, documents: Mapping[str, Sequence[str]]) -> NextTokens:
    """Return the documents of a request's split, one after another, by default as characters.

    Args:
        documents: of each split; those of ``train`` determine the vocabulary.
    """
    options = (request.text or TextOptions()).by_characters()
    own = documents[request.split]
    vocabulary = options.make_vocabulary(documents["train"])
    # Half the memory of int64, to which a batch is converted when it is read.
    numbers = torch.tensor(vocabulary.encode("\n".join(own)), dtype=torch.int32)
    return NextTokens(request.entry.name, request.split, numbers, vocabulary, options.length, own)


def source_folder(
    request: Request, part_files: Callable[[PinnedFile], bool] = lambda file: True
) -> Path:
    """Return the folder to read from: the user's ``path`` as it is, else the fetched one after a
    comparison of its files' checksums.

    Args:
        part_files: whether a pinned file is going to be read; others are not compared, which would
            take seconds per gigabyte.

    Raises:
        DataError: nothing was fetched, or a file has changed since.
    """
    if request.path is not None:
        return request.path
    entry = request.entry
    folder = request.root / entry.name
    if not has_files(folder):
        raise DataError(
            f"{entry.name}: expected its files in {folder}, got none; fix: `fredholm data fetch "
            f"{entry.name}`, or put the original files there: {entry.official}"
        )
    source = source_of(entry, folder)
    files = tuple(file for file in installed_files(source, folder) if part_files(file))
    verify_installed(entry.name, source, folder, files)
    return folder
