"""Samples whose label is asked for, read as the training samples were."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from ....errors import DataError, OptionError
from ....progress import current
from ..kinds.images import read_as_trained, standardised
from ..kinds.kind import saved_kind
from ..kinds.sequences import padded
from ..kinds.texts import encode_rows, read_lines
from ..vocabulary import Vocabulary
from .collect import KIND_OF, TABLES, collect, files_of
from .collection import Collection
from .columns import Trained
from .datasets import as_read
from .folders import pictures_of, read_text
from .reading import Reading
from .standard_input import paths_of, renamed
from .suffixes import LINES, suffix_of

# What a run reads that was trained on a data set of the catalogue, by the kind of its samples.
_CATALOGUE = {
    "images": "images",
    "text": "texts",
    "sequence": "series",
    "points": "clouds",
    "field": "fields",
}
_JSON = (".json", *LINES)


@dataclass(frozen=True)
class Unlabelled:
    """Samples to be asked about.

    Attributes:
        places: of each sample, its ``file`` and what else tells it from the others.
        batch: inputs of a model by numbers of samples.
        shape: of the answer to each sample, where it is a field: (h, w) or (points,).
        texts: as they are written, where samples are.
        remarks: what was left out of the files, and why.
    """

    places: list[dict[str, Any]]
    batch: Callable[[Sequence[int]], Tensor]
    shape: Callable[[int], tuple[int, ...]] | None = None
    texts: Sequence[str] | None = None
    remarks: Sequence[str] = ()

    def __len__(self) -> int:
        return len(self.places)


def read_unlabelled(
    files: Sequence[str | Path],
    facts: Mapping[str, Any],
    encoder: Any,
    strict: bool = False,
    texts: Sequence[str] = (),
) -> Unlabelled:
    """Return the samples of files and folders (``-``: standard input), and ``texts`` as they are
    written.

    They are read as the data set was that ``facts`` describe
    (:meth:`fredholm.data.LabelledDataset.describe`). Those with a cell that should hold a number
    and does not are left out and listed, or, where ``strict``, refused.

    Raises:
        DataError: a file that cannot be read, or holds other columns than the training files.
        OptionError: no file, or samples that are not read from files.
    """
    reading, source = reading_of(facts, strict), facts.get("source") or {}
    if not files and not texts:
        raise OptionError("files: received none; needs files or folders, or - for standard input")
    if texts and reading.kind != "texts":
        raise OptionError(
            f"input: expected a run on texts, got one on {reading.kind}; put the samples into a "
            "file"
        )
    with paths_of(files, reading) as paths:
        parts = [_one(path, reading, source, facts, encoder) for path in paths]
        if texts:
            places = [{"file": "input", "row": number} for number, _ in enumerate(texts, 1)]
            parts.append(_texts(texts, places, facts, "input"))
        for file, path, part in zip(files, paths, parts):
            if str(file) == "-":
                for place in part.places:
                    place["file"] = renamed(str(place["file"]), path.parent)
    if not any(map(len, parts)):
        reasons = "; ".join(line for part in parts for line in part.remarks)
        raise DataError(
            f"expected samples in {', '.join(map(str, files))}, got none that can be read: "
            f"{reasons or 'they are empty'}; mend or replace the files"
        )
    if len(parts) == 1:
        return parts[0]
    return _chained(parts)


def reading_of(facts: Mapping[str, Any], strict: bool) -> Reading:
    """Return how further files are read for the run that ``facts`` describe.

    Raises:
        OptionError: no file holds such samples.
    """
    reading = _reading(facts)
    if facts.get("prepared"):
        raise OptionError(
            f"predict: the run reads {facts['prepared']}, which {facts['dataset']} makes of its "
            "own files; no other file is read so. Put the prepared samples into files of your own "
            "(.npz, .csv) and train on those"
        )
    if reading is None:
        kind = saved_kind(facts)
        known = ", ".join(_CATALOGUE.values())
        raise OptionError(
            f"predict: the run reads {kind.many} of {facts['dataset']}; it takes {known}"
        )
    reading = reading.settled(strict=strict)
    if reading.kind == "images":
        reading = reading.settled(pixels=facts.get("form", "rgb"))
    return reading


def _reading(facts: Mapping[str, Any]) -> Reading | None:
    """How the training files were read; of the catalogue's, how such files would be."""
    if facts.get("source"):
        return Reading.from_dict(facts["source"]["reading"])
    kind = _CATALOGUE.get(saved_kind(facts).name)
    return None if kind is None else Reading(kind=kind, task=_task(facts))


