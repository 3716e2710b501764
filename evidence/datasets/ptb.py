"""The Penn Treebank's text from the user's files, for models of the next character or word."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch

from fredholm.errors import DataError
from fredholm.lab.data.formats import read_bytes
from fredholm.lab.data.kinds.language import NextTokens
from fredholm.lab.data.kinds.texts import TEXTS, TextOptions
from fredholm.lab.data.registry import Entry, Request, register_dataset

FILES = {"train": "ptb.train.txt", "val": "ptb.valid.txt", "test": "ptb.test.txt"}


def read(path: Path) -> str:
    """Read a file of Mikolov's preparation: one sentence per line, in lower case.

    Raises:
        DataError: the file is missing, empty or not UTF-8.
    """
    try:
        text = read_bytes(path).decode("utf-8")
    except UnicodeDecodeError as error:
        raise DataError(
            f"{path}: expected UTF-8, got another byte at {error.start:,}; it is corrupt or "
            f"another file"
        ) from error
    if not text.strip():
        raise DataError(f"{path}: expected text, got none; the file may be truncated")
    return "\n".join(" ".join(line.split()) for line in text.splitlines()) + "\n"


def create(request: Request) -> NextTokens:
    """Return the data set of a request; the three files are its splits."""
    options = request.text or TextOptions()
    # Characters are the default, except with a vocabulary file.
    if not options.tokens and not options.vocabulary:
        options = replace(options, tokens="characters")
    vocabulary = options.make_vocabulary([read(request.folder / FILES["train"])])
    numbers = torch.tensor(vocabulary.encode(read(request.folder / FILES[request.split])))
    return NextTokens(request.entry.name, request.split, numbers, vocabulary, options.length)


ENTRY = Entry(
    name="ptb",
    title="Penn Treebank text: what comes next (Marcus et al., 1993; Mikolov's preparation)",
    source="your own files",
    needs={"path": f"the folder of {', '.join(FILES.values())}"},
    licence_package="none needed",
    licence_data="of the Linguistic Data Consortium; yours to have",
    read=create,
    official=f"{', '.join(FILES.values())} in one folder",
    notes="path: the folder; windows of max_length characters (default) or words; the official "
    "splits, so val_fraction plays no role",
    kind=TEXTS,
)
register_dataset(ENTRY)
