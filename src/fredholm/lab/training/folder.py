"""The run folder: what lies where, and the rules for starting, resuming and overwriting a run.

``recipe.yaml`` (resolved), ``code/`` (the user's imported files), ``source.json`` (how the user's
data files were read and divided, and what tells whether they have changed), ``vocabulary.json`` (of
texts in a run that starts from another's weights), ``model/`` (weights, config, classes,
normalisation), ``checkpoints/`` (resumable state), ``metrics.csv``,
``monitors.csv`` (of a continuous model: what its steps do), ``tensorboard/``, ``result.json`` (once
finished), ``calibration.json`` (the temperature of its probabilities),
``evaluation.json`` (with the checksum of the weights that it measured). ``lock.json`` names the
process that trains there, see :mod:`fredholm.lab.training.leases`.
"""

from __future__ import annotations

import csv
import dataclasses
import math
import os
import shutil
from pathlib import Path
from typing import Any

from ...errors import CheckpointError, OptionError, RecipeError, StorageError
from ...files import is_unfinished, read_state, replacing, storing, unreadable, write_json
from ..data import Vocabulary
from .leases import HOLDER, LOCK
from .metrics import defined
from .own_files import with_whole_paths
from .recipe import Recipe
from .recipe_files import RESULTS, differences, has_results, load_recipe, read_plain, save_recipe

# What lies in a folder before a run has saved anything.
_AT_START = (
    *("recipe.yaml", "code", "source.json", "vocabulary.json"),
    *("metrics.csv", "monitors.csv", "tensorboard"),
)
# How often to save, how long to go on and on how many processes may change on resume: none of them
# changes what is computed.
_FREE = ("checkpoint_minutes", "checkpoint_steps", "max_minutes", "devices", "nodes", "strategy")
_RESTORE = "restore it, or begin the run again with --overwrite"  # without it nothing is compared


@dataclasses.dataclass(frozen=True)
class RunResult:
    """What a finished run reports; ``metrics`` are those of the kept weights' epoch, NaN where one
    is not defined, ``stopped`` says why it ended, and ``metric`` by which weights are known to be
    the best.
    """

    name: str
    folder: str
    parameters: int
    epochs: int
    steps: int
    minutes: float
    best_epoch: int
    metrics: dict[str, float]
    stopped: str
    metric: str


