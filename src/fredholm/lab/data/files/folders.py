"""One folder per class: pictures, clouds, sounds and texts of one file each."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from collections.abc import Collection as Suffixes
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ....errors import DataError
from ....progress import steps
from .casts import Coded
from .clouds import exchanged, point_channels, read_cloud
from .collection import PART_NAMES, TRAIN, Collection, listed
from .reading import Reading, refuse_columns
from .sounds import read_whole_sound, sounds_of
from .suffixes import suffix_of

RUNS = frozenset({"recipe.yaml", "choice.json"})  # files that mark a run or a comparison
COLUMNS = ("label", "time", "id", "text", "channels")  # keys of a reading that name columns


class Entry(NamedTuple):
    """A file of a class; the split is None if no folder names one."""

    file: Path
    label: str = ""
    part: int | None = None


def visible(folder: Path) -> list[Path]:
    """Return the content of a folder, sorted, without hidden files."""
    return sorted(path for path in folder.iterdir() if not _hidden(path.name))


def _hidden(name: str) -> bool:
    """Whether a program left a file or folder behind, such as a notebook's copies."""
    return name.startswith((".", "__"))


def files_below(folder: Path, suffixes: Suffixes[str]) -> list[Path]:
    """Return all files below a folder with one of the suffixes, sorted.

    Without hidden files and folders, and without runs and comparisons: a user trains inside the
    data folder, and the run's own tables and pictures are not samples.
    """
    below = [
        path for path in folder.rglob("*") if not any(map(_hidden, path.relative_to(folder).parts))
    ]
    # The folder itself may be marked: a recipe beside the data is common.
    runs = {path.parent for path in below if path.name in RUNS} - {folder}
    return sorted(
        path
        for path in below
        if suffix_of(path) in suffixes and runs.isdisjoint(path.parents) and path.is_file()
    )


def _is_run(folder: Path) -> bool:
    """Whether a folder is a run or a comparison."""
    return any((folder / name).exists() for name in RUNS)


def _has_runs_alone(folder: Path) -> bool:
    """Whether there are runs or comparisons below a folder, and no other files."""
    below = list(folder.rglob("*"))
    marked = any(path.name in RUNS for path in below)
    return marked and not files_below(folder, {suffix_of(path) for path in below})


def collect_folders(
    root: Path,
    reading: Reading,
    suffixes: frozenset[str],
    labelled: bool,
) -> Collection:
    """Return the files of class folders, of the reading's kind.

    Folders ``train``, ``val`` and ``test`` above or below the classes are the splits. Samples to
    predict may be a single file, or lie in any folders.

    Raises:
        DataError: fewer than two classes, a class without files, or one that only the test has.
    """
    kind = reading.kind or ""
    settled = reading
    if labelled:
        _refuse_rules(root, reading, kind)
        settled = reading.settled(task="classification", split="random")
        entries = _with_classes(root, suffixes)
    elif root.is_file():
        entries = [Entry(root)]
    else:
        entries = [Entry(file) for file in files_below(root, suffixes)]
    if not entries:
        raise _no_files(root, suffixes)

    contents, unread = contents_of([entry.file for entry in entries], reading, labelled)
    settled = settled.settled(**contents.pop("found", {}))
    readable = [entry for number, entry in enumerate(entries) if number not in unread]
    lost = {entry.label for entry in entries} - {entry.label for entry in readable}
    if lost:
        raise DataError(
            f"{root}: no file of the class {min(lost)!r} can be read; repair the files, or remove "
            "the folder"
        )

    files = [entry.file for entry in readable]
    parts = [entry.part for entry in readable]
    result = Collection(
        settled,
        place=lambda i: {"file": str(files[i])},
        taken={"label": "the folder's name"},
        **contents,
    )
    if labelled:
        words = [entry.label for entry in readable]
        classes, codes = np.unique(words, return_inverse=True)
        result.labels = Coded(codes, classes.tolist())
    if None not in parts:
        result.parts = np.array(parts, np.int8)
    if kind == "clouds":
        _name_channels(result)
        result.remarks += exchanged(result.samples)
    return result


def _no_files(folder: Path, suffixes: Suffixes[str]) -> DataError:
    return DataError(
        f"{folder}: expected files ending in {', '.join(sorted(suffixes))}, got none; add some, or "
        "remove the folder"
    )


