"""Progress: a line every ten seconds without a terminal, a bar on one, and silence otherwise."""

from __future__ import annotations

import io
import re
import sys

import numpy as np
import pytest

from fredholm import progress
from fredholm.errors import OptionError, RecipeError
from fredholm.lab.cli.main import main
from fredholm.training import load_recipe, train


class Clock:
    """A clock that a test advances."""

    def __init__(self, step: float):
        self.now = 0.0
        self.step = step

    def monotonic(self) -> float:
        self.now += self.step
        return self.now


def test_progress_is_one_line_per_ten_seconds(monkeypatch):
    monkeypatch.setattr(progress, "time", Clock(1.0))
    said: list[str] = []
    with progress.shown(said.append):
        assert list(progress.steps("work", range(60), unit="pieces")) == list(range(60))
    assert 5 <= len(said) <= 6
    assert said[0].startswith("work: ")
    assert said[0].endswith(" of 60 pieces")


def test_progress_goes_to_the_active_display_or_nowhere(monkeypatch, capsys):
    monkeypatch.setattr(progress, "EVERY", 0.0)
    outer: list[str] = []
    never = progress.shown(lambda line: pytest.fail(line))
    with progress.shown(outer.append), never, progress.working("outer", 2):
        progress.current().at(1)
    with progress.shown(outer.append), progress.working("next") as show:
        show.at(7, lambda: ", warm")
    assert outer == ["outer", "outer: 1 of 2", "next", "next: 7, warm"]
    assert list(progress.steps("silent", "ab")) == ["a", "b"]
    assert "silent" not in "".join(capsys.readouterr())


def test_a_terminal_has_a_bar_that_disappears_at_the_end(monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    pytest.importorskip("rich")
    monkeypatch.setattr(sys, "stderr", Terminal())
    monkeypatch.setenv("TERM", "xterm")
    with progress.shown(lambda line: pytest.fail(line)) as show:
        for _ in progress.steps("work", range(3)):
            pass
        with pytest.raises(ZeroDivisionError), progress.working("half"):
            raise ZeroDivisionError
        assert show.bars is None  # type: ignore[attr-defined]
    shown = sys.stderr.getvalue()  # type: ignore[attr-defined]
    assert "work" in shown
    assert "half" in shown


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    path = tmp_path_factory.mktemp("progress") / "rows.csv"
    rng = np.random.default_rng(0)
    lines = [f"{x:.3f},{'ab'[int(x > 0)]}" for x in rng.normal(size=60)]
    path.write_text("\n".join(["x,label", *lines]) + "\n")
    return path


SHORT = ["training.epochs=2", "schedule.warmup_epochs=0", "model.body.dim=8", "model.body.depth=1"]


def test_commands_print_progress_without_a_terminal(table, tmp_path, monkeypatch, capsys):
    """During an epoch, while reading files, and in evaluate, predict and explain."""
    monkeypatch.setattr(progress, "EVERY", 0.0)
    said = {}
    run = str(tmp_path / "runs" / "rows")
    for command in (
        ["train", str(table), *SHORT, "--runs", str(tmp_path / "runs")],
        ["evaluate", run],
        ["predict", run, str(table), "--batch-size", "7"],
        ["explain", run],
    ):
        assert main(command) == 0
        said[command[0]] = capsys.readouterr().err
    assert "read rows.csv: 60 rows" in said["train"]
    assert "epoch 2/2: 2 of " in said["train"]
    assert ", train loss 0." in said["train"]
    assert "validation: 1 of " in said["train"]
    assert "calibrate: 1 of 1 batches" in said["train"]
    assert "evaluate on test: 1 of 1 batches" in said["evaluate"]
    assert "predict: 14 of 60 samples" in said["predict"]
    assert "explain: kernels and distance: 1 of 1 layers" in said["explain"]


def test_a_fit_reports_lines_to_its_callback(table, tmp_path, monkeypatch):
    monkeypatch.setattr(progress, "EVERY", 0.0)
    said: list[str] = []
    train(load_recipe(str(table), SHORT), tmp_path / "run", report=said.append)
    assert any(line.startswith("epoch 1/2: 1 of ") for line in said)
    ends = [line for line in said if re.match(r"epoch \d/2  ", line)]
    assert [bool(re.search(r" s, about \d+ (s|min) left$", line)) for line in ends] == [True, False]
    within = [line for line in said if line.startswith("epoch 2/2: ")]
    assert re.search(r"train loss [\d.]+, about \d+ (s|min) left$", within[0])


def test_an_epoch_cut_by_steps_shows_their_number(table, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(progress, "EVERY", 0.0)
    given = ["training.steps=3", "data.batch_size=8", "--runs", str(tmp_path)]
    assert main(["train", str(table), *SHORT, *given]) == 0
    said = capsys.readouterr().err
    assert "3 of 3 steps" in said
    assert " of 5 steps" not in said


def test_checks_without_data_run_before_reading(table, tmp_path, monkeypatch, capsys):
    from fredholm.lab.data import files
    from fredholm.lab.data.files import unlabelled

    train(load_recipe(str(table), SHORT), tmp_path / "run")
    reads: list[str] = []
    monkeypatch.setattr(files, "open_files", lambda *a, **k: reads.append("files"))
    monkeypatch.setattr(unlabelled, "read_unlabelled", lambda *a: reads.append("samples"))
    with pytest.raises(RecipeError, match=r"training\.epoch: unknown key"):
        load_recipe(str(table), ["training.epoch=3"])
    with pytest.raises(RecipeError, match=r"operator\.name: expected an operator, got 'softmx'"):
        load_recipe(str(table), ["operator=softmx"])
    assert main(["train", str(table), "--runs", str(tmp_path), "--name", "run"]) == 2
    assert "holds a finished run; add --resume" in capsys.readouterr().err
    from fredholm.training import predict

    with pytest.raises(OptionError, match=r"out: expected a file .*, got 'a\.xls'"):
        predict(tmp_path / "run", [table], out=tmp_path / "a.xls")
    assert not reads