def _task(facts: Mapping[str, Any]) -> str:
    task = facts.get("task", "classification")
    return task if task in ("regression", "steps") else "classification"


def _one(
    path: Path, reading: Reading, source: Mapping[str, Any], facts: Mapping[str, Any], encoder: Any
) -> Unlabelled:
    tabled = suffix_of(path) in TABLES
    if reading.kind == "texts" and source and not reading.text and suffix_of(path) == ".txt":
        # The run learned from a folder of such files, of which each is one text.
        return _texts([read_text(path)], [{"file": str(path)}], facts, str(path))
    if reading.kind == "texts" and not path.is_dir() and not (tabled and reading.text):
        return _lines(path, facts)
    if reading.kind == "images" and not path.is_dir() and not tabled:
        contents, _ = pictures_of([path], reading.strict, facts.get("form", "rgb"), single=True)
        for line in contents["remarks"]:
            current().note(line)
        files = contents["samples"]
        places = [{"file": str(file)} for file in files]
        return replace(_pictures(files, places, facts, encoder), remarks=tuple(contents["remarks"]))
    if not path.exists():
        raise DataError(f"{path}: no such file or folder")
    family, _ = files_of(path, reading)
    if KIND_OF.get(family, reading.kind) != reading.kind:
        raise DataError(f"{path}: holds {family}; the run was trained on {reading.kind}")
    trained = Trained.of(source, reading)
    collection = collect(path, reading, labelled=False, trained=trained)
    for line in collection.remarks:
        current().note(line)
    return replace(
        read_collection(collection, path, reading, facts, encoder), remarks=collection.remarks
    )


def read_collection(
    collection: Collection, path: Path, reading: Reading, facts: Mapping[str, Any], encoder: Any
) -> Unlabelled:
    """Return the samples of what was read from a path, by their kind."""
    source = facts.get("source") or {}
    places = [_place(collection, i) for i in range(len(collection))]
    if reading.kind == "images":
        return _pictures(collection.samples, places, facts, encoder)
    if reading.kind == "texts":
        return _texts(collection.samples, places, facts, str(path))
    return _numbers(collection, places, source, facts, encoder)


def _place(collection: Collection, number: int) -> dict[str, Any]:
    """``{"file": ..., "row": 7}``, with the id where the file has one."""
    ids = collection.ids
    return collection.place(number) | ({} if ids is None else {"id": ids[number]})


# --- kinds ----------------------------------------------------------------------------------------


def _lines(path: Path, facts: Mapping[str, Any]) -> Unlabelled:
    if path.suffix.lower() in _JSON:
        raise DataError(
            f"{path}: JSON is not read; needs a text a line, or a table (.csv, .tsv, .parquet) "
            "with the column of texts that training read"
        )
    lines = read_lines(path)
    places = [{"file": where} for where, _ in lines]
    return _texts([text for _, text in lines], places, facts, "text")


def _texts(
    texts: Sequence[str], places: list[dict[str, Any]], facts: Mapping[str, Any], where: str
) -> Unlabelled:
    vocabulary = Vocabulary.from_dict(facts["vocabulary"])
    numbers, cut = encode_rows(texts, vocabulary, facts["max_length"], where)
    told = [place | {"truncated": bool(lost)} for place, lost in zip(places, cut, strict=True)]
    return Unlabelled(told, lambda chosen: numbers[torch.as_tensor(chosen)], texts=texts)


