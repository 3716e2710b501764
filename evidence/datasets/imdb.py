"""IMDB: 50,000 film reviews (Maas et al., 2011).

Read as bytes, they are the Text task of the Long Range Arena.
"""

from __future__ import annotations

from pathlib import Path

import torch

from fredholm.errors import DataError
from fredholm.lab.data.formats import read_bytes
from fredholm.lab.data.kinds.texts import TEXTS, TextDataset, TextOptions
from fredholm.lab.data.registry import Entry, Request, register_dataset
from fredholm.lab.data.splits import stratified

CLASSES = ("negative", "positive")


def read(folder: Path) -> tuple[list[str], torch.Tensor]:
    """Read texts and labels of ``folder/neg/*.txt`` and ``folder/pos/*.txt``, sorted by name.

    Raises:
        DataError: a folder has no texts, or a text is not UTF-8.
    """
    texts, labels = [], []
    for label, part in enumerate(("neg", "pos")):
        files = sorted((folder / part).glob("*.txt"))
        if not files:
            raise DataError(
                f"{folder / part}: expected .txt files, got none; give the folder aclImdb with "
                "train/neg, train/pos, test/neg and test/pos"
            )
        for file in files:
            try:
                texts.append(read_bytes(file).decode("utf-8"))
            except UnicodeDecodeError as error:
                raise DataError(
                    f"{file}: expected UTF-8, got another byte at {error.start:,}; it is corrupt "
                    f"or another file"
                ) from error
            labels.append(label)
    return texts, torch.tensor(labels)


def create(request: Request) -> TextDataset:
    """Return the data set of a request.

    ``val`` is a stratified part of ``train/``; the Arena validates on the test set.
    """
    entry = request.entry
    options = request.text or TextOptions()
    texts, labels = read(request.folder / "train")
    fraction = request.share
    rest, val = stratified(labels, fraction)
    vocabulary = options.make_vocabulary([texts[i] for i in rest.tolist()])
    if request.split == "test":
        texts, labels = read(request.folder / "test")
    else:
        chosen = val if request.split == "val" else rest
        texts, labels = [texts[i] for i in chosen.tolist()], labels[chosen]
    return TextDataset(
        entry.name, request.split, texts, labels, CLASSES, vocabulary, options.length
    )


ENTRY = Entry(
    name="imdb",
    title="IMDB film reviews (Maas et al., 2011); the Long Range Arena's Text task with "
    "tokens=bytes, max_length=4000",
    source="your folder: aclImdb/{train,test}/{neg,pos}/*.txt",
    needs={"path": "the folder aclImdb with train/ and test/"},
    licence_package="yours",
    licence_data="none stated; its authors ask for a citation (Maas et al., ACL 2011)",
    samples={"train": 25000, "test": 25000},
    classes=CLASSES,
    read=create,
    official="the folder aclImdb of aclImdb_v1.tar.gz",
    notes="val is a tenth of train; the Arena's own scripts validate on the test set",
    kind=TEXTS,
)
register_dataset(ENTRY)