class RunFolder:
    """Paths of one run below ``root``."""

    def __init__(self, root: str | Path):
        self.root = Path(root)
        self.recipe = self.root / "recipe.yaml"
        self.code = self.root / "code"
        self.source = self.root / "source.json"
        self.vocabulary = self.root / "vocabulary.json"
        self.model = self.root / "model"
        self.checkpoints = self.root / "checkpoints"
        self.metrics = self.root / "metrics.csv"
        self.monitors = self.root / "monitors.csv"
        self.tensorboard = self.root / "tensorboard"
        self.evaluation = self.root / "evaluation.json"
        self.calibration = self.root / "calibration.json"
        self.result = self.root / "result.json"

    @property
    def started(self) -> bool:
        """Whether a run has begun here. A recipe beside other files of the user's is none."""
        if not self.recipe.is_file():
            return False
        known = (path.name in _AT_START or is_unfinished(path) for path in self._content())
        return has_results(self.root) or all(known)

    @property
    def finished(self) -> bool:
        return self.result.is_file()

    def finished_epochs(self) -> int:
        """Return how many epochs the run has finished, by its table of epochs."""
        if not self.metrics.is_file():
            return 0
        with storing(self.metrics), self.metrics.open(encoding="utf-8", newline="") as file:
            return sum(1 for _ in csv.DictReader(file))

    def read_result(self) -> RunResult:
        """What was written when the run ended.

        Raises:
            FredholmError: a damaged file.
        """
        try:
            found = RunResult(**read_state(self.result))
            numbers = {
                key: math.nan if value is None else value for key, value in found.metrics.items()
            }
            return dataclasses.replace(found, metrics=numbers)
        except TypeError as error:  # fields that are missing
            raise unreadable(self.result, error) from error

    def write_result(self, result: RunResult) -> None:
        numbers = {key: defined(value) for key, value in result.metrics.items()}
        write_json(self.result, {**dataclasses.asdict(result), "metrics": numbers})

    def check(self, recipe: Recipe, resume: bool, overwrite: bool) -> None:
        """Refuse what :meth:`open` could not do; nothing is changed.

        Raises:
            OptionError: the folder holds a run and neither resume nor overwrite was asked for, or
                it is no run folder.
            CheckpointError: there is nothing to resume.
            RecipeError: the run to resume was started with another recipe.
            StorageError: a folder that may not be written.
        """
        self.check_state(resume, overwrite)
        if self.started and resume:
            self._same(recipe)

    def check_state(self, resume: bool, overwrite: bool) -> None:
        """The same as far as no recipe is needed."""
        if resume and overwrite:
            raise OptionError("received both --resume and --overwrite; choose one")
        self._check_place(writes=not (resume and self.finished))
        if not self.started:
            if resume:
                raise CheckpointError(f"{self.root}: no run to resume; start it without --resume")
            if self.root.is_file() or not all(is_unfinished(path) for path in self._content()):
                raise OptionError(
                    f"{self.root}: exists and is no run folder; choose another --name or --runs"
                )
        elif not (resume or overwrite):
            state = "a finished run" if self.finished else "an unfinished run"
            raise OptionError(
                f"{self.root}: holds {state}; add --resume, --overwrite or another --name"
            )

    def open(
        self,
        recipe: Recipe,
        resume: bool,
        overwrite: bool,
        source: Any = None,
        words: dict[str, Any] | None = None,
    ) -> None:
        """Make the folder ready for ``recipe`` on files read as ``source`` says, and ``words`` as
        their vocabulary where another run decided it: new, emptied, or holding the same run to be
        resumed, without what was found out of its model so far. The caller holds its lock.

        Raises: as :meth:`check`, which is repeated: before, another process had the folder.
        """
        self.check(recipe, resume, overwrite)
        if resume:
            with storing(self.root):
                self.evaluation.unlink(missing_ok=True)
                self.calibration.unlink(missing_ok=True)
                for path in filter(is_unfinished, self.root.rglob(".*.tmp")):
                    path.unlink(missing_ok=True)  # of a process that was killed
            return
        with storing(self.root):
            # Before anything is deleted: the files may be those of this very run.
            code = {Path(source).name: Path(source).read_bytes() for source in recipe.imports}
            self._clear()
            # First: where the rest cannot be written, the folder is known as that of a run.
            with replacing(self.recipe) as temporary:
                save_recipe(recipe.model_copy(update={"imports": portable(recipe)}), temporary)
            for name, content in code.items():
                self.code.mkdir(exist_ok=True)
                (self.code / name).write_bytes(content)
            if source is not None:
                write_json(self.source, dict(source))
            if words is not None:
                write_json(self.vocabulary, words)

    def read_source(self) -> dict[str, Any]:
        """How the run's files were read; empty of a data set of the catalogue.

        Raises:
            FredholmError: a damaged file.
        """
        return {"source": read_state(self.source, _RESTORE)} if self.source.is_file() else {}

    def read_vocabulary(self) -> Vocabulary | None:
        """What the run's texts were read with at its start, where :meth:`open` kept it."""
        if not self.vocabulary.is_file():
            return None
        return Vocabulary.from_dict(read_state(self.vocabulary, _RESTORE))

    def _check_place(self, writes: bool) -> None:
        """Look at the part of the path that exists: a file among the folders, a missing right."""
        exists = next(path for path in (self.root, *self.root.parents) if path.exists())
        if not exists.is_dir() and exists != self.root:
            raise OptionError(f"{exists}: is a file; needs a folder of runs, choose another --runs")
        if writes and exists.is_dir() and not os.access(exists, os.W_OK | os.X_OK):
            raise StorageError(
                f"{exists}: may not be written; change its permissions or choose another --runs"
            )

    def _content(self) -> list[Path]:
        """What lies in the folder, but for its lock."""
        if not self.root.is_dir():
            return []
        return [path for path in self.root.iterdir() if path.name not in (LOCK, HOLDER)]

    def _clear(self) -> None:
        # What tells a run's folder last: until then an interrupted --overwrite can be repeated.
        last = {self.recipe.name: 2} | dict.fromkeys(RESULTS, 1)
        for path in sorted(self._content(), key=lambda path: last.get(path.name, 0)):
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink()

    def _same(self, recipe: Recipe) -> None:
        """Refuse to resume with anything that would compute something else."""
        # The run's own copy of the code is compared, never executed: what goes on is the recipe
        # that was given, whose imports are in force already.
        old, new = map(with_whole_paths, (read_plain(self.recipe), recipe.to_dict()))
        new["import"] = portable(recipe)
        for section in (old, new):
            section.pop("name")
            section.pop("parallel", None)
            for key in _FREE:
                section["training"].pop(key, None)
        changed = differences(old, new)
        changed += [
            f"import ({Path(source).name} has other content)"
            for source in recipe.imports
            if not _same_file(Path(source), self.code / Path(source).name)
        ]
        if changed:
            raise RecipeError(
                f"{self.root}: the run was started with another recipe; differs in "
                f"{', '.join(changed)}; resume with the same recipe, choose another --name, or "
                "delete the folder (train: --overwrite)"
            )

    def load_recipe(self, trust_code: bool = False) -> Recipe:
        """The recipe the run was started with; its imports are executed with ``trust_code`` only,
        see :func:`fredholm.training.load_recipe`.

        Raises:
            CheckpointError: the folder holds no run.
            TrustError: the recipe imports a file and ``trust_code`` is not given.
        """
        if not self.recipe.is_file():
            raise CheckpointError(
                f"{self.root}: no run here (recipe.yaml is missing); needs a folder made by "
                "fredholm train"
            )
        return load_recipe(self.root, trust_code=trust_code)


def check_folder(folder: str | Path, resume: bool, overwrite: bool) -> None:
    """Refuse a folder in which no run can be started, or with ``resume`` gone on with.

    Raises: as :meth:`RunFolder.check`.
    """
    RunFolder(folder).check_state(resume, overwrite)


def portable(recipe: Recipe) -> list[str]:
    """A recipe's imports as names inside the run folder, which can be moved."""
    return [f"code/{Path(source).name}" for source in recipe.imports]


def _same_file(source: Path, copy: Path) -> bool:
    return copy.is_file() and source.read_bytes() == copy.read_bytes()
