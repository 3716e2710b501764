"""Samples to predict, read as the training samples were."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ....errors import DataError, OptionError
from ....progress import current
from ..kinds.images import standardised
from ..kinds.kind import saved_kind
from ..kinds.picture_files import read_as_trained
from ..kinds.sequences import padded
from ..kinds.texts import encode_rows, read_lines
from ..vocabulary import Vocabulary
from .collect import KIND_OF, TABLES, collect, files_of, refuse_notation
from .collection import Collection
from .columns import Trained
from .datasets import as_predicted, batches_of
from .folders import pictures_of, read_text
from .reading import Reading
from .standard_input import paths_of, renamed
from .suffixes import LINES, suffix_of
from .writing import Writing

# Kinds that runs on data sets of the catalogue can read, by the kind of their own samples.
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
    """Samples to predict.

    Attributes:
        places: of each sample, its ``file`` and what tells it from others there.
        batch: maps numbers of samples to inputs of a model.
        shape: maps a sample's number to the shape of its answer, if that is a field: (h, w) or
            (points,).
        texts: the samples of a text run as they are written.
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
    read: Mapping[str, str] | None = None,
) -> Unlabelled:
    """Return the samples of files and folders (``-``: standard input), and further ``texts``.

    They are read as the data set was that ``facts`` describe
    (:meth:`fredholm.data.LabelledDataset.describe`). Samples with a cell that should hold a number
    and does not are left out and listed; where ``strict``, they are refused. ``read`` says how
    tables are written where they differ from the training tables.

    Raises:
        DataError: a file that cannot be read, or holds other columns than the training files.
        OptionError: no file, samples that are not read from files, or an impossible ``read``.
    """
    if not files and not texts:
        raise OptionError("files: expected files, folders, or - for standard input, got none")
    reader = NewSamples.of(facts, encoder, strict, read)
    if texts and reader.reading.kind != "texts":
        raise OptionError(
            f"input: expected a run on texts, got one on {reader.reading.kind}; put the samples "
            "into a file"
        )
    if read and not files:
        raise OptionError("read: expected tables beside it, got texts alone; leave it out")

    parts = []
    with paths_of(files, reader.reading) as paths:
        for file, path in zip(files, paths):
            if read:
                check_notation(str(file), path, reader.reading, read)
            part = reader.read(path)
            if str(file) == "-":
                part = _of_standard_input(part, path, reader.reading)
            parts.append(part)
    if texts:
        places = [{"file": "input", "row": number} for number, _ in enumerate(texts, 1)]
        parts.append(reader.texts(texts, places, "input"))

    if not any(map(len, parts)):
        remarks = [line for part in parts for line in part.remarks]
        reasons = "; ".join(remarks) or "they are empty"
        raise DataError(
            f"expected samples in {', '.join(map(str, files))}, got none that can be read: "
            f"{reasons}; repair or replace the files"
        )
    if len(parts) == 1:
        return parts[0]
    return _chained(parts)


def check_notation(
    name: str,
    path: Path,
    reading: Reading,
    read: Mapping[str, str],
) -> None:
    """Refuse a notation declared for new files that do not have it: it would be ignored.

    Args:
        name: the path as the user writes it.

    Raises:
        OptionError: files other than tables.
        DataError: tables of a format without such a notation.
    """
    files = [path]
    if path.is_dir():
        _, files = files_of(path, reading)
    if not any(suffix_of(file) in TABLES for file in files):
        raise OptionError(f"read: expected tables beside it, got {name!r}; leave it out")
    refuse_notation(files, Writing.of(read))


def _of_standard_input(part: Unlabelled, path: Path, reading: Reading) -> Unlabelled:
    """Return samples that no longer need the temporary file ``path``, which will be gone."""
    for place in part.places:
        place["file"] = renamed(str(place["file"]), path.parent)
    # Pictures would be read with their batch.
    if reading.kind == "images" and len(part):
        inputs = part.batch(range(len(part)))
        return replace(part, batch=batches_of(inputs))
    return part


