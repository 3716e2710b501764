"""The run folder: its files, and the rules for starting, resuming and overwriting a run.

====================  ==========================================================================
``recipe.yaml``       the resolved recipe
``code/``             copies of the user's imported files
``source.json``       how the user's data files were read and divided, and marks of their contents
``vocabulary.json``   of a text run that starts from another run's weights
``model/``            weights, configuration, classes, normalisation
``checkpoints/``      resumable state
``metrics.csv``       the table of epochs
``monitors.csv``      of a continuous model: what its steps do
``tensorboard/``      curves
``result.json``       written when the run is finished
``calibration.json``  the temperature of its probabilities
``evaluation.json``   scores, with the checksum of the weights that they belong to
``lock.json``         the process that trains there, see :mod:`fredholm.lab.training.leases`
====================  ==========================================================================
"""

from __future__ import annotations

import csv
import dataclasses
import math
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ...errors import CheckpointError, OptionError, RecipeError, StorageError
from ...files import is_unfinished, read_state, replacing, storing, unreadable, write_json
from ..data import Vocabulary
from .leases import HOLDER, LOCK
from .metrics import defined
from .own_files import with_absolute_paths
from .recipe import Recipe
from .recipe_files import RESULTS, differences, has_results, load_recipe, read_plain, save_recipe

# Names that a run creates before it has trained anything.
_AT_START = (
    "recipe.yaml",
    "code",
    "source.json",
    "vocabulary.json",
    "metrics.csv",
    "monitors.csv",
    "tensorboard",
)

# Keys of the section ``training`` that may change when a run is resumed, since none of them changes
# what is computed.
_FREE_ON_RESUME = (
    "checkpoint_minutes",
    "checkpoint_steps",
    "max_minutes",
    "devices",
    "nodes",
    "strategy",
)

# The advice for a damaged source.json or vocabulary.json, without which a resumed run cannot be
# compared with its start.
_RESTORE = "restore it, or begin the run again with --overwrite"


