"""A grid of cells, each computed once: the runner of ``fredholm sweep``, ``fredholm compare`` and
the evidence.
"""

from __future__ import annotations

import json
import os
import re
import tempfile
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from ...errors import FredholmError
from ...files import digest_json, unreadable, write_json, write_text
from ..report.given import read_evaluation
from .checks import import_files
from .evaluation import evaluate
from .failures import Interrupted, TrainingFailed
from .folder import RunFolder
from .leases import InUseError, Watch, hold, holds, read_holder, remove_lock_of
from .own_files import data_mark
from .recipe import Recipe
from .recipe_files import code_digests
from .run import train

Result = dict[str, Any]
Report = Callable[[str], None]

# The folder beside the cells' own folders, with a lease and a result per key.
CELLS = ".cells"

# The file with the error of a cell's last attempt.
FAILURE = "failure.json"


def quiet(line: str) -> None:
    """Report nothing."""


@dataclass(frozen=True)
class Cell:
    """One computation of a grid.

    Attributes:
        settings: plain data that determine the result; cells with equal settings are the same.
        place: the cell's folder. A result is valid as long as this folder exists.
        given: further input of the work, such as the recipe that ``settings`` describes.
    """

    settings: dict[str, Any]
    place: Path
    given: Any = None

    @property
    def key(self) -> str:
        """A hash of the settings."""
        return digest_json(self.settings)[:16]


Work = Callable[[Cell, Report], Result]


@dataclass(frozen=True)
class Grid:
    """Compute cells that have no result yet, and remember the results.

    ``work(cell, report)`` returns plain data, which are written atomically to ``.cells/KEY`` beside
    the cell's folder. Later calls read them, in this process or another. A cell is leased while it
    is computed, so that several processes can share a grid.

    A cell that fails, for any reason, does not stop the others. Its result is ``{"error": one
    line}``, the traceback is written to ``FOLDER.error.txt``, and the next call tries it again.

    Example:
        >>> import tempfile
        >>> place = Path(tempfile.mkdtemp()) / "a"
        >>> def work(cell, report):
        ...     cell.place.mkdir()
        ...     print("at work")
        ...     return {"square": cell.settings["x"] ** 2}
        >>> grid, cell = Grid(work), Cell({"x": 3}, place)
        >>> [result for _, result in grid.run([cell])]
        at work
        [{'square': 9}]
        >>> [result for _, result in grid.run([cell])]
        [{'square': 9}]
    """

    work: Work
    report: Report = quiet

    def read(self, cell: Cell) -> Result | None:
        """Return the result of a finished cell, or None."""
        path = self._folder(cell) / "result.json"
        if not cell.place.exists() or not path.is_file():
            return None
        try:
            saved = json.loads(path.read_text(encoding="utf-8"))
            if saved["settings"] != _as_json(cell.settings):
                return None
            return saved["result"]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise unreadable(path, error) from error

    def compute(self, cell: Cell) -> Result:
        """Read or compute the result of a cell; ``{"error": ...}`` if it fails."""
        try:
            return self._compute_leased(cell, Watch())
        except Interrupted:
            raise
        except Exception as error:
            # The failure of one cell must not stop the others.
            return self._record_failure(cell, error)

    def share(self, cells: Iterable[Cell], wait: float = 1.0) -> Iterator[tuple[Cell, Result]]:
        """Yield cells with their results as they are finished, whoever computes them.

        Cells that no other process is working on are computed here. Any number of processes may
        share a grid, on any machines that see the folder. The cells of a process that dies are
        taken over: at once on the same machine, on another one when its lease has not been renewed
        for a while. A cell that fails is tried once.

        Raises:
            Interrupted: Ctrl-C. The other processes continue, and so does the same call.
        """
        waiting = list(cells)
        watch = Watch()
        start: int | None = None
        while waiting:
            busy = []
            for cell in waiting:
                # Failures from before this call do not count. The clock is that of the folder,
                # which may be on another machine.
                if start is None:
                    start = _folder_time(cell.place.parent)
                try:
                    result = self.read(cell)
                    result = result or self._read_failure(cell, start)
                    result = result or self._compute_leased(cell, watch)
                except InUseError:
                    busy.append(cell)
                    continue
                except Interrupted:
                    raise
                except Exception as error:
                    result = self._record_failure(cell, error)
                yield cell, result

            if len(busy) == len(waiting):
                time.sleep(wait)
            waiting = busy

    def _compute_leased(self, cell: Cell, watch: Watch) -> Result:
        """Compute a cell while this process holds its lease.

        Raises:
            InUseError: another process is working on it.
        """
        folder = self._folder(cell)
        previous = read_holder(folder)
        with hold(folder, self.report, expired=watch.expired):
            # Another process may have finished the cell before the lease was free.
            result = self.read(cell)
            if result is not None:
                return result

            # The process that held the lease has died, and may have left a lock in the cell's own
            # folder as well.
            remove_lock_of(cell.place, previous)
            result = _as_json(self.work(cell, self.report))
            if "error" in result:
                raise ValueError(
                    "result: expected no key 'error', which marks failures, got one; choose "
                    "another name"
                )

            # A process that was suspended may have lost its lease to another one meanwhile.
            if not holds(folder):
                raise InUseError(f"{folder}: taken over by {read_holder(folder)}")
            write_json(folder / "result.json", {"settings": cell.settings, "result": result})
            return result

    def _record_failure(self, cell: Cell, error: Exception) -> Result:
        """Write the traceback of a failed cell, and return its result."""
        cell.place.parent.mkdir(parents=True, exist_ok=True)
        path = cell.place.with_name(f"{cell.place.name}.error.txt")
        lines = traceback.format_exception(error)
        write_text(path, "".join(lines))

        text = str(error)
        if not isinstance(error, FredholmError):
            text = f"{type(error).__name__}: {error}"
        first_line, *_ = text.split("\n", 1)
        result = {"error": first_line}

        # A cell that is in use has not failed: another process is working on it.
        if not isinstance(error, InUseError):
            folder = self._folder(cell)
            folder.mkdir(parents=True, exist_ok=True)
            write_json(folder / FAILURE, result)
        return result

    def _read_failure(self, cell: Cell, start: int) -> Result | None:
        """Read the failure of a cell since ``start``, in this process or another."""
        path = self._folder(cell) / FAILURE
        try:
            if path.stat().st_mtime_ns < start:
                return None
            return json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None

    def run(self, cells: Iterable[Cell]) -> Iterator[tuple[Cell, Result]]:
        """Yield cells with their results, in order.

        Raises:
            Interrupted: Ctrl-C; the same call continues.
        """
        for cell in cells:
            yield cell, self.compute(cell)

    def _folder(self, cell: Cell) -> Path:
        return cell.place.parent / CELLS / cell.key