@dataclass(frozen=True)
class NewSamples:
    """Reader of files for a run.

    Attributes:
        facts: the description of the run's data set, as it was saved.
        encoder: of the run's model; its shape is what samples are brought to.
        reading: how the training files were read.
    """

    facts: Mapping[str, Any]
    encoder: Any
    reading: Reading

    @classmethod
    def of(
        cls,
        facts: Mapping[str, Any],
        encoder: Any,
        strict: bool,
        read: Mapping[str, str] | None = None,
    ) -> NewSamples:
        """Return the reader for the run that ``facts`` describe.

        Args:
            read: how tables are written, in place of what the run was told of the training tables.

        Raises:
            OptionError: no file holds such samples, or an impossible ``read``.
        """
        if facts.get("prepared"):
            raise OptionError(
                f"predict: the run reads {facts['prepared']}, which {facts['dataset']} makes of "
                "its own files; no other file is read so. Put the prepared samples into files of "
                "your own (.npz, .csv) and train on those"
            )
        if facts.get("source"):
            reading = Reading(**facts["source"]["reading"])
        else:
            reading = _catalogue_reading(facts)
        written = {**reading.writing.said, **(read or {})}
        reading = reading.settled(strict=strict, read=Writing.of(written))
        if reading.kind == "images":
            # Pictures must have the channels that the model was trained on.
            reading = reading.settled(pixels=facts.get("form", "rgb"))
        return cls(facts, encoder, reading)

    @property
    def source(self) -> Mapping[str, Any]:
        """Saved facts about the training files, see :meth:`.source.Source.facts`; empty for a data
        set of the catalogue."""
        return self.facts.get("source") or {}

    def read(self, path: Path) -> Unlabelled:
        """Return the samples of a file or folder.

        Raises:
            DataError: nothing there, samples of another kind, or a file that cannot be read.
        """
        kind = self.reading.kind
        suffix = suffix_of(path)
        tabled = suffix in TABLES
        column = self.reading.text
        if kind == "texts" and not path.is_dir() and not (tabled and column):
            if self.source and not column and suffix == ".txt":
                # The run learned from a folder of such files, each of which is one text.
                text = read_text(path)
                return self.texts([text], [{"file": str(path)}], str(path))
            return self._lines(path)
        if kind == "images" and not path.is_dir() and not tabled:
            return self._picture(path)

        if not path.exists():
            raise DataError(f"{path}: no such file or folder")
        family, _ = files_of(path, self.reading)
        if KIND_OF.get(family, kind) != kind:
            raise DataError(
                f"{path}: expected {kind}, as the run was trained on, got {family}; give files of "
                "that kind"
            )
        trained = Trained.of(self.source, self.reading)
        collection = collect(path, self.reading, labelled=False, trained=trained)
        for line in collection.remarks:
            current().note(line)
        return replace(self.samples_of(collection, path), remarks=collection.remarks)

    def samples_of(self, collection: Collection, path: Path) -> Unlabelled:
        """Return the samples that were read from a path, as inputs of the model."""
        places = [dict(collection.place(i)) for i in range(len(collection))]
        for place, name in zip(places, collection.ids or ()):
            place["id"] = name
        if self.reading.kind == "images":
            return self._pictures(collection.samples, places)
        if self.reading.kind == "texts":
            return self.texts(collection.samples, places, str(path))
        return self._numbers(collection, places)

    # --- texts and pictures -----------------------------------------------------------------------

    def _lines(self, path: Path) -> Unlabelled:
        """Return one text per line of a file; the ``file`` of each is its ``file:line``.

        Raises:
            DataError: a JSON file, or one that is missing, empty or not UTF-8.
        """
        if path.suffix.lower() in _JSON:
            # Its lines are objects, not texts; only a run on a table knows the key of the text.
            raise DataError(
                f"{path}: expected one text per line, or a table (.csv, .tsv, .parquet) with the "
                "column of texts that training read, got JSON; convert it"
            )
        lines = read_lines(path)
        texts = [text for _, text in lines]
        places = [{"file": where} for where, _ in lines]
        return self.texts(texts, places)

    def texts(
        self,
        texts: Sequence[str],
        places: list[dict[str, Any]],
        where: str = "text",
    ) -> Unlabelled:
        """Return texts as numbers of the run's vocabulary; ``where`` names them in warnings."""
        vocabulary = Vocabulary.from_dict(self.facts["vocabulary"])
        numbers, cut = encode_rows(texts, vocabulary, self.facts["max_length"], where)
        for place, lost in zip(places, cut, strict=True):
            place["truncated"] = bool(lost)

        def batch(chosen: Sequence[int]) -> Tensor:
            return numbers[torch.as_tensor(chosen)]

        return Unlabelled(places, batch, texts=texts)

    def _picture(self, path: Path) -> Unlabelled:
        reading = self.reading
        contents, _ = pictures_of([path], reading.strict, reading.pixels, single=True)
        for line in contents["remarks"]:
            current().note(line)
        files = contents["samples"]
        places = [{"file": str(file)} for file in files]
        found = self._pictures(files, places)
        return replace(found, remarks=tuple(contents["remarks"]))

    def _pictures(
        self,
        files: Sequence[Path],
        places: list[dict[str, Any]],
    ) -> Unlabelled:
        channels, height, width = self.encoder.input_shape
        mean = self.facts["mean"]
        std = self.facts["std"]

        # Pictures are read when they are needed: all of them may not fit into memory.
        def batch(chosen: Sequence[int]) -> Tensor:
            pictures = []
            for i in chosen:
                file = Path(files[i])
                picture = read_as_trained(file, self.facts, channels, (height, width))
                pictures.append(picture)
            return standardised(torch.stack(pictures), mean, std)

        return Unlabelled(places, batch)

    # --- numbers ----------------------------------------------------------------------------------

    def _numbers(
        self,
        collection: Collection,
        places: list[dict[str, Any]],
    ) -> Unlabelled:
        gridded = collection.kind == "fields" and collection.coordinates is None
        # Only fields on a grid are shifted by channel.
        if collection.kind == "fields" and gridded != ("shift" in self.facts):
            way = "on points, with coordinates"
            if "shift" in self.facts:
                way = "on a grid, (N, H, W) or (N, C, H, W)"
            raise DataError(
                f"{collection.where(0)}: expected fields {way}, as the run was trained on, got "
                "others; give such arrays"
            )

        # The columns of rows have been found by their names.
        if collection.kind != "rows" and collection.width != self.encoder.channels:
            raise DataError(
                f"{collection.where(0)}: expected {self.encoder.channels} channels, as the run was "
                f"trained on, got {collection.width}; give such samples"
            )
        if gridded:
            return self._fields(collection, places)

        scaling = self.source.get("scaling") or self._scaling(collection)
        rows = as_predicted(collection, scaling)
        batch = batches_of(rows)
        if isinstance(rows, Tensor):
            return Unlabelled(places, batch)
        return Unlabelled(places, batch, lambda i: (len(rows[i]),))

    def _scaling(self, collection: Collection) -> dict[str, Any]:
        """Return a scaling that changes nothing, for data sets of the catalogue without one."""
        if collection.kind == "clouds":
            largest = max(map(len, collection.samples))
            points = self.facts.get("points", largest)
            return {"points": points, "coordinates": 3}
        width = collection.samples[0].shape[1]
        return {
            "mean": [0.0] * width,
            "std": [1.0] * width,
            "step": 1.0,
            "timed": getattr(self.encoder, "timed", False),
            "clocked": False,
        }

    def _fields(
        self,
        collection: Collection,
        places: list[dict[str, Any]],
    ) -> Unlabelled:
        shift = self.facts["shift"]
        scale = self.facts["input_scale"]
        fields = torch.from_numpy(np.asarray(collection.samples))

        def batch(chosen: Sequence[int]) -> Tensor:
            inputs = fields[torch.as_tensor(chosen)]
            return standardised(inputs, shift, scale)

        return Unlabelled(places, batch, lambda i: tuple(fields.shape[2:]))


