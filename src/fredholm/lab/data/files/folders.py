"""One folder per class: pictures, clouds, sounds and texts of one file each."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from collections.abc import Collection as Suffixes
from pathlib import Path
from typing import Any

import numpy as np

from ....errors import DataError
from ....progress import steps
from .casts import Coded
from .clouds import exchanged, read_cloud
from .collection import LISTED, PART_NAMES, TRAIN, Collection
from .reading import Reading
from .sounds import read_whole_sound, sounds_of
from .suffixes import suffix_of

RUNS = frozenset({"recipe.yaml", "choice.json"})  # what tells a run or a comparison
COLUMNS = ("label", "time", "id", "text", "channels")  # of a reading, that tables have
LOOKED_AT = 1000  # pictures whose headers are read before training: about a second


def visible(folder: Path) -> list[Path]:
    """What lies in a folder, sorted, but for hidden files."""
    return sorted(path for path in folder.iterdir() if not _hidden(path.name))


def _hidden(name: str) -> bool:
    """Of a file or folder that a program left behind, such as a notebook's copies."""
    return name.startswith((".", "__"))


def files_below(folder: Path, suffixes: Suffixes[str]) -> list[Path]:
    """All files below a folder with one of the suffixes, sorted, but for hidden ones, and those in
    hidden folders and in runs and comparisons that lie there.
    """
    below = [
        path for path in folder.rglob("*") if not any(map(_hidden, path.relative_to(folder).parts))
    ]
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
    """Whether there are runs or comparisons below a folder, and no other file."""
    marked = any(path.name in RUNS for path in folder.rglob("*"))
    return marked and not files_below(folder, {suffix_of(path) for path in folder.rglob("*")})


