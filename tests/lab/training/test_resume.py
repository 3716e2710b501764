"""A resumed run is bitwise equal to an uninterrupted one, wherever it was stopped."""

from __future__ import annotations

import csv
import errno
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from fredholm.errors import (
    CheckpointError,
    FredholmError,
    OptionError,
    RecipeError,
    StorageError,
)
from fredholm.lab.training import folder as run_folder
from fredholm.lab.training import run
from fredholm.lab.training.checkpoints import list_checkpoints, newest_readable, read_checkpoint
from fredholm.lab.training.folder import RunFolder
from fredholm.lab.training.learner import check_moments
from fredholm.lab.training.module import RecipeLearner
from fredholm.lab.training.recipe_files import save_recipe
from fredholm.models.decay import weight_decay_groups
from fredholm.training import TrainingFailed, train
from tests.lab.training.conftest import SMALL

# All state that a resume must restore: shuffling, augmentation, dropout, mixing, averaged weights,
# accumulated gradients.
BUSY = [
    "data.mixup=0.4",
    "data.cutmix=1.0",
    "training.checkpoint_steps=2",
    "training.ema_decay=0.9",
    "model.body.dropout=0.1",
    "data.batch_size=200",
    "data.augment={shift: 1, flip: true}",
]


class Crash(Exception):
    pass


@pytest.fixture
def crash_at(monkeypatch):
    """Make training step number ``step`` fail."""
    original = RecipeLearner.training_step

    def arrange(step: int | None):
        def failing(self, batch, batch_idx):
            if self.trainer.fit_loop.total_batch_idx == step:
                raise Crash
            return original(self, batch, batch_idx)

        monkeypatch.setattr(RecipeLearner, "training_step", original if step is None else failing)

    return arrange


def outcome(folder: Path):
    """Return all files of a run without its times."""
    with (folder / "metrics.csv").open() as file:
        rows = [{k: v for k, v in row.items() if k != "seconds"} for row in csv.DictReader(file)]
    state = read_checkpoint(list_checkpoints(folder / "checkpoints")[0])
    tensors = {**state["state_dict"], **state.get("current_model_state", {})}
    return rows, (folder / "model" / "model.safetensors").read_bytes(), tensors


def assert_same(left: Path, right: Path):
    (rows, weights, state), (rows2, weights2, state2) = outcome(left), outcome(right)
    assert rows == rows2
    assert state.keys() == state2.keys()
    assert all(torch.equal(state[key], state2[key]) for key in state)
    assert weights == weights2


EXTRAS = {
    "plain": [],
    "accumulate": ["training.accumulate=2", "training.checkpoint_steps=1"],
    "no-ema": ["training.ema_decay=null"],
}
PLATEAU = "{name: plateau, warmup_steps: 3, patience: 0, factor: 0.5}"
COURSES = {
    "plateau": [f"schedule={PLATEAU}", "optimizer.name=adam"],
    "steps": ["schedule={name: step, every: 0.5, factor: 0.9}", "training.steps=17"],
}


@pytest.mark.parametrize("extra", EXTRAS.values(), ids=EXTRAS)
def test_a_resumed_run_is_bitwise_equal_wherever_it_stopped(tmp_path, recipe, crash_at, extra):
    chosen = recipe(*BUSY, *extra)
    train(chosen, tmp_path / "whole")
    steps = 3 * len(_batches(chosen))
    for stop in (3, len(_batches(chosen)), len(_batches(chosen)) + 3, steps - 1):
        folder = tmp_path / f"stopped-{stop}"
        crash_at(stop)
        with pytest.raises(Crash):
            train(chosen, folder)
        crash_at(None)
        train(chosen, folder, resume=True)
        assert_same(tmp_path / "whole", folder)