def _pictures(
    files: Sequence[Path], places: list[dict[str, Any]], facts: Mapping[str, Any], encoder: Any
) -> Unlabelled:
    channels, height, width = encoder.input_shape
    mean, std = (
        torch.tensor(facts[key], dtype=torch.float32).view(1, -1, 1, 1) for key in ("mean", "std")
    )

    def read(file: Path) -> Tensor:
        return read_as_trained(Path(file), facts, channels, (height, width))

    def batch(chosen: Sequence[int]) -> Tensor:
        return (torch.stack([read(files[i]) for i in chosen]) - mean) / std

    return Unlabelled(places, batch)


def _numbers(
    collection: Collection,
    places: list[dict[str, Any]],
    source: Mapping[str, Any],
    facts: Mapping[str, Any],
    encoder: Any,
) -> Unlabelled:
    _check_fields(collection, facts)
    scaling = source.get("scaling") or _scaling(collection, facts, encoder)
    if collection.kind == "fields" and collection.coordinates is None:
        return _fields(collection, places, facts)
    if collection.kind != "rows":  # whose columns were found by their names
        extra = 0 if collection.coordinates is None else collection.coordinates[0].shape[1]
        _check_width(collection, collection.samples[0].shape[1] + extra, encoder.channels)
    rows = as_read(collection, scaling)
    if collection.kind == "clouds":
        rows = rows[:, : scaling["points"]]
    if isinstance(rows, Tensor):
        return Unlabelled(places, lambda chosen: rows[torch.as_tensor(chosen)])
    return Unlabelled(
        places, lambda chosen: padded([rows[i] for i in chosen]), lambda i: (len(rows[i]),)
    )


def _check_fields(collection: Collection, facts: Mapping[str, Any]) -> None:
    """DataError for fields on points where those on a grid were learned, or the other way round."""
    gridded = "shift" in facts
    if collection.kind == "fields" and (collection.coordinates is None) != gridded:
        way = "on a grid, (N, H, W) or (N, C, H, W)" if gridded else "on points, with coordinates"
        raise DataError(
            f"{collection.where(0)}: the run was trained on fields {way}; needs such arrays"
        )


def _scaling(collection: Collection, facts: Mapping[str, Any], encoder: Any) -> dict[str, Any]:
    """Of a run on a data set of the catalogue that says none: samples are taken as they are."""
    if collection.kind == "clouds":
        widest = max(len(cloud) for cloud in collection.samples)
        return {"points": facts.get("points", widest), "coordinates": 3}
    width = collection.samples[0].shape[1]
    identity = {"mean": [0.0] * width, "std": [1.0] * width}
    timed = getattr(encoder, "timed", False)
    return identity | {"step": 1.0, "timed": timed, "clocked": False}


def _fields(
    collection: Collection, places: list[dict[str, Any]], facts: Mapping[str, Any]
) -> Unlabelled:
    shift, scale = facts["shift"], facts["input_scale"]
    fields = torch.from_numpy(np.asarray(collection.samples))
    _check_width(collection, fields.shape[1], max(len(shift), len(scale)))
    grid = tuple(fields.shape[2:])
    return Unlabelled(
        places,
        lambda chosen: standardised(fields[torch.as_tensor(chosen)], shift, scale),
        lambda i: grid,
    )


def _check_width(collection: Collection, width: int, needed: int) -> None:
    if width != needed:
        raise DataError(
            f"{collection.where(0)}: samples of {width} channels; the run was trained on {needed}"
        )


def _chained(parts: Sequence[Unlabelled]) -> Unlabelled:
    """Several files one after the other; a batch may need padding that only its kind knows, so it
    is made of samples of one file.
    """
    owners = [(part, i) for part in parts for i in range(len(part))]

    def batch(chosen: Sequence[int]) -> Tensor:
        samples = [owners[i][0].batch([owners[i][1]])[0] for i in chosen]
        if len({sample.shape for sample in samples}) == 1:
            return torch.stack(samples)
        padding = torch.nan if samples[0].is_floating_point() else 0
        return pad_sequence(samples, batch_first=True, padding_value=padding)

    def shape(number: int) -> tuple[int, ...]:
        part, i = owners[number]
        return () if part.shape is None else part.shape(i)

    places = [place for part in parts for place in part.places]
    texts = [text for part in parts for text in part.texts or ()]
    return Unlabelled(places, batch, shape, texts or None)
