"""``pretrained:NAME`` instead of a run's folder."""

from __future__ import annotations

import json

import pytest

from fredholm.__main__ import main
from fredholm.errors import OptionError
from fredholm.models.pretrained import WEIGHTS
from fredholm.training import evaluate, unpack_pretrained


def test_a_copied_run_has_the_score_of_its_card(tmp_path):
    run = unpack_pretrained("digits", tmp_path)
    before = json.loads((run / "evaluation.json").read_text())
    now = evaluate(run)
    assert now["accuracy"] == before["accuracy"]
    assert now["loss"] == pytest.approx(before["loss"], rel=1e-5)


def test_a_copy_is_made_once_and_other_runs_are_refused(tmp_path):
    run = unpack_pretrained("digits", tmp_path)
    (run / "note.txt").write_text("mine")
    assert unpack_pretrained("digits", tmp_path) == run
    assert (run / "note.txt").read_text() == "mine"

    (run / "model" / WEIGHTS).unlink()
    with pytest.raises(OptionError, match="expected the weights that come with this version"):
        unpack_pretrained("digits", tmp_path)


def test_commands_accept_the_name(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", ["fredholm", "evaluate", "pretrained:digits", "--json"])
    assert main() in (0, None)
    said = json.loads(capsys.readouterr().out)
    assert said["run"] == "runs/pretrained-digits"
    assert said["accuracy"] > 0.9


def test_an_unknown_name_gives_one_line(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", ["fredholm", "evaluate", "pretrained:digit"])
    assert main() == 2
    assert "pretrained: expected one of" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
