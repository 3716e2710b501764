"""From a name and a split to a data set."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ...errors import DataError, OptionError, suggest
from .counter import permutation
from .fetching import fetch
from .install import has_files, installed_files, source_of, verify_installed
from .kinds.dataset import LabelledDataset
from .kinds.images import ArrayDataset, resize
from .kinds.kind import Kind
from .kinds.sequences import SequenceDataset, image_sequences
from .kinds.tokens import TokenDataset, image_tokens
from .registry import Entry, Request, data_root, dataset_path, get_entry
from .sources import PinnedFile
from .splits import check_fraction, check_split, stratified
from .vocabulary import Vocabulary

_EXAMPLES = {"path": "FOLDER", "image_size": "224"}
Arrays = tuple[np.ndarray, np.ndarray]


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
    """One split of a data set: :class:`ArrayDataset`, :class:`FolderDataset` for ``image-folder``,
    :class:`TextDataset` for text,
    :class:`SequenceDataset` for sequences of numbers, :class:`TokenDataset` for sequences of
    symbols.

    ``test`` is the official test set. ``val`` is a stratified slice of the official training set,
    fixed by a constant seed: ``val_fraction`` of each class (default 0.1); ``train`` is the rest,
    so with ``val_fraction=0`` all of it. ``digits``, which has no official split, holds out 20% of
    each class as ``test`` first, and 1/8 of the rest as ``val`` (70 / 10 / 20%).

    Args:
        name: one of :func:`list_datasets`.
        split: train, val or test.
        root: where fetched data sets lie (default $FREDHOLM_DATA, else ~/.cache/fredholm/data).
        path: a folder of yours instead, in the data set's official layout: idx files (raw or gzip),
            the CIFAR-10 *binary* version, or ``train/<class>/*.png`` with ``val/`` and/or ``test/``
            for ``image-folder``; of ``files``, any file or folder.
        image_size: height and width to resize to; needed for ``image-folder``.
        val_fraction: share of the training images held out as ``val``.
        download: fetch the data set when it is not there.
        tokens: of text, words (default), wordpieces, bytes or characters.
        max_length: of text, tokens kept (default 64 words, 256 bytes or characters); a longer text
            loses its end.
        min_count: how often a word must occur in the training split to have a number of its own
            (default 2).
        pieces: how many numbers there are of wordpieces at most (default 30,000).
        vocabulary: of text, used instead of the training split's: the one a model was trained with.
        masked: of text, hide this share of the tokens and ask for them instead, see
            :class:`HiddenTokens`.
        options: of the data set itself, such as ``{"delay": 1000}`` of copy-memory; ``fredholm data
            list`` shows them.

    Raises:
        OptionError: for an unknown name or split, or an impossible size or fraction.
        DataError: when the data set is not there, or a file is missing, truncated, corrupt or of
            another format.

    Example:
        >>> train = create_dataset("digits", "train")
        >>> train.shape, len(train.classes)
        ((1, 8, 8), 10)
    """
    entry = get_entry(name)
    check_split(split)
    if val_fraction is not None:
        check_fraction(val_fraction)
    folder = None if path is None else Path(path).expanduser().absolute()
    if folder is not None and not folder.is_dir() and entry.kind_at is None:
        raise DataError(f"path: {folder} is not a folder; needs the folder of {name}'s files")
    if folder is not None and not entry.reads_files:
        raise OptionError(f"path: {name} comes without files and reads no folder; leave path out")
    if download and folder is None and entry.sources and not has_files(dataset_path(name, root)):
        fetch(name, root)
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
            raise OptionError(f"{name}: {key} is missing; needs {what}: {key}={_EXAMPLES[key]}")
    asked = _kind_of(entry, folder, own, val_fraction).request(name, given)
    request = Request(entry, split, data_root(root), folder, val_fraction, options=own, **asked)
    dataset = entry.read(request)
    if not len(dataset):
        raise OptionError(
            f"{name}: split {split!r} is empty with val_fraction={val_fraction}; choose another "
            "fraction"
        )
    return dataset if masked is None else dataset.hidden(masked)


def find_kind(
    name: str,
    *,
    path: str | os.PathLike[str] | None = None,
    val_fraction: float | int | None = None,
    options: Mapping[str, Any] | None = None,
) -> Kind:
    """The kind of the samples that :func:`create_dataset` would read, from the files where only
    they tell it.

    Raises:
        OptionError: an unknown name or option.
        DataError: files that cannot be read.

    Example:
        >>> find_kind("digits").name
        'images'
    """
    entry = get_entry(name)
    folder = None if path is None else Path(path).expanduser().absolute()
    return _kind_of(entry, folder, _own_options(entry, options or {}), val_fraction)


def _kind_of(entry: Entry, folder: Path | None, own: Any, val: float | int | None) -> Kind:
    if entry.kind_at is None or folder is None:
        return entry.kind
    return entry.kind_at(folder, own, entry.val_fraction if val is None else val)


def stand_in(name: str, samples: int, **given: Any) -> LabelledDataset | None:
    """Random pixels in the shape of a data set that is not there, ``given`` what
    :func:`create_dataset` would be; None where only its files say how its samples are.
    """
    entry = get_entry(name)
    if entry.shape is None or entry.options not in (None, ImageOptions):
        return None
    own = _own_options(entry, given.pop("options", None) or {})
    asked = entry.kind.request(name, given)
    draw = np.random.default_rng(0)
    images = draw.integers(0, 256, (samples, *entry.shape), np.uint8)
    labels = np.arange(samples, dtype=np.uint8) % len(entry.classes)
    # All of them: the test split is not divided further.
    request = Request(entry, "test", data_root(), None, None, options=own, **asked)
    return create_arrays(request, lambda part: (images, labels))


def _own_options(entry: Entry, given: Mapping[str, Any]) -> Any:
    """The data set's own options as its dataclass, None where it has none."""
    if entry.options is None:
        if given:
            raise OptionError(
                f"options: received {', '.join(given)}; {entry.name} has no options of its own"
            )
        return None
    known = [field.name for field in dataclasses.fields(entry.options)]
    for key in given:
        if key not in known:
            raise OptionError(f"options: {entry.name} has no option {key!r}{suggest(key, known)}")
    try:
        return entry.options(**given)
    except TypeError as error:
        said = ", ".join(f"{key}={value!r}" for key, value in given.items())
        raise OptionError(
            f"options: received {said}; {entry.name} needs others ({error})"
        ) from error


@dataclasses.dataclass(frozen=True)
class ImageOptions:
    """``sequence``: None for images; ``rows``: pixels row after row; ``permuted``: pixels in one
    random order, fixed by ``seed``; ``tokens``: grey levels row after row, each a token.

    Raises:
        OptionError: another order.
    """

    sequence: str | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        known = ("rows", "permuted", "tokens")
        if self.sequence not in (None, *known):
            raise OptionError(
                f"sequence: received {self.sequence!r}{suggest(str(self.sequence), known)}"
            )


def create_arrays(
    request: Request, read: Callable[[str], Arrays]
) -> ArrayDataset | SequenceDataset | TokenDataset:
    """An in-memory data set from ``read("train")`` or ``read("test")``: the validation slice, the
    size, the constants.

    ``read`` returns images (N, C, H, W) and labels (N,), both uint8. With :class:`ImageOptions` the
    images may become sequences.
    """
    entry = request.entry
    images, labels = (
        torch.from_numpy(x) for x in read("test" if request.split == "test" else "train")
    )
    if request.split != "test":
        rest, held = stratified(labels.long(), request.share)
        chosen = held if request.split == "val" else rest
        images, labels = images[chosen], labels[chosen]
    if request.image_size is not None:
        images = resize(images, request.image_size)
    result = ArrayDataset(
        entry.name, request.split, images, labels.long(), entry.classes, entry.mean, entry.std
    )
    if request.options is None or request.options.sequence is None:
        return result
    if request.options.sequence == "tokens":
        return image_tokens(result)
    permuted = request.options.sequence == "permuted"
    return image_sequences(
        result, permutation(result.images[0, 0].numel(), request.options.seed) if permuted else None
    )


def source_folder(request: Request, part_files: Callable[[PinnedFile], bool]) -> Path:
    """The folder to read from: the user's ``path`` as it is, else the fetched one once the
    checksums of its files fit.

    ``part_files`` tells which pinned files are about to be read.

    Raises:
        DataError: when nothing was fetched, or a file is not what it must be.
    """
    if request.path is not None:
        return request.path
    entry = request.entry
    folder = request.root / entry.name
    if not has_files(folder):
        raise DataError(
            f"{entry.name}: not in {folder}; fix: `fredholm data fetch {entry.name}`, or put the "
            f"original files there: {entry.official}"
        )
    source = source_of(entry, folder)
    files = tuple(file for file in installed_files(source, folder) if part_files(file))
    verify_installed(entry.name, source, folder, files)
    return folder