def contents_of(
    files: list[Path],
    reading: Reading,
    labelled: bool,
) -> tuple[dict[str, Any], set[int]]:
    """Return the fields of a collection of files of the reading's kind, and the numbers of the
    unreadable ones.

    Raises:
        DataError: of a strict reading, the first file that cannot be read.
    """
    kind = reading.kind or ""
    if kind == "images":
        return pictures_of(files, reading.strict, reading.pixels)
    read = _READ[kind]
    samples = []
    errors = {}
    for number, file in enumerate(steps(f"read {kind}", files)):
        try:
            samples.append(read(file))
        except DataError as error:
            if reading.strict:
                raise
            errors[number] = str(error)

    remarks = unread_remarks(files, errors)
    contents = {"samples": samples}
    if kind == "series":
        readable = [file for number, file in enumerate(files) if number not in errors]
        contents = sounds_of(readable, samples, labelled)
    return contents | {"remarks": remarks}, set(errors)


def read_text(file: Path) -> str:
    """Return the text of a file.

    Raises:
        DataError: an encoding other than UTF-8, or no text.
    """
    try:
        text = file.read_text(encoding="utf-8-sig").strip()
    except UnicodeDecodeError as error:
        raise DataError(f"{file}: expected UTF-8, got {error.reason}; convert it") from error
    if not text:
        raise DataError(f"{file}: expected a text, got an empty file; remove it")
    return text


_READ: dict[str, Callable[[Path], Any]] = {
    "series": read_whole_sound,
    "clouds": read_cloud,
    "texts": read_text,
}


def pictures_of(
    files: list[Path],
    strict: bool,
    form: str | None,
    *,
    single: bool = False,
) -> tuple[dict[str, Any], set[int]]:
    """Return the fields of a collection of pictures, and the numbers of the unreadable ones.

    Args:
        form: how pictures are read; None: so that everything in them is kept.
        single: there are other files, each of which is passed by itself.

    Raises:
        DataError: where ``strict``, the first picture that cannot be read.
    """
    # It imports torch, which tables do without.
    from ..kinds.picture_files import form_of, look_at_all, remarks_on

    looks = look_at_all(files)
    errors = {number: found.error for number, found in enumerate(looks) if found.error is not None}
    if strict and errors:
        raise DataError(next(iter(errors.values())))
    if single and errors:
        # One file of several is not "more than half of the files".
        remarks = [f"left out (--strict refuses it): {errors[0]}"]
    else:
        remarks = unread_remarks(files, errors)

    kept = [number for number in range(len(files)) if number not in errors]
    samples = [files[i] for i in kept]
    seen = [looks[i] for i in kept]
    form = form or form_of(seen)
    remarks += remarks_on(samples, seen, form)
    return {"samples": samples, "remarks": remarks, "found": {"pixels": form}}, set(errors)


def unread_remarks(files: Sequence[Path], errors: Mapping[int, str]) -> list[str]:
    """Return a remark on files that cannot be read, each with its reason.

    Raises:
        DataError: they are more than half of the files, so that the rest may not be what the user
            means.
    """
    if not errors:
        return []
    said = f"{len(errors):,} of {len(files):,} files cannot be read"
    reasons = [*errors.values()]
    if 2 * len(errors) > len(files):
        raise DataError(f"{said}: {listed(reasons)}")
    return [f"{said} and are left out (--strict refuses them): {listed(reasons)}"]


def _refuse_rules(
    root: Path,
    reading: Reading,
    kind: str,
) -> None:
    """Refuse columns, groups and times, which files in class folders do not have.

    Raises:
        DataError: naming the key of the reading.
    """
    reason = (
        "a folder per class has no columns, and the name of a file's folder is its label: leave it "
        "out, or give a table"
    )
    refuse_columns(root, reading, COLUMNS, reason)
    rules = {"group": reading.group}
    if reading.split != "random":
        rules["split"] = reading.split
    way = "a table of paths and labels, with a column for it"
    if kind == "clouds":
        way = "one npz or h5 file with 'points', 'label' and an array for it"
    for name, value in rules.items():
        if value is not None:
            raise DataError(
                f"{root}: {name}: expected none, got {value!r}; a folder per class has no groups "
                f"and no times: give {way}"
            )


