"""The run folder: what lies where, and the rules for starting, resuming and overwriting a run.

``recipe.yaml`` (resolved), ``code/`` (the user's imported files), ``model/`` (weights, config,
classes, normalisation), ``checkpoints/`` (resumable state), ``metrics.csv``, ``monitors.csv`` (of a
continuous model: what its steps do), ``tensorboard/``, ``result.json`` (once finished),
``evaluation.json``.
"""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
from pathlib import Path

from ..errors import CheckpointError, OptionError, RecipeError
from .callbacks import write_json
from .recipe import Recipe
from .recipe_files import differences, load_recipe, save_recipe

# How often to save and how long to go on may change on resume: neither changes what is computed.
_FREE = ("checkpoint_minutes", "checkpoint_steps", "max_minutes")


@dataclasses.dataclass(frozen=True)
class RunResult:
    """What a finished run reports; ``metrics`` are those of the kept weights' epoch, ``stopped``
    says why it ended.
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


class RunFolder:
    """Paths of one run below ``root``."""

    def __init__(self, root: str | Path):
        self.root = Path(root)
        self.recipe = self.root / "recipe.yaml"
        self.code = self.root / "code"
        self.model = self.root / "model"
        self.checkpoints = self.root / "checkpoints"
        self.metrics = self.root / "metrics.csv"
        self.monitors = self.root / "monitors.csv"
        self.tensorboard = self.root / "tensorboard"
        self.evaluation = self.root / "evaluation.json"
        self.result = self.root / "result.json"

    @property
    def started(self) -> bool:
        return self.recipe.is_file()

    @property
    def finished(self) -> bool:
        return self.result.is_file()

    def read_result(self) -> RunResult:
        return RunResult(**json.loads(self.result.read_text(encoding="utf-8")))

    def write_result(self, result: RunResult) -> None:
        write_json(self.result, dataclasses.asdict(result))

    def open(self, recipe: Recipe, resume: bool, overwrite: bool) -> None:
        """Make the folder ready for ``recipe``: new, emptied, or holding the same run to be
        resumed.

        Raises:
            OptionError: the folder holds a run and neither resume nor overwrite was asked for, or
                it is no run folder.
            CheckpointError: there is nothing to resume.
            RecipeError: the run to resume was started with another recipe.
        """
        if resume and overwrite:
            raise OptionError("received both --resume and --overwrite; choose one")
        if not self.started:
            if resume:
                raise CheckpointError(f"{self.root}: no run to resume; start it without --resume")
            if self.root.is_file() or (self.root.is_dir() and any(self.root.iterdir())):
                raise OptionError(
                    f"{self.root}: exists and is no run folder; choose another --name or --runs"
                )
        elif resume:
            self._same(recipe)
            return
        elif overwrite:
            shutil.rmtree(self.root)
        else:
            state = "a finished run" if self.finished else "an unfinished run"
            raise OptionError(
                f"{self.root}: holds {state}; add --resume, --overwrite or another --name"
            )
        self._create(recipe)

    def _create(self, recipe: Recipe) -> None:
        self.root.mkdir(parents=True, exist_ok=True)
        for source in recipe.imports:
            self.code.mkdir(exist_ok=True)
            shutil.copyfile(source, self.code / Path(source).name)
        temporary = self.root / "recipe.tmp"
        save_recipe(recipe.model_copy(update={"imports": _portable(recipe)}), temporary)
        os.replace(temporary, self.recipe)

    def _same(self, recipe: Recipe) -> None:
        """Refuse to resume with anything that would compute something else."""
        old, new = self.load_recipe().to_dict(), recipe.to_dict()
        new["import"], old["import"] = (
            _portable(recipe),
            [f"code/{Path(name).name}" for name in old["import"]],
        )
        for section in (old, new):
            section.pop("name")
            for key in _FREE:
                section["training"].pop(key)
        changed = differences(old, new)
        changed += [
            f"import ({Path(source).name} has other content)"
            for source in recipe.imports
            if not _same_file(Path(source), self.code / Path(source).name)
        ]
        if changed:
            raise RecipeError(
                f"{self.root}: the run was started with another recipe; differs in "
                f"{', '.join(changed)}; "
                "resume with the same recipe, or choose --overwrite or another --name"
            )

    def load_recipe(self) -> Recipe:
        """The recipe the run was started with.

        Raises:
            CheckpointError: the folder holds no run.
        """
        if not self.started:
            raise CheckpointError(
                f"{self.root}: no run here (recipe.yaml is missing); needs a folder made by "
                "fredholm train"
            )
        return load_recipe(self.recipe)


def _portable(recipe: Recipe) -> list[str]:
    return [f"code/{Path(source).name}" for source in recipe.imports]


def _same_file(source: Path, copy: Path) -> bool:
    return copy.is_file() and source.read_bytes() == copy.read_bytes()