@pytest.mark.parametrize("extra", COURSES.values(), ids=COURSES)
def test_a_resumed_schedule_continues_with_the_same_rates(tmp_path, recipe, crash_at, extra):
    # So low a rate that nothing improves.
    chosen = recipe("optimizer.lr=1e-6", "data.batch_size=200", *extra)
    train(chosen, tmp_path / "whole")
    rates = [row["lr"] for row in outcome(tmp_path / "whole")[0]]
    assert len(set(rates)) > 1
    crash_at(len(_batches(chosen)))  # the newest checkpoint is that of the epoch's end
    with pytest.raises(Crash):
        train(chosen, tmp_path / "stopped")
    crash_at(None)
    train(chosen, tmp_path / "stopped", resume=True)
    assert_same(tmp_path / "whole", tmp_path / "stopped")


def test_a_run_stopped_during_calibration_can_be_resumed(tmp_path, recipe, monkeypatch):
    chosen = recipe("data.batch_size=200")
    folder = tmp_path / "stopped"
    train(chosen, tmp_path / "whole")

    def stop(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(run, "calibrate", stop)
        with pytest.raises(KeyboardInterrupt):
            train(chosen, folder)
    assert not RunFolder(folder).finished
    train(chosen, folder, resume=True)
    assert RunFolder(folder).finished
    assert_same(tmp_path / "whole", folder)
    whole = RunFolder(tmp_path / "whole").read_temperature()
    assert RunFolder(folder).read_temperature() == whole != 1.0


def _batches(recipe):
    from fredholm.lab.training.build import build_dataset, build_loaders

    return build_loaders(recipe, build_dataset(recipe, "train"), build_dataset(recipe, "val"))[0](
        0, 1
    )


def _start(folder: Path, *overrides: str, pause: float = 0.05):
    command = [
        sys.executable,
        str(Path(__file__).with_name("worker.py")),
        str(folder),
        str(pause),
        *SMALL,
        *overrides,
    ]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def _wait_for(process, folder: Path, pattern: str):
    deadline = time.monotonic() + 60
    while not any(folder.glob(pattern)):
        assert process.poll() is None, process.communicate()[0]
        assert time.monotonic() < deadline, f"no {pattern} within a minute"
        time.sleep(0.01)


def test_killed_mid_epoch_and_resumed_equals_uninterrupted(tmp_path, recipe):
    overrides = [*BUSY, "data.batch_size=50"]
    chosen = recipe(*overrides, "name=killed")
    folder = tmp_path / "killed"
    process = _start(folder, *overrides, pause=0.2)
    _wait_for(process, folder, "checkpoints/step-*4.ckpt")
    process.kill()
    assert process.wait() == -signal.SIGKILL
    state = read_checkpoint(newest_readable(folder / "checkpoints"))
    assert state["epoch"] == 0
    assert 0 < state["global_step"] < len(_batches(chosen))
    train(chosen, folder, resume=True)
    train(chosen, tmp_path / "whole")
    assert_same(tmp_path / "whole", folder)


@pytest.mark.parametrize(
    ("number", "moment", "more"),
    [
        (signal.SIGINT, "training", ["data.batch_size=50"]),
        pytest.param(
            *(signal.SIGTERM, "training", ["data.batch_size=10", "training.accumulate=8"]),
            marks=pytest.mark.slow,
        ),
        pytest.param(
            *(signal.SIGTERM, "validation", ["data.batch_size=400", "data.eval_batch_size=1"]),
            marks=pytest.mark.slow,
        ),
    ],
    ids=["ctrl-c", "in an accumulation", "in a validation"],
)
def test_ctrl_c_saves_prints_the_resume_command_and_exits_130(
    tmp_path, recipe, number, moment, more
):
    overrides = ["training.checkpoint_minutes=null", *more]
    folder = tmp_path / "stopped"
    process = _start(folder, *overrides, pause=0.2)
    _wait_for(process, tmp_path, moment)
    process.send_signal(number)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 130, output
    assert "--resume" in output
    assert "Traceback" not in output
    newest = newest_readable(folder / "checkpoints")
    assert read_checkpoint(newest)["global_step"] > 0
    (folder / "checkpoints" / ".step-000000001.ckpt.12.tmp").write_bytes(b"half")
    train(recipe(*overrides, "name=stopped"), folder, resume=True)
    assert not [*folder.rglob(".*.tmp")], "of a process that was killed"
    train(recipe(*overrides, "name=stopped"), tmp_path / "whole")
    assert_same(tmp_path / "whole", folder)


def test_a_truncated_checkpoint_is_named_and_the_previous_one_used(tmp_path, recipe, crash_at):
    chosen = recipe(*BUSY)
    folder = tmp_path / "run"
    train(chosen, tmp_path / "whole")
    crash_at(len(_batches(chosen)) + 3)
    with pytest.raises(Crash):
        train(chosen, folder)
    crash_at(None)
    newest, older = list_checkpoints(folder / "checkpoints")
    newest.write_bytes(newest.read_bytes()[:-1000])
    with pytest.warns(UserWarning, match=newest.name):
        assert newest_readable(folder / "checkpoints") == older
    with pytest.warns(UserWarning, match="resuming from the one before it"):
        train(chosen, folder, resume=True)
    assert_same(tmp_path / "whole", folder)


def test_without_a_readable_checkpoint_resuming_is_refused(tmp_path, recipe, crash_at):
    chosen = recipe(*BUSY)
    folder = tmp_path / "run"
    with pytest.raises(CheckpointError, match="no run to resume"):
        train(chosen, folder, resume=True)
    crash_at(3)
    with pytest.raises(Crash):
        train(chosen, folder)
    for path in list_checkpoints(folder / "checkpoints"):
        path.write_bytes(b"not a checkpoint")
    with (
        pytest.warns(UserWarning, match="not a readable checkpoint"),
        pytest.raises(CheckpointError, match="--overwrite"),
    ):
        train(chosen, folder, resume=True)


@pytest.mark.parametrize("content", ["", '{"na', "[]", "{}"])
def test_damaged_files_of_a_run_are_named_with_a_fix(tmp_path, content):
    place = RunFolder(tmp_path)
    reads = {
        place.result: place.read_result,
        place.source: place.read_source,
        place.calibration: lambda: place.read_temperature(),
    }
    if content == "{}":  # nothing known of files is no damage
        del reads[place.source]
    for file, read in reads.items():
        # Without its source a run would go on over files that have changed meanwhile.
        fix = "begin the run again with --overwrite" if file == place.source else "delete it and "
        file.write_text(content)
        with pytest.raises(FredholmError, match=rf"{file.name}: cannot be read .*{fix}"):
            read()


def test_a_checkpoint_that_would_run_code_is_refused(tmp_path):
    class Evil:
        def __reduce__(self):
            return print, ("executed",)

    torch.save({"state_dict": {}, "loops": Evil()}, tmp_path / "step-000000001.ckpt")
    with pytest.raises(CheckpointError, match="not a readable checkpoint"):
        read_checkpoint(tmp_path / "step-000000001.ckpt")


def test_a_started_run_is_neither_overwritten_nor_changed_silently(tmp_path, recipe):
    chosen = recipe("training.epochs=2")
    folder = tmp_path / "run"
    first = train(chosen, folder)
    with pytest.raises(
        OptionError, match=r"holds a finished run; add --resume, --overwrite or another --name"
    ):
        train(chosen, folder)
    assert train(chosen, folder, resume=True) == first
    changed = recipe("training.epochs=2", "optimizer.lr=0.5", "data.mixup=0.1")
    with pytest.raises(RecipeError, match=r"optimizer.lr \(0.002 -> 0.5\)") as caught:
        train(changed, folder, resume=True)
    assert "data.mixup (0.0 -> 0.1)" in str(caught.value)
    assert "delete the folder" in str(caught.value), "a sweep has no --overwrite"
    assert train(changed, folder, overwrite=True).epochs == 2
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "thesis.tex").write_text("precious")
    with pytest.raises(OptionError, match="is not a run folder"):
        train(chosen, tmp_path / "other", overwrite=True)


