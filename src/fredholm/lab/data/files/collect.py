"""From a path to samples: what lies there, and who reads it."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from ....errors import DataError
from ..formats import sha256
from .arrays import collect_arrays
from .clouds import SUFFIXES as CLOUDS
from .collection import Collection, check_range
from .columns import Trained
from .folders import COLUMNS, collect_folders, files_below
from .guesses import PICTURES
from .parts import named_parts
from .reading import Reading
from .sounds import SUFFIXES as SOUNDS
from .suffixes import TEXT_TABLES, stem_of, suffix_of
from .tables import collect_tables
from .ts import collect_ts

TABLES = frozenset({*TEXT_TABLES, ".parquet"})
ARRAYS = frozenset({".npz", ".h5", ".hdf5"})
SERIES = frozenset({".ts"})
TEXTS = frozenset({".txt"})
FAMILIES = {
    "tables": TABLES,
    "arrays": ARRAYS,
    ".ts files": SERIES,
    "pictures": PICTURES,
    "clouds": CLOUDS,
    "sounds": SOUNDS,
    "texts": TEXTS,
}
# What files can be that are of one kind.
KIND_OF = {
    "pictures": "images",
    "clouds": "clouds",
    "sounds": "series",
    "texts": "texts",
    ".ts files": "series",
}
OF_ONE = ("pictures", "clouds", "sounds", "texts")  # families whose files hold a sample each
NAMED = ("pictures", "sounds")  # those whose paths a table can hold

# For files that also hold something else elsewhere.
HINTS = {
    ".npy": (
        "; for fields or series, save all arrays in one file: np.savez('data.npz', inputs=..., "
        "outputs=...) or np.savez('data.npz', X=..., y=...)"
    ),
    ".txt": "; for a table, let its name end in .csv or .tsv",
}

SCALES_OF = {
    "series": ("file", "sample", "none"),
    "rows": ("file", "none"),
    "clouds": ("sample", "none"),
    "fields": ("file",),
}
"""How samples of a kind can be scaled; texts and pictures are not."""


def collect(
    path: Path, reading: Reading, labelled: bool = True, trained: Trained | None = None
) -> Collection:
    """The samples that lie at a path: a file, or a folder of one kind of files. What a run is asked
    about is read as it was ``trained``.

    Raises:
        DataError: nothing there, files of several kinds, or numbers that no model can read.
    """
    if not path.exists():
        raise DataError(f"{path}: no such file or folder")
    name = stem_of(path) if path.is_file() else path.name
    family, files = files_of(path, reading)
    if labelled:
        _refuse_inapplicable(path, family, reading)
    if family in OF_ONE:
        if path.is_file() and labelled:
            raise DataError(
                f"{path}: expected a folder with a subfolder of {family} for each class, got one "
                f"file{HINTS.get(suffix_of(path), '')}"
            )
        reading = reading.settled(kind=KIND_OF[family])
        result = collect_folders(path, name, reading, FAMILIES[family], labelled)
    elif family == "tables":
        result = collect_tables(files, name, reading, labelled, trained)
    else:
        result = _READERS[family](files, name, reading, labelled)
    if not len(result):
        raise DataError(f"{path}: holds no sample")
    check_range(result)
    if labelled:
        _check_options(result)
        _check_task(result, reading.task)
    result.files = fingerprint(path, files)
    return result


def _refuse_inapplicable(path: Path, family: str, reading: Reading) -> None:
    """Refuse what is said of files and cannot be true of them.

    Raises:
        DataError: another kind than files of this family have, a way of writing of what is no
            table, or columns of what has none.
    """
    kind = KIND_OF.get(family)
    # A table may hold paths of pictures and sounds, and has the columns that are asked for.
    if kind is not None and reading.kind not in (None, kind):
        raise DataError(
            f"{path}: kind: expected {kind}, which {family} are, got {reading.kind!r}; leave it out"
        )
    said = reading.writing.said
    if family != "tables" and said:
        name, value = next(iter(said.items()))
        raise DataError(
            f"{path}: read: expected nothing of how a table is written, got {name}={value}; "
            f"{family} are no table: leave it out"
        )
    columns = {key: getattr(reading, key) for key in COLUMNS}
    named = next((key for key, value in columns.items() if value is not None), None)
    if family == ".ts files" and named is not None:
        raise DataError(
            f"{path}: {named}: expected no column, got {_said(columns[named])!r}; .ts files name "
            "their label in the header and have no columns: leave it out"
        )


def _said(value: str | Sequence[str]) -> str:
    return value if isinstance(value, str) else ",".join(value)


def _check_options(collection: Collection) -> None:
    """DataError where samples of the kind are scaled in another way whatever is asked for, or are
    no clouds whose points could be counted.
    """
    kind, scale = collection.kind, collection.reading.scale
    if collection.reading.points is not None and kind != "clouds":
        raise DataError(
            f"{collection.name}: points: received {collection.reading.points}, which {kind} have "
            "not; leave it out"
        )
    known = SCALES_OF.get(kind, ())
    if scale is None or scale in known:
        return
    needs = f"needs one of {', '.join(known)}, or " if known else ""
    raise DataError(
        f"{collection.name}: scale: received {scale!r}, which {kind} have not; {needs}leave it out"
    )


def _check_task(collection: Collection, asked: str | None) -> None:
    """DataError where the samples are of another task than is asked for."""
    found, where = collection.task, collection.name
    if collection.steps is not None:
        odd = (i for i, codes in enumerate(collection.steps) if len({*codes.tolist()} - {-1}) > 1)
        where = collection.where(next(odd, 0))
    elif found == "steps":
        found = "one"
    if asked not in (None, found):
        raise DataError(f"{where}: task: received {asked!r}, but {_WHY[found]}, or leave task out")


_WHY = {
    "one": "there is one label a sample; needs series with one at every time",
    "steps": "the label varies within the series; needs one label a series",
    "classification": "the names of the folders are classes; needs a table or arrays with numbers",
    "regression": "fields are answered by fields; needs series, rows or clouds",
}

_READERS: dict[str, Callable[..., Collection]] = {
    "arrays": collect_arrays,
    ".ts files": collect_ts,
}


def family_of(path: Path) -> str | None:
    """The family of files that a file belongs to."""
    return next((name for name, known in FAMILIES.items() if suffix_of(path) in known), None)


def files_of(path: Path, reading: Reading) -> tuple[str, list[Path]]:
    """The family, a name of :data:`FAMILIES`, and the files of a path.

    Raises:
        DataError: nothing that can be read, or files of several kinds.
    """
    if path.is_file():
        family = family_of(path)
        if family is None:
            raise DataError(f"{path}: no file that can be read; needs {readable()}")
        return family, [path]
    found = {name: files_below(path, known) for name, known in FAMILIES.items()}
    found = {name: files for name, files in found.items() if files}
    if len(found) > 1:
        # A licence or a description beside samples of another kind.
        found.pop("texts", None)
    if not found:
        raise DataError(f"{path}: holds no file that can be read; needs {readable()}")
    named = next((name for name in NAMED if set(found) == {"tables", name}), None)
    if named is not None and reading.kind in (None, KIND_OF[named]):
        tables = [file for file in found["tables"] if file.parent == path]
        if tables:  # of paths and labels
            return "tables", _together(tables)
    if len(found) > 1:
        kinds = "; ".join(f"{len(v):,} {k} ({v[0].relative_to(path)})" for k, v in found.items())
        raise DataError(
            f"{path}: holds files of several kinds: {kinds}; give one file, or a folder of one kind"
        )
    family, files = next(iter(found.items()))
    return family, files if family in OF_ONE else _together(files)


def _together(files: Sequence[Path]) -> list[Path]:
    """Files in the order of their splits: training first, whose columns and classes count."""
    parts = named_parts(files)
    return [file for _, _, file in sorted(zip([p or 0 for p in parts], map(str, files), files))]


def readable() -> str:
    """How files of samples end."""
    return ", ".join(sorted({suffix for known in FAMILIES.values() for suffix in known}))


def mark_of(path: Path, reading: Reading) -> str:
    """What tells whether the files of a path have changed, without reading their samples; empty
    where nothing can be read.
    """
    try:
        return fingerprint(path, files_of(path, reading)[1])
    except DataError:
        return ""


def fingerprint(path: Path, files: Sequence[Path]) -> str:
    """What tells whether files have changed: the content of tables and arrays, of many small files
    their names and sizes.
    """
    stats = [file.stat() for file in files]
    return _fingerprint(path, tuple(files), tuple((s.st_size, s.st_mtime_ns) for s in stats))


@lru_cache(maxsize=64)
def _fingerprint(path: Path, files: tuple[Path, ...], stats: tuple[Any, ...]) -> str:
    """The same, of files that are as ``stats`` say."""
    digest = hashlib.sha256()
    whole = len(files) <= 8
    for file in files:
        name = file.name if path.is_file() else str(file.relative_to(path))
        digest.update(name.encode())
        digest.update((sha256(file) if whole else str(file.stat().st_size)).encode())
    return digest.hexdigest()[:16]
