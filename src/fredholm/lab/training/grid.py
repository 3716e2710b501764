"""A grid of cells, each computed once: the one runner behind ``fredholm sweep``, ``fredholm
compare`` and the evidence of the evidence runs.
"""

from __future__ import annotations

import json
import os
import tempfile
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...errors import FredholmError
from ...files import digest_json, unreadable, write_json, write_text
from .checks import import_files
from .evaluation import evaluate
from .failures import Interrupted, TrainingFailed
from .folder import RunFolder
from .leases import InUseError, Watch, bury, hold, holds, read_holder
from .own_files import data_mark
from .recipe import Recipe
from .recipe_files import code_digests
from .run import train

Result = dict[str, Any]
Report = Callable[[str], None]
CELLS = ".cells"  # beside the cells' folders: a lease and a result per key
FAILURE = "failure.json"  # of the last try


def quiet(line: str) -> None:
    """Report nothing."""


@dataclass(frozen=True)
class Cell:
    """One computation of a grid.

    Attributes:
        settings: plain data, all that decides the result; equal settings are the same cell.
        place: the cell's folder. A result counts as long as its folder is there.
        given: what the work needs besides, such as the recipe that ``settings`` describes.
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
    """Computes cells that have no result yet, and remembers what came of them.

    ``work(cell, report)`` returns plain data, which is written in one step to ``.cells/KEY`` beside
    the cell's folder: whoever comes back reads it, in this process or another. A cell is leased
    while it is at work, so that several processes can share a grid. A cell that fails, of whatever
    cause, does not stop the others: its result is ``{"error": one line}``, the traceback lies in
    ``FOLDER.error.txt``, and the next call tries it again.

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
        """The result of a finished cell, or None."""
        path = self._folder(cell) / "result.json"
        if not cell.place.exists() or not path.is_file():
            return None
        try:
            result = json.loads(path.read_text(encoding="utf-8"))
            return result["result"] if result["settings"] == _plain(cell.settings) else None
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise unreadable(path, error) from error

    def compute(self, cell: Cell) -> Result:
        """A cell's result, read or computed; ``{"error": ...}`` where it fails."""
        try:
            return self._leased(cell, Watch())
        except Interrupted:
            raise
        except Exception as error:  # one cell's failure must not take the others with it
            return self._failed(cell, error)

    def share(self, cells: Iterable[Cell], wait: float = 1.0) -> Iterator[tuple[Cell, Result]]:
        """Cells with their results as they end, computed here where no other process is at work on
        them; after the last one all of them are there, whoever computed them.

        Any number of processes, on any machines that see the folder, may do so at once. What one of
        them leaves behind when it dies, another one takes over: at once on the same machine,
        otherwise when its lease was not renewed for a while. A cell that fails is tried once.

        Raises:
            Interrupted: Ctrl-C; the others go on, and so does the same call.
        """
        waiting, watch, begun = list(cells), Watch(), None
        while waiting:
            left = []
            for cell in waiting:
                begun = begun or _now(cell.place.parent)
                try:
                    result = self.read(cell) or self._failure(cell, begun)
                    result = result or self._leased(cell, watch)
                except InUseError:
                    left.append(cell)
                    continue
                except Interrupted:
                    raise
                except Exception as error:
                    result = self._failed(cell, error)
                yield cell, result
            if len(left) == len(waiting):
                time.sleep(wait)
            waiting = left

    def _leased(self, cell: Cell, watch: Watch) -> Result:
        folder = self._folder(cell)
        before = read_holder(folder)
        with hold(folder, self.report, expired=watch.expired):
            result = self.read(cell)  # by another process, while this one waited its turn
            if result is not None:
                return result
            bury(cell.place, before)
            result = _plain(self.work(cell, self.report))
            if "error" in result:
                raise ValueError("a result named 'error': failures are; choose another name")
            if not holds(folder):
                raise InUseError(f"{folder}: taken over by {read_holder(folder)}")
            write_json(folder / "result.json", {"settings": cell.settings, "result": result})
            return result

    def _failed(self, cell: Cell, error: Exception) -> Result:
        cell.place.parent.mkdir(parents=True, exist_ok=True)
        trace = cell.place.with_name(f"{cell.place.name}.error.txt")
        write_text(trace, "".join(traceback.format_exception(error)))
        known = isinstance(error, FredholmError)
        text = str(error) if known else f"{type(error).__name__}: {error}"
        result = {"error": text.partition("\n")[0]}
        if not isinstance(error, InUseError):
            self._folder(cell).mkdir(parents=True, exist_ok=True)
            write_json(self._folder(cell) / FAILURE, result)
        return result

    def _failure(self, cell: Cell, begun: int) -> Result | None:
        """How a cell has failed since ``begun``, in this process or another."""
        path = self._folder(cell) / FAILURE
        try:
            if path.stat().st_mtime_ns < begun:
                return None
            return json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None

    def run(self, cells: Iterable[Cell]) -> Iterator[tuple[Cell, Result]]:
        """Cells with their results, in order.

        Raises:
            Interrupted: Ctrl-C; the same call goes on.
        """
        for cell in cells:
            yield cell, self.compute(cell)

    def _folder(self, cell: Cell) -> Path:
        return cell.place.parent / CELLS / cell.key