def test_paths_of_a_run_are_absolute_and_old_runs_still_resume(tmp_path, recipe, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    place = RunFolder("run")
    given = ["data.name=image-folder", "data.image_size=8"]
    for path, start in (("photos", "base"), ("~/photos", "~/base")):
        chosen = recipe(*given, f"data.path={path}", f"init_from={start}")
        assert chosen.data.path == str(tmp_path / "photos")
        assert chosen.init_from == str(tmp_path / "base")
    place.root.mkdir()
    old = chosen.model_copy(deep=True)
    old.data.path = "photos"
    old.init_from = "~/base"
    save_recipe(old, place.recipe)
    place.check(chosen, resume=True, overwrite=False)
    changed = recipe(*given, "data.path=other", f"init_from={start}")
    with pytest.raises(RecipeError, match=r"differs in data\.path"):
        place.check(changed, resume=True, overwrite=False)


def test_a_folder_with_other_files_is_not_a_run(tmp_path, recipe):
    chosen = recipe("training.epochs=1")
    folder = tmp_path / "mine"
    (folder / "data").mkdir(parents=True)
    save_recipe(chosen, folder / "recipe.yaml")
    for given in ({}, {"overwrite": True}):
        with pytest.raises(OptionError, match="is not a run folder; choose another --name"):
            train(chosen, folder, **given)
    with pytest.raises(CheckpointError, match="no run to resume"):
        train(chosen, folder, resume=True)
    assert sorted(path.name for path in folder.iterdir()) == ["data", "recipe.yaml"]
    (folder / "checkpoints").mkdir()  # of a run, beside which somebody put data
    train(chosen, folder, overwrite=True)
    assert not (folder / "data").exists()


def test_a_start_interrupted_by_a_full_disk_can_be_repeated(tmp_path, recipe, monkeypatch):
    def full(path, value):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

    chosen = recipe()
    place = RunFolder(tmp_path / "run")
    place.root.mkdir()
    (place.root / ".recipe.yaml.12.tmp").write_text("na")  # of a start that was killed
    with monkeypatch.context() as patched:
        patched.setattr(run_folder, "write_json", full)
        with pytest.raises(StorageError, match="No space left"):
            place.open(chosen, resume=False, overwrite=False, source={"files": ""})
    with pytest.raises(OptionError, match="holds an unfinished run; add --resume, --overwrite"):
        place.check(chosen, resume=False, overwrite=False)
    place.open(chosen, resume=False, overwrite=True, source={"files": ""})
    assert place.read_source() == {"source": {"files": ""}}
    assert len(list(place.root.iterdir())) == 2


def test_a_non_finite_loss_ends_the_run_and_names_the_step(tmp_path, recipe, monkeypatch):
    original = RecipeLearner.training_step
    monkeypatch.setattr(
        RecipeLearner,
        "training_step",
        lambda self, batch, i: original(
            self, (batch[0] * (float("nan") if self.global_step == 4 else 1), batch[1]), i
        ),
    )
    with pytest.raises(TrainingFailed, match="loss: nan at step 4"):
        train(recipe("training.checkpoint_steps=2"), tmp_path / "run")
    state = read_checkpoint(newest_readable(tmp_path / "run" / "checkpoints"))
    assert state["global_step"] == 4
    assert all(torch.isfinite(value).all() for value in state["state_dict"].values())


def test_moments_of_other_parameters_are_refused():
    model = torch.nn.Linear(2, 3)
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    states = [optimizer.state_dict()]
    groups = weight_decay_groups(model, 0.1)
    check_moments(states, groups)
    check_moments(states, list(model.parameters()))
    with pytest.raises(CheckpointError, match=r"expected moment 0 of shape \(3,\), got \(3, 2\)"):
        check_moments(states, groups[::-1])