def recipe_cell(recipe: Recipe, place: Path, mark: str | None = None) -> Cell:
    """Make the cell of one training and its evaluation on the test split.

    ``mark`` is the mark of the user's own files (:func:`.own_files.data_mark`), if it is known
    already.
    """
    code = code_digests(recipe)
    plain = recipe.to_dict()

    # The number of machines and the division of samples do not change the result.
    plain["training"].pop("nodes")
    plain.pop("parallel")

    # Recipes of the first format have no metric, and their cells are still found.
    if recipe.training.metric is None:
        plain["training"].pop("metric")

    settings: dict[str, Any] = {"recipe": plain, "code": code}
    if mark is None:
        mark = data_mark(recipe)
    if mark is not None:
        settings["files"] = mark
    return Cell(settings, place, recipe)


def recipe_mark(recipe: Recipe) -> str:
    """Return a mark that changes with a recipe and its code.

    Defaults do not count, since another version may add some. Neither does the path of the user's
    files, which have a mark of their own.
    """
    exclude: dict[str, Any] = {
        "imports": True,
        "parallel": True,
        "training": {"nodes"},
    }
    if recipe.data.name == "files":
        exclude["data"] = {"path"}
    plain = recipe.model_dump(mode="json", exclude_defaults=True, exclude=exclude)
    digest = digest_json([plain, code_digests(recipe)])
    return digest[:16]


def trained(cell: Cell, report: Report) -> Result:
    """Train the recipe of a cell, and return parameters, minutes and epochs.

    A finished run is read and an unfinished one resumed. A run on files that have changed since is
    started again.
    """
    # A cell may be computed in a process that did not load the recipe.
    import_files(cell.given.imports, cell.place)

    run = RunFolder(cell.place)
    mark = cell.settings.get("files")
    same_files = True
    if mark is not None:
        source = run.read_source().get("source", {})
        same_files = source.get("files") == mark

    has_state = run.finished or any(run.checkpoints.glob("step-*.ckpt"))
    resume = same_files and has_state
    overwrite = run.started and not resume

    result = train(cell.given, cell.place, resume, overwrite=overwrite, report=report)
    return {
        "parameters": result.parameters,
        "minutes": result.minutes,
        "epochs": result.epochs,
    }


class TrainedScores(NamedTuple):
    """The facts of a training, see :func:`trained`, and all scores on the test split."""

    facts: Result
    scores: Result


def scores_of(cell: Cell, report: Report, each: bool = False) -> TrainedScores:
    """Train and evaluate the recipe of a cell.

    ``each`` adds one number per sample to the scores, see :func:`evaluate`.

    Raises:
        TrainingFailed: the recipe's metric is not defined on the test split.
    """
    facts = trained(cell, report)
    scores = None
    if not each:
        scores = read_evaluation(cell.place)
    if scores is None:
        scores = evaluate(cell.place, each=each)

    metric = cell.given.training.metric
    if metric is not None and scores.get(metric) is None:
        raise TrainingFailed(f"training.metric: {metric} is not defined on the test split")
    return TrainedScores(facts, scores)


def train_cell(cell: Cell, report: Report) -> Result:
    """Compute a cell of a table of scores.

    It has the accuracy, the loss and the recipe's metric on the test split, and the number of
    parameters, minutes and epochs.
    """
    facts, scores = scores_of(cell, report)
    names = ["accuracy", "loss"]
    chosen = {}
    metric = cell.given.training.metric
    if metric is not None:
        chosen = {"metric": metric}
        names.append(metric)

    result = {name: scores[name] for name in names if name in scores}
    return result | chosen | facts


def safe_name(label: str) -> str:
    """Turn a label into a folder name.

    Signs that are not allowed in names of runs become commas. If letters of other alphabets are
    lost, a hash of the label is added, so that different labels have different names.

    Example:
        >>> safe_name("operator={name: luna, channels: 4}")
        'operator=,name,luna,channels,4'
        >>> safe_name("data.label=größe")
        'data.label=gr,e-6873b1'
    """
    parts = re.split(r"[^A-Za-z0-9._=+-]", label)
    name = ",".join(part for part in parts if part)
    lost_letters = any(c.isalnum() and not c.isascii() for c in label)
    if lost_letters:
        return f"{name}-{digest_json(label)[:6]}"
    return name


def _folder_time(folder: Path) -> int:
    """Return the time by the clock that stamps the folder's files, in nanoseconds."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryFile(dir=folder) as file:
        return os.fstat(file.fileno()).st_mtime_ns


def _as_json(value: Any) -> Any:
    """Return plain data as they come back from a JSON file: tuples as lists, keys as text."""
    return json.loads(json.dumps(value))