def recipe_cell(recipe: Recipe, place: Path, mark: str | None = None) -> Cell:
    """The cell of one training and its evaluation on the test split; ``mark``: of the user's own
    files (:func:`.own_files.data_mark`), where they were looked at already.
    """
    code = code_digests(recipe)
    plain = recipe.to_dict()
    plain["training"].pop("nodes")  # on how many machines decides nothing
    if recipe.training.metric is None:  # left out, so that cells of the first format are found
        plain["training"].pop("metric")
    plain.pop("parallel")  # nor does how samples are cut
    mark = data_mark(recipe) if mark is None else mark
    files = {} if mark is None else {"files": mark}
    return Cell({"recipe": plain, "code": code, **files}, place, recipe)


def recipe_mark(recipe: Recipe) -> str:
    """What tells whether a recipe or its code has changed. Defaults do not count, which another
    version may add to; nor where the user's files lie, which have a mark of their own.
    """
    aside: dict[str, Any] = {"imports": True, "parallel": True, "training": {"nodes"}}
    aside |= {"data": {"path"}} if recipe.data.name == "files" else {}
    plain = recipe.model_dump(mode="json", exclude_defaults=True, exclude=aside)
    return digest_json([plain, code_digests(recipe)])[:16]


def trained(cell: Cell, report: Report) -> Result:
    """Train the recipe that a cell is given: parameters, minutes and epochs. A finished run is
    read, an unfinished one goes on from its checkpoint; one on files as they were before they were
    changed is begun again.
    """
    import_files(cell.given.imports, cell.place)  # into a process that did not read the recipe
    run = RunFolder(cell.place)
    mark = cell.settings.get("files")
    same = mark is None or run.read_source().get("source", {}).get("files") == mark
    resume = same and (run.finished or any(run.checkpoints.glob("step-*.ckpt")))
    overwrite = run.started and not resume
    result = train(cell.given, cell.place, resume, overwrite=overwrite, report=report)
    return {
        "parameters": result.parameters,
        "minutes": result.minutes,
        "epochs": result.epochs,
    }


def scores_of(cell: Cell, report: Report, each: bool = False) -> tuple[Result, Result]:
    """Train, see :func:`trained`, and evaluate: what training says, and all scores on the test
    split; with ``each`` also one number per sample, see :func:`evaluate`.

    Raises:
        TrainingFailed: the recipe's metric is not defined on the test split.
    """
    from ..report.given import read_evaluation

    facts, metric = trained(cell, report), cell.given.training.metric
    scores = None if each else read_evaluation(cell.place)
    if scores is None:
        scores = evaluate(cell.place, each=each)
    if metric is not None and scores.get(metric) is None:
        raise TrainingFailed(f"training.metric: {metric} is not defined on the test split")
    return facts, scores


def train_cell(cell: Cell, report: Report) -> Result:
    """The work of a table of scores: accuracy, loss and the recipe's metric, parameters, minutes,
    epochs.
    """
    (facts, scores), metric = scores_of(cell, report), cell.given.training.metric
    chosen = {} if metric is None else {"metric": metric}
    names = dict.fromkeys(("accuracy", "loss", *chosen.values()))
    return {key: scores[key] for key in names if key in scores} | chosen | facts


def safe_name(label: str) -> str:
    """A label as a folder name, which is a run's; where that has not all of its letters, with a
    hash of the label.

    Example:
        >>> safe_name("operator={name: luna, channels: 4}")
        'operator=,name,luna,channels,4'
        >>> safe_name("data.label=größe")
        'data.label=gr,e-6873b1'
    """
    kept = "".join(c if (c.isascii() and c.isalnum()) or c in "._=+-" else "," for c in label)
    name = ",".join(part for part in kept.split(",") if part)
    whole = all(c.isascii() or not c.isalnum() for c in label)
    return name if whole else f"{name}-{digest_json(label)[:6]}"


def _now(folder: Path) -> int:
    """The time by the clock that stamps the folder's files, which may be another machine's."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryFile(dir=folder) as file:
        return os.fstat(file.fileno()).st_mtime_ns


def _plain(value: Any) -> Any:
    """As it comes back from a JSON file."""
    return json.loads(json.dumps(value))