def _with_classes(root: Path, suffixes: Suffixes[str]) -> list[Entry]:
    """Return all files with their classes and splits.

    Three layouts are read: ``<split>/<class>/file``, ``<class>/<split>/file`` and
    ``<class>/file``.

    Raises:
        DataError: a mixture of layouts, a file outside the folder of a class, an empty folder;
            in the first layout no train/, or a class that train/ does not have.
    """
    children = [path for path in visible(root) if path.is_dir() and files_below(path, suffixes)]
    splits = [path for path in children if path.name.lower() in PART_NAMES]
    entries: list[Entry] = []

    # <split>/<class>/file: every folder at the top must be a split.
    if splits:
        for path in children:
            if path not in splits:
                raise _beside(path, splits[0])
        for split in splits:
            part = PART_NAMES[split.name.lower()]
            for folder in _class_folders(split, suffixes):
                entries += [
                    Entry(file, folder.name, part) for file in files_below(folder, suffixes)
                ]
        _check_parts(root, entries)
        return entries

    # <class>/<split>/file or <class>/file: all classes must have the same of the two layouts.
    for folder in _class_folders(root, suffixes):
        for split in _parts_within(folder, suffixes) or [folder]:
            # None of a class: a folder with the name of a split would be among `splits`.
            part = PART_NAMES.get(split.name.lower())
            entries += [Entry(file, folder.name, part) for file in files_below(split, suffixes)]
    bare = [entry for entry in entries if entry.part is None]
    if 0 < len(bare) < len(entries):
        raise DataError(
            f"{bare[0].file}: lies in no train/, val/ or test/, which other classes have; move it "
            "into one"
        )
    return entries


def _beside(path: Path, split: Path) -> DataError:
    return DataError(
        f"{path}: lies beside {split.name}/; expected a split (train, val or test) or none, move it"
    )


def _parts_within(folder: Path, suffixes: Suffixes[str]) -> list[Path]:
    """Return the folders train, val and test of a class, beside which there must be no files.

    Raises:
        DataError: a file, or another folder with files, beside them.
    """
    named = []
    other = []
    for path in visible(folder):
        if not path.is_dir():
            if suffix_of(path) in suffixes:
                other.append(path)
        elif files_below(path, suffixes):
            if path.name.lower() in PART_NAMES:
                named.append(path)
            else:
                other.append(path)
    if named and other:
        raise _beside(other[0], named[0])
    return named


def _class_folders(part: Path, suffixes: Suffixes[str]) -> list[Path]:
    """Return the folders with files of samples.

    Raises:
        DataError: a file beside them, or a folder without samples. A user who sees neither would
            wait for a training that lacks them.
    """
    loose = [path for path in visible(part) if path.suffix.lower() in suffixes]
    if loose and suffix_of(loose[0]) == ".npy":
        # NumPy's users save one array per file: the arrays of fields or series in our sense.
        raise DataError(
            f"{loose[0]}: expected clouds in folders {part.name}/<class>/, got {len(loose)} .npy "
            "files beside one another; for fields or series, save all arrays in one file: "
            "np.savez('data.npz', inputs=..., outputs=...) or np.savez('data.npz', X=..., y=...)"
        )
    if loose:
        raise DataError(
            f"{loose[0]}: lies in no folder of a class ({len(loose)} such files); move each into "
            f"{part.name}/<class>/, or give a table of paths and labels"
        )

    folders = []
    for path in visible(part):
        if not path.is_dir() or _is_run(path):
            continue
        if files_below(path, suffixes):
            folders.append(path)
        elif not _has_runs_alone(path):
            raise _no_files(path, suffixes)
    return folders


def _check_parts(root: Path, entries: Sequence[Entry]) -> None:
    trained = {entry.label for entry in entries if entry.part == TRAIN}
    if not trained:
        raise DataError(f"{root}: expected a folder train/ to train on, got none; add it")
    for file, label, _ in entries:
        if label not in trained:
            raise DataError(
                f"{file}: is of the class {label!r}, which train/ does not have; add samples of it "
                "there, or remove it"
            )


def _name_channels(collection: Collection) -> None:
    """Name the coordinates and other numbers of a cloud's points.

    Raises:
        DataError: clouds with different numbers per point, which no model reads together.
    """
    first = collection.samples[0].shape[1]
    for number, cloud in enumerate(collection.samples):
        width = cloud.shape[1]
        if width != first:
            raise DataError(
                f"{collection.where(number)}: expected points of {first} numbers, as "
                f"{collection.where(0)} has, got {width}; bring all to the same"
            )
    collection.channels = point_channels(first)