@dataclasses.dataclass(frozen=True)
class RunResult:
    """The result of a finished run.

    Attributes:
        name: the recipe's name.
        folder: the run folder.
        parameters: size of the model.
        epochs, steps: length of the training.
        minutes: its duration.
        best_epoch: the epoch of the kept weights, counted from 1.
        metrics: metrics of that epoch; NaN where one is not defined.
        stopped: the reason for the end.
        metric: the metric by which weights were kept.
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
    """The paths of a run below ``root``."""

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
        self.evaluation = self.root / "evaluation.json"
        self.calibration = self.root / "calibration.json"
        self.result = self.root / "result.json"

    @property
    def started(self) -> bool:
        """True if a run has begun here.

        A recipe beside unknown files is the user's own and not a run, unless a training has saved
        something.
        """
        if not self.recipe.is_file():
            return False
        if has_results(self.root):
            return True
        return all(path.name in _AT_START or is_unfinished(path) for path in self._content())

    @property
    def finished(self) -> bool:
        """True if the run has written its result."""
        return self.result.is_file()

    def finished_epochs(self) -> int:
        """Count the epochs in the run's table."""
        if not self.metrics.is_file():
            return 0
        with storing(self.metrics), self.metrics.open(encoding="utf-8", newline="") as file:
            return sum(1 for _ in csv.DictReader(file))

    def read_result(self) -> RunResult:
        """Read the result of a finished run.

        Raises:
            FredholmError: the file is damaged.
        """
        try:
            result = RunResult(**read_state(self.result))
        except TypeError as error:
            # A field is missing or unknown.
            raise unreadable(self.result, error) from error

        # JSON has no NaN; the file has null instead.
        metrics = {}
        for name, value in result.metrics.items():
            if value is None:
                value = math.nan
            metrics[name] = value
        return dataclasses.replace(result, metrics=metrics)

    def write_result(self, result: RunResult) -> None:
        """Write the result, which marks the run as finished."""
        fields = dataclasses.asdict(result)
        fields["metrics"] = {name: defined(value) for name, value in result.metrics.items()}
        write_json(self.result, fields)

    def check(self, recipe: Recipe, resume: bool, overwrite: bool) -> None:
        """Refuse a folder that :meth:`open` could not open, without changing anything.

        Raises:
            OptionError: the folder holds a run and neither ``resume`` nor ``overwrite`` is given,
                or it is not a run folder.
            CheckpointError: there is nothing to resume.
            RecipeError: the run to resume was started with another recipe.
            StorageError: the folder cannot be written.
        """
        self.check_state(resume, overwrite)
        if self.started and resume:
            self._refuse_other_recipe(recipe)

    def check_state(self, resume: bool, overwrite: bool) -> None:
        """Do the part of :meth:`check` that needs no recipe."""
        if resume and overwrite:
            raise OptionError("expected --resume or --overwrite, got both; choose one")
        self._check_place(writes=not (resume and self.finished))

        if self.started:
            if not resume and not overwrite:
                state = "an unfinished run"
                if self.finished:
                    state = "a finished run"
                raise OptionError(
                    f"{self.root}: holds {state}; add --resume, --overwrite or another --name"
                )
            return

        if resume:
            raise CheckpointError(f"{self.root}: no run to resume; start it without --resume")
        if self.root.is_file() or not all(is_unfinished(path) for path in self._content()):
            raise OptionError(
                f"{self.root}: exists and is not a run folder; choose another --name or --runs"
            )

    def open(
        self,
        recipe: Recipe,
        resume: bool,
        overwrite: bool,
        source: Mapping[str, Any] | None = None,
        vocabulary: dict[str, Any] | None = None,
    ) -> None:
        """Make the folder ready for ``recipe``: new, emptied, or with the run to be resumed.

        The caller holds the lock of the folder.

        Args:
            recipe: the recipe of the run.
            resume: keep the run that is there; only what was computed from its model is deleted.
            overwrite: delete the run that is there.
            source: how the user's data files were read.
            vocabulary: the vocabulary of texts, if another run decided it.

        Raises: as :meth:`check`, which is repeated here: until the lock was taken, another process
            may have changed the folder.
        """
        self.check(recipe, resume, overwrite)
        with storing(self.root):
            if resume:
                self._clear_results()
            else:
                self._start(recipe, source, vocabulary)

    def _start(
        self,
        recipe: Recipe,
        source: Mapping[str, Any] | None,
        vocabulary: dict[str, Any] | None,
    ) -> None:
        # The user's code is read before anything is deleted: it may lie in this very folder.
        code = {}
        for file in map(Path, recipe.imports):
            code[file.name] = file.read_bytes()
        self._clear()

        # The recipe is written first. If the rest cannot be written, the folder is known to be that
        # of a run, and --overwrite works.
        portable_recipe = recipe.model_copy(update={"imports": portable(recipe)})
        with replacing(self.recipe) as temporary:
            save_recipe(portable_recipe, temporary)

        for name, content in code.items():
            self.code.mkdir(exist_ok=True)
            (self.code / name).write_bytes(content)
        if source is not None:
            write_json(self.source, dict(source))
        if vocabulary is not None:
            write_json(self.vocabulary, vocabulary)

    def _clear_results(self) -> None:
        """Delete what was computed from the model so far, and leftovers of a killed process."""
        self.evaluation.unlink(missing_ok=True)
        self.calibration.unlink(missing_ok=True)
        for path in filter(is_unfinished, self.root.rglob(".*.tmp")):
            path.unlink(missing_ok=True)

    def read_temperature(self) -> float:
        """Read the temperature that calibrates the run's probabilities; 1 if it has none.

        Raises:
            FredholmError: the file is damaged.
        """
        if not self.calibration.is_file():
            return 1.0
        fix = "restore it, or delete it and do without calibrated probabilities"
        try:
            return float(read_state(self.calibration, fix)["temperature"])
        except (KeyError, TypeError, ValueError) as error:
            raise unreadable(self.calibration, error, fix) from error

    def read_source(self) -> dict[str, Any]:
        """Return how the user's files were read, as ``{"source": ...}``; empty without files.

        Raises:
            FredholmError: the file is damaged.
        """
        if not self.source.is_file():
            return {}
        return {"source": read_state(self.source, _RESTORE)}

    def read_vocabulary(self) -> Vocabulary | None:
        """Return the vocabulary that :meth:`open` kept, if any."""
        if not self.vocabulary.is_file():
            return None
        return Vocabulary.from_dict(read_state(self.vocabulary, _RESTORE))

    def _check_place(self, writes: bool) -> None:
        """Check the deepest part of the path that exists: is it a folder, and writable?"""
        above = (self.root, *self.root.parents)
        deepest = next(path for path in above if path.exists())
        if not deepest.is_dir() and deepest != self.root:
            raise OptionError(
                f"{deepest}: expected a folder of runs, got a file; choose another --runs"
            )
        if writes and deepest.is_dir() and not os.access(deepest, os.W_OK | os.X_OK):
            raise StorageError(
                f"{deepest}: cannot be written; change its permissions or choose another --runs"
            )

    def _content(self) -> list[Path]:
        """List the folder without its lock."""
        if not self.root.is_dir():
            return []
        return [path for path in self.root.iterdir() if path.name not in (LOCK, HOLDER)]

    def _clear(self) -> None:
        # The files by which a run folder is recognised go last, and the recipe after all others.
        # Until then an interrupted --overwrite can be repeated.
        order = {self.recipe.name: 2} | dict.fromkeys(RESULTS, 1)
        content = self._content()
        content.sort(key=lambda path: order.get(path.name, 0))
        for path in content:
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink()

    def _refuse_other_recipe(self, recipe: Recipe) -> None:
        """Refuse to resume with a recipe or code that would compute something else."""
        # The run's copy of the code is compared and never executed. The resumed run uses the
        # imports of ``recipe``, which are loaded already.
        old = with_absolute_paths(read_plain(self.recipe))
        new = with_absolute_paths(recipe.to_dict())
        new["import"] = portable(recipe)

        # The name, and how samples and work are divided over processes, change no result.
        for plain in (old, new):
            plain.pop("name")
            plain.pop("parallel", None)
            for key in _FREE_ON_RESUME:
                plain["training"].pop(key, None)

        changed = differences(old, new)
        for source in map(Path, recipe.imports):
            copy = self.code / source.name
            if not copy.is_file() or source.read_bytes() != copy.read_bytes():
                changed.append(f"import ({source.name} has other content)")
        if changed:
            raise RecipeError(
                f"{self.root}: expected the recipe that the run was started with, got one that "
                f"differs in {', '.join(changed)}; resume with the same recipe, choose another "
                "--name, or delete the folder (train: --overwrite)"
            )

    def load_recipe(self, trust_code: bool = False) -> Recipe:
        """Load the recipe that the run was started with.

        Its imports are executed with ``trust_code`` only, see
        :func:`fredholm.training.load_recipe`.

        Raises:
            CheckpointError: the folder holds no run.
            TrustError: the recipe imports a file and ``trust_code`` is not given.
        """
        if not self.recipe.is_file():
            raise CheckpointError(
                f"{self.root}: no run here (recipe.yaml is missing); give a folder made by "
                "fredholm train"
            )
        return load_recipe(self.root, trust_code=trust_code)


def check_folder(folder: str | Path, resume: bool, overwrite: bool) -> None:
    """Refuse a folder in which no run can be started, or with ``resume``, resumed.

    Raises: as :meth:`RunFolder.check`.
    """
    RunFolder(folder).check_state(resume, overwrite)


def portable(recipe: Recipe) -> list[str]:
    """Return a recipe's imports as paths inside the run folder, so that it can be moved."""
    return [f"code/{Path(source).name}" for source in recipe.imports]