def look_at(files: list[Path]) -> None:
    """Read the headers of ``LOOKED_AT`` pictures spread evenly; the others are looked at when they
    are read.

    Raises:
        DataError: one that cannot be read, or of a single pixel.
    """
    from ..kinds.images import check_picture  # imports torch, which tables do without

    for file in files[:: max(1, -(-len(files) // LOOKED_AT))]:
        check_picture(file)


def collect_folders(
    root: Path, name: str, reading: Reading, suffixes: frozenset[str], labelled: bool = True
) -> Collection:
    """The files of class folders, of the reading's kind; folders ``train``, ``val`` and ``test``
    above or below the classes are the splits. What a run is asked about may be a single file.

    Raises:
        DataError: fewer than two classes, one without files, or one that only the test has.
    """
    kind, settled = reading.kind or "", reading
    if labelled:
        _refuse_rules(root, reading, kind)
        settled = reading.settled(task="classification", split="random")
        rows = _with_classes(root, suffixes)
    else:
        below = [root] if root.is_file() else files_below(root, suffixes)
        rows = [(file, "", None) for file in below]
    if not rows:
        raise DataError(f"{root}: holds no file ending in {', '.join(sorted(suffixes))}")
    contents, unread = contents_of(kind, [file for file, _, _ in rows], reading, labelled)
    settled = settled.settled(**contents.pop("found", {}))
    all_rows, rows = rows, [row for number, row in enumerate(rows) if number not in unread]
    _check_classes_left(root, all_rows, rows)
    files = [file for file, _, _ in rows]
    classes = sorted({word for _, word, _ in rows})
    labels = Coded(np.array([classes.index(word) for _, word, _ in rows]), classes)
    parts = [part for _, _, part in rows]
    result = Collection(
        name,
        settled,
        labels=labels if labelled else None,
        place=lambda i: {"file": str(files[i])},
        parts=None if None in parts else np.array(parts, np.int8),
        taken={"label": "the folder's name"},
        **contents,
    )
    if kind == "clouds":
        _same_channels(result)
        result.remarks += exchanged(result.samples)
    return result


def contents_of(
    kind: str, files: list[Path], reading: Reading, labelled: bool
) -> tuple[dict[str, Any], set[int]]:
    """Return what a collection holds of the files of a kind, and the numbers of those that cannot
    be read.

    Raises:
        DataError: of a strict reading, the first that cannot be read.
    """
    if kind == "images":
        return pictures_of(files, reading.strict, reading.pixels)
    read, samples, errors = _READ[kind], [], {}
    for number, file in enumerate(steps(f"read {kind}", files)):
        try:
            samples.append(read(file))
        except DataError as error:
            if reading.strict:
                raise
            errors[number] = str(error)
    remarks = unread_remarks(files, errors)
    kept = [file for number, file in enumerate(files) if number not in errors]
    held = {"samples": samples}
    if kind == "series":
        held = sounds_of(kept, samples, labelled)
    return held | {"remarks": remarks}, set(errors)


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
    files: list[Path], strict: bool, form: str | None = None, *, single: bool = False
) -> tuple[dict[str, Any], set[int]]:
    """Return pictures as a collection holds them, and the numbers of those that cannot be read.

    ``form``: what is read of them; None: what keeps everything. ``single``: of many files that are
    looked at one by one.

    Raises:
        DataError: where ``strict``, the first that cannot be read.
    """
    # It imports torch, which tables do without.
    from ..kinds.picture_files import form_of, look_at_all, remarks_on

    looks = look_at_all(files)
    errors = {number: found.error for number, found in enumerate(looks) if found.error is not None}
    if strict and errors:
        raise DataError(next(iter(errors.values())))
    if single and errors:
        remarks = [f"left out (--strict refuses it): {errors[0]}"]
    else:
        remarks = unread_remarks(files, errors)
    kept = [number for number in range(len(files)) if number not in errors]
    samples, seen = [files[i] for i in kept], [looks[i] for i in kept]
    form = form or form_of(seen)
    remarks += remarks_on(samples, seen, form)
    return {"samples": samples, "remarks": remarks, "found": {"pixels": form}}, set(errors)


def unread_remarks(files: Sequence[Path], errors: Mapping[int, str]) -> list[str]:
    """Return what is said of files that cannot be read, each with its reason.

    Raises:
        DataError: more than half of them.
    """
    if not errors:
        return []
    reasons = _listed(list(errors.values()))
    if 2 * len(errors) > len(files):
        raise DataError(f"{len(errors):,} of {len(files):,} files cannot be read: {reasons}")
    return [
        f"{len(errors):,} of {len(files):,} files cannot be read and are left out (--strict "
        f"refuses them): {reasons}"
    ]


def _listed(reasons: Sequence[str]) -> str:
    """Return the reasons, of very many the first."""
    more = [f"and {len(reasons) - LISTED:,} more"] if len(reasons) > LISTED else []
    return "; ".join([*reasons[:LISTED], *more])


def _check_classes_left(
    root: Path, rows: Sequence[tuple[Path, str, int | None]], left: Sequence[Any]
) -> None:
    """Refuse a class of which no file can be read."""
    lost = {word for _, word, _ in rows} - {word for _, word, _ in left}
    if lost:
        raise DataError(
            f"{root}: no file of the class {min(lost)!r} can be read; mend the files, or remove "
            "the folder"
        )


def _refuse_rules(root: Path, reading: Reading, kind: str) -> None:
    """Refuse to be told of columns, groups and times, which files in class folders do not have.

    Raises:
        DataError: naming what was said.
    """
    columns = {key: getattr(reading, key) for key in COLUMNS}
    name = next((key for key, value in columns.items() if value is not None), None)
    if name is not None:
        said = columns[name]
        said = ",".join(said) if isinstance(said, tuple) else said
        raise DataError(
            f"{root}: {name}: expected no column, got {said!r}; a folder per class has no columns, "
            "and the name of a file's folder is its label: leave it out, or give a table"
        )
    rules = {"group": reading.group, "split": None if reading.split == "random" else reading.split}
    name = next((key for key, value in rules.items() if value is not None), None)
    if name is None:
        return
    way = "a table of paths and labels, with a column for it"
    if kind == "clouds":
        way = "one npz or h5 file with 'points', 'label' and an array for it"
    raise DataError(
        f"{root}: {name}: received {rules[name]!r}; a folder a class has no groups and no times: "
        f"give {way}"
    )


def _with_classes(root: Path, suffixes: Suffixes[str]) -> list[tuple[Path, str, int | None]]:
    """Return (file, class, split) of each file; the split is None if no folder names one.

    Three layouts are read: ``<split>/<class>/file``, ``<class>/<split>/file`` and
    ``<class>/file``.

    Raises:
        DataError: a mixture of layouts, a file outside the folder of a class, an empty folder;
            in the first layout no train/, or a class that train/ does not have.
    """
    children = [path for path in visible(root) if path.is_dir() and files_below(path, suffixes)]
    splits = [path for path in children if path.name.lower() in PART_NAMES]
    rows: list[tuple[Path, str, int | None]] = []

    # <split>/<class>/file: every folder at the top must be a split.
    if splits:
        odd = [path for path in children if path not in splits]
        if odd:
            raise DataError(
                f"{odd[0]}: lies beside {splits[0].name}/; needs a split's name or none"
            )
        for split in splits:
            rows += [
                (file, folder.name, PART_NAMES[split.name.lower()])
                for folder in _class_folders(split, suffixes)
                for file in files_below(folder, suffixes)
            ]
        _check_parts(root, rows)
        return rows

    # <class>/<split>/file or <class>/file: all classes must have the same of the two layouts.
    for folder in _class_folders(root, suffixes):
        for split in _parts_within(folder, suffixes) or [folder]:
            number = None if split == folder else PART_NAMES[split.name.lower()]
            rows += [(file, folder.name, number) for file in files_below(split, suffixes)]
    numbers = [number for _, _, number in rows]
    if None in numbers and any(number is not None for number in numbers):
        file = rows[numbers.index(None)][0]
        raise DataError(
            f"{file}: lies in no train/, val/ or test/, which other classes have; move it into one"
        )
    return rows


def _parts_within(folder: Path, suffixes: Suffixes[str]) -> list[Path]:
    """The folders train, val and test of a class, which then has no other files.

    Raises:
        DataError: a file or a folder of files beside them.
    """
    inner = [
        path
        for path in visible(folder)
        if (files_below(path, suffixes) if path.is_dir() else suffix_of(path) in suffixes)
    ]
    named = [path for path in inner if path.is_dir() and path.name.lower() in PART_NAMES]
    odd = next((path for path in inner if path not in named), None)
    if named and odd is not None:
        raise DataError(f"{odd}: lies beside {named[0].name}/; needs a split's name or none")
    return named


def _class_folders(part: Path, suffixes: Suffixes[str]) -> list[Path]:
    folders = [path for path in visible(part) if path.is_dir() and not _is_run(path)]
    loose = [path for path in visible(part) if path.suffix.lower() in suffixes]
    if loose and suffix_of(loose[0]) == ".npy":
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
    empty = [path for path in folders if not files_below(path, suffixes)]
    odd = next((path for path in empty if not _has_runs_alone(path)), None)
    if odd is not None:
        raise DataError(f"{odd}: holds no file ending in {', '.join(sorted(suffixes))}")
    return [path for path in folders if path not in empty]


def _check_parts(root: Path, rows: list[tuple[Path, str, int | None]]) -> None:
    trained = {word for _, word, part in rows if part == TRAIN}
    if not trained:
        raise DataError(f"{root}: has no train/ to train on")
    odd = next(((file, word) for file, word, _ in rows if word not in trained), None)
    if odd is not None:
        raise DataError(f"{odd[0]}: is of the class {odd[1]!r}, which train/ does not have")


def _same_channels(collection: Collection) -> None:
    widths = [cloud.shape[1] for cloud in collection.samples]
    odd = next((i for i, width in enumerate(widths) if width != widths[0]), None)
    if odd is not None:
        raise DataError(
            f"{collection.where(odd)}: points of {widths[odd]} numbers; {collection.where(0)} has "
            f"{widths[0]}"
        )
    names = ("x", "y", "z")[: widths[0]]
    collection.channels = names + tuple(f"channel {i + 1}" for i in range(3, widths[0]))
