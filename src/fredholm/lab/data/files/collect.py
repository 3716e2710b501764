"""From a path to samples: recognise the files there, and have them read."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from ....errors import DataError
from ..formats import sha256
from .arrays import collect_arrays
from .clouds import SUFFIXES as CLOUDS
from .collection import Collection, check_range
from .columns import Trained
from .division import named_parts
from .folders import COLUMNS, collect_folders, files_below
from .guesses import PICTURES
from .reading import Reading, refuse_columns
from .sounds import SUFFIXES as SOUNDS
from .suffixes import LINES, TEXT_TABLES, stem_of, suffix_of
from .tables import collect_tables, named_files
from .ts import collect_ts
from .writing import Writing

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
# Families whose files hold one kind of samples; tables and arrays may hold several.
KIND_OF = {
    "pictures": "images",
    "clouds": "clouds",
    "sounds": "series",
    "texts": "texts",
    ".ts files": "series",
}
OF_ONE = ("pictures", "clouds", "sounds", "texts")  # families with one sample per file
NAMED = ("pictures", "sounds")  # of these, files whose paths a table can hold

FEW = 8  # files that count by their content, however large they are
# Bytes of all files with one sample each that count by their content: half a second of hashing.
HASHED = 1 << 28

# Keys of a notation that tables of a format do not have.
_WITHOUT = {
    ".parquet": ("separator", "header", "encoding"),
    **dict.fromkeys(LINES, ("separator", "header")),
}

# Hints for files that other programs use for something else.
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
"""Scales of each kind; texts and pictures have none."""


def collect(
    path: Path,
    reading: Reading,
    labelled: bool = True,
    trained: Trained | None = None,
) -> Collection:
    """Return the samples at a path: a file, or a folder of one kind of files.

    Args:
        labelled: whether labels are read.
        trained: of samples for a run, the casts of its columns.

    Raises:
        DataError: nothing there, files of several kinds, or numbers that no model can read.
    """
    if not path.exists():
        raise DataError(f"{path}: no such file or folder")
    family, files = files_of(path, reading)
    if labelled:
        _refuse_inapplicable(path, family, reading)
    # The notation of a run describes its training tables; new ones may have another format.
    if labelled and trained is None:
        refuse_notation(files, reading.writing)

    if family in OF_ONE:
        if path.is_file() and labelled:
            raise DataError(
                f"{path}: expected a folder with a subfolder of {family} for each class, got one "
                f"file{HINTS.get(suffix_of(path), '')}"
            )
        reading = reading.settled(kind=KIND_OF[family])
        result = collect_folders(path, reading, FAMILIES[family], labelled)
    elif family == "tables":
        result = collect_tables(files, reading, labelled, trained)
    elif family == "arrays":
        result = collect_arrays(files, reading, labelled)
    else:
        result = collect_ts(files, reading, labelled)

    result.name = path.name
    if path.is_file():
        result.name = stem_of(path)
    if not len(result):
        raise DataError(f"{path}: expected samples, got none; add some")
    check_range(result)
    if labelled:
        _check_options(result)
        _check_task(result, reading.task)
    result.files = fingerprint(path, files, result.named)
    return result


def _refuse_inapplicable(
    path: Path,
    family: str,
    reading: Reading,
) -> None:
    """Refuse declarations that cannot be true of such files: ignored ones would seem to be read.

    Raises:
        DataError: another kind than files of this family have, a notation of tables for files that
            are not, or columns of files without.
    """
    kind = KIND_OF.get(family)
    # A table may hold paths of pictures and sounds, and has the columns that are named.
    if kind is not None and reading.kind not in (None, kind):
        raise DataError(
            f"{path}: kind: expected {kind}, which {family} are, got {reading.kind!r}; leave it out"
        )
    if family != "tables":
        for name, value in reading.writing.said.items():
            raise DataError(
                f"{path}: read: expected none, got {name}={value}, which describes a table; "
                f"{family} are not tables: leave it out"
            )
    if family == ".ts files":
        reason = ".ts files name their label in the header and have no columns: leave it out"
        refuse_columns(path, reading, COLUMNS, reason)


def refuse_notation(files: Sequence[Path], writing: Writing) -> None:
    """Refuse a declared notation of tables that none of the files has.

    Raises:
        DataError: such as a separator of Parquet files.
    """
    for name, value in writing.said.items():
        if all(name in _WITHOUT.get(suffix_of(file), ()) for file in files):
            raise DataError(
                f"{files[0]}: read: expected no {name}, got {name}={value}, which files "
                f"{suffix_of(files[0])} do not have; leave it out"
            )


def _check_options(collection: Collection) -> None:
    """Refuse options that samples of this kind do not have.

    Raises:
        DataError: another scale, or a number of points of samples other than clouds.
    """
    name = collection.name
    kind = collection.kind
    reading = collection.reading
    if reading.points is not None and kind != "clouds":
        raise DataError(
            f"{name}: points: expected none, got {reading.points}, which {kind} do not have; leave "
            "it out"
        )
    known = SCALES_OF.get(kind, ())
    if reading.scale is not None and reading.scale not in known:
        raise DataError(
            f"{name}: scale: expected {' or '.join(known) or 'no scale'}, got {reading.scale!r}, "
            f"which {kind} do not have; leave it out"
        )


def _check_task(collection: Collection, asked: str | None) -> None:
    """Refuse a task that the samples do not have, as their files tell.

    Raises:
        DataError: naming the first sample that tells it.
    """
    found = collection.task
    where = collection.name
    expected = found
    if collection.steps is not None:
        # The first series whose label varies; at some times it may be missing.
        for number, codes in enumerate(collection.steps):
            if len({*codes.tolist()} - {-1}) > 1:
                where = collection.where(number)
                break
    elif found == "steps":
        found = "one"
        expected = "classification or regression"
    if asked not in (None, found):
        raise DataError(
            f"{where}: task: expected {expected}, got {asked!r}; {_WHY[found]}, or leave task out"
        )


_WHY = {
    "one": "there is one label per sample: give series with one at every time",
    "steps": "the label varies within the series: give one label per series",
    "classification": "the names of the folders are classes: give a table or arrays with numbers",
    "regression": "fields are predicted from fields: give series, rows or clouds",
}


def family_of(path: Path) -> str | None:
    """Return the family of files that a file belongs to."""
    suffix = suffix_of(path)
    for name, known in FAMILIES.items():
        if suffix in known:
            return name
    return None


def files_of(path: Path, reading: Reading) -> tuple[str, list[Path]]:
    """Return the family, a name of :data:`FAMILIES`, and the files of a path.

    The files of a folder must be of one family, with two exceptions. Texts beside another family
    are left out, since they are usually a licence or a description. Tables at the top of a folder
    of pictures or sounds are taken in place of these, whose paths and labels they hold.

    Tables, arrays and ``.ts`` files may each hold a split, and training files come first. The
    splits of the other families follow from the names of folders, see :mod:`.folders`.

    Args:
        path: a file or a folder.
        reading: how it is to be read; of this only the kind counts, which may be None.

    Raises:
        DataError: nothing that can be read, or files of several kinds.
    """
    if path.is_file():
        family = family_of(path)
        if family is None:
            raise DataError(
                f"{path}: expected a file that can be read ({readable()}), got another; convert it"
            )
        return family, [path]

    found = {name: files_below(path, known) for name, known in FAMILIES.items()}
    found = {name: files for name, files in found.items() if files}
    if len(found) > 1:
        # A licence or a description lies beside samples of another kind.
        found.pop("texts", None)
    if not found:
        raise DataError(
            f"{path}: expected files that can be read ({readable()}), got none; add or convert them"
        )

    # Tables at the top of a folder of pictures or sounds hold their paths and labels.
    for family in NAMED:
        if {*found} != {"tables", family} or reading.kind not in (None, KIND_OF[family]):
            continue
        tables = [file for file in found["tables"] if file.parent == path]
        if tables:
            return "tables", _together(tables)

    if len(found) > 1:
        kinds = "; ".join(
            f"{len(files):,} {family} ({files[0].relative_to(path)})"
            for family, files in found.items()
        )
        raise DataError(
            f"{path}: expected files of one kind, got {kinds}; give one file, or a folder of one "
            "kind"
        )
    family, files = found.popitem()
    if family not in OF_ONE:
        files = _together(files)
    return family, files


def _together(files: Sequence[Path]) -> list[Path]:
    """Sort files by their splits, training first: its columns and classes count."""
    parts = [part or 0 for part in named_parts(files)]
    pairs = sorted(zip(parts, files), key=lambda pair: (pair[0], str(pair[1])))
    return [file for _, file in pairs]


def readable() -> str:
    """Return the suffixes of all files that can be read, in words."""
    return ", ".join(sorted(frozenset().union(*FAMILIES.values())))


# --- marks of files -------------------------------------------------------------------------------


def mark_of(path: Path, reading: Reading) -> str:
    """Return the mark of the files of a path as :func:`collect` does, without reading their
    samples; "" if the path holds nothing that can be read. See :func:`fingerprint`.
    """
    try:
        family, files = files_of(path, reading)
        named: Sequence[Path] = ()
        if family == "tables":
            named = _named_by(tuple(files), _stats(files), reading)
        return fingerprint(path, files, named)
    except DataError:
        return ""


def fingerprint(path: Path, files: Sequence[Path], named: Sequence[Path] = ()) -> str:
    """Return a mark that changes with files, and stays the same for a copy at another place.

    Tables, arrays and ``.ts`` files count by their content. Files that are one sample each, such as
    pictures, count by their content if they are at most eight or have :data:`HASHED` bytes in all,
    else by their names and sizes: hashing more would take as long as reading them.

    Args:
        path: the file or folder.
        files: its files.
        named: pictures or sounds that its tables name.
    """
    every = [*files, *sorted(set(named))]
    return _fingerprint(path, tuple(every), _stats(every))


def _stats(files: Sequence[Path]) -> tuple[tuple[int, int], ...]:
    """Return size and time of change of each file, which tell a cache whether it is the same."""
    stats = [file.stat() for file in files]
    return tuple((stat.st_size, stat.st_mtime_ns) for stat in stats)


@lru_cache(maxsize=8)
def _named_by(
    files: tuple[Path, ...],
    stats: tuple[Any, ...],
    reading: Reading,
) -> Sequence[Path]:
    """Return :func:`named_files`; ``stats`` tell the cache whether the tables are the same."""
    return named_files(files, reading)


@lru_cache(maxsize=64)
def _fingerprint(
    path: Path,
    files: tuple[Path, ...],
    stats: tuple[tuple[int, int], ...],
) -> str:
    """Compute :func:`fingerprint`; ``stats`` tell the cache whether the files are the same."""
    single = [family_of(file) in (*OF_ONE, None) for file in files]
    bytes_of_single = sum(size for (size, _), alone in zip(stats, single) if alone)
    hashed = len(files) <= FEW or bytes_of_single <= HASHED
    folder = path
    if path.is_file():
        folder = path.parent

    digest = hashlib.sha256()
    for file, (size, _), alone in zip(files, stats, single):
        mark = str(size)
        if hashed or not alone:
            mark = sha256(file)
        # A table may name files outside its folder.
        name = os.path.relpath(file, folder)
        digest.update(name.encode() + mark.encode())
    return digest.hexdigest()[:16]