def _catalogue_reading(facts: Mapping[str, Any]) -> Reading:
    """Return how files are read for a run on a data set of the catalogue."""
    kind = saved_kind(facts)
    if kind.name not in _CATALOGUE:
        raise OptionError(
            f"predict: the run reads {kind.many} of {facts['dataset']}; it takes "
            f"{', '.join(_CATALOGUE.values())}"
        )
    task = facts.get("task")
    if task not in ("regression", "steps"):
        task = "classification"
    return Reading(kind=_CATALOGUE[kind.name], task=task)


def _chained(parts: Sequence[Unlabelled]) -> Unlabelled:
    """Join the samples of several files.

    A batch may need padding that only the kind of the samples knows, so that its files make
    batches of one sample each, which are joined here.
    """
    owners = [(part, i) for part in parts for i in range(len(part))]

    def batch(chosen: Sequence[int]) -> Tensor:
        samples = []
        for number in chosen:
            part, i = owners[number]
            samples.append(part.batch([i])[0])
        shapes = {sample.shape for sample in samples}
        if len(shapes) == 1:
            return torch.stack(samples)
        # Token 0 is the padding of texts.
        padding = 0.0
        if samples[0].is_floating_point():
            padding = torch.nan
        return padded(samples, padding)

    def shape(number: int) -> tuple[int, ...]:
        part, i = owners[number]
        if part.shape is None:
            return ()
        return part.shape(i)

    places = [place for part in parts for place in part.places]
    texts = [text for part in parts for text in part.texts or ()]
    return Unlabelled(places, batch, shape, texts or None)
